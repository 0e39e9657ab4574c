"""The plugin's translation of LeRobot's windows, without lerobot itself."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from chameleon_policy import EpisodeBatch, Observation
from chameleon_policy.camo.recording import Recording
from chameleon_policy.data import EpisodeArrays, load_episodes, open_episodes
from chameleon_policy.policy import ObjectSlots
from chameleon_policy.policy.checks import check_batch
from chameleon_policy.policy.features import Features, View
from chameleon_policy.recorder import record
from chameleon_policy.train.normalization import directions, statistics_of
from chameleon_policy.train.sampling import DECIDING, RESTING, step_kinds
from examples import STATE_FEATURES, make_policy, nano

PLUGIN = (
    Path(__file__).parents[1] / "packages/lerobot_policy_chameleon/src/lerobot_policy_chameleon"
)
HORIZON = STATE_FEATURES.horizon


def module(name: str) -> ModuleType:
    """Load a module of the plugin from its file, since importing the package needs lerobot."""
    spec = importlib.util.spec_from_file_location(f"plugin_{name}", PLUGIN / f"{name}.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded  # dataclasses look there
    spec.loader.exec_module(loaded)
    return loaded


windows, carry, statistics = module("windows"), module("carry"), module("statistics")


class Episodes:
    """Episodes with windows as LeRobot's dataset returns them, padded by their last frames."""

    def __init__(self, *lengths: int, seed: int = 0) -> None:
        self.lengths = lengths
        self.starts = np.cumsum([0, *lengths]).tolist()
        rng = np.random.default_rng(seed)
        sizes = {"observation.state": 5, "observation.environment_state": 12, "action": 2}
        self.rows = {
            key: rng.normal(size=(sum(lengths), size)).astype(np.float32)
            for key, size in sizes.items()
        }

    def item(self, episode: int, frame: int, before: int, after: int) -> dict[str, Any]:
        start, end = self.starts[episode], self.starts[episode + 1]
        item: dict[str, Any] = {
            "index": torch.tensor(start + frame),
            "episode_index": torch.tensor(episode),
        }
        item["frame_index"] = torch.tensor(frame)
        for key, rows in self.rows.items():
            last = after + (HORIZON - 1 if key == "action" else 0)
            wanted = [start + frame + delta for delta in range(-before, last + 1)]
            item[key] = torch.from_numpy(
                np.stack([rows[min(max(place, start), end - 1)] for place in wanted])
            )
            item[f"{key}_is_pad"] = torch.tensor([not start <= place < end for place in wanted])
        return item

    def batch(self, chosen: list[tuple[int, int]], before: int, after: int = 0) -> dict[str, Any]:
        return torch.utils.data.default_collate(
            [self.item(*each, before, after) for each in chosen]
        )

    def whole(self, episode: int) -> EpisodeBatch:
        """Return one episode as a batch of its own."""
        place = slice(self.starts[episode], self.starts[episode + 1])
        rows = {key: torch.from_numpy(rows[place]).unsqueeze(0) for key, rows in self.rows.items()}
        seen = Observation(
            proprioception=rows["observation.state"],
            objects=rows["observation.environment_state"].reshape(1, -1, 3, 4),
        )
        length = self.lengths[episode]
        return EpisodeBatch(
            observation=seen, actions=rows["action"], valid=torch.ones(1, length, dtype=torch.bool)
        )


def with_other_padding(batch: dict[str, Any]) -> dict[str, Any]:
    """Return the same batch with other numbers in LeRobot's padding."""
    changed = dict(batch)
    for key in ("observation.state", "observation.environment_state", "action"):
        changed[key] = torch.where(
            batch[f"{key}_is_pad"].unsqueeze(-1), torch.tensor(17.0), batch[key]
        )
    return changed


def loss_of(policy: Any, batch: EpisodeBatch, **options: Any) -> Any:
    torch.manual_seed(5)  # of the flow
    return policy.loss(batch, **options)


@pytest.mark.parametrize("after", [0, 3, 20])
def test_rows_begin_with_their_first_real_frame(after: int) -> None:
    episodes, before = Episodes(9, 6, 12), 7
    chosen = [(0, 2), (0, 8), (1, 0), (1, 5), (2, 7), (2, 11)]
    window = windows.window_of(episodes.batch(chosen, before, after), STATE_FEATURES, {}, before)
    batch = window.batch
    check_batch(batch, STATE_FEATURES)
    # no column of padding alone
    assert batch.valid.shape[1] == max(int(row.sum()) for row in batch.valid)
    for row, (episode, frame) in enumerate(chosen):
        first, end = max(0, frame - before), min(episodes.lengths[episode], frame + after + 1)
        start = episodes.starts[episode]
        assert int(batch.valid[row].sum()) == end - first
        assert window.spans[row] == (episode, start + first, start + end)
        assert window.whole[row] == (end - first == batch.valid.shape[1])
        for tensor, key in (
            (batch.observation.proprioception, "observation.state"),
            (batch.observation.objects.flatten(-2), "observation.environment_state"),
        ):
            np.testing.assert_array_equal(
                tensor[row, : end - first], episodes.rows[key][start + first : start + end]
            )
        real = int(batch.actions_valid[row].sum())
        reach = min(end + HORIZON - 1, episodes.lengths[episode])
        # All actions of this row's chunks are there; further ones are never part of a chunk.
        assert real >= min(reach - first, batch.actions.shape[1])
        actions = episodes.rows["action"][start + first : start + first + real]
        np.testing.assert_array_equal(batch.actions[row, :real], actions)
        assert first + real <= episodes.lengths[episode]


def test_whole_episodes_have_the_loss_of_whole_episodes() -> None:
    """The same for every drawn frame, if the window reaches over both ends of the episode."""
    episodes, policy = Episodes(9, 6), make_policy().eval()
    for episode, frame in ((0, 0), (0, 4), (0, 8), (1, 5)):
        window = windows.window_of(
            episodes.batch([(episode, frame)], 11, 11), STATE_FEATURES, {}, 11
        )
        expected = loss_of(policy, episodes.whole(episode))
        torch.testing.assert_close(loss_of(policy, window.batch).total, expected.total)


def test_padding_does_not_count() -> None:
    episodes, policy = Episodes(9, 6, 12), make_policy().eval()
    batch = episodes.batch([(0, 1), (1, 5), (2, 11), (2, 6)], 7, 2)
    clean, dirty = (
        windows.window_of(each, STATE_FEATURES, {}, 7).batch
        for each in (batch, with_other_padding(batch))
    )
    assert any(batch["observation.state_is_pad"].any(1)) and any(batch["action_is_pad"].any(1))
    torch.testing.assert_close(loss_of(policy, clean).total, loss_of(policy, dirty).total)


def test_windows_in_order_carry_the_memory() -> None:
    """Two parallel episodes in windows of five equal a loop that carries the states by hand."""
    episodes, policy = Episodes(15, 15, 15), make_policy()
    size, carried, by_hand = 5, None, {"state": None, "augmentation": None}
    for step, chosen in enumerate(([0, 1], [0, 1], [1, 0])):
        rows = [(episode, size * (step + 1) - 1) for episode in chosen]
        window = windows.window_of(episodes.batch(rows, size - 1), STATE_FEATURES, {}, size - 1)
        state, augmentation = carry.start_from(carried, policy, window.spans)
        if step == 2:  # the two rows are swapped
            by_hand = {name: value[[1, 0]] for name, value in by_hand.items()}
        expected = loss_of(policy, window.batch, **by_hand)
        got = loss_of(
            policy, window.batch, state=state, augmentation=augmentation or expected.augmentation
        )
        if step:
            torch.testing.assert_close(got.total, expected.total)
            assert state is not None and state.steps.tolist() == [size * step] * 2
            without_memory = loss_of(policy, window.batch, augmentation=augmentation).total
            assert abs((without_memory - got.total).item()) > 1e-6
        else:
            assert state is None
        carried = carry.carry_over(got, window.spans, window.whole)
        by_hand = {"state": got.state, "augmentation": got.augmentation}


def test_only_rows_that_continue_a_window_carry_the_memory() -> None:
    episodes, policy = Episodes(10, 10, 10), make_policy()

    def window(*rows: tuple[int, int]) -> Any:
        return windows.window_of(episodes.batch(list(rows), 4), STATE_FEATURES, {}, 4)

    # the last row has padding at its end, so that its memory is not that of its last real frame
    before = window((0, 4), (0, 9), (2, 2))
    carried = carry.carry_over(policy.loss(before.batch), before.spans, before.whole)
    # a row that continues; one of another episode, which begins where an episode ended; one that
    # overlaps; one that continues a row with padding
    after = window((0, 9), (1, 4), (0, 8), (2, 7))
    state, _ = carry.start_from(carried, policy, after.spans)
    assert state is not None and state.steps.tolist() == [5, 0, 0, 0]
    assert carry.start_from(carried, policy, window((1, 4), (2, 7)).spans) == (None, None)


def test_images_get_their_channels_last() -> None:
    features = Features(
        views=(View(name="third", height=64, width=96),), proprioception=5, action=2, horizon=4
    )
    image = torch.rand(2, 3, 64, 96)
    batch = {"observation.state": torch.rand(2, 5), "observation.images.third": image}
    seen = windows.observation_of(batch, features, {"third": "observation.images.third"})
    torch.testing.assert_close(seen.images["third"][1, 7, 9], image[1, :, 7, 9])
    with pytest.raises(
        ValueError, match=r"missing: observation\.images\.third; got: observation\.state"
    ):
        windows.observation_of(
            {"observation.state": torch.rand(2, 5)}, features, {"third": "observation.images.third"}
        )


def test_windows_without_masks_are_refused() -> None:
    batch = Episodes(9).batch([(0, 4)], 3)
    del batch["action_is_pad"]
    with pytest.raises(ValueError, match="action_is_pad: expected a mask"):
        windows.window_of(batch, STATE_FEATURES, {}, 3)


def test_emphasis_is_that_of_our_own_training() -> None:
    """Two robots that wait and move in turn; one episode is shorter."""
    rng, horizon, span = np.random.default_rng(3), 4, np.array([2.0, 0.5])
    paths = []
    for length in (30, 22):
        moves = rng.normal(size=(length, 2)) * (np.sin(np.arange(length) / 3) > 0.2)[:, None]
        paths.append((np.cumsum(moves, axis=0) * span * 0.3).astype(np.float32))
    actions = np.zeros((2, 30, 2), np.float32)
    for row, path in enumerate(paths):
        actions[row, : len(path)] = path
    valid = torch.arange(30) < torch.tensor([[30], [22]])
    batch = EpisodeBatch(
        observation=Observation(proprioception=torch.zeros(2, 30, 1)),
        actions=torch.from_numpy(actions),
        valid=valid,
    )
    window = windows.Window(batch, None, torch.tensor([True, True]), [True, False])
    marked = windows.with_emphasis(window, span.tolist(), horizon, 0.25)
    kinds_seen = set()
    for row, path in enumerate(paths):
        episode = EpisodeArrays(state=path, actions=path, images={}, objects=None, instruction="")
        kinds = step_kinds(episode, horizon, span)
        kinds_seen |= set(kinds.tolist())
        np.testing.assert_array_equal(marked.deciding[row, : len(path)], kinds == DECIDING)
        np.testing.assert_array_equal(
            marked.emphasis[row, : len(path)], np.where(kinds == RESTING, 0.25, 1.0)
        )
    assert len(kinds_seen) == 3
    assert not marked.deciding[~valid].any()
    assert windows.with_emphasis(window, span.tolist(), horizon, None).emphasis is None


def test_a_window_in_the_middle_of_an_episode_does_not_begin_with_a_rest() -> None:
    """The robot moves all the time, so that no step of the window is waiting or deciding."""
    path = torch.arange(40.0).reshape(1, 40, 1).expand(-1, -1, 2)
    valid = torch.ones(1, 40, dtype=torch.bool)
    batch = EpisodeBatch(
        observation=Observation(proprioception=torch.zeros(1, 40, 1)), actions=path, valid=valid
    )
    for begins in (True, False):
        window = windows.Window(batch, None, torch.tensor([begins]), [True])
        marked = windows.with_emphasis(window, [10.0, 10.0], 4, 0.25)
        assert marked.deciding.sum() == begins and marked.deciding[0, 0] == begins
    chosen = [(0, 3), (0, 7), (1, 5)]
    begins = windows.window_of(Episodes(9, 6).batch(chosen, 4), STATE_FEATURES, {}, 4).begins
    assert begins.tolist() == [True, False, False]
    begins = windows.window_of(
        Episodes(9, 6).batch([(0, 4), (0, 5)], 4), STATE_FEATURES, {}, 4
    ).begins
    assert begins.tolist() == [True, False]  # the first without any padding in front


def test_an_emphasised_batch_trains() -> None:
    policy = make_policy(config=nano(action_steps=3))
    window = windows.window_of(Episodes(9, 6).batch([(0, 3), (1, 5)], 7), STATE_FEATURES, {}, 7)
    policy.loss(windows.with_emphasis(window, [2.0, 2.0], HORIZON, 0.1)).total.backward()


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chosen = Recording(task="clean-plate", episodes=4, observation="state")
    return record(chosen, tmp_path_factory.mktemp("recording") / "camo")


CAMO_STATE = Features(objects=ObjectSlots(count=5, size=7), proprioception=10, action=10, horizon=8)


def test_statistics_from_frames_are_those_of_our_own_training(recording: Path) -> None:
    expected = statistics_of(load_episodes(open_episodes(recording)))
    got = statistics.from_frames(recording, CAMO_STATE)
    assert got == expected
    assert statistics.from_plain(statistics.as_plain(got)) == got


def test_statistics_from_a_summary_keep_directions(recording: Path) -> None:
    """LeRobot's summary is enough to find the rotations of a Camo recording."""
    episodes = load_episodes(open_episodes(recording))
    rows = {
        "observation.state": np.concatenate([each.state for each in episodes]),
        "action": np.concatenate([each.actions for each in episodes]),
        "observation.environment_state": np.concatenate(
            [each.objects.reshape(each.length, -1) for each in episodes]
        ),
    }
    stats = {
        key: {name: getattr(array, name)(axis=0) for name in ("min", "max", "mean", "std")}
        for key, array in rows.items()
    }
    for key in ("observation.state", "action"):
        found = statistics.directions(
            {name: values.astype(float) for name, values in stats[key].items()}
        )
        assert found == directions(rows[key]) == [slice(3, 6), slice(6, 9)]
    got, expected = statistics.from_summary(stats, CAMO_STATE), statistics_of(episodes)
    for name in ("proprioception", "action"):
        for end in ("low", "high"):
            np.testing.assert_allclose(
                getattr(getattr(got, name), end), getattr(getattr(expected, name), end), atol=1e-5
            )
    # Plates and the sponge are always seen: where they stand from left to right has the range of
    # our own training.
    for end in ("low", "high"):
        mine, ours = (
            np.reshape(getattr(each.objects, end), (5, 7))[:4, 2] for each in (got, expected)
        )
        np.testing.assert_allclose(mine, ours, atol=1e-4)


def test_positions_are_no_directions() -> None:
    rows = np.random.default_rng(0).uniform(-1, 1, size=(1000, 6))
    summary = {name: getattr(rows, name)(axis=0) for name in ("min", "max", "mean", "std")}
    assert statistics.directions(summary) == []


def test_a_summary_without_deviations_is_refused() -> None:
    stats = {"observation.state": {"min": [0.0] * 10, "max": [1.0] * 10}}
    with pytest.raises(ValueError, match=r"no mean, std of observation\.state"):
        statistics.from_summary(stats, CAMO_STATE)
