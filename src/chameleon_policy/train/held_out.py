"""Evaluation on held-out demonstrations: the losses of a policy, and whether it remembers.

A probe answers the second question without a simulator: a linear classifier reads the answer of
every decision from the working state h at that moment; it is fitted to demonstrations that are
trained on and scored on the held-out ones. At chance, the memory holds nothing that the action head
could act on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from chameleon_policy.policy import EpisodeBatch, VisuomotorPolicy
from chameleon_policy.train.loop import Watch
from chameleon_policy.train.sampling import Emphasis, seed_noise
from chameleon_policy.train.store import EpisodeStore

BATCH = 16
LARGEST_FIT = 256
"""Most demonstrations of one task that a probe is fitted to."""
PENALTY = 1e-2
"""Penalty on the squared weights of a probe; representations may have more dimensions than there
are demonstrations."""


@dataclass(frozen=True, eq=False)
class LinearProbe:
    """The linear classifier softmax(W (x - mean) / spread + b).

    Whatever it can read, an action head could read too.
    """

    mean: Tensor
    spread: Tensor
    weight: Tensor
    bias: Tensor

    @classmethod
    def fit(cls, rows: Tensor, answers: Tensor, classes: int) -> Self:
        """Fit a probe to rows (M D) with answers (M), by penalised cross-entropy."""
        mean, spread = rows.mean(0), rows.std(0, correction=0).clamp(min=1e-6)
        known = (rows - mean) / spread
        weight = torch.zeros(classes, known.shape[1], device=known.device, requires_grad=True)
        bias = torch.zeros(classes, device=known.device, requires_grad=True)
        optimizer = torch.optim.LBFGS([weight, bias], max_iter=100, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = (
                F.cross_entropy(known @ weight.T + bias, answers) + PENALTY * weight.square().sum()
            )
            loss.backward()
            return loss

        with torch.autocast(known.device.type, enabled=False), torch.enable_grad():
            optimizer.step(closure)
        return cls(mean, spread, weight.detach(), bias.detach())

    def probabilities(self, rows: Tensor) -> Tensor:
        """Return the probability of every answer, (... D) to (... classes)."""
        with torch.autocast(rows.device.type, enabled=False):
            return torch.softmax(
                (rows - self.mean) / self.spread @ self.weight.T + self.bias, dim=-1
            )

    def predict(self, rows: Tensor) -> Tensor:
        """Return the most likely answer of every row, (... D) to (...)."""
        return self.probabilities(rows).argmax(-1)


def watch_held_out(
    trained: EpisodeStore,
    held_out: EpisodeStore,
    autocast: Callable[[], AbstractContextManager[object]],
    emphasis: Emphasis | None = None,
) -> Watch:
    """Return a watch that computes the losses of held-out episodes and the accuracy of a probe.

    Losses are weighted by the emphasis of the training. Every task (instruction) has its own probe;
    if there are several, each also has its own metric.
    """
    fitted, tested = _by_task(trained), _by_task(held_out)
    probed = [task for task in tested if task in fitted]

    @torch.no_grad()
    def watch(policy: VisuomotorPolicy) -> Mapping[str, float]:
        with autocast():
            metrics = _losses(policy, held_out, emphasis)
            right = {
                task: probe(
                    *_decision_states(policy, trained, fitted[task]),
                    *_decision_states(policy, held_out, tested[task]),
                ).float()
                for task in probed
            }
        if right:
            metrics["held_out_probe"] = float(torch.cat(list(right.values())).mean())
        if len(right) > 1:
            metrics |= {probe_metric(task): float(hits.mean()) for task, hits in right.items()}
        return metrics

    return watch


def probe_metric(instruction: str) -> str:
    """Return the name of the probe's accuracy on one task among several."""
    return f"held_out_probe/{instruction}"


def probe(rows: Tensor, answers: Tensor, test_rows: Tensor, test_answers: Tensor) -> Tensor:
    """Fit a linear classifier to `rows` (M D) and test it on `test_rows` (N D).

    Returns a mask (N) of the test rows whose answer it predicts correctly.
    """
    classes = int(max(answers.max(), test_answers.max())) + 1
    return LinearProbe.fit(rows, answers, classes).predict(test_rows) == test_answers


def _by_task(store: EpisodeStore) -> dict[str, list[int]]:
    """Return the episodes with answers of every instruction.

    These are at most LARGEST_FIT each, spread evenly over the store.
    """
    found: dict[str, list[int]] = {}
    for episode, decisions in enumerate(store.decisions):
        if decisions.answers:
            found.setdefault(decisions.instruction, []).append(episode)
    for task, episodes in found.items():
        spread = np.linspace(0, len(episodes) - 1, min(LARGEST_FIT, len(episodes))).astype(int)
        found[task] = [episodes[index] for index in spread]
    return found


def _losses(
    policy: VisuomotorPolicy, store: EpisodeStore, emphasis: Emphasis | None
) -> dict[str, float]:
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    for index, batch in enumerate(_batches(policy, store, range(len(store)), emphasis)):
        seed_noise(0, index, 0)  # the same noise and flow times in every evaluation
        for name, value in policy.loss(batch, keep_state=False).parts.items():
            if name in ("action", "decision_loss") and bool(value.isfinite()):
                sums[name] = sums.get(name, 0.0) + float(value) * len(batch.valid)
                counts[name] = counts.get(name, 0) + len(batch.valid)
    return {f"held_out_{name}": total / counts[name] for name, total in sums.items()}


def _decision_states(
    policy: VisuomotorPolicy, store: EpisodeStore, episodes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Return h at every decision of some episodes (N D), and the answers (N).

    For methods without an h it is the input of their action head, which may have more dimensions:
    up to all tokens of two frames.
    """
    decisions = [store.decisions[episode] for episode in episodes]
    batches = _batches(policy, store, episodes)
    working = [states for batch in batches for states in policy.working_states(batch.observation)]
    rows = [
        states[list(episode.steps)].flatten(1).float()
        for states, episode in zip(working, decisions, strict=True)
    ]
    answers = torch.tensor(
        [answer for episode in decisions for answer in episode.answers], device=policy.device
    )
    return torch.cat(rows), answers


def _batches(
    policy: VisuomotorPolicy,
    store: EpisodeStore,
    episodes: Sequence[int],
    emphasis: Emphasis | None = None,
) -> Iterator[EpisodeBatch]:
    for first in range(0, len(episodes), BATCH):
        yield store.batch(episodes[first : first + BATCH], emphasis=emphasis).to(policy.device)
