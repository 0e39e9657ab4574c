"""What a policy makes of demonstrations that it is not trained on: its losses, and whether it remembers.

The probe answers the second question without a simulator. A linear classifier reads the answer of every decision from the
working state h at that moment; it is fitted to the demonstrations of the training and asked about the others. At chance, the
memory holds nothing that the action head could act on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chameleon_policy.data.episodes import EpisodeArrays
from chameleon_policy.policy import ChameleonPolicy, EpisodeBatch
from chameleon_policy.train.loop import Watch
from chameleon_policy.train.order import seed_noise
from chameleon_policy.train.store import EpisodeStore

BATCH = 16
LARGEST_FIT = 256
"""Demonstrations of the training that the probe is fitted to."""
PENALTY = 1e-2
"""Of squared weights; h has more numbers than there may be demonstrations."""


@dataclass(frozen=True)
class Decisions:
    """When an episode asks for decisions, and what for; empty where a dataset does not say."""

    steps: tuple[int, ...]
    answers: tuple[int, ...]


def decisions_of(episode: EpisodeArrays) -> Decisions:
    """Those of one episode."""
    return Decisions(episode.decision_steps, episode.answers)


def watch_held_out(
    trained: EpisodeStore, known: Sequence[Decisions], held_out: EpisodeStore, asked: Sequence[Decisions]
) -> Watch:
    """Losses over the episodes that are held out, and the accuracy of a probe that was fitted to the trained ones."""

    @torch.no_grad()
    def watch(policy: nn.Module) -> Mapping[str, float]:
        assert isinstance(policy, ChameleonPolicy)
        kind = policy.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
            figures = _losses(policy, held_out)
            if all(each.steps for each in (*known, *asked)):
                fitted = _decided(policy, trained, known[:LARGEST_FIT])
                figures["held_out_probe"] = probe(*fitted, *_decided(policy, held_out, asked))
        return figures

    return watch


def probe(known: Tensor, answers: Tensor, asked: Tensor, right: Tensor) -> float:
    """Share of the rows of `asked` (N D) of which a linear classifier tells the answer; fitted to `known` (M D)."""
    mean, spread = known.mean(0), known.std(0).clamp(min=1e-6)
    known, asked = (known - mean) / spread, (asked - mean) / spread
    classes = int(max(answers.max(), right.max())) + 1
    weight = torch.zeros(classes, known.shape[1], device=known.device, requires_grad=True)
    bias = torch.zeros(classes, device=known.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(known @ weight.T + bias, answers) + PENALTY * weight.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad(), torch.autocast(known.device.type, enabled=False):
        optimizer.step(closure)
    told = (asked @ weight.T + bias).argmax(1)
    return float((told == right).float().mean())


def _losses(policy: ChameleonPolicy, store: EpisodeStore) -> dict[str, float]:
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    for number, batch in enumerate(_batches(policy, store, len(store))):
        seed_noise(0, number, 0)  # the same noise and flow times at every look
        for name, value in policy.loss(batch, keep_state=False).parts.items():
            if name in ("action", "decision_loss") and bool(value.isfinite()):
                sums[name] = sums.get(name, 0.0) + float(value) * len(batch.valid)
                counts[name] = counts.get(name, 0) + len(batch.valid)
    return {f"held_out_{name}": total / counts[name] for name, total in sums.items()}


def _decided(policy: ChameleonPolicy, store: EpisodeStore, decisions: Sequence[Decisions]) -> tuple[Tensor, Tensor]:
    """h at every decision of the first episodes of a store (N D), and the answers (N)."""
    working = [
        states for batch in _batches(policy, store, len(decisions)) for states in policy.working_states(batch.observation)
    ]
    rows = [states[list(each.steps)].float() for states, each in zip(working, decisions, strict=True)]
    answers = torch.tensor([answer for each in decisions for answer in each.answers], device=policy.device)
    return torch.cat(rows), answers


def _batches(policy: ChameleonPolicy, store: EpisodeStore, count: int) -> Iterator[EpisodeBatch]:
    for first in range(0, count, BATCH):
        yield store.batch(range(first, min(first + BATCH, count))).to(policy.device)
