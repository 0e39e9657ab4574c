"""Pictures that are too large for training are scaled down while they are read."""

from __future__ import annotations

import numpy as np
from PIL import Image


def resized(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return a picture (H, W, 3) uint8 scaled to (height, width).

    The filter averages over all pixels that a new one covers (bilinear with antialiasing).
    Whoever feeds the trained policy has to scale its pictures likewise.
    """
    height, width = size
    return np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BILINEAR))
