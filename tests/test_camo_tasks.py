"""Properties of every Camo task, as in the tests of dm_control's suite."""

from __future__ import annotations

from collections.abc import Iterator

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from camo_episodes import CASES, WAIT, Case, play, wait_until_decision
from chameleon_policy.camo import CamoEnv, summarise, task_named
from chameleon_policy.camo.experts import EXPERTS, make_expert
from chameleon_policy.camo.recording import demonstrate
from chameleon_policy.seeds import TRAINING_SEEDS, evaluation_seed

pytestmark = pytest.mark.parametrize("case", CASES, ids=str)


def random_actions(env: CamoEnv, seed: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(seed)
    while True:
        yield rng.uniform(env.action_space.low, env.action_space.high).astype(np.float32)


def test_has_an_expert_and_a_gym_id(case: Case) -> None:
    assert case.name in EXPERTS
    assert gym.spec(task_named(case.name).gym_id).kwargs["task"] == case.name


@pytest.mark.filterwarnings("ignore:.*symmetric and normalized space")  # metres, on purpose
@pytest.mark.parametrize("observation", ["rgb", "state"])
def test_gymnasium_accepts_it(case: Case, observation: str) -> None:
    env = gym.make(
        task_named(case.name).gym_id,
        image_size=32,
        observation=observation,
        render_mode="rgb_array",
        **case.dials,
    )
    check_env(env.unwrapped)
    env.close()


def test_same_seed_and_actions_give_the_same_frames_and_states(case: Case) -> None:
    runs = []
    for used_before in (False, True):  # nothing may be left of an earlier episode
        env = case.env(image_size=32, nuisance="strong")
        if used_before:
            demonstrate(env, 5)
        first, _ = env.reset(seed=11)
        actions = random_actions(env, 3)
        rest, _ = play(env, actions)
        runs.append(([first, *rest], env.world.state()))
        env.close()
    for one, other in zip(runs[0][0], runs[1][0], strict=True):
        np.testing.assert_array_equal(one["proprioception"], other["proprioception"])
        for view in one["images"]:
            np.testing.assert_array_equal(one["images"][view], other["images"][view])
    np.testing.assert_array_equal(runs[0][1], runs[1][1])


def test_starts_are_random_and_z_is_balanced(case: Case) -> None:
    env = case.env(observation="state")
    starts, answers = [], []
    for seed in range(60):
        observation, info = env.reset(seed=seed)
        starts.append(observation["objects"][:4, 1:3].ravel())
        answers.append(env.task.answers.index(info["z"]))
    assert (np.std(starts, axis=0)[:6] > 0.002).all()
    shares = np.bincount(np.array(answers) % 3, minlength=3) / 60
    assert (shares > 0.15).all()
    again, _ = env.reset()
    assert not np.array_equal(again["objects"], observation["objects"]), (
        "reset() without a seed must begin a new episode"
    )


def test_observations_stay_in_their_space_and_none_is_constant(case: Case) -> None:
    env = case.env(observation="state")
    slots, proprioception = [], []
    for seed in range(3):
        demonstration = demonstrate(env, seed)
        for observation in demonstration.observations:
            assert env.observation_space.contains(observation)
            slots.append(observation["objects"])
            proprioception.append(observation["proprioception"])
    assert (np.ptp(proprioception, axis=0) > 0).all()
    objects = [*env.task.objects, *env.task.signs, *env.task.hands]
    constant = {
        (objects[slot], env.task.slot_names[number])
        for slot, number in np.argwhere(np.ptp(slots, axis=0) == 0)
    }
    # Documented: visible objects are always present, objects that are not tilted keep their axis,
    # and few colours are seen under a cup in three episodes.
    documented = {(thing, "present") for thing in env.task.objects if thing != "ball"}
    documented |= {(thing, f"axis_{axis}") for thing in env.task.objects for axis in "xyz"}
    # The card stands upright in the middle.
    signs = ("y", "axis_x", "axis_y", "axis_z")
    documented |= {(thing, number) for thing in env.task.signs for number in signs}
    documented |= {(thing, mark) for thing in objects for mark in env.task.marks}
    assert constant <= documented


def test_expert_succeeds_on_a_few_seeds(case: Case) -> None:
    env = case.env(observation="state")
    scores = [demonstrate(env, seed).score for seed in range(200, 206)]
    assert all(each.success for each in scores), [each.reason for each in scores]


@pytest.mark.slow
def test_expert_succeeds_on_99_of_100_seeds(case: Case) -> None:
    env = case.env(observation="state")
    summary = summarise(
        [demonstrate(env, evaluation_seed(index)).score for index in range(100)], env.task.chance
    )
    assert summary.sr.value >= 0.99, summary.reasons


@pytest.mark.slow
@pytest.mark.parametrize("level", ["mild", "strong"])
def test_expert_ignores_nuisance(case: Case, level: str) -> None:
    env = case.env(observation="state", nuisance=level)
    assert all(demonstrate(env, seed).score.success for seed in range(10))


def test_a_wrong_choice_is_a_manipulation_without_the_decision(case: Case) -> None:
    env = case.env(observation="state")
    for seed in range(3):
        env.reset(seed=seed)
        possible = env.task.possible
        wrong = possible[(possible.index(env.z) + 1 + seed % 2) % len(possible)]
        score = demonstrate(env, seed, wrong_choice=wrong).score
        assert (score.manipulation, score.decision, score.choice) == (True, False, wrong), score
        assert score.reason == "wrong choice"


def test_the_choice_does_not_depend_on_z(case: Case) -> None:
    """Play the same choice with another z: success becomes a wrong choice."""
    env = case.env(observation="state")
    env.reset(seed=9)
    truth, other = env.task.possible[1], env.task.possible[-1]
    right, wrong = (
        demonstrate(env, 9, truth).score,
        demonstrate(env, 9, other, wrong_choice=truth).score,
    )
    assert (right.choice, wrong.choice) == (truth, truth)
    assert (right.success, wrong.success) == (True, False)


def test_a_random_policy_fails_without_an_exception(case: Case) -> None:
    env = case.env(observation="state")
    for seed in range(3):
        env.reset(seed=seed)
        observations, info = play(env, random_actions(env, seed))
        assert not info["score"].manipulation and not info["is_success"]
        assert info["score"].reason
        assert all(env.observation_space.contains(each) for each in observations)


def test_standing_still_runs_out_of_time(case: Case) -> None:
    env = case.env(observation="state", retention_steps=0)
    env.reset(seed=0)
    wait_until_decision(env)
    over, truncated = False, False
    while not over:
        _, _, terminated, truncated, info = env.step(WAIT)
        over = terminated or truncated
    assert truncated and env.events[-1].kind == "timeout"
    assert info["score"].reason.startswith("no contact")
    with pytest.raises(gym.error.ResetNeeded, match=r"reset\(\)"):
        env.step(WAIT)


def test_phases_follow_one_another_and_the_arm_waits(case: Case) -> None:
    env = case.env(observation="state", retention_steps=4)
    _, info = env.reset(seed=2)
    phases = [info["phase"]]
    expert = make_expert(env)
    while len(env.decisions) < 1 or env.phase != "execution":
        _, _, _, _, info = env.step(expert.act().executed)
        phases.append(info["phase"])
    evidence = phases.count("evidence")
    assert phases == ["evidence"] * evidence + ["retention"] * 4 + ["decision", "execution"]
    assert (evidence, env.decision_step) == (env.evidence_steps, evidence + 4)
    assert info["difficulty"]["retention_steps"] == 4


def test_the_arm_cannot_store_the_answer(case: Case) -> None:
    """Two different arm poses before the decision give the same one at the decision."""
    env = case.env(observation="state")
    env.reset(seed=2)
    found, first = [], env.task.possible[0]
    for z in (first, env.task.possible[-1]):
        env.reset(seed=2, options={"z": z})
        side = 0.02 if z == first else -0.02
        note = np.array([WAIT[0], WAIT[1] + side, *WAIT[2:9], 0.5 + 10 * side])
        while not env.decisions:
            observation, *_ = env.step(note)
        found.append(observation["proprioception"])
    np.testing.assert_array_equal(found[0], found[1])


def test_vector_environments(case: Case) -> None:
    envs = gym.make_vec(
        task_named(case.name).gym_id,
        num_envs=2,
        vectorization_mode="sync",
        observation="state",
        **case.dials,
    )
    first, _ = envs.reset(seed=[3, 3])
    np.testing.assert_array_equal(first["objects"][0], first["objects"][1])
    batch, rewards, *_ = envs.step(np.stack([WAIT, WAIT]).astype(np.float32))
    assert batch["proprioception"].shape == (2, 10) and (rewards == 0).all()
    envs.close()


def test_episodes_without_a_seed_are_training_episodes(case: Case) -> None:
    env = case.env(observation="state")
    env.reset(seed=evaluation_seed(0))
    for _ in range(20):
        env.reset()
        assert env.seed in TRAINING_SEEDS


def test_a_policy_that_starts_early_is_held_back(case: Case) -> None:
    env = case.env(observation="state")
    env.reset(seed=2)
    eager = np.array([0.57, 0.17, 0.05, *WAIT[3:9], 0.0])
    while not env.decisions:
        _, _, _, _, info = env.step(eager)
        assert (
            np.linalg.norm(env.world.tool().position - WAIT[:3]) < 0.031
            and env.world.gripper() > 0.99
        )
        assert info["clamped"]
    env.step(eager)
    env.step(eager)
    assert np.linalg.norm(env.world.tool().position - WAIT[:3]) > 0.05, (
        "after the decision the arm is free"
    )
