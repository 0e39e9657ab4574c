"""An episode of the theatre as text that a page can carry: pictures as WebP, attention as bytes,
the rest as JSON.
"""

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
"""Of WebP: a picture of 128 x 128 takes 2 to 3 KB, and objects of a few pixels keep their
colour.
"""
DECIMALS = 3
"""Of beliefs and, since they are in metres, of positions: millimetres."""


def encode_episode(episode: TheatreEpisode) -> dict[str, Any]:
    """Everything that the page needs of an episode; `json.dumps` takes it as it is."""
    _check(episode)
    steps, layers, heads, tokens = episode.attention.shape
    # What happens after an edit is seen by the first camera, and begins with pictures that it has
    # already.
    first = next(iter(episode.frames), "after")
    pools = {view: _Pictures() for view in (first, *episode.frames)}
    frames = {
        view: [pools[view].place_of(frame) for frame in found]
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
            name: _rounded(np.asarray(place)) for name, place in episode.candidates.items()
        },
        "counterfactuals": counterfactuals,
    }


def encode_shares(shares: npt.NDArray[Any]) -> str:
    """Shares over the last axis as bytes, the largest of each row as 255, in base64.

    No scale is kept: since a row sums to one, dividing its bytes by their sum gives the shares
    back. Every row has its own largest byte, so that what is flat over many tokens is kept as well
    as what is peaked on one. Those with the largest remainders are rounded up, so many that the sum
    is right: many small shares would otherwise all become nothing.
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
    """What the page makes of `encode_shares`; a row of zeros stays one."""
    found = np.frombuffer(base64.b64decode(text), np.uint8).reshape(shape).astype(np.float64)
    total = found.sum(axis=-1, keepdims=True)
    return found / np.where(total > 0, total, 1)


class _Pictures:
    """Different pictures of one camera in order of appearance; in retention a scene stands still to
    the last bit.
    """

    def __init__(self) -> None:
        self.unique: list[str] = []
        self.size: tuple[int, int] | None = None
        """Width and height."""
        self._places: dict[bytes, int] = {}

    def place_of(self, frame: npt.NDArray[np.uint8]) -> int:
        pixels = frame.tobytes()
        if pixels not in self._places:
            self._places[pixels] = len(self.unique)
            self.size = (frame.shape[1], frame.shape[0])
            self.unique.append(_webp(frame))
        return self._places[pixels]


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
        "frames": [pictures.place_of(frame) for frame in given.frames],
    }


def _spans(phases: tuple[str, ...]) -> list[tuple[str, int]]:
    """Names of successive phases and how many steps they last."""
    return [(name, len(list(found))) for name, found in groupby(phases)]


def _rounded(numbers: npt.NDArray[Any]) -> Any:
    return np.round(numbers.astype(np.float64), DECIMALS).tolist()


def _check(episode: TheatreEpisode) -> None:
    """A page that fails in a browser says little; here the reason has a name."""
    steps = len(episode.phases)
    name = f"{episode.policy}, {episode.task}, seed {episode.seed}"
    lengths = {f"frames of {view}": len(frames) for view, frames in episode.frames.items()}
    lengths |= {f"belief {belief.question!r}": len(belief.shares) for belief in episode.beliefs}
    lengths |= {"attention": len(episode.attention), "positions": len(episode.positions)}
    wrong = ", ".join(f"{what} {length}" for what, length in lengths.items() if length != steps)
    if not steps or wrong:
        raise ValueError(
            f"{name}: {steps} phases need as many steps of everything else, got {wrong or 'none at all'}"
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
