"""Mirrored episodes, compared with mirrored scenes and poses in the simulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from camo_episodes import CASES, Case
from chameleon_policy.camo.controller import ACTION_NAMES, pose_to_action, read_action
from chameleon_policy.camo.dataset_variants import SIGNS, check_mirror
from chameleon_policy.camo.geometry import Pose, rotation_about
from chameleon_policy.camo.recording import Recording
from chameleon_policy.data import load_episodes, open_episodes
from chameleon_policy.recorder import record
from chameleon_policy.train.augmentation import Appearance, Mirror, augment
from chameleon_policy.train.normalization import statistics_of
from chameleon_policy.train.store import EpisodeStore, features_of

MIRROR = np.diag([1.0, -1.0, 1.0])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_flipped_pictures_are_pictures_of_the_mirrored_scene(case: Case) -> None:
    env = case.env(image_size=96)
    env.reset(seed=11)
    before = env.frames()
    names = [*env.task.candidates, *env.task.others]
    poses = {name: env.world.pose(name) for name in names}
    for name, pose in poses.items():
        env.world.place(name, Pose(MIRROR @ pose.position, MIRROR @ pose.rotation @ MIRROR))
    env.task.furnish(env.world, 0)  # blocks follow their cups
    env.world.refresh()
    after = env.frames()
    env.close()
    for view in before:
        # Below the arm, which is not symmetric. Light and grain of the wood differ a little, things
        # by far more.
        flipped, same = (
            (np.abs(after[view].astype(int) - other)[25:].max(-1) > 60).mean()
            for other in (before[view][:, ::-1], before[view])
        )
        assert flipped < 0.003 < 0.02 < same


def test_poses_are_those_of_the_mirrored_tool() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        rotation = np.diag([1.0, -1.0, -1.0]) @ rotation_about(
            rng.normal(size=3), rng.uniform(0, 1)
        )
        pose = Pose(rng.uniform((0.3, -0.3, 0.1), (0.7, 0.3, 0.4)), rotation)
        numbers = pose_to_action(pose, 0.3).astype(np.float32)
        seen = read_action(numbers * np.array(SIGNS, np.float32))
        np.testing.assert_allclose(seen.pose.position, MIRROR @ pose.position, atol=1e-6)
        np.testing.assert_allclose(seen.pose.rotation, MIRROR @ pose.rotation @ MIRROR, atol=1e-5)


def test_some_episodes_of_a_batch_are_mirrored(tmp_path: Path) -> None:
    recording = open_episodes(
        record(Recording(task="seasonings", episodes=2, image_size=32), tmp_path / "rgb")
    )
    check_mirror(recording)
    arrays, mirror = load_episodes(recording), Mirror(SIGNS, SIGNS)
    statistics = statistics_of(arrays, mirror)
    side = ACTION_NAMES.index("y")
    for span in (statistics.proprioception, statistics.action):
        # both sides count alike
        assert span is not None and span.low[side] == pytest.approx(-span.high[side])
    store = EpisodeStore(arrays, features_of(recording, 4), statistics)
    plain = store.batch([0, 1])
    batch = augment(store.batch([0, 1]), [Appearance(), Appearance(mirrored=True)], mirror)
    for name, frames in batch.observation.images.items():
        np.testing.assert_array_equal(frames[0], plain.observation.images[name][0])
        np.testing.assert_array_equal(
            frames[1], plain.observation.images[name][1].numpy()[:, :, ::-1]
        )
    signs = np.array(SIGNS, np.float32)
    for numbers, before in (
        (batch.actions, plain.actions),
        (batch.observation.proprioception, plain.observation.proprioception),
    ):
        np.testing.assert_array_equal(numbers[0], before[0])
        np.testing.assert_array_equal(numbers[1], before[1].numpy() * signs)
    again = store.batch([0, 1])  # what lies in the store has not changed
    np.testing.assert_array_equal(
        again.observation.images["wrist"], plain.observation.images["wrist"]
    )


def test_states_have_no_mirror_image(tmp_path: Path) -> None:
    recording = record(
        Recording(task="clean-plate", episodes=1, observation="state"), tmp_path / "state"
    )
    with pytest.raises(ValueError, match="only recordings of Camo with pictures"):
        check_mirror(open_episodes(recording))
