"""The command `chameleon`: one function per subcommand; tyro makes the options from their signatures.

Each command imports what it needs: recording does not wait for torch, and the policy does not need MuJoCo.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

app = tyro.extras.SubcommandApp()
Preset = Literal["paper", "small", "nano"]
CamoTask = tyro.conf.Positional[str]


@dataclass(frozen=True)
class Dials:
    """What `record` and `play` let people turn on a Camo task."""

    nuisance: Literal["none", "mild", "strong"] = "none"
    """Variation of light, colours and cameras."""
    retention_steps: str = "3-10"
    """Control steps between evidence and decision: a number, or a range like 3-10."""
    swaps: str | None = None
    """Shell game: how often cups change places, 0 to 6 (a number or a range; default 1-2)."""
    distractor_hovers: str | None = None
    """Clean plate: plates that the hand only hovers over, 0 to 2 (a number or a range; default 0-2)."""

    @property
    def difficulty(self) -> dict[str, Any]:
        """The task's own dials, where they were turned."""
        turned = {"swaps": self.swaps, "distractor_hovers": self.distractor_hovers}
        return {name: _span(name, text) for name, text in turned.items() if text is not None}

    @property
    def retention(self) -> int | tuple[int, int]:
        """Steps of retention as a number or a pair."""
        return _span("retention_steps", self.retention_steps)


FlatDials = Annotated[Dials, tyro.conf.OmitArgPrefixes]
UNTURNED = Dials()


@app.command(name="params")
def params(
    size: tyro.conf.Positional[Preset] = "paper",
    as_json: Annotated[bool, tyro.conf.arg(name="json"), tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Print the parameter budget beside the paper's.

    Args:
        size: Preset of the policy.
        as_json: Print the integers as JSON and nothing else.
    """
    from chameleon_policy.policy import ChameleonPolicy, parameter_budget
    from chameleon_policy.policy.presets import budget_features, preset
    from chameleon_policy.report.budget_table import budget_table

    policy = ChameleonPolicy(preset(size), budget_features(), with_control_jepa=False)
    budget = parameter_budget(policy)
    if as_json:
        print(json.dumps(asdict(budget), indent=2))
    else:
        Console().print(budget_table(budget, beside_paper=size == "paper"))


@app.command(name="demo")
def demo(control_steps: int = 48, seed: int = 0) -> None:
    """Build the paper-size policy, stream random observations through it, print its budget and its timings.

    Args:
        control_steps: Observations to stream; a chunk of actions is sampled every half horizon.
        seed: Seed of the weights, observations and noise.
    """
    from chameleon_policy.demo import stream_demo

    stream_demo(control_steps=control_steps, seed=seed)


@app.command(name="record")
def record(
    task: CamoTask,
    out: Path,
    episodes: int = 120,
    size: int = 128,
    seed: int = 0,
    workers: int = 2,
    observation: Literal["rgb", "state"] = "rgb",
    noise: float = 1.0,
    dials: FlatDials = UNTURNED,
) -> None:
    """Record expert demonstrations of a Camo task as a LeRobot v3 dataset; an interrupted recording is continued.

    Args:
        task: clean-plate, shell-game or seasonings.
        out: Folder of the dataset; never overwritten.
        episodes: Demonstrations, balanced over z.
        size: Height and width of the pictures.
        seed: Number of the recording; different numbers share no episode.
        workers: Processes.
        observation: Pictures of both cameras, or object slots.
        noise: Strength of the disturbance that the expert corrects (1 is the benchmark's).
        dials: Looks and difficulty.
    """
    with _extra("camo"):
        from chameleon_policy.camo.recording import Recording
        from chameleon_policy.camo.recording import record as record_dataset

    recording = Recording(
        task=task, episodes=episodes, seed=seed, observation=observation, image_size=size, noise=noise,
        nuisance=dials.nuisance, retention_steps=dials.retention, difficulty=dials.difficulty,
    )  # fmt: skip
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        line = bar.add_task(f"recording {task}", total=episodes, rate="")
        try:
            record_dataset(recording, out, workers=workers, progress=lambda done: _advance(bar, line, done))
        except KeyboardInterrupt:
            raise ValueError(f"interrupted; the same command goes on with {out} where it stopped") from None
        except OSError as error:
            if isinstance(error, FileExistsError):
                raise
            raise ValueError(
                f"{error}; when that is mended, the same command goes on with {out} where it stopped"
            ) from error
    print(f"{episodes} demonstrations of {task} in {out}. Look at them: chameleon data inspect {out}")


@app.command(name="data")
def data(
    action: tyro.conf.Positional[Literal["inspect"]], folder: tyro.conf.Positional[Path], sheet: Path | None = None
) -> None:
    """Look at a LeRobot v3 dataset: print a summary and write a contact sheet.

    Args:
        action: What to do.
        folder: Folder of the dataset.
        sheet: File for the contact sheet (default: contact-sheet.png in the dataset's folder).
    """
    with _extra("camo"):
        from chameleon_policy.data import RecordedDataset
        from chameleon_policy.report.dataset_summary import save_contact_sheet, summary_table

    dataset = RecordedDataset(folder)
    Console().print(summary_table(dataset))
    path = sheet or folder / "contact-sheet.png"
    if save_contact_sheet(dataset, path):
        print(f"Contact sheet: {path}")
    else:
        print("The dataset has no pictures, so there is no contact sheet.")


@app.command(name="play")
def play(
    task: CamoTask,
    out: Path = Path("clip.mp4"),
    z: str | None = None,
    seed: int = 0,
    size: int = 320,
    dials: FlatDials = UNTURNED,
) -> None:
    """Watch an expert play one episode of a Camo task: a video of both cameras and a contact sheet beside it.

    Args:
        task: clean-plate, shell-game or seasonings.
        out: File for the video; the contact sheet gets the same name with .png.
        z: The answer, like 1, or 0,2,2 for seasonings (default: the seed decides).
        seed: Seed of the episode.
        size: Height and width of each view.
        dials: Looks and difficulty.
    """
    with _extra("camo"):
        from chameleon_policy.camo import CamoEnv
        from chameleon_policy.camo.play import check_output, parse_answer, save_clip, save_sheet, watch_episode

    if seed < 0:
        raise ValueError(f"--seed must be at least 0, got {seed}")
    env = CamoEnv(task, observation="state", nuisance=dials.nuisance, retention_steps=dials.retention, **dials.difficulty)
    answer = parse_answer(env.task, z)
    sheet = check_output(out, size)
    with Console(stderr=True).status(f"playing {task} ...") as status:
        moments, result = watch_episode(
            env, seed, answer, size, progress=lambda step: status.update(f"playing {task}: step {step}")
        )
        save_clip(moments, out)
        save_sheet(moments, env, sheet)
    print(f"z = {env.z}, chosen: {result.choice}, {result.reason}. Video: {out}, contact sheet: {sheet}")


def _advance(bar: Progress, line: Any, done: int) -> None:
    bar.update(line, completed=done)
    speed = bar.tasks[0].speed
    bar.update(line, rate=f"{60 * speed:.0f}/min" if speed else "")


def _span(name: str, text: str) -> int | tuple[int, int]:
    """A number, or a range like 3-10."""
    ends = text.split("-")
    if len(ends) > 2 or not all(end.strip().isdecimal() for end in ends):
        raise ValueError(f"--{name.replace('_', '-')} must be a number like 5 or a range like 3-10, got {text!r}")
    return int(ends[0]) if len(ends) == 1 else (int(ends[0]), int(ends[1]))


@contextmanager
def _extra(name: str) -> Iterator[None]:
    """Say which extra to install when one of its packages is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(f"this command needs {error.name}: pip install 'chameleon-policy[{name}]'") from error


def main() -> None:
    """Run the command line; what the user did wrong is said in one line, without a traceback."""
    try:
        app.cli(prog="chameleon", description="Chameleon: a visuomotor policy that remembers.")
    except (ValueError, OSError, ImportError) as error:
        print(f"chameleon: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("chameleon: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
