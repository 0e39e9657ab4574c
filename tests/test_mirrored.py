"""In the mirror: the simulator itself says what a mirrored scene looks like and where a mirrored pose is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from camo_episodes import TASK_NAMES
from chameleon_policy.camo import CamoEnv
from chameleon_policy.camo.controller import pose_to_action, read_action
from chameleon_policy.camo.geometry import Pose, rotation_about
from chameleon_policy.camo.mirrored import MirroredEpisodes, mirrored_poses
from chameleon_policy.camo.recording import Recording, record
from chameleon_policy.data.episodes import open_episodes

MIRROR = np.diag([1.0, -1.0, 1.0])


@pytest.mark.parametrize("task", TASK_NAMES)
def test_flipped_pictures_are_pictures_of_the_mirrored_scene(task: str) -> None:
    env = CamoEnv(task, image_size=96)
    env.reset(seed=11)
    before = env.frames()
    names = [*env.task.candidates, *env.task.others]
    poses = {name: env.world.pose(name) for name in names}
    for name, pose in poses.items():
        env.world.place(name, Pose(MIRROR @ pose.position, MIRROR @ pose.rotation @ MIRROR))
    env.world.refresh()
    after = env.frames()
    env.close()
    for view in before:
        # Below the arm, which is not symmetric. Light and grain of the wood differ a little, things by far more.
        flipped, same = (
            (np.abs(after[view].astype(int) - other)[25:].max(-1) > 60).mean()
            for other in (before[view][:, ::-1], before[view])
        )
        assert flipped < 0.003 < 0.02 < same


def test_poses_are_those_of_the_mirrored_tool() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        rotation = np.diag([1.0, -1.0, -1.0]) @ rotation_about(rng.normal(size=3), rng.uniform(0, 1))
        pose = Pose(rng.uniform((0.3, -0.3, 0.1), (0.7, 0.3, 0.4)), rotation)
        numbers = pose_to_action(pose, 0.3).astype(np.float32)
        seen = read_action(mirrored_poses(numbers[None])[0])
        np.testing.assert_allclose(seen.pose.position, MIRROR @ pose.position, atol=1e-6)
        np.testing.assert_allclose(seen.pose.rotation, MIRROR @ pose.rotation @ MIRROR, atol=1e-5)
        np.testing.assert_array_equal(mirrored_poses(mirrored_poses(numbers[None])), numbers[None])


def test_a_recording_and_its_mirror_images(tmp_path: Path) -> None:
    plain = open_episodes(record(Recording(task="seasonings", episodes=2, image_size=32), tmp_path / "rgb"))
    both = MirroredEpisodes(plain)
    assert both.lengths == plain.lengths * 2 and both.instructions == plain.instructions * 2
    for index in range(2):
        real, same, mirrored = plain.read(index), both.read(index), both.read(index + 2)
        np.testing.assert_array_equal(same.actions, real.actions)
        np.testing.assert_array_equal(same.images["third"], real.images["third"])
        assert same.answers == real.answers and mirrored.decision_steps == real.decision_steps
        assert mirrored.answers == tuple(2 - answer for answer in real.answers)
        np.testing.assert_array_equal(mirrored.state[:, 1], -real.state[:, 1])
        np.testing.assert_array_equal(mirrored.images["wrist"][:, :, 5], real.images["wrist"][:, :, 26])


def test_states_have_none(tmp_path: Path) -> None:
    recording = record(Recording(task="clean-plate", episodes=1, observation="state"), tmp_path / "state")
    with pytest.raises(ValueError, match="only recordings of Camo with pictures"):
        MirroredEpisodes(open_episodes(recording))
