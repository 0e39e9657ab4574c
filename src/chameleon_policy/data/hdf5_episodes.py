"""Episodes in HDF5 files of robomimic and LIBERO: data/demo_<i>/{actions, obs/<key>}."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from chameleon_policy.data.array_episodes import ArrayEpisodes, choose_layout
from chameleon_policy.data.episodes import DEFAULT_KEYS, Keys, import_extra
from chameleon_policy.data.memory import check_memory
from chameleon_policy.json_files import parse_json_object

ACTIONS = "actions"
_DEMO = re.compile(r"demo_(0|[1-9][0-9]{0,8})")


class Hdf5Episodes(ArrayEpisodes):
    """The demonstrations of one file, in the order of their numbers."""

    def __init__(self, path: Path, keys: Keys = DEFAULT_KEYS) -> None:
        with _reading(path) as file:
            if "data" not in file:
                found = ", ".join(file) or "nothing"
                raise ValueError(
                    f"{path}: expected robomimic's group data/ with demo_0, demo_1, ...; found "
                    f"{found}"
                )
            data = _group(path, file, "data")
            numbers = sorted(int(match[1]) for name in data if (match := _DEMO.fullmatch(name)))
            if not numbers:
                raise ValueError(
                    f"{path} holds no episodes; expected data/demo_0, found: "
                    f"{', '.join(data) or 'nothing'}"
                )
            self._demos = [f"data/demo_{number}" for number in numbers]
            self._names = _arrays(path, file, self._demos[0])
            first = {
                key: _dataset(path, file, f"{self._demos[0]}/{name}")
                for key, name in self._names.items()
            }
            layout = choose_layout(path, first, keys, ACTIONS)
            action = self._names[layout.action[0]]
            lengths = [
                (_dataset(path, file, f"{demo}/{action}").shape or (0,))[0] for demo in self._demos
            ]
            instruction = _instruction(path, _attribute(path, data, "problem_info"))
            fps = _rate(path, _attribute(path, data, "env_args"))
        super().__init__(
            path, layout, lengths=lengths, instructions=[instruction] * len(lengths), fps=fps
        )

    def _stored(self, index: int, key: str) -> np.ndarray:
        with _reading(self.source) as file:
            dataset = _dataset(self.source, file, f"{self._demos[index]}/{self._names[key]}")
            if dataset.dtype.kind not in "fiub" or not dataset.shape:
                raise ValueError(
                    f"{self.location(index, key)}, episode {index}: expected numbers for each time "
                    f"step, got {dataset.shape} {dataset.dtype}; remove that demonstration"
                )
            check_memory(
                dataset.size * dataset.dtype.itemsize,
                f"the numbers of {self.location(index, key)}",
                "copy the file again",
            )
            values: np.ndarray = dataset[()]
            return values

    def location(self, index: int, key: str) -> str:
        """Return the location of that array, for messages."""
        return f"{self.source}, {self._demos[index]}/{self._names[key]}"


def _arrays(path: Path, file: Any, demo: str) -> dict[str, str]:
    """Return the name of each array in a demonstration (key -> name), observations and others."""
    group = _group(path, file, demo)
    observations = (
        {
            key: f"obs/{key}"
            for key in _group(path, file, f"{demo}/obs")
            if getattr(_member(path, file, f"{demo}/obs/{key}"), "shape", ())
        }
        if "obs" in group
        else {}
    )
    others = {
        key: key for key in group if getattr(_member(path, file, f"{demo}/{key}"), "shape", ())
    }
    return others | observations


def _member(path: Path, file: Any, name: str) -> Any:
    """Return a group or dataset of the file itself: no link is followed, to another file or not."""
    h5py = import_extra("h5py", "hdf5")
    member = file
    for part in name.split("/"):
        if not isinstance(member, h5py.Group) or part not in member:
            raise ValueError(
                f"{path} has no {name}, which the first episode has; remove that demonstration, or "
                "copy the file again"
            )
        link = member.get(part, getlink=True)
        if not isinstance(link, h5py.HardLink):
            leads = getattr(link, "filename", getattr(link, "path", ""))
            raise ValueError(
                f"{path}, {name}: {part} is a link to {leads!r}; only data that lie in the file "
                "itself are read. Copy them there, in place of the link"
            )
        member = member[part]
    return member


def _group(path: Path, file: Any, name: str) -> Any:
    member = _member(path, file, name)
    if not hasattr(member, "keys"):
        raise ValueError(f"{path}, {name}: expected a group, got {member!r}; copy the file again")
    return member


def _dataset(path: Path, file: Any, name: str) -> Any:
    """Return a dataset whose numbers lie in the file itself."""
    member = _member(path, file, name)
    if not hasattr(member, "dtype") or not hasattr(member, "shape"):
        raise ValueError(f"{path}, {name}: expected numbers, got {member!r}; copy the file again")
    if member.external or member.is_virtual:
        raise ValueError(
            f"{path}, {name}: its numbers lie in another file; only data that lie in the file "
            "itself are read. Copy them there"
        )
    return member


def _instruction(path: Path, problem: dict[str, Any]) -> str:
    """Return LIBERO's instruction: a text, or a list of its pieces."""
    text = problem.get("language_instruction") or ""
    if not isinstance(text, str | list) or not all(isinstance(piece, str) for piece in text):
        raise ValueError(
            f"{path}: the attribute problem_info of data/ has the language_instruction "
            f"{reprlib.repr(text)}; expected a text. Correct it, or delete it"
        )
    return "".join(text)


def _rate(path: Path, environment: dict[str, Any]) -> float | None:
    settings = environment.get("env_kwargs")
    fps = settings.get("control_freq") if isinstance(settings, dict) else None
    if fps is not None and not (type(fps) in (int, float) and 0 < fps < math.inf):
        raise ValueError(
            f"{path}: the attribute env_args of data/ has the control_freq {reprlib.repr(fps)}; "
            "expected control steps per second. Correct it, or delete it"
        )
    return fps


def _attribute(path: Path, data: Any, name: str) -> dict[str, Any]:
    """Return an attribute of data/ that holds a JSON object; empty if it is missing."""
    if name not in data.attrs:
        return {}
    where = f"{path}, the attribute {name!r} of data/"
    return parse_json_object(data.attrs[name], where, "correct it, or delete it")


@contextmanager
def _reading(path: Path) -> Iterator[Any]:
    """Open the file anew for each read, so that `Hdf5Episodes` can be sent to other processes."""
    h5py = import_extra("h5py", "hdf5")
    try:
        with h5py.File(path, "r") as file:
            yield file
    except (OSError, RuntimeError, KeyError) as error:
        raise ValueError(f"{path} is damaged or cannot be read ({error}); copy it again") from error
