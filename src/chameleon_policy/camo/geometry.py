"""Poses and rotations.

Positions are in metres; the columns of a rotation matrix are the axes of the rotated frame.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Pose:
    """Position (3,) and rotation (3, 3) in the frame of the robot's base, which is the world's."""

    position: Array
    rotation: Array

    def translated(self, *offset: float) -> Pose:
        """Return the pose moved by an offset in the base frame."""
        return Pose(self.position + np.asarray(offset, float), self.rotation)


def rotation_about(axis: npt.ArrayLike, angle: float) -> Array:
    """Return the rotation (3, 3) by `angle` radians about `axis` (Rodrigues' formula).

    The axis need not be a unit vector.
    """
    x, y, z = np.asarray(axis, float) / np.linalg.norm(axis)
    cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    return np.asarray(np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross)


def rotation_vector(rotation: Array) -> Array:
    """Return axis times angle (3,) of a rotation matrix, angles up to pi.

    The inverse of `rotation_about`.
    """
    sine = 0.5 * np.array(
        [
            rotation[2, 1] - rotation[1, 2],
            rotation[0, 2] - rotation[2, 0],
            rotation[1, 0] - rotation[0, 1],
        ]
    )
    cosine = 0.5 * (np.trace(rotation) - 1)
    length = float(np.linalg.norm(sine))
    angle = np.arctan2(length, cosine)
    if length > 1e-9:
        return np.asarray(sine * (angle / length))
    if cosine > 0:
        return sine
    # Half a turn: the axis is the eigenvector of the symmetric part with eigenvalue one.
    _, vectors = np.linalg.eigh(rotation + rotation.T)
    return vectors[:, -1] * np.pi


def rotation_to_six(rotation: Array) -> Array:
    """Return the first two columns (6,), the continuous representation of Zhou et al. (2019)."""
    return np.concatenate([rotation[:, 0], rotation[:, 1]])


def rotation_from_six(six: Array) -> Array:
    """Return the nearest frame (3, 3) by Gram-Schmidt: a policy's output need not be orthonormal.

    ValueError if there is no frame: a vanishing column, or two parallel ones.
    """
    first, second = six[:3], six[3:]
    length = np.linalg.norm(first)
    if length < 1e-3:
        raise ValueError(
            f"the first three of the six rotation numbers are almost zero: {six.tolist()}"
        )
    x = first / length
    rest = second - x * (x @ second)
    length = np.linalg.norm(rest)
    if length < 1e-3:
        raise ValueError(
            "the two columns of the rotation are parallel or the second is almost zero: "
            f"{six.tolist()}"
        )
    y = rest / length
    return np.column_stack([x, y, np.cross(x, y)])


def quaternion(rotation: Array) -> Array:
    """Return (w, x, y, z) of a rotation matrix, as in MuJoCo."""
    vector = rotation_vector(rotation)
    angle = float(np.linalg.norm(vector))
    if angle < 1e-12:
        return np.array([1.0, 0.0, 0.0, 0.0])
    return np.concatenate([[np.cos(angle / 2)], np.sin(angle / 2) * vector / angle])


def rotation_from_quaternion(quat: Array) -> Array:
    """Return the rotation matrix of (w, x, y, z)."""
    w, x, y, z = quat / np.linalg.norm(quat)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def minimum_jerk(fraction: npt.ArrayLike) -> Array:
    """Return the progress 0..1 of a human point-to-point motion at a fraction of its duration.

    Flash and Hogan (1985).
    """
    u = np.clip(np.asarray(fraction, float), 0.0, 1.0)
    return np.asarray(u**3 * (10 - 15 * u + 6 * u**2))
