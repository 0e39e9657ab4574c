"""What a policy makes of demonstrations that it is not trained on: its losses, and whether it
remembers.

The probe answers the second question without a simulator. A linear classifier reads the answer of
every decision from the working state h at that moment; it is fitted to the demonstrations of the
training and asked about the others. At chance, the memory holds nothing that the action head could
act on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor, nn

from chameleon_policy.policy import EpisodeBatch, VisuomotorPolicy
from chameleon_policy.train.linear_probe import LinearProbe
from chameleon_policy.train.loop import Watch
from chameleon_policy.train.order import seed_noise
from chameleon_policy.train.store import Emphasis, EpisodeStore

BATCH = 16
LARGEST_FIT = 256
"""Demonstrations of one task in the training that a probe is fitted to."""


def watch_held_out(
    trained: EpisodeStore,
    held_out: EpisodeStore,
    autocast: Callable[[], AbstractContextManager[object]],
    emphasis: Emphasis | None = None,
) -> Watch:
    """Losses over the episodes that are held out, with the training's emphasis, and how many of
    their answers a probe reads.

    Every task, told by its instruction, has a probe of its own, and where there are several a
    figure of its own too.
    """
    known, asked = _by_task(trained), _by_task(held_out)
    probed = [task for task in asked if task in known]

    @torch.no_grad()
    def watch(policy: nn.Module) -> Mapping[str, float]:
        assert isinstance(policy, VisuomotorPolicy)
        with autocast():
            figures = _losses(policy, held_out, emphasis)
            right = {
                task: probe(
                    *_decided(policy, trained, known[task]),
                    *_decided(policy, held_out, asked[task]),
                ).float()
                for task in probed
            }
        if right:
            figures["held_out_probe"] = float(torch.cat(list(right.values())).mean())
        if len(right) > 1:
            figures |= {probe_of(task): float(each.mean()) for task, each in right.items()}
        return figures

    return watch


def probe_of(instruction: str) -> str:
    """The figure that tells of one task among several."""
    return f"held_out_probe/{instruction}"


def probe(known: Tensor, answers: Tensor, asked: Tensor, right: Tensor) -> Tensor:
    """Of which rows of `asked` (N D) a linear classifier that was fitted to `known` (M D) tells the
    answer.
    """
    classes = int(max(answers.max(), right.max())) + 1
    return LinearProbe.fit(known, answers, classes).told(asked) == right


def _by_task(store: EpisodeStore) -> dict[str, list[int]]:
    """Episodes with answers, by instruction; at most LARGEST_FIT, from everywhere in the store."""
    found: dict[str, list[int]] = {}
    for episode, decisions in enumerate(store.decisions):
        if decisions.answers:
            found.setdefault(decisions.instruction, []).append(episode)
    for task, episodes in found.items():
        places = np.linspace(0, len(episodes) - 1, min(LARGEST_FIT, len(episodes))).astype(int)
        found[task] = [episodes[place] for place in places]
    return found


def _losses(
    policy: VisuomotorPolicy, store: EpisodeStore, emphasis: Emphasis | None
) -> dict[str, float]:
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    for number, batch in enumerate(_batches(policy, store, range(len(store)), emphasis)):
        seed_noise(0, number, 0)  # the same noise and flow times at every look
        for name, value in policy.loss(batch, keep_state=False).parts.items():
            if name in ("action", "decision_loss") and bool(value.isfinite()):
                sums[name] = sums.get(name, 0.0) + float(value) * len(batch.valid)
                counts[name] = counts.get(name, 0) + len(batch.valid)
    return {f"held_out_{name}": total / counts[name] for name, total in sums.items()}


def _decided(
    policy: VisuomotorPolicy, store: EpisodeStore, chosen: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """h at every decision of the chosen episodes (N D), and the answers (N).

    Methods without an h have what their heads read there, up to all tokens of two frames: more
    numbers to read from.
    """
    decisions = [store.decisions[episode] for episode in chosen]
    batches = _batches(policy, store, chosen)
    working = [states for batch in batches for states in policy.working_states(batch.observation)]
    rows = [
        states[list(each.steps)].flatten(1).float()
        for states, each in zip(working, decisions, strict=True)
    ]
    answers = torch.tensor(
        [answer for each in decisions for answer in each.answers], device=policy.device
    )
    return torch.cat(rows), answers


def _batches(
    policy: VisuomotorPolicy,
    store: EpisodeStore,
    chosen: Sequence[int],
    emphasis: Emphasis | None = None,
) -> Iterator[EpisodeBatch]:
    for first in range(0, len(chosen), BATCH):
        yield store.batch(chosen[first : first + BATCH], emphasis=emphasis).to(policy.device)
