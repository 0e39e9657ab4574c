"""Statistics of recorded features as LeRobot stores them.

These are min, max, mean, std, count, q01, q10, q50, q90 and q99, each an array.
"""

from __future__ import annotations

import numpy as np

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
SAMPLED_FRAMES = 100

FeatureStatistics = dict[str, np.ndarray]


def vector_statistics(values: np.ndarray) -> FeatureStatistics:
    """Compute the statistics (d,) of rows (T, d).

    min and max keep the type of the values, the others are float64.
    """
    wide = values.astype(np.float64)
    quantiles = np.quantile(wide, list(QUANTILES.values()), axis=0)
    return {
        "min": values.min(axis=0),
        "max": values.max(axis=0),
        "mean": wide.mean(axis=0),
        "std": wide.std(axis=0),
        "count": np.array([len(values)]),
        **dict(zip(QUANTILES, quantiles, strict=True)),
    }


def image_histogram(frames: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the histogram of each channel (3, 256), and the number of frames it was made of.

    Up to `SAMPLED_FRAMES` frames are counted, spread over the episode. Histograms of episodes add
    up, so that the statistics of the whole dataset are those of all sampled pixels, not averages of
    the episodes' statistics.
    """
    chosen = np.unique(
        np.linspace(0, len(frames) - 1, min(len(frames), SAMPLED_FRAMES)).round().astype(int)
    )
    sampled = frames[chosen]
    counts = [np.bincount(sampled[..., channel].ravel(), minlength=256) for channel in range(3)]
    return np.stack(counts).astype(np.int64), len(chosen)


def image_statistics(histogram: np.ndarray, count: int) -> FeatureStatistics:
    """Compute the statistics (3, 1, 1) of pixels in 0..1, from a histogram of `count` frames."""
    levels = np.arange(256) / 255
    share = histogram / histogram.sum(axis=1, keepdims=True)
    mean = share @ levels
    variance = (share * (levels - mean[:, None]) ** 2).sum(axis=1)
    # the smallest level that at least this share of the pixels does not exceed
    below = share.cumsum(axis=1)
    quantiles = {name: levels[(below >= q - 1e-12).argmax(axis=1)] for name, q in QUANTILES.items()}
    present = histogram > 0
    per_channel = {
        "min": levels[present.argmax(axis=1)],
        "max": levels[255 - present[:, ::-1].argmax(axis=1)],
        "mean": mean,
        "std": np.sqrt(variance),
        **quantiles,
    }
    return {name: value.reshape(3, 1, 1) for name, value in per_channel.items()} | {
        "count": np.array([count])
    }
