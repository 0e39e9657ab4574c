"""Training data in every format: missing and unknown arrays are refused with advice."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr

from chameleon_policy.data import Keys, open_episodes
from episode_files import refused, write_hdf5, write_zarr


def test_keys_that_do_not_exist(lerobot: Path, tmp_path: Path) -> None:
    hdf5, buffer = write_hdf5(tmp_path / "a.hdf5"), write_zarr(tmp_path / "a.zarr", 3)
    available = "Available: observation.state, action, observation.velocity"
    refused(
        lerobot,
        rf"has no state 'observation.stat'; did you mean 'observation.state'\? {available}",
        Keys(state=("observation.stat",)),
    )
    refused(
        lerobot,
        r"has no view 'thrid'; did you mean 'third'\? Available: third, wrist",
        Keys(views=("thrid",)),
    )
    refused(lerobot, rf"has no objects 'cube'. {available}", Keys(objects="cube"))
    refused(hdf5, r"a.hdf5 has no action 'action'; did you mean 'actions'\?", Keys(action="action"))
    refused(
        hdf5, r"a.hdf5 has no pictures .* 'object'. Available: front_image", Keys(views=("object",))
    )
    refused(buffer, r"a.zarr has no state 'agent_pos'. Available: ", Keys(state=("agent_pos",)))
    refused(
        buffer,
        r"a.zarr has no objects 'keypoints'; did you mean 'keypoint'\?",
        Keys(objects="keypoints"),
    )
    unusual = write_hdf5(tmp_path / "b.hdf5", state={"joint_angles": 7})
    refused(
        unusual,
        r"b.hdf5: expected the robot's state .* are: .*joint_angles.*"
        r"Choose among them with Keys\(state=",
    )
    assert open_episodes(unusual, Keys(state=("joint_angles",))).state_size == 7


def test_unknown_formats(tmp_path: Path) -> None:
    refused(
        tmp_path / "nowhere",
        r"nowhere does not exist; .*chameleon record clean-plate --out",
        error=FileNotFoundError,
    )
    refused(tmp_path, r"expected a LeRobot v3.0 dataset .*\.hdf5.*\.zarr.*; found an empty folder")
    (tmp_path / "table.csv").write_text("1,2")
    refused(tmp_path, r"found a folder with table.csv")
    refused(tmp_path / "table.csv", r"found a file that ends in '.csv'")
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["weights"] = np.zeros(3)
    refused(
        tmp_path / "other.hdf5", r"other.hdf5: expected robomimic's group data/ .*; found weights"
    )
    zarr.open_group(tmp_path / "other.zarr", mode="w").create_array(
        "weights", shape=(3,), dtype="f4"
    )
    refused(
        tmp_path / "other.zarr",
        r"other.zarr: expected a replay buffer .*; data is missing, found \['weights'\]",
    )
    (tmp_path / "bare.zarr").mkdir()
    refused(
        tmp_path / "bare.zarr",
        r"bare.zarr: expected a replay buffer .*; data is missing, found \[\]",
    )


@pytest.mark.parametrize(
    ("name", "missing", "advice"),
    [
        ("a.hdf5", "'av', 'pyarrow', 'PIL', 'zarr'", None),
        ("a.hdf5", "'h5py'", "pip install 'chameleon-policy[hdf5]'"),
        ("a.zarr", "'zarr'", "pip install 'chameleon-policy[zarr]'"),
        ("lerobot", "'av'", "pip install 'chameleon-policy[camo]'"),
    ],
)
def test_a_format_needs_only_its_own_packages(
    name: str, missing: str, advice: str | None, lerobot: Path, tmp_path: Path
) -> None:
    write_hdf5(tmp_path / "a.hdf5")
    write_zarr(tmp_path / "a.zarr", 3)
    code = f"""
        import sys
        sys.modules.update(dict.fromkeys([{missing}]))
        from chameleon_policy.data import load_episodes, open_episodes
        try:
            print(len(load_episodes(open_episodes(sys.argv[1]))))
        except ImportError as error:
            print(error)
    """
    path = lerobot if name == "lerobot" else tmp_path / name
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), path], capture_output=True, text=True
    )
    assert (advice or "3\n") in result.stdout, result.stderr
