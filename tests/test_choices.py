"""Choices are read from the events; an episode that ends with one is the same up to there."""

from __future__ import annotations

import numpy as np
import pytest

from chameleon_policy.camo import CamoEnv, task_named
from chameleon_policy.camo.events import Event
from chameleon_policy.camo.experts import make_expert
from chameleon_policy.camo.settings import CamoSettings
from chameleon_policy.camo.tasks import TASKS
from chameleon_policy.camo.variants import OneChoiceEnv


def events(*kinds: str) -> list[Event]:
    """`decision`, or `raised cup_1`."""
    return [Event(step, *kind.split()) for step, kind in enumerate(kinds)]  # type: ignore[arg-type]


def test_one_choice_for_every_decision() -> None:
    shell, seasonings, plate = (
        task_named(name)() for name in ("shell-game", "seasonings", "clean-plate")
    )
    assert shell.choices(events("decision", "touched cup_2", "raised cup_1", "raised cup_0")) == (
        1,
    )
    assert shell.choices(events("raised cup_1", "decision")) == (None,)
    assert plate.choices(events("decision", "raised sponge", "wiped plate_2", "wiped plate_0")) == (
        2,
    )
    shaken = events(
        "decision",
        "raised shaker_2",
        "added shaker_2",
        "decision",
        "raised shaker_0",
        "toppled shaker_0",
        "raised shaker_1",
    )
    assert seasonings.choices(shaken) == (2, 0)  # also where the manipulation failed in the end
    assert seasonings.choices([]) == ()
    assert seasonings.choices(
        events("decision", "added shaker_1", "decision", "raised shaker_0")
    ) == (None, 0)


def played(env: CamoEnv, seed: int) -> list[np.ndarray]:
    """Return the actions of an expert in an episode."""
    env.reset(seed=seed)
    expert, actions, over = make_expert(env), [], False
    while not over:
        actions.append(expert.act().executed)
        _, _, terminated, truncated, _ = env.step(actions[-1])
        over = terminated or truncated
    return actions


@pytest.mark.parametrize("task", TASKS)
def test_an_episode_that_ends_with_a_choice(task: str) -> None:
    env = CamoEnv(task, observation="state")
    actions = played(env, 7)
    answers = env.z if isinstance(env.z, tuple) else (env.z,)
    assert env.task.choices(env.events) == answers
    last = env.task.decisions - 1
    choosing = CamoSettings(task=task, observation="state", until_choice=last).make_env()
    assert isinstance(choosing, OneChoiceEnv)
    first, _ = choosing.reset(seed=7)
    steps = 0
    for action in actions:
        steps += 1
        seen, _, terminated, truncated, _ = choosing.step(action)
        if len(choosing.decisions) <= last:
            assert seen is first  # nothing is drawn before the decision
        if terminated or truncated:
            break
    assert (terminated, truncated) == (True, False)
    assert choosing.task.choices(choosing.events) == answers
    assert steps < len(actions)
    assert choosing.events == env.events[: len(choosing.events)]
    np.testing.assert_array_equal(seen["proprioception"], choosing.proprioception())
    reset, _ = choosing.reset(seed=8)
    assert not np.array_equal(reset["objects"], first["objects"])


def test_unknown_decisions_are_refused() -> None:
    with pytest.raises(ValueError, match="clean-plate has 1 decisions, there is no decision 1"):
        CamoSettings(task="clean-plate", observation="state", until_choice=1).make_env()


def test_it_is_no_dial_of_the_benchmark() -> None:
    assert "until_choice" not in CamoSettings(task="clean-plate", until_choice=0).as_dict()
