"""Commands on demonstrations: record, data, play."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console

from chameleon_policy.cli.dials import UNTURNED, CamoTask, FlatDials
from chameleon_policy.cli.shared import extra
from chameleon_policy.console import progress_bar


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
    with extra("camo"):
        from chameleon_policy.camo.recording import Recording
        from chameleon_policy.camo.recording import record as record_dataset

    recording = Recording(
        task=task, episodes=episodes, seed=seed, observation=observation, image_size=size, noise=noise,
        nuisance=dials.nuisance, retention_steps=dials.retention, difficulty=dials.difficulty,
    )  # fmt: skip
    with progress_bar(f"recording {task}", episodes) as advance:
        try:
            record_dataset(recording, out, workers=workers, progress=advance)
        except KeyboardInterrupt:
            raise ValueError(f"interrupted; the same command goes on with {out} where it stopped") from None
        except OSError as error:
            if isinstance(error, FileExistsError):
                raise
            raise ValueError(
                f"{error}; when that is mended, the same command goes on with {out} where it stopped"
            ) from error
    print(f"{episodes} demonstrations of {task} in {out}. Look at them: chameleon data inspect {out}")


def data(
    action: tyro.conf.Positional[Literal["inspect"]], folder: tyro.conf.Positional[Path], sheet: Path | None = None
) -> None:
    """Look at a LeRobot v3 dataset: print a summary and write a contact sheet.

    Args:
        action: What to do.
        folder: Folder of the dataset.
        sheet: File for the contact sheet (default: contact-sheet.png in the dataset's folder).
    """
    with extra("camo"):
        from chameleon_policy.data import RecordedDataset
        from chameleon_policy.report.dataset_summary import save_contact_sheet, summary_table

    dataset = RecordedDataset(folder)
    Console().print(summary_table(dataset))
    path = sheet or folder / "contact-sheet.png"
    if save_contact_sheet(dataset, path):
        print(f"Contact sheet: {path}")
    else:
        print("The dataset has no pictures, so there is no contact sheet.")


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
    with extra("camo"):
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
