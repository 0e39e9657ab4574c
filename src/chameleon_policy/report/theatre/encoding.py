"""An episode of the theatre as JSON, with images as WebP and attention as bytes in base64."""

from __future__ import annotations

import base64
import io
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from chameleon_policy.probes.theatre_episode import Counterfactual, TheatreEpisode

QUALITY = 85
"""Of WebP: an image of 128 x 128 takes 2 to 3 KB, and objects of a few pixels keep their colour."""
DECIMALS = 3
"""Of beliefs, and of positions in metres."""


def encode_episode(episode: TheatreEpisode) -> dict[str, Any]:
    """Return all that the page needs of an episode, for `json.dumps`."""
    _check(episode)
    steps, layers, heads, tokens = episode.attention.shape
    # The first camera also films what follows an edit, which begins with images that it has.
    first = next(iter(episode.frames), "after")
    pools = {view: _Pictures() for view in (first, *episode.frames)}
    frames = {
        view: [pools[view].index_of(frame) for frame in found]
        for view, found in episode.frames.items()
    }
    counterfactuals = [_counterfactual(each, pools[first]) for each in episode.counterfactuals]
    return {
        "policy": episode.policy,
        "task": episode.task,
        "seed": episode.seed,
        "answer": episode.answer,
        "outcome": episode.outcome,
        "success": episode.success,
        "hz": episode.hz,
        "steps": steps,
        "pictures": {
            view: {"unique": pool.unique, "size": pool.size} for view, pool in pools.items()
        },
        "first_view": first,
        "frames": frames,
        "phases": _spans(episode.phases),
        "decisions": list(episode.decisions),
        "layout": {
            "views": {view: list(grid) for view, grid in episode.layout.views.items()},
            "others": list(episode.layout.others),
            "margin": episode.layout.margin,
        },
        "attention": {
            "layers": layers,
            "heads": heads,
            "tokens": tokens,
            "bytes": encode_shares(episode.attention),
        },
        "beliefs": [
            {
                "question": belief.question,
                "choices": list(belief.choices),
                "truth": belief.truth,
                "shares": _rounded(belief.shares),
            }
            for belief in episode.beliefs
        ],
        "positions": _rounded(episode.positions),
        "candidates": {
            name: _rounded(np.asarray(position)) for name, position in episode.candidates.items()
        },
        "counterfactuals": counterfactuals,
    }


def encode_shares(shares: npt.NDArray[Any]) -> str:
    """Return shares over the last axis as bytes in base64; the largest share of a row is 255.

    A row sums to one, so its shares are its bytes divided by their sum, and no scale is kept. Each
    row has a scale of its own, so that flat rows keep as much as peaked ones. The shares with the
    largest remainders are rounded up, as many as keep the sum; otherwise many small shares would
    all become zero.
    """
    if not shares.size:
        return ""
    largest = shares.max(axis=-1, keepdims=True)
    scaled = 255 * shares.astype(np.float64) / np.where(largest > 0, largest, 1)
    whole = np.floor(scaled)
    rank = np.argsort(np.argsort(whole - scaled, axis=-1), axis=-1)
    missing = np.round((scaled - whole).sum(axis=-1, keepdims=True))
    return base64.b64encode((whole + (rank < missing)).astype(np.uint8).tobytes()).decode()


def decode_shares(text: str, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Return the shares as the page decodes them; a row of zeros stays one."""
    found = np.frombuffer(base64.b64decode(text), np.uint8).reshape(shape).astype(np.float64)
    total = found.sum(axis=-1, keepdims=True)
    return found / np.where(total > 0, total, 1)


class _Pictures:
    """The different images of one camera, in order of appearance.

    An image that comes again is stored once: in retention nothing moves.
    """

    def __init__(self) -> None:
        self.unique: list[str] = []
        self.size: tuple[int, int] | None = None
        """Width and height."""
        self._indices: dict[bytes, int] = {}

    def index_of(self, frame: npt.NDArray[np.uint8]) -> int:
        pixels = frame.tobytes()
        if pixels not in self._indices:
            self._indices[pixels] = len(self.unique)
            self.size = (frame.shape[1], frame.shape[0])
            self.unique.append(_webp(frame))
        return self._indices[pixels]


def _webp(frame: npt.NDArray[np.uint8]) -> str:
    file = io.BytesIO()
    Image.fromarray(frame).save(file, "WEBP", quality=QUALITY, method=4)
    return base64.b64encode(file.getvalue()).decode()


def _counterfactual(given: Counterfactual, pictures: _Pictures) -> dict[str, Any]:
    return {
        "name": given.name,
        "explanation": given.explanation,
        "step": given.step,
        "asks_for": given.asks_for,
        "chosen": given.chosen,
        "shares": _rounded(given.shares),
        "plan": _rounded(given.plan),
        "frames": [pictures.index_of(frame) for frame in given.frames],
    }


def _spans(phases: tuple[str, ...]) -> list[tuple[str, int]]:
    """Return the successive phases and how many steps each lasts."""
    return [(name, len(list(found))) for name, found in groupby(phases)]


def _rounded(numbers: npt.NDArray[Any]) -> Any:
    return np.round(numbers.astype(np.float64), DECIMALS).tolist()


def _check(episode: TheatreEpisode) -> None:
    """Raise ValueError where parts of an episode do not fit together."""
    steps = len(episode.phases)
    name = f"{episode.policy}, {episode.task}, seed {episode.seed}"
    lengths = {f"frames of {view}": len(frames) for view, frames in episode.frames.items()}
    lengths |= {f"belief {belief.question!r}": len(belief.shares) for belief in episode.beliefs}
    lengths |= {"attention": len(episode.attention), "positions": len(episode.positions)}
    wrong = ", ".join(f"{part} {length}" for part, length in lengths.items() if length != steps)
    if not steps or wrong:
        raise ValueError(
            f"{name}: {steps} phases need as many steps of everything else, "
            f"got {wrong or 'none at all'}"
        )
    tokens = episode.attention.shape[-1]
    if episode.attention.size and tokens != episode.layout.count:
        raise ValueError(
            f"{name}: the layout has {episode.layout.count} tokens, attention is over {tokens}"
        )
    for each in episode.counterfactuals:
        if not 0 <= each.step < steps:
            raise ValueError(
                f"{name}: counterfactual {each.name!r} is at step {each.step} of {steps}"
            )
