"""Episodes of LeRobot v3.0 datasets, and the decisions of Camo recordings."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from chameleon_policy.data.episodes import DEFAULT_KEYS, Episodes, Keys, Layout, check_key
from chameleon_policy.data.foreign_files import MOST_EPISODES, inside
from chameleon_policy.data.lerobot_reader import RecordedDataset
from chameleon_policy.data.schema import IMAGE_PREFIX
from chameleon_policy.data.tables import read_table, row_count

STATE, ACTION, OBJECTS = "observation.state", "action", "observation.environment_state"
CAMO_TABLE = "camo/episodes.parquet"
_SLOT = re.compile(r"slot([0-9]{1,4})\.(.+)")


class LeRobotEpisodes(Episodes):
    """The episodes of a LeRobot dataset; the instruction of one with several tasks is the first."""

    def __init__(self, path: Path, keys: Keys = DEFAULT_KEYS) -> None:
        self.dataset = RecordedDataset(path)
        layout = self._choose(keys)
        super().__init__(
            path,
            layout,
            lengths=[episode.length for episode in self.dataset.episodes],
            instructions=[episode.instruction for episode in self.dataset.episodes],
            fps=self.dataset.schema.fps,
        )
        self._check_files()
        self._by_episode = _read_decisions(path, self.lengths)

    def _choose(self, keys: Keys) -> Layout:
        path, vectors = self.dataset.path, self.dataset.schema.vectors
        state, action = keys.state or (STATE,), keys.action or ACTION
        for key, kind in (*((key, "state") for key in state), (action, "action")):
            check_key(key, vectors, path, kind)
        named = self._named_views()
        chosen = tuple(named) if keys.views is None else keys.views
        by_key = {key: view for view, key in named.items()}
        # the user may name a view or its feature
        views = tuple(by_key.get(view, view) for view in chosen)
        for view in views:
            check_key(view, named, path, "view")
        objects = keys.objects or (OBJECTS if OBJECTS in vectors and not views else None)
        if objects is not None:
            check_key(objects, vectors, path, "objects")
        sizes = self.dataset.schema.views
        return Layout(
            state={key: len(vectors[key]) for key in state},
            action=(action, len(vectors[action])),
            views={view: sizes[named[view].removeprefix(IMAGE_PREFIX)] for view in views},
            view_keys={view: named[view] for view in views},
            objects=None if objects is None else (objects, _slots(vectors[objects])),
        )

    def _named_views(self) -> dict[str, str]:
        """Return the feature of each view.

        `observation.images.third` is the view `third`, and `observation.image` is `image` unless
        that name is taken.
        """
        features = {view: self.dataset.view_key(view) for view in self.dataset.schema.views}
        last = [view.rpartition(".")[2] for view in features]
        return {
            name if key == view and last.count(name) == 1 else view: key
            for name, (view, key) in zip(last, features.items(), strict=True)
        }

    def _check_files(self) -> None:
        """Raise a FileNotFoundError for missing videos now, not in the middle of loading."""
        for view, key in self.layout.view_keys.items():
            for path in dict.fromkeys(
                self.dataset.file_of(index, key) for index in range(len(self))
            ):
                if not path.is_file():
                    others = tuple(name for name in self.views if name != view)
                    raise FileNotFoundError(
                        f"{path} is missing; it holds {key}. Copy the dataset again, or read it "
                        f"without that view: Keys(views={others!r}), or --view-keys "
                        f"{' '.join(others)}"
                    )

    def array(self, index: int, key: str) -> np.ndarray:
        """Return an array of an episode as it is stored, but pictures as uint8."""
        if key in self.dataset.schema.vectors:
            return self.dataset.vectors(index, (key,))[key]
        return self.dataset.frames(index, key.removeprefix(IMAGE_PREFIX))

    def frames(self, index: int, key: str) -> Iterable[np.ndarray]:
        """Return the pictures of an episode one after the other, as they are stored."""
        return self.dataset.each_frame(index, key.removeprefix(IMAGE_PREFIX))

    def location(self, index: int, key: str) -> str:
        """Return the location of that array, for messages."""
        return f"{self.dataset.file_of(index, key)}, {key}"

    def decisions(self, index: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the time steps of an episode's decisions, and their answers."""
        return self._by_episode.get(index, ((), ()))


def _slots(names: tuple[str, ...]) -> tuple[int, int]:
    """Return (count, size) of object slots.

    Names such as slot0.x, slot0.y, slot1.x, slot1.y are several slots, other names are one slot.
    """
    found = [_SLOT.fullmatch(name) for name in names]
    if all(found):
        parts = [(int(match[1]), match[2]) for match in found if match]
        fields = [name for slot, name in parts if slot == 0]
        count = parts[-1][0] + 1
        complete = count * len(fields) == len(parts)
        if complete and parts == [(slot, name) for slot in range(count) for name in fields]:
            return count, len(fields)
    return 1, len(names)


def _read_decisions(
    path: Path, lengths: tuple[int, ...]
) -> dict[int, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return time steps and answers of each episode's decisions, if Camo recorded the dataset."""
    table = inside(path, CAMO_TABLE, CAMO_TABLE)
    if not table.is_file():
        return {}
    content = "the decisions"
    columns = ["episode_index", "decision_steps", "z"]
    rows = (
        read_table(table, content, columns).to_pylist()
        if row_count(table, content) <= MOST_EPISODES
        else []
    )
    for row in rows:
        for name in ("decision_steps", "z"):
            if not isinstance(row[name], list) or any(type(n) is not int for n in row[name]):
                raise ValueError(
                    f"{table}, {name}: expected a list of whole numbers in each row, got "
                    f"{reprlib.repr(row[name])}; copy the dataset again"
                )
    decisions = {
        row["episode_index"]: (tuple(row["decision_steps"]), tuple(row["z"]))
        for row in rows
        if type(row["episode_index"]) is int
    }
    if decisions.keys() != set(range(len(lengths))):
        raise ValueError(
            f"{table}: expected the episodes 0 to {len(lengths) - 1}, got {len(rows)} rows; copy "
            "the dataset again"
        )
    for index, (steps, answers) in decisions.items():
        if any(not 0 <= step < lengths[index] for step in steps):
            raise ValueError(
                f"{table}, episode {index}, decision_steps: expected time steps from 0 to "
                f"{lengths[index] - 1}, got {steps}"
            )
        if len(answers) != len(steps):
            raise ValueError(
                f"{table}, episode {index}, z: expected an answer for each of the decisions "
                f"{steps}, got {answers}; copy the dataset again"
            )
    return decisions
