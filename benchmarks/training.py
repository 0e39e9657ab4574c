"""Measure whether training waits for data.

    python -m benchmarks.training                   two CPU cores: the nano policy on pictures
    python -m benchmarks.training --device cuda     a GPU: the paper's policy, data there or not

Demonstrations are read from disk, and steps that fetch their batch are compared with steps that
have it at hand. Demonstrations are recorded into a temporary folder unless `--data` names some.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from accelerate import Accelerator
from rich.console import Console
from rich.table import Table

from benchmarks import with_arguments
from benchmarks.timing import compare, measure
from chameleon_policy import ChameleonPolicy, preset
from chameleon_policy.camo.recording import Recording
from chameleon_policy.data import EpisodeArrays, Episodes, load_episodes, open_episodes
from chameleon_policy.data.lerobot_episodes import LeRobotEpisodes
from chameleon_policy.data.video import decode_video
from chameleon_policy.provenance import write_result
from chameleon_policy.recorder import record
from chameleon_policy.train.config import TrainingConfig
from chameleon_policy.train.feeder import Feeder
from chameleon_policy.train.loop import Trainer
from chameleon_policy.train.normalization import statistics_of
from chameleon_policy.train.sampling import episodes_of_step, seed_weights
from chameleon_policy.train.store import EpisodeStore, features_of

COMMAND = "python -m benchmarks.training"
SEED = 0
SIZE = 128
START = 4
"""Warm-up steps: a wait at the start of a run is no share of a long run."""
SAMPLED = 4
"""Episodes that are also read frame by frame."""


@contextmanager
def demonstrations(data: Path | None, episodes: int, workers: int) -> Iterator[Path]:
    """Yield a dataset with pictures: the given one, or a temporary one."""
    if data is not None:
        yield data
        return
    folder = Path(tempfile.mkdtemp())
    print(f"Recording {episodes} demonstrations ...")
    try:
        yield record(
            Recording(task="shell-game", episodes=episodes, image_size=SIZE),
            folder / "data",
            workers=workers,
        )
    finally:
        shutil.rmtree(folder)


def reading(path: Path, workers: int) -> tuple[Episodes, list[EpisodeArrays], dict[str, Any]]:
    """Time reading whole episodes in order, and frame by frame with a seek each."""
    start = time.perf_counter()
    episodes = open_episodes(path)
    arrays = load_episodes(episodes, workers=workers)
    seconds = time.perf_counter() - start
    assert isinstance(episodes, LeRobotEpisodes)
    start, frames = time.perf_counter(), 0
    for index in range(SAMPLED):
        for view, key in episodes.layout.view_keys.items():
            rate = episodes.dataset.schema.rate
            first = round(
                episodes.dataset.episodes[index].row[f"videos/{key}/from_timestamp"] * rate
            )
            for frame in range(episodes.lengths[index]):
                file, size = episodes.dataset.file_of(index, key), episodes.views[view]
                list(decode_video(file, rate, first + frame, 1, size))
                frames += 1
    by_frame = (time.perf_counter() - start) / frames
    pictures = sum(episodes.lengths) * len(episodes.views)
    return (
        episodes,
        arrays,
        {
            "episodes": len(episodes),
            "pictures": pictures,
            "size": list(next(iter(episodes.views.values()))),
            "workers": workers,
            "seconds": seconds,
            "pictures_per_second": pictures / seconds,
            "frame_by_frame_ratio": by_frame / (seconds * workers / pictures),
        },
    )


def waiting(
    episodes: Episodes,
    arrays: list[EpisodeArrays],
    device: torch.device,
    name: str,
    batch: int,
    steps: int,
) -> Any:
    """Time steps that fetch their batch against the same steps with batches at hand."""
    rows = {}
    features = features_of(episodes, horizon=16)
    accelerator = Accelerator(
        cpu=device.type == "cpu", mixed_precision="bf16" if device.type == "cuda" else "no"
    )
    config = TrainingConfig(steps=1_000_000, batch=batch, seed=SEED)
    for place in ("resident", "travelling") if device.type == "cuda" else ("resident",):
        seed_weights(SEED)
        policy = ChameleonPolicy(preset(name), features, statistics_of(arrays)).to(device).train()
        store = EpisodeStore(
            arrays, features, policy.statistics, device=device, resident=place == "resident"
        )
        trainer = Trainer(policy, store, config, Path("unused"), accelerator)
        rows[place] = step_times(trainer, steps)
        print(json.dumps({place: rows[place]}))
    return {"preset": name, "batch": batch, "device": str(device), "data": rows}


def step_times(trainer: Trainer, steps: int) -> dict[str, float]:
    """Time steps that fetch their batch, steps with batches at hand, and making batches alone."""
    store, config, device = trainer.store, trainer.config, trainer.accelerator.device
    with Feeder(store, config, trainer.accelerator, 0) as feeder:
        ready = [feeder.next_step() for _ in range(START + steps)]

    def fetching() -> float:
        with Feeder(store, config, trainer.accelerator, 0) as feeder:
            for _ in range(START):
                trainer._step(feeder.next_step(), 0.0)
            return measure(
                lambda: [trainer._step(feeder.next_step(), 0.0) for _ in range(steps)], device
            )

    def at_hand() -> float:
        for batches in ready[:START]:
            trainer._step(batches, 0.0)
        return measure(lambda: [trainer._step(batches, 0.0) for batches in ready[START:]], device)

    def episodes_of(first: int, end: int) -> list[list[int]]:
        return [
            episodes_of_step(SEED, step, config.batch, store.lengths) for step in range(first, end)
        ]

    def preparing() -> float:
        batches = episodes_of(0, START)
        return measure(lambda: [store.batch(episodes) for episodes in batches], device)

    seconds = compare({"fetching": fetching, "at hand": at_hand, "preparing": preparing}, rounds=5)
    frames = sum(
        store.lengths[episode]
        for episodes in episodes_of(START, START + steps)
        for episode in episodes
    )
    return {
        "step_ms": 1e3 * seconds["fetching"] / steps,
        "frames_per_second": frames / seconds["fetching"],
        "step_at_hand_ms": 1e3 * seconds["at hand"] / steps,
        "wait_share": max(0.0, 1 - seconds["at hand"] / seconds["fetching"]),
        "data_bytes": store.nbytes,
        "prepare_batch_ms": 1e3 * seconds["preparing"] / START,
    }


def main(
    device: Literal["cpu", "cuda"] = "cpu",
    data: Path | None = None,
    episodes: int = 120,
    workers: int = 2,
    out: Path | None = None,
) -> None:
    """Measure, print, and write the result.

    Args:
        device: Where to train.
        data: A LeRobot dataset with pictures to measure on.
        episodes: Demonstrations to record when there is none.
        workers: Threads that read, and processes that record.
        out: File to write; runs/training-<device>.json by default.
    """
    target = torch.device(device)
    with demonstrations(data, episodes, workers) as path:
        found, arrays, read = reading(path, workers)
        size = ("paper", 32, 40) if device == "cuda" else ("nano", 2, 4)
        step = waiting(found, arrays, target, *size)
    table = Table(title=f"Data and training on {device}")
    for column in ("what", "measured"):
        table.add_column(column)
    table.add_row(
        f"reading {read['episodes']} episodes, {read['pictures']:,} pictures",
        f"{read['seconds']:.1f} s",
    )
    table.add_row(
        "the same frame by frame, with a seek each", f"{read['frame_by_frame_ratio']:.1f} x as long"
    )
    for place, row in step["data"].items():
        table.add_row(
            f"{step['preset']}, data {place}: step",
            f"{row['step_ms']:.0f} ms, {row['frames_per_second']:,.0f} frames/s",
        )
        table.add_row(
            f"{step['preset']}, data {place}: waiting for data",
            f"{row['wait_share']:.2%} of the time",
        )
    Console().print(table)
    result_path = out or Path("runs") / f"training-{device}.json"
    command = with_arguments(COMMAND)
    write_result(result_path, {"reading": read, "training": step}, command=command, seeds=[SEED])
    print(f"Written to {result_path}")


if __name__ == "__main__":
    tyro.cli(main, prog=COMMAND)
