"""Poses and rotations: positions in metres, rotation matrices whose columns are the axes of the
rotated frame.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Pose:
    """A position (3,) and a rotation (3, 3), in the frame of the robot's base, which is the
    world's.
    """

    position: Array
    rotation: Array

    def translated(self, *offset: float) -> Pose:
        """The same rotation, moved by an offset in the base frame."""
        return Pose(self.position + np.asarray(offset, float), self.rotation)


def rotation_about(axis: npt.ArrayLike, angle: float) -> Array:
    """The rotation by `angle` radians about `axis` (Rodrigues' formula); the axis need not be a
    unit vector.
    """
    x, y, z = np.asarray(axis, float) / np.linalg.norm(axis)
    cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    return np.asarray(np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross)


def rotation_vector(rotation: Array) -> Array:
    """Axis times angle (3,) of a rotation matrix; the inverse of `rotation_about`, angles up to
    pi.
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
    """The first two columns, one after the other: the continuous 6D representation of Zhou et al.
    (2019).
    """
    return np.concatenate([rotation[:, 0], rotation[:, 1]])


def rotation_from_six(six: Array) -> Array:
    """The nearest frame by Gram-Schmidt, so that a policy's output need not be orthonormal.

    Raises ValueError where no frame can be found: a vanishing column, or two parallel ones.
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
            f"the two columns of the rotation are parallel or the second is almost zero: {six.tolist()}"
        )
    y = rest / length
    return np.column_stack([x, y, np.cross(x, y)])


def quaternion(rotation: Array) -> Array:
    """(w, x, y, z) of a rotation matrix, as MuJoCo writes it."""
    vector = rotation_vector(rotation)
    angle = float(np.linalg.norm(vector))
    if angle < 1e-12:
        return np.array([1.0, 0.0, 0.0, 0.0])
    return np.concatenate([[np.cos(angle / 2)], np.sin(angle / 2) * vector / angle])


def rotation_from_quaternion(quat: Array) -> Array:
    """The rotation matrix of (w, x, y, z)."""
    w, x, y, z = quat / np.linalg.norm(quat)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def minimum_jerk(fraction: npt.ArrayLike) -> Array:
    """Progress 0..1 of a point-to-point motion of a human hand (Flash and Hogan, 1985) at a
    fraction of its duration.
    """
    u = np.clip(np.asarray(fraction, float), 0.0, 1.0)
    return np.asarray(u**3 * (10 - 15 * u + 6 * u**2))
