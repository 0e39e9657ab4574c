"""The real lerobot package reads our datasets.

These tests are marked slow, and skipped without a Python that has lerobot:

scripts/lerobot-venv
LEROBOT_PYTHON=.lerobot-venv/bin/python .venv/bin/pytest --slow tests/test_lerobot_package.py
"""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path

import numpy as np
import pytest

from chameleon_policy.camo.recording import Recording
from chameleon_policy.data import FileLimits, RecordedDataset, assemble
from chameleon_policy.recorder import record as record_demonstrations
from test_lerobot_v3 import INSTRUCTIONS, LENGTHS, SCHEMA, make_episode, record

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "LEROBOT_PYTHON" not in os.environ,
        reason="needs LeRobot: run scripts/lerobot-venv and set LEROBOT_PYTHON",
    ),
]

# Code below runs in the Python that has lerobot.
IMPORT = """
    import sys
    from pathlib import Path
    import numpy as np
    import torch

    # torchvision's compiled operators belong to another torch; they are never called, but must be
    # known when it is imported
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    root = Path(sys.argv[1])
"""

# The expected images are stored next to the dataset.
SYNTHETIC_CHECK = """
    expected = np.load(root / "camo/expected.npz")
    starts, lengths = expected["starts"].tolist(), expected["lengths"].tolist()
    step = 1 / 7.5
    deltas = {"observation.images.third": [-2 * step, -step, 0.0], "action": [0.0, step, 2 * step]}
    plain = LeRobotDataset("local/camo", root=root, video_backend="pyav")
    windows = LeRobotDataset("local/camo", root=root, video_backend="pyav", delta_timestamps=deltas)
    last = LeRobotDataset(
        "local/camo", root=root, video_backend="pyav", episodes=[len(lengths) - 1]
    )
    assert (
        len(plain) == sum(lengths)
        and plain.num_episodes == len(lengths)
        and len(last) == lengths[-1]
    )


    def error(picture, index, view):
        return float(
            (picture - torch.from_numpy(expected[view][index]).permute(2, 0, 1) / 255).abs().mean()
            * 255
        )


    worst = 0.0
    for index in range(len(plain)):
        item = plain[index]
        for view in ("third", "wrist"):
            picture = item[f"observation.images.{view}"]
            assert picture.shape == expected[view][index].transpose(2, 0, 1).shape, picture.shape
            worst = max(worst, error(picture, index, view))
        for key in ("observation.state", "action", "progress"):
            np.testing.assert_array_equal(np.atleast_1d(item[key].numpy()), expected[key][index])
        episode = int(item["episode_index"])
        assert starts[episode] + int(item["frame_index"]) == index == int(item["index"])
        assert item["task"] == str(expected["instructions"][episode])
    assert worst < 2.5, worst

    for episode, (start, length) in enumerate(zip(starts, lengths)):
        for index in (start, start + 1, start + length - 1):
            item = windows[index]
            for place, delta in enumerate((-2, -1, 0)):
                assert bool(item["observation.images.third_is_pad"][place]) == (
                    index + delta < start
                )
                worst = max(
                    worst,
                    error(
                        item["observation.images.third"][place], max(index + delta, start), "third"
                    ),
                )
            ahead = [min(index + delta, start + length - 1) for delta in range(3)]
            np.testing.assert_array_equal(item["action"].numpy(), expected["action"][ahead])
            assert item["action_is_pad"].tolist() == [
                index + delta >= start + length for delta in range(3)
            ]
    assert worst < 2.5, worst
    assert error(last[0]["observation.images.wrist"], starts[-1], "wrist") < 2.5

    seen = []
    for batch in torch.utils.data.DataLoader(windows, batch_size=5, shuffle=True, num_workers=1):
        assert batch["observation.images.third"].shape[1:] == (3, 3, 64, 96) and batch[
            "action"
        ].shape[1:] == (3, 2)
        seen += batch["index"].tolist()
    assert sorted(seen) == list(range(len(plain)))
    assert plain.meta.stats["observation.images.third"]["mean"].shape == (3, 1, 1)
    print(f"mean absolute error of the worst frame {worst:.2f}")
"""

# A recording of Camo, as it is used for training.
CAMO_CHECK = """
    dataset = LeRobotDataset("local/camo", root=root, video_backend="pyav")
    assert dataset.fps == 7.5 and dataset.num_episodes == 3 and dataset.meta.robot_type == "ur5e"
    pictures = [key for key in dataset.features if key.startswith("observation.images.")]
    assert len(pictures) == int(sys.argv[2])
    expected = np.load(root / "camo/expected.npz")
    for index in range(len(dataset)):
        item = dataset[index]
        np.testing.assert_array_equal(item["action"].numpy(), expected["action"][index])
        np.testing.assert_array_equal(item["observation.state"].numpy(), expected["state"][index])
        for key in pictures:
            error = (
                (item[key] - torch.from_numpy(expected[key][index]).permute(2, 0, 1) / 255)
                .abs()
                .mean()
            )
            assert error < 0.01, (index, key, float(error))
    print(f"{len(dataset)} frames read")
"""


def run_with_lerobot(code: str, *arguments: object, home: Path) -> str:
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(home)}
    command = [
        os.environ["LEROBOT_PYTHON"],
        "-c",
        textwrap.dedent(IMPORT) + textwrap.dedent(code),
        *map(str, arguments),
    ]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert run.returncode == 0, run.stderr[-4000:]
    return run.stdout


def test_it_reads_synthetic_episodes(tmp_path: Path) -> None:
    """Compare shapes, pixels, windows, padding, a subset of episodes, and loaded batches."""
    parts, out = tmp_path / "parts", tmp_path / "dataset"
    record(parts, range(4))
    assemble(parts, out, SCHEMA, range(4), limits=FileLimits(video_seconds=25 / 7.5))
    episodes = [make_episode(index) for index in range(4)]
    arrays = {
        key: np.concatenate([episode["vectors"][key] for episode in episodes])
        for key in SCHEMA.vectors
    }
    arrays |= {
        view: np.concatenate([episode["frames"][view] for episode in episodes])
        for view in SCHEMA.views
    }
    starts = np.cumsum([0, *LENGTHS[:-1]])
    (out / "camo").mkdir()
    np.savez(
        out / "camo/expected.npz",
        starts=starts,
        lengths=LENGTHS,
        instructions=INSTRUCTIONS,
        **arrays,
    )
    assert "mean absolute error of the worst frame" in run_with_lerobot(
        SYNTHETIC_CHECK, out, home=tmp_path / "hf"
    )


@pytest.mark.parametrize(("observation", "views"), [("rgb", 2), ("state", 0)])
def test_it_reads_a_recording_of_camo(observation: str, views: int, tmp_path: Path) -> None:
    recording = Recording(task="shell-game", episodes=3, observation=observation, image_size=64)
    dataset = RecordedDataset(record_demonstrations(recording, tmp_path / "camo"))
    vectors = [dataset.vectors(index) for index in range(3)]
    arrays = {
        name: np.concatenate([each[key] for each in vectors])
        for name, key in (("action", "action"), ("state", "observation.state"))
    }
    for view in dataset.schema.views:
        arrays[f"observation.images.{view}"] = np.concatenate(
            [dataset.frames(index, view) for index in range(3)]
        )
    np.savez(tmp_path / "camo/camo/expected.npz", **arrays)
    assert "frames read" in run_with_lerobot(
        CAMO_CHECK, tmp_path / "camo", views, home=tmp_path / "hf"
    )
