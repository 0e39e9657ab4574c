"""Timelines of another pace: only the time before the decision changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from chameleon_policy.data import EpisodeArrays
from chameleon_policy.train.config import TrainingConfig
from chameleon_policy.train.feeder import Feeder
from chameleon_policy.train.normalization import statistics_of
from chameleon_policy.train.sampling import (
    DECIDING,
    RESTING,
    first_wait,
    pace_generator,
    recorded_timeline,
    varied_timeline,
)
from chameleon_policy.train.store import EpisodeStore
from training_data import FEATURES, make_episodes

LENGTH, DECISIONS = 40, (25, 33)


def drawn(uneven: float, longer: int, count: int = 300):
    return [
        varied_timeline(0, LENGTH, DECISIONS[0], np.random.default_rng(n), uneven, longer)
        for n in range(count)
    ]


def test_before_the_decision_steps_are_left_out_and_repeated_in_order() -> None:
    timelines = drawn(0.25, 0)
    shown = np.zeros(LENGTH)
    for timeline in timelines:
        assert (np.diff(timeline.steps) >= 0).all() and timeline.steps[0] == 0
        # from the decision on, as recorded
        np.testing.assert_array_equal(timeline.steps[-15:], np.arange(25, 40))
        assert np.bincount(timeline.steps, minlength=LENGTH).max() <= 2
        shown += np.bincount(timeline.steps, minlength=LENGTH)
    assert len({len(timeline) for timeline in timelines}) > 5
    # no slower and no faster on average
    np.testing.assert_allclose(shown[1:24] / len(timelines), 1.0, atol=0.2)


def test_the_wait_becomes_longer() -> None:
    waits = [int((timeline.steps == 24).sum()) for timeline in drawn(0.0, 10)]
    assert set(waits) == set(range(1, 12))


def test_without_variation_or_decision_nothing_changes() -> None:
    for timeline in (
        *drawn(0.0, 0, 3),
        varied_timeline(0, LENGTH, 0, np.random.default_rng(0), 0.5, 9),
    ):
        np.testing.assert_array_equal(timeline.steps, np.arange(LENGTH))
        np.testing.assert_array_equal(timeline.kind_steps, np.arange(LENGTH))


def test_the_wait_ends_when_the_actions_change() -> None:
    (plain,) = make_episodes([20])
    actions = np.zeros((20, 2), np.float32)
    actions[12:, 1] = np.linspace(0.1, 1, 8)
    episode = EpisodeArrays(**{**vars(plain), "actions": actions, "decision_steps": (9,)})
    span = np.ptp(actions, axis=0)
    assert first_wait(episode, span) == 12 and first_wait(episode, span, annotated=True) == 9
    unmarked = EpisodeArrays(**{**vars(episode), "decision_steps": ()})
    assert first_wait(unmarked, span, annotated=True) == 0
    still = EpisodeArrays(**{**vars(episode), "actions": np.zeros((20, 2), np.float32)})
    assert first_wait(still, span) == 0, "who never sets off does not wait for anything"
    moving = EpisodeArrays(**{**vars(episode), "actions": actions[11:]})
    assert first_wait(moving, span) == 0, "who sets off at once does not wait"
    drift = np.linspace(0, 0.1, 20, dtype=np.float32)[:, None] * np.ones(2, np.float32)
    drifting = EpisodeArrays(**{**vars(episode), "actions": drift})
    assert first_wait(drifting, np.ones(2)) == 0, "less than a fiftieth of the span in a step"


def test_camos_actions_tell_when_its_decisions_are() -> None:
    """A demonstration's clean actions change at t_d, or at the step after it."""
    pytest.importorskip("mujoco")
    from chameleon_policy.camo import TASKS
    from chameleon_policy.camo.recording import Recording

    for task in TASKS:
        recording = Recording(task=task, observation="state", episodes=4)
        env = recording.make_env()
        for index in range(4):
            played = recording.demonstrate(env, index, 100 + index)
            zeros = np.zeros((len(played.actions), 1), np.float32)
            episode = EpisodeArrays(
                state=zeros, actions=played.actions, images={}, objects=None, instruction=""
            )
            found = first_wait(episode, np.ptp(played.actions, axis=0))
            assert found - played.annotation["decision_steps"][0] in (0, 1)


def test_batches_show_observations_actions_and_kinds_of_the_same_steps() -> None:
    (plain,) = make_episodes([LENGTH])
    episode = EpisodeArrays(**{**vars(plain), "decision_steps": DECISIONS})
    store = EpisodeStore([episode], FEATURES, statistics_of([episode]), annotated_decisions=True)
    timeline = varied_timeline(0, LENGTH, DECISIONS[0], np.random.default_rng(1), 0.3, 6)
    batch = store.batch([timeline], emphasis=(0.0, 1.0, 2.0))
    time = len(timeline)
    assert int(batch.valid.sum()) == time != LENGTH
    np.testing.assert_array_equal(batch.actions[0, :time], plain.actions[timeline.steps])
    np.testing.assert_array_equal(
        batch.observation.proprioception[0, :time], plain.state[timeline.steps]
    )
    assert batch.emphasis is not None and batch.deciding is not None
    decision = int(np.flatnonzero(timeline.steps == DECISIONS[0])[0])
    expected = np.full(decision + 1, float(RESTING))
    # chunks from here on reach beyond the decision
    expected[decision + 1 - FEATURES.horizon :] = float(DECIDING)
    np.testing.assert_array_equal(batch.emphasis[0, : decision + 1], expected)
    # Windows of it are pieces of the whole.
    second = store.batch([timeline], first=10, window=7)
    torch.testing.assert_close(
        second.observation.proprioception[0], batch.observation.proprioception[0, 10:17]
    )
    whole = store.batch([recorded_timeline(0, LENGTH)])
    torch.testing.assert_close(whole.actions, store.batch([0]).actions)


def test_the_pace_follows_from_seed_step_and_index() -> None:
    draws = {
        pace_generator(seed, step, index).random()
        for seed in (0, 1)
        for step in (0, 1)
        for index in (0, 1)
    }
    assert len(draws) == 8 and pace_generator(1, 1, 1).random() in draws


def test_the_feeder_draws_anew_for_every_step() -> None:
    (plain,) = make_episodes([20])
    episode = EpisodeArrays(**{**vars(plain), "decision_steps": (15,)})
    store = EpisodeStore([episode], FEATURES, statistics_of([episode]), annotated_decisions=True)
    assert store.waits == [15]

    def shown(step: int, **options: float) -> torch.Tensor:
        config = TrainingConfig(steps=99, batch=1, **options)  # type: ignore[arg-type]
        feeder = Feeder(store, config, Accelerator(cpu=True), step)
        return feeder.next_step()[0][0].batch.actions[0]

    waits = {len(shown(step, longer_retention=5)) for step in range(40)}
    assert len(waits) == 6 and max(waits) - min(waits) == 5
    torch.testing.assert_close(shown(3, uneven_pace=0.4), shown(3, uneven_pace=0.4))
    assert any(
        not torch.equal(shown(step, uneven_pace=0.4)[:20], shown(step)[:20]) for step in range(3)
    )
    altered = {"uneven_pace": 0.4, "longer_retention": 5, "plain_steps": 3}
    torch.testing.assert_close(shown(2, **altered), shown(2))
    assert any(
        not torch.equal(shown(step, **altered)[:20], shown(step)[:20]) for step in range(3, 6)
    )
    torch.testing.assert_close(shown(4, **altered | {"plain_steps": 2000}), shown(4))


@pytest.mark.parametrize(
    ("option", "value"),
    [("uneven_pace", 0.6), ("uneven_pace", -0.1), ("longer_retention", -1), ("plain_steps", -1)],
)
def test_mistakes(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=option.replace("_", "-")):
        TrainingConfig(steps=1, **{option: value})  # type: ignore[arg-type]
