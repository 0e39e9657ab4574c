"""Recordings of Camo in the mirror: what is on the left is on the right, and the answers with it.

Table, cameras and gripper are symmetric about the plane y = 0, so the mirror image of an episode is
an episode, but for the arm above the elbow, the light and which hand is the left one.
"""

from __future__ import annotations

from chameleon_policy.camo.controller import ACTION_NAMES
from chameleon_policy.data import Episodes

# M R M with M = diag(1, -1, 1), and M p: these change their sign.
SIGNS = tuple(-1.0 if name in ("y", "r21", "r12", "r32") else 1.0 for name in ACTION_NAMES)


def check_mirror(recording: Episodes) -> None:
    """ValueError if it is not known what the mirror image of a recording is."""
    instead = "give --no-mirror"
    if not recording.views or recording.object_slots or recording.state_size != len(ACTION_NAMES):
        raise ValueError(
            f"{recording.source}: only recordings of Camo with pictures have a mirror image; {instead}"
        )
    if not all(recording.decisions(index)[1] for index in range(len(recording))):
        raise ValueError(
            f"{recording.source} is no recording of Camo: what its numbers become in a mirror is not known; {instead}"
        )
