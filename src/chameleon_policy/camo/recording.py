"""Recording demonstrations into a LeRobot v3 dataset, with several processes, resumable at any
moment.

out/                    the dataset
    camo/recording.json     what is being recorded: compared on resumption
    camo/episodes.parquet   seed, z, t_d, phases and difficulty of every episode
    camo/unfinished/        episodes that are not yet part of the dataset; gone when it is complete
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from chameleon_policy.camo.cameras import VIEWS
from chameleon_policy.camo.controller import ACTION_NAMES
from chameleon_policy.camo.demonstration import Demonstration, demonstrate
from chameleon_policy.camo.env import SLOT_NAMES, CamoEnv, Mode
from chameleon_policy.camo.nuisance import Level
from chameleon_policy.camo.seeds import recording_seed, stream
from chameleon_policy.camo.tasks import Answer, Span, make_task, task_named
from chameleon_policy.camo.world import CONTROL_HZ
from chameleon_policy.console import Bar
from chameleon_policy.data import Schema, assemble, part_indices, write_part
from chameleon_policy.data.schema import INFO_PATH
from chameleon_policy.locking import only_process

SETTINGS, TABLE, UNFINISHED = "camo/recording.json", "camo/episodes.parquet", "camo/unfinished"
LARGEST_NOISE = 5.0
ATTEMPTS = 20
"""An episode whose demonstration fails this often with ever new seeds is a fault of the
settings.
"""


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What to record. Two recordings with equal settings are equal, whatever the number of
    processes.
    """

    task: str
    episodes: int = 120
    seed: int = 0
    observation: Mode = "rgb"
    image_size: int = 128
    retention_steps: Span = (3, 10)
    nuisance: Level = "none"
    noise: float = 1.0
    difficulty: dict[str, Span] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, number in (
            ("episodes", self.episodes),
            ("seed", self.seed),
            ("image_size", self.image_size),
        ):
            if not isinstance(number, int) or isinstance(number, bool):
                raise ValueError(f"{name} must be a whole number, got {number!r}")
        if self.episodes < 1:
            raise ValueError(f"episodes must be at least 1, got {self.episodes}")
        if not isinstance(self.noise, (int, float)) or not 0 <= self.noise <= LARGEST_NOISE:
            raise ValueError(f"noise must be between 0 and {LARGEST_NOISE}, got {self.noise!r}")
        make_task(self.task, self.difficulty)
        if self.observation == "rgb" and self.image_size % 2:
            raise ValueError(
                f"image_size must be even (videos store colour at half the resolution), got {self.image_size}"
            )
        recording_seed(self.seed, self.episodes - 1, 0, self.episodes)
        self.make_env().close()  # a wrong parameter is refused here, before anything is written

    def make_env(self) -> CamoEnv:
        """An environment with these settings."""
        difficulty: dict[str, Any] = self.difficulty
        return CamoEnv(
            self.task,
            observation=self.observation,
            image_size=self.image_size,
            retention_steps=self.retention_steps,
            nuisance=self.nuisance,
            **difficulty,
        )

    def answer(self, episode: int) -> Answer:
        """z of an episode: every block of as many episodes as there are answers holds each of them
        once, in random order.
        """
        answers = task_named(self.task).answers
        block, place = divmod(episode, len(answers))
        order = stream(self.seed, "balance", block).permutation(len(answers))
        return answers[int(order[place])]

    def schema(self) -> Schema:
        """The features of the dataset."""
        vectors: dict[str, tuple[str, ...]] = {
            "observation.state": ACTION_NAMES,
            "action": ACTION_NAMES,
        }
        views = {}
        if self.observation == "rgb":
            views = dict.fromkeys(VIEWS, (self.image_size, self.image_size))
        else:
            task = task_named(self.task)
            slots = len(task.candidates) + len(task.others) + len(task.hands)
            names = tuple(f"slot{slot}.{name}" for slot in range(slots) for name in SLOT_NAMES)
            vectors["observation.environment_state"] = names
        return Schema(fps=CONTROL_HZ, robot_type="ur5e", views=views, vectors=vectors)

    def as_dict(self) -> dict[str, Any]:
        """In JSON's types."""
        settings: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return settings


def record(
    recording: Recording,
    out: Path,
    *,
    workers: int = 1,
    progress: Callable[[int], object] = lambda done: None,
) -> Path:
    """Record, or go on with an interrupted recording, and assemble the dataset.

    Args:
        recording: What to record. out: Folder of the dataset; must be new, empty, or hold an
        unfinished recording with the same settings. workers: Processes. Episodes do not depend on
        their number. progress: Called with the number of episodes that are done, at the beginning
        and after each one.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    parts = _prepare(recording, out)
    with only_process(
        out / UNFINISHED / "lock",
        f"another process is recording into {out}; wait for it, or choose another --out",
    ):
        missing = sorted(set(range(recording.episodes)) - part_indices(parts))
        done = recording.episodes - len(missing)
        progress(done)
        for _ in _in_processes(recording, parts, missing, min(workers, max(1, len(missing)))):
            done += 1
            progress(done)
        _write_table(recording, out, parts)
        assemble(parts, out, recording.schema(), range(recording.episodes))
    shutil.rmtree(out / UNFINISHED)
    return out


def record_once(recording: Recording, folder: Path, bar: Bar, workers: int) -> None:
    """Record into the folder, unless these very demonstrations are there; ValueError if it holds
    others.
    """
    if (folder / INFO_PATH).exists():
        then = json.loads((folder / SETTINGS).read_text())
        if then != recording.as_dict():
            raise ValueError(
                f"{folder} holds other demonstrations ({then}); give the same options, or another --out"
            )
        return
    with bar(
        f"demonstrations in {folder.parent.name}/{folder.name}", recording.episodes
    ) as advance:
        record(recording, folder, workers=workers, progress=advance)


def _prepare(recording: Recording, out: Path) -> Path:
    """The folder for parts, after making sure that nothing of value is overwritten."""
    settings = out / SETTINGS
    if (out / INFO_PATH).exists():
        # what a kill at the very end left behind
        shutil.rmtree(out / UNFINISHED, ignore_errors=True)
        raise FileExistsError(
            f"{out} already holds a complete dataset. Look at it with `chameleon data inspect {out}`, choose another --out, "
            "or delete the folder yourself"
        )
    if settings.exists():
        try:
            then = json.loads(settings.read_text())
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{settings} is damaged ({error}): choose another --out, or delete the folder {out}"
            ) from error
        now = recording.as_dict()
        changed = [
            f"{key}: {then.get(key)} then, {now[key]} now"
            for key in now
            if then.get(key) != now[key]
        ]
        if changed:
            raise FileExistsError(
                f"{out} holds an unfinished recording with other settings ({'; '.join(changed)}). Give the same settings to "
                "go on with it, or choose another --out"
            )
    elif out.exists() and (not out.is_dir() or any(path.is_file() for path in out.rglob("*"))):
        raise FileExistsError(
            f"{out} exists and is not an unfinished recording; choose another --out, or empty it yourself"
        )
    try:
        (out / UNFINISHED).mkdir(parents=True, exist_ok=True)
        if not settings.exists():
            unfinished = settings.with_suffix(".unfinished")
            unfinished.write_text(json.dumps(recording.as_dict(), indent=2) + "\n")
            unfinished.replace(settings)
    except OSError as error:
        raise ValueError(
            f"cannot write to {out}: {error.strerror or error}. Choose another --out"
        ) from error
    return out / UNFINISHED


def _in_processes(
    recording: Recording, parts: Path, episodes: list[int], workers: int
) -> Iterator[int]:
    """Record episodes, in this process or in several; yields each when it is on disk."""
    if workers == 1:
        with closing(Recorder(recording, parts)) as recorder:
            yield from map(recorder.record_episode, episodes)
        return
    # `spawn`, since an OpenGL context does not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        workers, context, initializer=_start_worker, initargs=(recording, parts)
    )
    waiting, pending = iter(episodes), set[Future[int]]()
    try:
        while True:
            # Few at a time: what was handed to the workers cannot be taken back when somebody
            # presses Ctrl-C.
            pending |= {
                pool.submit(_work, episode)
                for episode in islice(waiting, workers + 1 - len(pending))
            }
            if not pending:
                return
            finished, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in finished:
                yield future.result()
    except BrokenProcessPool as error:
        raise ValueError(
            "a recording process died (killed, or out of memory?); the same command goes on where it stopped"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_recorder: Recorder | None = None


def _start_worker(recording: Recording, parts: Path) -> None:
    global _recorder
    # Ctrl-C stops the parent, which lets the workers finish their episode
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _recorder = Recorder(recording, parts)


def _work(episode: int) -> int:
    assert _recorder is not None
    return _recorder.record_episode(episode)


class Recorder:
    """Records single episodes in one process, with one environment."""

    def __init__(self, recording: Recording, parts: Path) -> None:
        self._recording, self._parts = recording, parts
        self._env, self._schema = recording.make_env(), recording.schema()

    def record_episode(self, episode: int) -> int:
        """One successful demonstration of the episode's z; a failed one is replaced by another with
        a fresh seed.
        """
        recording = self._recording
        for attempt in range(ATTEMPTS):
            seed = recording_seed(recording.seed, episode, attempt, recording.episodes)
            demonstration = demonstrate(
                self._env, seed, recording.answer(episode), noise=recording.noise
            )
            if demonstration.score.success:
                break
        else:
            raise ValueError(
                f"the expert failed {ATTEMPTS} times at episode {episode} ({demonstration.score.reason}): lower --noise, or "
                "record with easier settings"
            )
        # The annotation first: a part that exists is complete, and then its annotation is there
        # too.
        facts = {"episode_index": episode, "attempts": attempt + 1, **demonstration.annotation}
        _annotation(self._parts, episode).write_text(json.dumps(facts))
        frames, vectors = _arrays(demonstration)
        instruction = self._env.task.instruction
        write_part(
            self._parts,
            episode,
            self._schema,
            frames=frames,
            vectors=vectors,
            instruction=instruction,
        )
        return episode

    def close(self) -> None:
        """Free the environment."""
        self._env.close()


def _annotation(parts: Path, episode: int) -> Path:
    return parts / f"annotation-{episode:06d}.json"


def _arrays(demonstration: Demonstration) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    seen = demonstration.observations
    vectors = {
        "observation.state": np.stack([each["proprioception"] for each in seen]),
        "action": demonstration.actions,
    }
    if "images" in seen[0]:
        return {
            view: np.stack([each["images"][view] for each in seen]) for view in seen[0]["images"]
        }, vectors
    vectors["observation.environment_state"] = np.stack([each["objects"].ravel() for each in seen])
    return {}, vectors


def _write_table(recording: Recording, out: Path, parts: Path) -> None:
    rows = [
        json.loads(_annotation(parts, episode).read_text()) for episode in range(recording.episodes)
    ]
    unfinished = out / f"{TABLE}.unfinished"
    pq.write_table(pa.Table.from_pylist(rows), unfinished)
    unfinished.replace(out / TABLE)
