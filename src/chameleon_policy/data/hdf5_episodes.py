"""Episodes in HDF5 files of robomimic and LIBERO: data/demo_<i>/{actions, obs/<key>}."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from chameleon_policy.data.array_episodes import ArrayEpisodes, choose_layout
from chameleon_policy.data.episodes import DEFAULT_KEYS, Keys, import_extra

ACTIONS = "actions"
_DEMO = re.compile(r"demo_(\d+)")


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
            data = file["data"]
            numbers = sorted(int(match[1]) for name in data if (match := _DEMO.fullmatch(name)))
            if not numbers:
                raise ValueError(
                    f"{path} holds no episodes; expected data/demo_0, found: "
                    f"{', '.join(data) or 'nothing'}"
                )
            self._demos = [f"data/demo_{number}" for number in numbers]
            self._names = _arrays(file[self._demos[0]])
            first = {key: file[f"{self._demos[0]}/{name}"] for key, name in self._names.items()}
            layout = choose_layout(path, first, keys, ACTIONS)
            action = self._names[layout.action[0]]
            lengths = [_member(path, file, f"{demo}/{action}").shape[0] for demo in self._demos]
            # a text, or a list of its pieces
            instruction = "".join(
                _attribute(path, data, "problem_info").get("language_instruction") or ""
            )
            fps = (_attribute(path, data, "env_args").get("env_kwargs") or {}).get("control_freq")
        super().__init__(
            path, layout, lengths=lengths, instructions=[instruction] * len(lengths), fps=fps
        )

    def _stored(self, index: int, key: str) -> np.ndarray:
        with _reading(self.source) as file:
            values: np.ndarray = _member(
                self.source, file, f"{self._demos[index]}/{self._names[key]}"
            )[()]
            return values

    def location(self, index: int, key: str) -> str:
        """Return the location of that array, for messages."""
        return f"{self.source}, {self._demos[index]}/{self._names[key]}"


def _arrays(demo: Any) -> dict[str, str]:
    """Return the name of each array in a demonstration (key -> name), observations and others."""
    observations = {
        key: f"obs/{key}" for key in demo.get("obs", {}) if getattr(demo["obs"][key], "shape", ())
    }
    return {key: key for key in demo if getattr(demo[key], "shape", ())} | observations


def _member(path: Path, file: Any, name: str) -> Any:
    if name not in file:
        raise ValueError(
            f"{path} has no {name}, which the first episode has; remove that demonstration, or "
            "copy the file again"
        )
    return file[name]


def _attribute(path: Path, data: Any, name: str) -> dict[str, Any]:
    """Return an attribute of data/ that holds JSON."""
    try:
        content = json.loads(data.attrs.get(name, "{}"))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{path}: the attribute {name!r} of data/ is no JSON ({error}); correct it, or delete "
            "it"
        ) from error
    return content if isinstance(content, dict) else {}


@contextmanager
def _reading(path: Path) -> Iterator[Any]:
    """Open the file anew for each read, so that `Hdf5Episodes` can be sent to other processes."""
    h5py = import_extra("h5py", "hdf5")
    try:
        with h5py.File(path, "r") as file:
            yield file
    except (OSError, RuntimeError, KeyError) as error:
        raise ValueError(f"{path} is damaged or cannot be read ({error}); copy it again") from error
