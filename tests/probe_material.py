"""Representations of demonstrations in which it is known what a probe can read, and when."""

from __future__ import annotations

import torch

from chameleon_policy.camo import task_named
from chameleon_policy.probes.representations import WINDOW, Episode, Material

LENGTH, DECISION, GAP, WIDTH, TOKENS = 90, 50, 12, 16, 8


def material(
    task: str = "clean-plate",
    *,
    fitted: int = 60,
    asked: int = 45,
    known_from: int = -20,
    trace_from: int = -6,
    seed: int = 0,
) -> Material:
    """Return material in which h tells z from step `known_from` on, relative to the decision.

    The last layer's token 3 tells it from `trace_from` on; event tokens tell nothing.
    """
    generator = torch.Generator().manual_seed(seed)
    kind = task_named(task)()
    parts = []
    for count in (fitted, asked):
        answers = [
            kind.answers[int(torch.randint(len(kind.answers), (1,), generator=generator))]
            for _ in range(count)
        ]
        parts.append(
            [
                _episode(z if isinstance(z, tuple) else (z,), known_from, trace_from, generator)
                for z in answers
            ]
        )
    return Material(task, *parts)


def _episode(
    answers: tuple[int, ...], known_from: int, trace_from: int, generator: torch.Generator
) -> Episode:
    decisions = tuple(DECISION + GAP * number for number in range(len(answers)))

    def noise(*shape: int) -> torch.Tensor:
        return 0.3 * torch.randn(*shape, generator=generator)

    working = noise(LENGTH, WIDTH)
    for place, answer in enumerate(answers):
        working[DECISION + known_from :, 3 * place + answer] += 3
    traces = noise(len(answers), 2, TOKENS, WIDTH)
    window = noise(len(answers), len(WINDOW), TOKENS, WIDTH)
    for place, answer in enumerate(answers):
        traces[place, -1, 3, answer] += 3
        for number, step in enumerate(WINDOW):
            if step >= trace_from:
                window[place, number, 3, answer] += 3
    return Episode(
        decisions=decisions,
        answers=answers,
        working=working,
        tokens=noise(len(answers), TOKENS, WIDTH),
        traces=traces,
        window=window.half(),
    )
