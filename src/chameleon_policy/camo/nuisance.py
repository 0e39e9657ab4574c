"""Nuisance randomisation: light, colours and cameras vary between episodes, without meaning.

Geoms of equal colour keep equal colours: identical cups stay identical.
"""

from __future__ import annotations

import colorsys
from dataclasses import dataclass
from typing import Literal, get_args

import mujoco
import numpy as np

from chameleon_policy.camo.geometry import quaternion, rotation_about, rotation_from_quaternion
from chameleon_policy.camo.hand import HAND_GROUP

Level = Literal["none", "mild", "strong"]
LEVELS = get_args(Level)


@dataclass(frozen=True)
class Spread:
    """Ranges of variation.

    Relative for light, absolute for hue (a full circle is 1), otherwise metres, radians, degrees.
    """

    light: float
    direction: float
    hue: float
    tone: float
    camera_position: float
    camera_turn: float
    fovy: float


SPREADS: dict[str, Spread] = {
    "mild": Spread(0.12, 0.15, 0.02, 0.08, 0.008, 0.012, 0.8),
    "strong": Spread(0.35, 0.45, 0.12, 0.25, 0.025, 0.04, 2.5),
}


class Nuisance:
    """Randomiser of a model's appearance, which keeps the original."""

    def __init__(self, model: mujoco.MjModel) -> None:
        self._model = model
        self._headlight = model.vis.headlight.ambient.copy()
        names = ("light_diffuse", "light_dir", "geom_rgba", "cam_pos", "cam_quat", "cam_fovy")
        self._originals = {name: getattr(model, name).copy() for name in names}

    def apply(self, level: Level, rng: np.random.Generator) -> None:
        """Set the appearance of an episode; `none` restores the original."""
        model = self._model
        for name, original in self._originals.items():
            getattr(model, name)[:] = original
        model.vis.headlight.ambient[:] = self._headlight
        if level == "none":
            return
        spread = SPREADS[level]
        model.vis.headlight.ambient[:] *= 1 + spread.light * rng.uniform(-1, 1)
        model.light_diffuse[:] *= 1 + spread.light * rng.uniform(-1, 1, (model.nlight, 1))
        model.light_dir[:] += spread.direction * rng.uniform(-1, 1, (model.nlight, 3))
        model.light_dir[:] /= np.linalg.norm(model.light_dir, axis=1, keepdims=True)
        colours = np.unique(model.geom_rgba, axis=0)
        for colour in colours:
            same = (self._originals["geom_rgba"] == colour).all(axis=1)
            # People come in many tones, not in many hues.
            hue = 0.0 if (model.geom_group[same] == HAND_GROUP).any() else spread.hue
            model.geom_rgba[same, :3] = _vary(colour[:3], hue, spread.tone, rng)
        for camera in range(model.ncam):
            # The third camera stands on a tripod; the one on the wrist hardly moves.
            reach = spread.camera_position * (1.0 if model.cam_bodyid[camera] == 0 else 0.25)
            model.cam_pos[camera] += reach * rng.uniform(-1, 1, 3)
            turn = rotation_about(rng.normal(size=3), spread.camera_turn * rng.uniform(0, 1))
            model.cam_quat[camera] = quaternion(
                rotation_from_quaternion(model.cam_quat[camera]) @ turn
            )
            model.cam_fovy[camera] += spread.fovy * rng.uniform(-1, 1)


def _vary(
    rgb: np.ndarray, turn: float, tone: float, rng: np.random.Generator
) -> tuple[float, float, float]:
    hue, saturation, value = colorsys.rgb_to_hsv(*map(float, rgb))
    hue = (hue + turn * rng.uniform(-1, 1)) % 1.0
    saturation = float(np.clip(saturation * (1 + tone * rng.uniform(-1, 1)), 0, 1))
    value = float(np.clip(value * (1 + tone * rng.uniform(-1, 1)), 0, 1))
    return colorsys.hsv_to_rgb(hue, saturation, value)
