"""Recording of demonstrations into a LeRobot v3 dataset, in several processes, resumable.

out/                    the dataset
    SUITE/recording.json     settings of the recording, compared on resumption
    SUITE/episodes.parquet   annotation of every episode: its seed, and what the suite knows
    SUITE/unfinished/        episodes recorded so far; deleted when the dataset is complete
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from chameleon_policy.console import Bar
from chameleon_policy.data import assemble, part_indices, write_part
from chameleon_policy.data.schema import INFO_PATH
from chameleon_policy.locking import only_process
from chameleon_policy.seeds import recording_seed
from chameleon_policy.suite import SUITES, Demonstration, RecordingSettings
from chameleon_policy.writing import UNFINISHED as WRITING
from chameleon_policy.writing import whole_file

SETTINGS, TABLE, UNFINISHED = "recording.json", "episodes.parquet", "unfinished"
"""Names in the suite's folder of a dataset."""
ATTEMPTS = 20
"""If an expert fails this often at an episode, each time from another seed, the settings are at
fault.
"""
RESTARTS = 3
"""Times that a dead process is replaced before the recording is given up."""


def find_recording(dataset: Path) -> Path | None:
    """Return the settings file of a dataset's recording, in a folder named like its suite.

    None for a dataset that is no recording of a suite.
    """
    paths = [dataset / suite / SETTINGS for suite in SUITES]
    return next((path for path in paths if path.is_file()), None)


def record(
    recording: RecordingSettings,
    out: Path,
    *,
    workers: int = 1,
    progress: Callable[[int], object] = lambda done: None,
) -> Path:
    """Record, or continue an interrupted recording, and assemble the dataset.

    Args:
        recording: Settings of the recording.
        out: Folder of the dataset; new, empty, or holding an unfinished recording with the same
            settings.
        workers: Processes; episodes do not depend on their number.
        progress: Called with the number of finished episodes, at the beginning and after each one.
    """
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    parts = _prepare(recording, out)
    with only_process(
        parts / "lock",
        f"another process is recording into {out}; wait for it, or choose another --out",
    ):
        _record_missing(recording, parts, workers, progress)
        _write_table(recording, out, parts)
        assemble(parts, out, recording.schema(), range(recording.episodes))
    shutil.rmtree(parts)
    return out


def record_once(recording: RecordingSettings, folder: Path, bar: Bar, workers: int) -> None:
    """Record into a folder unless it holds these demonstrations; ValueError if it holds others."""
    if (folder / INFO_PATH).exists():
        then = json.loads((folder / recording.suite / SETTINGS).read_text())
        if then != recording.as_dict():
            raise ValueError(
                f"{folder} holds other demonstrations ({then}); "
                "give the same options, or another --out"
            )
        return
    with bar(
        f"demonstrations in {folder.parent.name}/{folder.name}", recording.episodes
    ) as advance:
        record(recording, folder, workers=workers, progress=advance)


def _prepare(recording: RecordingSettings, out: Path) -> Path:
    """Return the folder for the episodes, after checking that nothing is overwritten."""
    parts, settings = out / recording.suite / UNFINISHED, out / recording.suite / SETTINGS
    if (out / INFO_PATH).exists():
        # left by a process that was killed at the very end
        shutil.rmtree(parts, ignore_errors=True)
        raise FileExistsError(
            f"{out} already holds a complete dataset. Look at it with `chameleon data inspect "
            f"{out}`, choose another --out, or delete the folder yourself"
        )
    if settings.exists():
        _check_same(recording, settings, out)
    elif out.exists() and (not out.is_dir() or any(map(_is_foreign, out.rglob("*")))):
        raise FileExistsError(
            f"{out} exists and is not an unfinished recording; "
            "choose another --out, or empty it yourself"
        )
    try:
        parts.mkdir(parents=True, exist_ok=True)
        if not settings.exists():
            with whole_file(settings) as unfinished:
                unfinished.write_text(json.dumps(recording.as_dict(), indent=2) + "\n")
    except OSError as error:
        raise ValueError(
            f"cannot write to {out}: {error.strerror or error}. Choose another --out"
        ) from error
    return parts


def _is_foreign(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(WRITING)


def _check_same(recording: RecordingSettings, settings: Path, out: Path) -> None:
    """Raise an error unless an unfinished recording has these settings."""
    try:
        then = json.loads(settings.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{settings} is damaged ({error}): choose another --out, or delete the folder {out}"
        ) from error
    now = recording.as_dict()
    changed = [
        f"{key}: {then.get(key)} then, {now.get(key)} now"
        for key in now | then
        if then.get(key) != now.get(key)
    ]
    if changed:
        raise FileExistsError(
            f"{out} holds an unfinished recording with other settings ({'; '.join(changed)}). "
            "Give the same settings to go on with it, or choose another --out"
        )


def _record_missing(
    recording: RecordingSettings, parts: Path, workers: int, progress: Callable[[int], object]
) -> None:
    """Record the episodes that are not on disk yet; begin again if a process dies."""
    for restarts_left in reversed(range(RESTARTS + 1)):
        missing = sorted(set(range(recording.episodes)) - part_indices(parts))
        done = recording.episodes - len(missing)
        progress(done)
        try:
            for _ in _in_processes(recording, parts, missing, min(workers, max(1, len(missing)))):
                done += 1
                progress(done)
            return
        except BrokenProcessPool as error:
            died = "a recording process died (killed, or out of memory?)"
            if not restarts_left:
                raise ValueError(
                    f"{died}, {RESTARTS + 1} times; the same command goes on where it stopped, if "
                    "need be with fewer --workers"
                ) from error
            warnings.warn(f"{died}; others take its place", stacklevel=2)


def _in_processes(
    recording: RecordingSettings, parts: Path, episodes: list[int], workers: int
) -> Iterator[int]:
    """Record episodes, in this process or in several; yield each when it is on disk."""
    if workers == 1:
        with closing(Recorder(recording, parts)) as recorder:
            yield from map(recorder.record_episode, episodes)
        return
    # `spawn`: an OpenGL context does not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(
        workers, context, initializer=_start_worker, initargs=(recording, parts)
    )
    waiting, pending = iter(episodes), set[Future[int]]()
    try:
        while True:
            # Few at a time: episodes handed to the workers are not cancelled by Ctrl-C.
            pending |= {
                pool.submit(_record_episode, episode)
                for episode in islice(waiting, workers + 1 - len(pending))
            }
            if not pending:
                return
            finished, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in finished:
                yield future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


_recorder: Recorder | None = None


def _start_worker(recording: RecordingSettings, parts: Path) -> None:
    global _recorder
    # Ctrl-C stops the parent, which lets the workers finish their episode
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _recorder = Recorder(recording, parts)


def _record_episode(episode: int) -> int:
    assert _recorder is not None
    return _recorder.record_episode(episode)


class Recorder:
    """Recorder of single episodes, with one environment, in one process."""

    def __init__(self, recording: RecordingSettings, parts: Path) -> None:
        self._recording, self._parts = recording, parts
        self._env, self._schema = recording.make_env(), recording.schema()

    def record_episode(self, episode: int) -> int:
        """Write one successful demonstration; return its index.

        A failed attempt is replaced by another from a fresh seed.
        """
        recording = self._recording
        for attempt in range(ATTEMPTS):
            seed = recording_seed(recording.seed, episode, attempt, recording.episodes)
            demonstration = recording.demonstrate(self._env, episode, seed)
            if demonstration.score.success:
                break
        else:
            raise ValueError(
                f"the expert failed {ATTEMPTS} times at episode {episode} "
                f"({demonstration.score.reason}): lower --noise, or record with easier settings"
            )
        # The annotation first: where a part exists, its annotation does too.
        facts = {"episode_index": episode, "attempts": attempt + 1, **demonstration.annotation}
        with whole_file(_annotation(self._parts, episode)) as unfinished:
            unfinished.write_text(json.dumps(facts))
        frames, vectors = _arrays(demonstration)
        write_part(
            self._parts,
            episode,
            self._schema,
            frames=frames,
            vectors=vectors,
            instruction=recording.instruction,
        )
        return episode

    def close(self) -> None:
        """Free the environment."""
        self._env.close()


def _annotation(parts: Path, episode: int) -> Path:
    return parts / f"annotation-{episode:06d}.json"


def _arrays(demonstration: Demonstration) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the frames (view -> (T, H, W, 3)) and the vectors (feature -> (T, d)) of a dataset."""
    seen = demonstration.observations

    def stacked(key: str) -> np.ndarray:
        return np.stack([observation[key] for observation in seen])

    vectors = {"observation.state": stacked("proprioception"), "action": demonstration.actions}
    if "objects" in seen[0]:
        vectors["observation.environment_state"] = stacked("objects").reshape(len(seen), -1)
    frames = {
        view: np.stack([observation["images"][view] for observation in seen])
        for view in seen[0].get("images", {})
    }
    return frames, vectors


def _write_table(recording: RecordingSettings, out: Path, parts: Path) -> None:
    rows: list[dict[str, Any]] = [
        json.loads(_annotation(parts, episode).read_text()) for episode in range(recording.episodes)
    ]
    table = out / recording.suite / TABLE
    with whole_file(table) as unfinished:
        pq.write_table(pa.Table.from_pylist(rows), unfinished)
