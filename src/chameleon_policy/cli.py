"""The command `chameleon`: one function per subcommand; tyro makes the options from their signatures.

Each command imports what it needs: recording does not wait for torch, and the policy does not need MuJoCo.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console

from chameleon_policy.report.progress_bar import progress_bar
from chameleon_policy.train.config import TrainingConfig
from chameleon_policy.train.recipes import RecipeName, with_recipe

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
def demo(
    out: Path = Path("runs/demo"),
    demonstrations: int | None = None,
    minutes: float | None = None,
    twin_minutes: float | None = None,
    episodes: int | None = None,
    shipped_episodes: int | None = None,
) -> None:
    """Memory against chance in seven minutes: record, train a policy and its memoryless twin, score both, write a page.

    Args:
        out: Folder for everything that is made; what is there already is kept.
        demonstrations: Expert episodes to learn from.
        minutes: Training of Chameleon.
        twin_minutes: Training of the memoryless twin.
        episodes: Held-out episodes for each of the two.
        shipped_episodes: Held-out episodes of each task for the policy that comes with the package.
    """
    with _extra("camo,train"):
        from chameleon_policy.demo import DemoConfig, run_demo

    given = {
        "demonstrations": demonstrations, "minutes": minutes, "twin_minutes": twin_minutes, "episodes": episodes,
        "shipped_episodes": shipped_episodes,
    }  # fmt: skip
    config = DemoConfig(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    page = run_demo(config, out, progress_bar, Console(), command=" ".join(["chameleon", *sys.argv[1:]]))
    print(f"Look at it in a browser: {page.resolve().as_uri()}")


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


@dataclass(frozen=True)
class PolicyOptions:
    """What `train` builds."""

    method: str | None = None
    """chameleon, or what it is compared with: no-memory, act, lstm ... (docs/baselines.md; default: chameleon)."""
    preset: Preset | None = None
    """Size of the policy (default: small)."""
    horizon: int | None = None
    """Actions in one predicted chunk; half of them are executed before the next one (default: 16)."""
    action_steps: int | None = None
    """Time steps of each episode that carry the action loss, drawn anew each time (default: all)."""
    flow_time_power: float = 1.0
    """Above 1, training favours the noise end of the flow."""
    proprioception_noise: float = 0.1
    """Noise on proprioception in training, in normalised units."""
    control_jepa_weight: float = 0.05
    """alpha of the paper."""
    language: str | None = None
    """Text encoder for the dataset's instructions: distilbert-base-uncased, or minilm offline (default: none)."""
    start_from: str | None = None
    """A saved policy to go on from (folder or hub id); it decides method, preset and horizon."""


@dataclass(frozen=True)
class DataKeys:
    """Which arrays of a dataset to use, where its own convention does not fit."""

    state_keys: tuple[str, ...] | None = None
    """Arrays that make up proprioception, joined."""
    action_key: str | None = None
    view_keys: tuple[str, ...] | None = None
    """Cameras (default: all)."""
    objects_key: str | None = None
    """Object slots, in place of cameras."""


@app.command(name="train")
def train(
    data: tyro.conf.Positional[tuple[Path, ...]],
    out: Path,
    training: Annotated[TrainingConfig, tyro.conf.OmitArgPrefixes],
    policy: Annotated[PolicyOptions, tyro.conf.OmitArgPrefixes] = PolicyOptions(),  # noqa: B008
    keys: Annotated[DataKeys, tyro.conf.OmitArgPrefixes] = DataKeys(),  # noqa: B008
    recipe: RecipeName | None = None,
    held_out: tuple[Path, ...] = (),
    tell_answer: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    log: tuple[Literal["tensorboard", "wandb"], ...] = (),
    device: Literal["auto", "cpu", "cuda"] = "auto",
    workers: int = 2,
) -> None:
    """Train a policy on demonstrations; the same command goes on with a run that was stopped or killed.

    On several GPUs: accelerate launch -m chameleon_policy.cli train ... with the same options.

    Args:
        data: LeRobot v3 folders, robomimic HDF5 files, or Diffusion Policy zarrs; several are trained on together.
        out: Folder of the run.
        training: How to train; the defaults are the paper's.
        policy: The policy and its objective.
        keys: Arrays of the dataset.
        recipe: Start from the options of a recipe (camo: what Camo is learned with; camo-state: from object slots, on a
            CPU); options beside it count more.
        held_out: Demonstrations that are not trained on: their losses, and how well a linear probe reads from the memory
            what decisions ask for, are written to metrics.jsonl --watch-times times.
        tell_answer: Give the policy the answer, to see what it fails at besides remembering (recordings of Camo).
        log: Where figures go beside metrics.jsonl.
        device: Where to compute (default: a GPU if there is one).
        workers: Threads that read the dataset, and processes for rollouts that watch the training.
    """
    with _extra("train"):
        from accelerate import PartialState

        from chameleon_policy.data.episodes import Keys
        from chameleon_policy.policy import ObjectiveConfig
        from chameleon_policy.train.run import RunConfig
        from chameleon_policy.train.run import train as train_policy

    objective = ObjectiveConfig(
        action_steps=policy.action_steps, flow_time_power=policy.flow_time_power,
        proprioception_noise=policy.proprioception_noise, control_jepa_weight=policy.control_jepa_weight,
    )  # fmt: skip
    architecture: dict[str, Any] = {"method": policy.method, "preset": policy.preset, "horizon": policy.horizon}
    given = {name: value for name, value in architecture.items() if value is not None}
    if policy.start_from is not None and given:
        options = ", ".join(f"--{name}" for name in given)
        raise ValueError(f"--start-from decides {', '.join(architecture)} of the policy; leave out {options}")
    run = RunConfig(
        data=data, held_out=held_out, tell_answer=tell_answer, objective=objective, language=policy.language,
        start_from=policy.start_from, training=training,
        keys=Keys(state=keys.state_keys, action=keys.action_key, views=keys.view_keys, objects=keys.objects_key),
        **given,
    )  # fmt: skip
    watch = None
    if training.watch_times and training.watch_episodes:
        with _extra("camo"):
            from chameleon_policy.evaluate.watch import watch_training_seeds

        watch = partial(watch_training_seeds, data, training.watch_episodes, workers)
    stopped_by = train_policy(run, out, device=device, workers=workers, loggers=log, watch=watch)
    if stopped_by is not None:
        print(f"chameleon: stopped and saved; the same command goes on with {out}", file=sys.stderr)
        sys.exit(128 + stopped_by)
    if PartialState().is_main_process:
        print(f"Trained: {out}/policy. Figures: {out}/metrics.jsonl. Evaluate it: chameleon eval {out} --task ...")


@app.command(name="eval")
def evaluate(
    run: tyro.conf.Positional[Path],
    task: str,
    episodes: int = 36,
    steps: int | None = None,
    executed: int | None = None,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
    videos: Path | None = None,
    first_seed: int = 1_000_000_000,
    parallel: int = 36,
    workers: int = 2,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    dials: FlatDials = UNTURNED,
) -> None:
    """Score a policy in closed loop on episodes of Camo that no demonstration was made from.

    Args:
        run: Folder of a run or of a saved policy, or camo-small, which comes with the package; or oracle, or guess: the
            experts, with and without knowing the answer.
        task: clean-plate, shell-game or seasonings.
        episodes: Episodes, one per seed.
        steps: Sampling steps of a chunk (default: the policy's own: 50, or 8 for camo-small).
        executed: Actions of a chunk to carry out before the next one (default: half of them, or one for ACT).
        json_file: File for the scores and every episode.
        videos: Folder for videos of the failures.
        first_seed: Seed of the first episode; training seeds are refused.
        parallel: Episodes at the same time.
        workers: Processes for the environments; 0: none but this one.
        device: Where the policy computes (default: a GPU if there is one).
        dials: Looks and difficulty (default: the benchmark's).
    """
    with _extra("camo"):
        from chameleon_policy.evaluate import camo
        from chameleon_policy.evaluate.loading import load_for_evaluation, sampling_steps_of, training_of
        from chameleon_policy.evaluate.videos import save_failures
        from chameleon_policy.report.evaluation_table import evaluation_table
        from chameleon_policy.report.provenance import write_result

    seeds = camo.evaluation_seeds(first_seed, episodes)
    if json_file is not None and json_file.is_dir():
        raise ValueError(f"--json must name a file, and {json_file} is a folder")
    if videos is not None and videos.exists() and not videos.is_dir():
        raise ValueError(f"--videos must name a folder, and {videos} is a file")
    policy, settings = load_for_evaluation(
        run, task, device, nuisance=dials.nuisance, retention_steps=dials.retention, difficulty=dials.difficulty
    )
    with progress_bar(f"evaluating {run}", episodes) as advance:
        evaluation = camo.evaluate(
            policy, settings, seeds, steps=steps, executed=executed, parallel=parallel, workers=workers, progress=advance
        )
    Console().print(evaluation_table(evaluation, str(run)))
    for reason, count in evaluation.summary.reasons.items():
        print(f"{count:4d}  {reason}")
    if json_file is not None:
        result = {
            "policy": str(run), "training": training_of(run), "steps": steps or sampling_steps_of(policy),
            "executed": executed, **evaluation.as_dict(),
        }  # fmt: skip
        write_result(json_file, result, command=" ".join(["chameleon", *sys.argv[1:]]), seeds=seeds)
        print(f"Scores: {json_file}")
    if videos is not None:
        failures = episodes - round(evaluation.summary.sr.value * episodes)
        with progress_bar("drawing the failures", failures) as advance:
            save_failures(settings, evaluation.rollouts, videos, progress=advance)
        print(f"{failures} failures in {videos}")


@app.command(name="reproduce")
def reproduce(
    benchmark: tyro.conf.Positional[Literal["camo"]],
    task: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    out: Path | None = None,
    minutes: float = 20.0,
    demonstrations: int = 120,
    preset: Preset = "small",
    image_size: int = 128,
    episodes: int = 200,
    seed: int = 0,
    workers: int = os.cpu_count() or 1,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> None:
    """From nothing to scores: record demonstrations, train one policy by the recipe, score held-out episodes, compare.

    Args:
        benchmark: What to reproduce.
        task: clean-plate, shell-game or seasonings; give it again for another, which the same policy learns (default: all
            three).
        out: Folder for everything that is made; what is there already is kept (default: runs/reproduce-camo, or
            runs/reproduce-<tasks>).
        minutes: Training.
        demonstrations: Expert episodes of each task to learn from; the paper has 120.
        preset: Size of the policy.
        image_size: Height and width of the pictures.
        episodes: Held-out episodes of each task.
        seed: Of demonstrations and training; held-out episodes stay the same.
        workers: Processes that record and evaluate.
        device: Where to train (default: a GPU if there is one).
    """
    with _extra("camo,train"):
        from chameleon_policy.reproduce import Reproduction
        from chameleon_policy.reproduce import reproduce as run_reproduction

    tasks = {"tasks": task} if task else {}
    config = Reproduction(
        **tasks, minutes=minutes, demonstrations=demonstrations, preset=preset, image_size=image_size, episodes=episodes,
        seed=seed,
    )  # fmt: skip
    folder = out or Path("runs") / "-".join(("reproduce", *(task or ("camo",))))
    command = " ".join(["chameleon", *sys.argv[1:]])
    run_reproduction(config, folder, progress_bar, Console(), command=command, device=device, workers=workers)
    print(f"Scores of every episode: {folder}/scores.json. Policy: {folder}/policy")


@app.command(name="bench")
def bench(
    benchmark: tyro.conf.Positional[Literal["camo"]],
    method: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    task: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    seed: Annotated[tuple[int, ...], tyro.conf.UseAppendAction] = (),
    preset: Preset = "small",
    steps: int = 4000,
    demonstrations: int = 120,
    image_size: int = 128,
    observation: Literal["rgb", "state"] = "rgb",
    episodes: int = 100,
    tell_answer: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    side_by_side: int = 2,
    workers: int = os.cpu_count() or 1,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    out: Path = Path("runs/bench-camo"),
    results: Path = Path("docs/results/camo-table.json"),
    table_only: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Compare methods: train and score each alike, several at a time, and draw the table; the same command goes on.

    Args:
        benchmark: What to compare on.
        method: chameleon, no-memory, act ... (docs/baselines.md); give it again for another (default: all).
        task: clean-plate, shell-game or seasonings; give it again for another, which the same policy learns (default: all
            three).
        seed: Of a training and its demonstrations; give it again for another training (default: 0).
        preset: Size of the policies.
        steps: Optimizer steps of each training.
        demonstrations: Expert episodes of each task to learn from; the paper has 120.
        image_size: Height and width of the pictures.
        observation: Pictures of both cameras; or object slots, from which every task is learned by a policy of its own.
        episodes: Held-out episodes of each task.
        tell_answer: Give every policy the answer, to see what it fails at besides remembering.
        side_by_side: Trainings at the same time.
        workers: Processes that record and evaluate.
        device: Where to train and to play (default: a GPU if there is one).
        out: Folder for demonstrations and runs; what is there already is kept.
        results: File for the scores: a row for each policy and task, added when it is there. The tables (.md, .tex, .html)
            lie beside it.
        table_only: Draw the tables from the results that are there, and run nothing.
    """
    with _extra("camo,train"):
        from chameleon_policy.bench.plan import Bench
        from chameleon_policy.bench.rows import Results
        from chameleon_policy.bench.run import Workshop, run_bench
        from chameleon_policy.report.comparison.files import draw_tables

    file, console = Results(results), Console()
    if table_only:
        draw_tables(results, file.rows, console)
        return
    given: dict[str, Any] = {"methods": method, "tasks": task, "seeds": seed}
    config = Bench(
        **{name: values for name, values in given.items() if values}, preset=preset, steps=steps, image_size=image_size,
        demonstrations=demonstrations, observation=observation, episodes=episodes, tell_answer=tell_answer,
    )  # fmt: skip
    command = " ".join(["chameleon", *sys.argv[1:]])
    workshop = Workshop(
        out=out, results=file, command=command, device=device, side_by_side=side_by_side, workers=workers
    )  # fmt: skip
    try:
        run_bench(config, workshop, progress_bar, console)
    finally:  # what is there is drawn, whatever became of the rest
        if file.rows:
            draw_tables(results, file.rows, console)


@app.command(name="probe")
def probe(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    task: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    surgery: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    fitted: int = 120,
    asked: int = 60,
    episodes: int = 36,
    steps: int = 8,
    out: Path = Path("runs/probes"),
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
    found_only: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    workers: int = os.cpu_count() or 1,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> None:
    """Look into the memory of trained policies: separability, addressability, prospectiveness, beside the paper's figures.

    The same command goes on where it was; what was found before is not measured again.

    Args:
        runs: Folders of runs or of saved policies, or camo-small: Chameleon and its ablations. The first is compared with
            the others: give one that was trained without Control-JEPA to see what that is worth.
        task: clean-plate, shell-game or seasonings; give it again for another (default: all that a policy plays).
        surgery: Tasks in which memories are edited at the decisions, or none (default: seasonings, as in the paper; or all,
            for a policy that does not play it).
        fitted: Demonstrations of each task that the linear probes are fitted to.
        asked: Other demonstrations that they are asked about.
        episodes: Held-out episodes that are played, and played again with every edit.
        steps: Euler steps of a chunk.
        out: Folder for demonstrations, findings and figures.
        json_file: File for everything that was found (default: probes.json in --out).
        found_only: Show and draw what was found before, whatever its settings were, and measure nothing.
        workers: Processes that record and play.
        device: Where the policies compute (default: a GPU if there is one).
    """
    with _extra("camo,train"):
        from chameleon_policy.probes.study import Place, Study, found_before, probe_runs
        from chameleon_policy.report.probes.files import publish

    if not runs:
        raise ValueError("name at least one run: chameleon probe runs/plate, or chameleon probe camo-small")
    command = " ".join(["chameleon", *sys.argv[1:]])
    study = Study(fitted=fitted, asked=asked, episodes=episodes, steps=steps)
    place = Place(out=out, command=command, device=device, workers=workers)
    findings = found_before(runs, task, out) if found_only else probe_runs(runs, task, surgery, study, place, progress_bar)
    for path in publish(findings, out, json_file or out / "probes.json", command, Console()):
        print(f"Written: {path}")


@app.command(name="report")
def report(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    task: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    out: Path = Path("runs/report"),
    episodes: int = 12,
    shown: int = 2,
    fitted: int = 48,
    steps: int = 8,
    rerun: Path | None = None,
    probes: Path = Path("runs/probes"),
    workers: int = os.cpu_count() or 1,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> None:
    """One page on trained policies: scores, learning curves, clips, and the memory theatre, where you watch them remember.

    Args:
        runs: Folders of runs or of saved policies, or camo-small: Chameleon and its ablations.
        task: clean-plate, shell-game or seasonings; give it again for another (default: all that a policy plays).
        out: Folder for the page, its scores and demonstrations.
        episodes: Held-out episodes of each task.
        shown: Of them in the theatre: a success, a failure if there is one, then others.
        fitted: Demonstrations of each task that the probes of beliefs are fitted to.
        steps: Euler steps of a chunk.
        rerun: File (.rrd) for the theatre's episodes as a Rerun recording; needs the extra rerun.
        probes: Folder in which chameleon probe keeps what it found of these runs; its figures come on the page.
        workers: Processes that record and play.
        device: Where the policies compute (default: a GPU if there is one).
    """
    with _extra("camo,train"):
        from chameleon_policy.reporting import Report, report_runs
    if rerun is not None:
        with _extra("rerun"):
            from chameleon_policy.report.theatre.rerun_recording import check_recording, save_recording

        check_recording(rerun)
    if not runs:
        raise ValueError("name at least one run: chameleon report runs/plate, or chameleon report camo-small")
    config = Report(episodes=episodes, shown=shown, fitted=fitted, steps=steps)
    command = " ".join(["chameleon", *sys.argv[1:]])
    page, theatre = report_runs(
        runs, task, config, out, progress_bar, command, probes=probes, device=device, workers=workers
    )
    if rerun is not None:
        save_recording(theatre, rerun)
        print(f"Look at it in Rerun: rerun {rerun}")
    print(f"Look at it in a browser: {page.resolve().as_uri()}")


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
        app.cli(
            prog="chameleon", description="Chameleon: a visuomotor policy that remembers.", args=with_recipe(sys.argv[1:])
        )
    except (ValueError, OSError, ImportError) as error:
        print(f"chameleon: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("chameleon: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
