"""Observations at a decision do not depend on the answer: bit by bit, and for a classifier."""

from __future__ import annotations

import numpy as np
import pytest

from camo_episodes import TASK_NAMES, WAIT, Case, wait_until_decision
from chameleon_policy.camo import CamoEnv
from chameleon_policy.camo.experts import make_expert
from chameleon_policy.suite import Answer

CASES = (
    (Case("clean-plate"), (0, 1, 2)),
    (Case("shell-game"), (0, 1, 2)),
    (Case("shell-game", {"cups": (4, 5), "swaps": 2}), (0, 1, 3)),
    (Case("seasonings"), ((0, 0, 0), (1, 2, 0), (2, 1, 1))),
    pytest.param(
        Case("seasonings", {"length": 4}), ((0, 0, 1, 2), (1, 2, 0, 0)), marks=pytest.mark.slow
    ),
    (Case("seasonings", {"length": 2}), ((0, 1), (1, 1))),
    (Case("pantry"), ((0, 3), (4, 1), (2, 5))),
    pytest.param(
        Case("pantry", {"cups": (7, 8), "questions": 1, "shown": 3}),
        ((0,), (6,)),
        marks=pytest.mark.slow,
    ),
)
"""Tasks, and answers to compare: possible in every episode.

In pantry all answers of a case have the same questions.
"""


def flat(observation: dict) -> list[np.ndarray]:
    """Return the arrays of an observation."""
    if "images" in observation:
        return [*observation["images"].values(), observation["proprioception"]]
    return [observation["objects"], observation["proprioception"]]


def assert_identical(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("observation", ["rgb", "state"])
@pytest.mark.parametrize(("case", "answers"), CASES, ids=str)
def test_decisions_are_bit_identical_across_answers(
    case: Case, answers: tuple[Answer, ...], observation: str
) -> None:
    """Compare decisions after different evidence, with an expert's noise.

    Hands move, cups are swapped, in seasonings different shakers are added, and in pantry other
    cups are lifted.
    """
    env = case.env(observation=observation, image_size=96, nuisance="mild")
    for seed in (5, 8):
        seen: dict[object, list[list[np.ndarray]]] = {}
        evidence = {}
        for z in answers:
            env.reset(seed=seed, options={"z": z})
            expert = make_expert(env)
            decisions, frames, over = [], [], False
            while not over and len(decisions) < env.task.decisions:
                current, _, terminated, truncated, info = env.step(expert.act().executed)
                over = terminated or truncated
                frames.append(flat(current))
                if info["decision"]:
                    decisions.append(flat(current))
            assert len(decisions) == env.task.decisions
            for later in decisions[1:] if not env.task.signs else ():
                assert_identical(decisions[0], later)
            seen[z] = decisions
            evidence[z] = frames[: env.evidence_steps]
        first, *others = answers
        for z in others:
            for one, other in zip(seen[first], seen[z], strict=True):
                assert_identical(one, other)
            # The comparison can fail: during the evidence, the answers look different.
            assert any(
                not np.array_equal(a[0], b[0])
                for a, b in zip(evidence[first], evidence[z], strict=True)
            )


@pytest.mark.parametrize("observation", ["rgb", "state"])
def test_a_question_that_comes_again_finds_the_same_scene(observation: str) -> None:
    """In pantry decisions differ in the card alone: with the same card they are the same."""
    env = CamoEnv("pantry", observation=observation, image_size=96, questions=3)
    for seed, z in ((1, (2, 2, 5)), (3, (4, 0, 4))):
        env.reset(seed=seed, options={"z": z})
        expert, seen, over = make_expert(env), [], False
        while not over and len(seen) < 3:
            current, _, terminated, truncated, info = env.step(expert.act().executed)
            over = terminated or truncated
            if info["decision"]:
                seen.append(flat(current))
        same = [z.index(cup) for cup in z]
        for one in range(3):
            for other in range(one):
                equal = all(map(np.array_equal, seen[one], seen[other]))
                assert equal == (same[one] == same[other])


@pytest.mark.parametrize(("case", "answers"), CASES, ids=str)
def test_observations_stay_identical_while_the_arm_waits(
    case: Case, answers: tuple[Answer, ...]
) -> None:
    env = case.env(image_size=64)
    waiting = []
    for z in answers:
        env.reset(seed=4, options={"z": z})
        wait_until_decision(env)
        waiting.append([array for _ in range(15) for array in flat(env.step(WAIT)[0])])
    for other in waiting[1:]:
        assert_identical(waiting[0], other)


def snapshots(name: str, seeds: range) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return images of evidence and decision, and the (first) answer, of random episodes."""
    # with swaps, no single image shows where the ball ends; always three candidates
    dials = {"shell-game": {"swaps": 0}, "pantry": {"cups": 3}}.get(name, {})
    env = CamoEnv(name, observation="state", image_size=32, retention_steps=0, **dials)
    evidence, decision, answers = [], [], []
    for seed in seeds:
        env.reset(seed=seed)
        first = env.z[0] if isinstance(env.z, tuple) else env.z
        while not env.decisions:
            env.step(WAIT)
            if env.step_index == shown_at(env):
                evidence.append(picture(env))
        decision.append(picture(env))
        answers.append(first)
    env.close()
    return np.array(evidence), np.array(decision), np.array(answers)


def shown_at(env: CamoEnv) -> int:
    """Return the control step that shows the (first) answer: a candidate is lifted."""
    # in pantry all cups are lifted, in the other tasks (first) the right object
    names = [env.task.candidates[env.z[0]]] if env.task.signs else env.task.candidates
    heights = [
        max(env.script.objects[name][step].position[2] for name in names)
        for step in env.script.highlights
    ]
    lifted = [
        step for step, height in zip(env.script.highlights, heights, strict=True) if height > 0.08
    ]
    return lifted[0]


def picture(env: CamoEnv) -> np.ndarray:
    """Return the pixels of both views."""
    return np.concatenate([frame.ravel() for frame in env.frames().values()]) / 255.0


def held_out_accuracy(features: np.ndarray, answers: np.ndarray) -> float:
    """Fit ridge regression to one-hot answers on the first half, test it on the second."""
    half = len(features) // 2
    mean, spread = features[:half].mean(0), features[:half].std(0) + 0.02
    x = (features - mean) / spread
    targets = np.eye(3)[answers] - 1 / 3
    kernel = x[:half] @ x[:half].T
    weights = np.linalg.solve(kernel + 0.1 * np.trace(kernel) / half * np.eye(half), targets[:half])
    guesses = (x[half:] @ x[:half].T @ weights).argmax(1)
    return float((guesses == answers[half:]).mean())


@pytest.mark.parametrize("name", TASK_NAMES)
def test_a_classifier_is_at_chance_on_decision_frames(name: str) -> None:
    evidence, decision, answers = snapshots(name, range(300, 420))
    blind, sighted = held_out_accuracy(decision, answers), held_out_accuracy(evidence, answers)
    # 60 held-out episodes at chance 1/3: standard deviation 0.061; 0.55 is three and a half of them
    # above.
    assert blind < 0.55, f"decision frames show the answer: {blind:.2f}"
    assert sighted > 0.85, f"the classifier is too weak: {sighted:.2f} on evidence frames"
