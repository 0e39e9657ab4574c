"""Rotations, the arm and its control, and errors of the environment."""

from __future__ import annotations

import os
import subprocess
import sys

import gymnasium as gym
import mujoco
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chameleon_policy.camo  # noqa: F401 (registers the environments)
from camo_episodes import TASK_NAMES, WAIT, wait_until_decision
from chameleon_policy.camo import CamoEnv
from chameleon_policy.camo.controller import (
    WORKSPACE_HIGH,
    WORKSPACE_LOW,
    pose_to_action,
    read_action,
)
from chameleon_policy.camo.geometry import (
    Pose,
    minimum_jerk,
    quaternion,
    rotation_about,
    rotation_from_quaternion,
    rotation_from_six,
    rotation_to_six,
    rotation_vector,
)
from chameleon_policy.camo.robot import (
    DECISION_JOINTS,
    DENAVIT_HARTENBERG,
    DOWNWARD,
    JOINTS,
    TOOL_LENGTH,
)
from chameleon_policy.camo.world import CONTROL_HZ, SUBSTEPS

numbers = st.floats(-1, 1)
vectors = (
    st.tuples(numbers, numbers, numbers).filter(lambda v: np.linalg.norm(v) > 1e-2).map(np.array)
)


@pytest.fixture(scope="module")
def env() -> CamoEnv:
    return CamoEnv("shell-game", observation="state")


@given(vectors, st.floats(0, np.pi - 1e-3))
def test_rotations_come_back(axis: np.ndarray, angle: float) -> None:
    rotation = rotation_about(axis, angle)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(np.linalg.det(rotation), 1, atol=1e-12)
    np.testing.assert_allclose(
        rotation_vector(rotation), angle * axis / np.linalg.norm(axis), atol=1e-6
    )
    np.testing.assert_allclose(rotation_from_six(rotation_to_six(rotation)), rotation, atol=1e-12)
    np.testing.assert_allclose(rotation_from_quaternion(quaternion(rotation)), rotation, atol=1e-7)


@given(vectors, st.floats(0.1, 3.0))
def test_quaternions_are_mujocos(axis: np.ndarray, angle: float) -> None:
    expected = np.zeros(9)
    mujoco.mju_quat2Mat(expected, quaternion(rotation_about(axis, angle)))
    np.testing.assert_allclose(rotation_about(axis, angle).ravel(), expected, atol=1e-9)


def test_half_a_turn_has_an_axis() -> None:
    for axis in np.eye(3):
        vector = rotation_vector(rotation_about(axis, np.pi))
        np.testing.assert_allclose(np.abs(vector), np.pi * axis, atol=1e-6)


@given(st.lists(st.floats(-5, 5), min_size=6, max_size=6).map(np.array))
def test_any_six_numbers_give_a_rotation_or_a_clear_error(six: np.ndarray) -> None:
    try:
        rotation = rotation_from_six(six)
    except ValueError as error:
        assert "almost zero" in str(error) or "parallel" in str(error)
    else:
        np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-9)
        assert np.linalg.det(rotation) > 0


def test_minimum_jerk_begins_and_ends_at_rest() -> None:
    times = np.linspace(0, 1, 1001)
    speed = np.gradient(minimum_jerk(times), times)
    assert minimum_jerk(0) == 0 and minimum_jerk(1) == 1
    assert abs(speed[0]) < 1e-2 and abs(speed[-1]) < 1e-2
    assert abs(speed.max() - 1.875) < 1e-3  # Flash and Hogan: the peak is 15/8 of the mean speed


def forward_kinematics(joints: np.ndarray) -> Pose:
    """Return the pose of the tool centre point for joint angles (6,), by DH parameters."""
    position, rotation = np.zeros(3), np.eye(3)
    for angle, (a, d, alpha) in zip(joints, DENAVIT_HARTENBERG, strict=True):
        rotation = rotation @ rotation_about((0, 0, 1), angle)
        position = position + rotation @ np.array([a, 0.0, d])
        rotation = rotation @ rotation_about((1, 0, 0), alpha)
    return Pose(position + rotation[:, 2] * TOOL_LENGTH, rotation)


def test_the_arm_is_the_one_of_the_published_parameters(env: CamoEnv) -> None:
    data = mujoco.MjData(env.world.model)
    rng = np.random.default_rng(0)
    addresses = [env.world.model.joint(name).qposadr[0] for name in JOINTS]
    for joints in rng.uniform(-3, 3, (20, 6)):
        data.qpos[addresses] = joints
        mujoco.mj_kinematics(env.world.model, data)
        pose = forward_kinematics(joints)
        np.testing.assert_allclose(data.site("tcp").xpos, pose.position, atol=1e-9)
        np.testing.assert_allclose(data.site("tcp").xmat.reshape(3, 3), pose.rotation, atol=1e-9)
    # The documented zero position of a UR5e: flange at (-0.8172, -0.2329, 0.0628).
    flange = forward_kinematics(np.zeros(6))
    np.testing.assert_allclose(
        flange.position - 0.16 * flange.rotation[:, 2], [-0.8172, -0.2329, 0.0628], atol=1e-4
    )


def test_inverse_kinematics_reaches_the_whole_workspace(env: CamoEnv) -> None:
    """Solve random poses, straight down and tilted, from the decision pose.

    The DH parameters check the solution, not the simulator.
    """
    rng = np.random.default_rng(1)
    kinematics = env.world.kinematics
    for position in rng.uniform(WORKSPACE_LOW, WORKSPACE_HIGH, (40, 3)):
        kinematics.joints = DECISION_JOINTS.copy()
        goal = Pose(position, rotation_about(rng.normal(size=3), 0.3) @ DOWNWARD)
        for _ in range(20):  # the speed limit spreads a long way over several control steps
            joints = kinematics.solve(goal)
        reached = forward_kinematics(joints)
        assert np.linalg.norm(reached.position - position) < 1e-3
        assert np.linalg.norm(rotation_vector(reached.rotation @ goal.rotation.T)) < 1e-2
    kinematics.reset()


def test_control_runs_at_exactly_7_5_hertz(env: CamoEnv) -> None:
    env.reset(seed=0)
    before = env.world.data.time
    env.step(WAIT)
    assert env.world.data.time - before == pytest.approx(1 / 7.5, abs=1e-12)
    assert SUBSTEPS * CONTROL_HZ == 480


def test_the_arm_holds_still_without_sagging_and_follows(env: CamoEnv) -> None:
    env.reset(seed=0)
    wait_until_decision(env)
    assert np.linalg.norm(env.world.tool().position - WAIT[:3]) < 1e-4
    goal = Pose(np.array([0.45, 0.1, 0.3]), rotation_about((0, 0, 1), 0.3) @ DOWNWARD)
    for _ in range(8):
        env.step(pose_to_action(goal, 0.5))
    tool = env.world.tool()
    assert np.linalg.norm(tool.position - goal.position) < 1e-3
    assert np.linalg.norm(rotation_vector(tool.rotation @ goal.rotation.T)) < 5e-3
    assert env.world.gripper() == pytest.approx(0.5, abs=0.01)
    np.testing.assert_allclose(env.proprioception(), pose_to_action(goal, 0.5), atol=0.01)


def test_turning_further_stops_at_the_joint_limit_and_is_reported(env: CamoEnv) -> None:
    env.reset(seed=0)
    wait_until_decision(env)
    clamped = False
    # the wrist meets its limit on the way, and returns
    for turn in (*range(18), *reversed(range(18))):
        goal = Pose(np.array([0.4, 0.0, 0.35]), rotation_about((0, 0, 1), 0.3 * turn) @ DOWNWARD)
        *_, info = env.step(pose_to_action(goal, 1.0))
        clamped |= info["clamped"]
        assert np.abs(env.world.kinematics.joints).max() <= 2 * np.pi
    assert clamped and not info["clamped"]
    assert np.linalg.norm(rotation_vector(env.world.tool().rotation @ DOWNWARD.T)) < 0.05


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (np.full(10, np.nan), "must be finite, got x, y, z"),
        (np.where(np.arange(10) == 2, np.inf, WAIT), "must be finite, got z"),
        (WAIT[:9], r"10 numbers \(x, y, z, .*shape \(9,\)"),
        (np.zeros((1, 10)), r"shape \(1, 10\)"),
        (np.array([*WAIT[:3], 0, 0, 0, 0, 1, 0, 1]), "almost zero"),
        (np.array([*WAIT[:3], 1, 0, 0, 2, 0, 0, 1]), "parallel"),
    ],
)
def test_bad_actions_are_refused(env: CamoEnv, action: np.ndarray, message: str) -> None:
    env.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        env.step(action)
    env.step(WAIT)  # the environment goes on after a refused action


def test_targets_out_of_reach_are_clamped_and_reported(env: CamoEnv) -> None:
    far = read_action(np.array([5.0, -5.0, -5.0, *WAIT[3:9], 7.0]))
    np.testing.assert_array_equal(
        far.pose.position, [WORKSPACE_HIGH[0], WORKSPACE_LOW[1], WORKSPACE_LOW[2]]
    )
    assert far.gripper == 1.0 and far.clamped
    upside_down = read_action(np.array([*WAIT[:3], 1, 0, 0, 0, 1, 0, 1]))
    assert upside_down.clamped and upside_down.pose.rotation[2, 2] < -0.1
    skewed = read_action(np.array([*WAIT[:3], 2, 0, 0, 0.3, -0.5, 0, 1]))
    np.testing.assert_allclose(skewed.pose.rotation, DOWNWARD, atol=1e-12)
    assert not read_action(WAIT).clamped


@pytest.mark.parametrize("name", TASK_NAMES)
def test_violent_actions_do_not_break_the_simulation(name: str) -> None:
    env = CamoEnv(name, observation="state", retention_steps=0)
    corners = np.stack(
        [
            np.where(np.arange(3) == axis, high, low)
            for axis in range(3)
            for low, high in ((-9, 9), (9, -9))
        ]
    )
    env.reset(seed=3)
    wait_until_decision(env)
    for step in range(40):
        flip = (-1) ** step
        observation, _, terminated, truncated, _ = env.step(
            [*corners[step % 6], 0, flip, 0.1, flip, 0, 0, step % 2]
        )
        assert env.observation_space.contains(observation)
        if terminated or truncated:
            break
    assert not env.world.diverged


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "juggling"}, "the tasks are clean-plate, shell-game, seasonings"),
        ({"observation": "depth"}, "one of rgb, state"),
        ({"nuisance": "wild"}, "one of none, mild, strong"),
        ({"image_size": 4096}, "between 16 and 1024"),
        ({"image_size": (64, 128)}, "whole number between"),
        ({"retention_steps": -1}, "between 0 and 100000"),
        ({"retention_steps": (9, 3)}, "pair between"),
        ({"swaps": 9}, "between 0 and 8"),
        ({"swaps": 1.5}, "between 0 and 8"),
        (
            {"distractor_hovers": 1},
            "shell-game has no parameter distractor_hovers; its own are: cups, swaps",
        ),
        ({"render_mode": "human"}, "rgb_array or None"),
    ],
)
def test_bad_parameters_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CamoEnv(**{"task": "shell-game", "observation": "state", **arguments})


def test_bad_answers_and_misuse_are_refused(env: CamoEnv) -> None:
    with pytest.raises(ValueError, match=r"no answer z = 3; it has 0, 1, 2"):
        env.reset(seed=0, options={"z": 3})
    with pytest.raises(ValueError, match="whole number of at least 0, got -1"):
        env.reset(seed=-1)
    env.reset(seed=0, options={"z": np.array(1)})
    fresh = gym.make("Camo/Seasonings-v0", observation="state")
    with pytest.raises(gym.error.ResetNeeded):
        fresh.step(WAIT)
    with pytest.raises(ValueError, match=r"27 in all"):
        fresh.reset(seed=0, options={"z": (0, 1)})
    with pytest.raises(ValueError, match="no answer"):
        fresh.reset(seed=0, options={"z": (0.7, 1, 2)})
    fresh.reset(seed=0, options={"z": np.array([2, 1, 0])})
    assert fresh.unwrapped.z == (2, 1, 0)


NO_LIBRARY = (
    "import sys; "
    "sys.modules.update({'mujoco.egl': None, 'mujoco.osmesa': None, 'mujoco.glfw': None}); "
)
STATE, RGB = "CamoEnv('shell-game', observation='state').reset(); ", "CamoEnv('shell-game')"
FRAMES = (
    "env = CamoEnv('shell-game', image_size=32); env.reset(seed=0); "
    "print(env.frames()['third'].mean() > 50)"
)


def run_without_screen(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    hidden = ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**environment, **variables},
    )


@pytest.mark.parametrize(
    ("before", "variables"),
    [(NO_LIBRARY, {}), (NO_LIBRARY, {"MUJOCO_GL": "osmesa"}), ("", {"MUJOCO_GL": "glfw"})],
)
def test_a_missing_opengl_library_names_its_package(before: str, variables: dict[str, str]) -> None:
    result = run_without_screen(
        f"{before}from chameleon_policy.camo import CamoEnv; {STATE}{RGB}", **variables
    )
    assert (
        result.returncode == 1 and "ImportError: pictures need an OpenGL library" in result.stderr
    ), result.stderr
    assert (
        "apt-get install libegl1 libgl1-mesa-dri" in result.stderr and "libosmesa6" in result.stderr
    )


def test_triton_can_be_loaded_after_the_renderer() -> None:
    """Both bring an LLVM: the second one to be loaded would end the process."""
    pytest.importorskip("triton")
    result = run_without_screen(
        f"from chameleon_policy.camo import CamoEnv; {FRAMES}; import triton"
    )
    assert result.returncode == 0 and result.stdout.strip() == "True", result.stderr


def test_rendering_works_when_mujoco_was_imported_first() -> None:
    result = run_without_screen(
        f"import mujoco; from chameleon_policy.camo import CamoEnv; {FRAMES}"
    )
    assert result.stdout.strip() == "True", result.stderr
