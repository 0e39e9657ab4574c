"""Sampling of episodes, of their time steps, and of the steps that carry the action loss.

Everything random in training follows from the seed and the index of the step, so that nothing of it
has to be saved: a run resumed at step 700 draws what it would have drawn without the interruption.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from chameleon_policy.data.episodes import EpisodeArrays

ORDER, NOISE, WEIGHTS, PACE, APPEARANCE = range(5)
"""Independent sources of randomness."""
GROUPED = 8
"""Batches whose episodes are sorted by length together."""

MOVING, RESTING, DECIDING = range(3)
"""Kinds of time steps."""
STILL = 0.02
"""A robot rests while no dimension of its action changes by more than this share of its span in a
control step."""
MOVED = 0.2
"""It sets off if some dimension changes by more than this share of its span within the horizon."""

Emphasis = tuple[float, float, float]
"""Weights with which moving, resting and deciding time steps are drawn for the action loss."""
Steps = npt.NDArray[np.int64]


def seed_weights(seed: int) -> None:
    """Seed torch before a policy is built, so that every process starts from the same weights."""
    torch.manual_seed(_torch_seed(seed, WEIGHTS))


def seed_noise(seed: int, step: int, sub_batch: int) -> None:
    """Seed torch before a sub-batch.

    Crops, noise and flow times then do not depend on which process computes it.
    """
    torch.manual_seed(_torch_seed(seed, NOISE, step, sub_batch))


def pace_generator(seed: int, step: int, index: int) -> np.random.Generator:
    """Return the generator of the pace of the episode at this index of a step's batch."""
    return np.random.default_rng([seed, PACE, step, index])


def appearance_generator(seed: int, step: int, index: int) -> np.random.Generator:
    """Return the generator of the appearance of the episode at this index of a step's batch."""
    return np.random.default_rng([seed, APPEARANCE, step, index])


def _torch_seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))


def balanced_pass(lengths: Sequence[float], tasks: Sequence[str]) -> list[int]:
    """Return the episodes of a pass that shows about equally many frames of every task.

    Episodes of tasks with few frames occur several times.
    """
    frames = dict.fromkeys(tasks, 0.0)
    for length, task in zip(lengths, tasks, strict=True):
        frames[task] += length
    most = max(frames.values())
    return [index for index, task in enumerate(tasks) for _ in range(round(most / frames[task]))]


def episodes_of_step(
    seed: int, step: int, batch: int, lengths: Sequence[int], episodes: Sequence[int] | None = None
) -> list[int]:
    """Return the indices of the episodes of a step.

    Training passes over the dataset again and again, each time in another order. Runs of `GROUPED`
    batches are sorted by length, since batches of similar episodes need less padding, and the
    batches then come in random order. The last episodes of a pass, too few for a batch, are left
    out; they are others in every pass. A dataset smaller than a batch is repeated within it.

    Args:
        seed: Seed of the training.
        step: Index of the step.
        batch: Episodes in a batch.
        lengths: Number of time steps of every episode in the dataset.
        episodes: Indices of the episodes of a pass; each episode once by default.
    """
    episodes = range(len(lengths)) if episodes is None else episodes
    per_pass = max(1, len(episodes) // batch)
    pass_index, batch_index = divmod(step, per_pass)
    rng = np.random.default_rng([seed, ORDER, pass_index])
    drawn: list[int] = []
    while len(drawn) < per_pass * batch:
        drawn += [episodes[index] for index in rng.permutation(len(episodes))]
    first = int(rng.permutation(per_pass)[batch_index]) * batch
    run = first - first % (GROUPED * batch)
    similar = sorted(
        drawn[run : min(run + GROUPED * batch, per_pass * batch)],
        key=lambda episode: lengths[episode],
    )
    return similar[first - run : first - run + batch]


@dataclass(frozen=True, eq=False)
class Timeline:
    """The time steps of one episode in the order in which they are shown."""

    episode: int
    steps: Steps
    """(T,) time step of the episode that is shown."""
    kind_steps: Steps
    """(T,) time step of the episode that says whether the robot moves, rests or decides."""

    def __len__(self) -> int:
        return len(self.steps)


def recorded_timeline(episode: int, length: int) -> Timeline:
    """Return the timeline that shows every time step once, as recorded."""
    steps = np.arange(length)
    return Timeline(episode, steps, steps)


def varied_timeline(
    episode: int,
    length: int,
    wait: int,
    rng: np.random.Generator,
    uneven_pace: float,
    longer_retention: int,
) -> Timeline:
    """Draw a timeline whose pace during the first `wait` time steps differs from the recorded one.

    As long as the robot only waits, its observations may pass at any pace: leaving out some time
    steps and repeating others makes a new episode with the same answer. Without such variation, a
    policy memorises a small dataset. Observations and actions stay together, and nothing changes
    afterwards.

    Each of these time steps is left out with the probability `uneven_pace` and shown twice with the
    same probability. The last one, in which the hands have left, is shown up to `longer_retention`
    times more.
    """
    if not wait:
        return recorded_timeline(episode, length)
    times = rng.choice(3, size=wait, p=[uneven_pace, 1 - 2 * uneven_pace, uneven_pace])
    times[[0, -1]] = 1  # the first observation, and the last of the wait, always remain
    times[-1] += rng.integers(longer_retention + 1)
    before = np.repeat(np.arange(wait), times)
    after = np.arange(wait, length)
    kinds = np.maximum(np.arange(len(before)) + wait - len(before), 0)
    return Timeline(episode, np.concatenate([before, after]), np.concatenate([kinds, after]))


def first_wait(
    episode: EpisodeArrays, span: npt.NDArray[np.floating], *, annotated: bool = False
) -> int:
    """Return the number of time steps before the first decision: until the robot sets off.

    With `annotated` it is what the dataset says, 0 if it says nothing. Otherwise the actions tell:
    the robot waits until one changes. A robot that moves at once, or never, waits for nothing.
    """
    if annotated:
        return episode.decision_steps[0] if episode.decision_steps else 0
    (moving,) = np.nonzero(_changes(episode.actions, span) > STILL)
    return int(moving[0]) if moving.size and moving[0] > 1 else 0


def step_kinds(
    episode: EpisodeArrays,
    horizon: int,
    span: npt.NDArray[np.floating],
    *,
    annotated: bool = False,
) -> npt.NDArray[np.int8]:
    """Return the kind of every time step (T): the robot moves, rests, or is about to decide.

    At deciding steps the right action needs memory. A robot decides where it rests and sets off
    within the horizon. Only absolute actions (poses, joint positions) show this: for velocities or
    deltas these kinds, and `decision_loss` with them, mean little.

    Args:
        episode: The episode.
        horizon: Actions in a chunk.
        span: Typical range of each dimension of the action (A).
        annotated: Believe the decisions that the dataset annotates, as a recording of Camo does,
            instead of the actions.
    """
    kinds = np.full(episode.length, MOVING, np.int8)
    if annotated and episode.decision_steps:
        kinds[: episode.decision_steps[0]] = RESTING
        for decision in episode.decision_steps:
            kinds[max(0, decision - horizon + 1) : decision + 1] = DECIDING
        return kinds
    actions = episode.actions / np.maximum(span, 1e-6)
    for step in np.flatnonzero(_changes(episode.actions, span) <= STILL):
        sets_off = np.abs(actions[step : step + horizon] - actions[step]).max() > MOVED
        kinds[step] = DECIDING if sets_off else RESTING
    return kinds


def _changes(
    actions: npt.NDArray[np.float32], span: npt.NDArray[np.floating]
) -> npt.NDArray[np.floating]:
    """Return the largest change of any dimension since the step before, in shares of its span."""
    shares = actions / np.maximum(span, 1e-6)
    changes: npt.NDArray[np.floating] = np.abs(np.diff(shares, axis=0, prepend=shares[:1])).max(1)
    return changes
