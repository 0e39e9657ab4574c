"""Addressability (Appendix F.2): does the policy act on the trace that the decision asks for?

A policy plays an episode up to a decision. There its memory is edited, recall keeps the control
contexts u_t of the unedited episode, and the policy continues in closed loop until it has chosen.
An edit is scored by whether the choice follows the edited memory: the donor's answer after a swap,
the episode's own answer otherwise.

A rule selects the relevant tokens of each layer:

    decoded    the quarter of the tokens from whose trace a linear probe reads the next choice best,
               at the decisions of other demonstrations
    attended   the quarter of the tokens that recall attends to most, averaged over heads
    random     as many tokens, drawn from those in neither quarter

A swap takes its traces from a donor at the same decision:

    twin       the same scene with another answer; the observation at the decision is the same bits
    another    the next episode with another right choice, in another scene
    equal      the next episode with the same right choice, in another scene
    own        the episode itself
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from chameleon_policy.evaluate.pool import EnvPool
from chameleon_policy.evaluate.rollouts import Rollout
from chameleon_policy.policy import ChameleonPolicy, MemoryState
from chameleon_policy.probes.continuation import (
    PlayedEpisodes,
    continuation_pool,
    continue_episodes,
)
from chameleon_policy.probes.representations import Material
from chameleon_policy.probes.surgery import MemoryKind, mask, swap
from chameleon_policy.rates import Rate
from chameleon_policy.train.held_out import LinearProbe

RELEVANT_SHARE = 4
"""One token in so many is relevant."""
Rule = Literal["decoded", "attended", "random"]
Edit = Literal["nothing", "swap", "remove", "keep"]
DonorKind = Literal["twin", "another", "equal", "own"]


@dataclass(frozen=True)
class Intervention:
    """An edit of the memory at a decision."""

    name: str
    edit: Edit
    rule: Rule | None = None
    """Rule that selects the tokens; None: all tokens."""
    layers: Literal["last", "all"] = "last"
    kind: MemoryKind = "traces"
    donor: DonorKind = "twin"
    """Source of the memory that a swap puts in."""


PAPER_EDITS = FULL, SWAP, REMOVED, KEPT = "Full", "Swap", "Mask+", "Mask-"
"""Names of the paper's four interventions."""


def paper_edits(rule: Rule) -> tuple[str, ...]:
    """Return the names of the paper's four interventions on the traces that a rule selects."""
    if rule == "decoded":
        return PAPER_EDITS
    return (FULL, *(f"{name}, {rule}" for name in PAPER_EDITS[1:]))


INTERVENTIONS: tuple[Intervention, ...] = (
    Intervention(FULL, "nothing"),
    Intervention(SWAP, "swap", "decoded"),
    Intervention(REMOVED, "remove", "decoded"),
    Intervention(KEPT, "keep", "decoded"),
    Intervention("Swap, attended", "swap", "attended"),
    Intervention("Mask+, attended", "remove", "attended"),
    Intervention("Mask-, attended", "keep", "attended"),
    Intervention("Swap, random", "swap", "random"),
    Intervention("Mask+, random", "remove", "random"),
    Intervention("Swap, all layers", "swap", "decoded", layers="all"),
    Intervention("Mask+, all layers", "remove", "decoded", layers="all"),
    Intervention("Mask-, all layers", "keep", "decoded", layers="all"),
    Intervention("Swap, every trace", "swap", layers="all"),
    Intervention("Swap, working state", "swap", layers="all", kind="working"),
    Intervention("Swap, everything", "swap", layers="all", kind="both"),
    Intervention(
        "Swap, everything, another scene", "swap", layers="all", kind="both", donor="another"
    ),
    Intervention("Equal answer, another scene", "swap", layers="all", kind="both", donor="equal"),
    Intervention("Own memory", "swap", layers="all", kind="both", donor="own"),
)


@dataclass(frozen=True, eq=False)
class Donor:
    """A memory to swap in, and the right choice of the episode it comes from."""

    memory: MemoryState
    asks_for: int


@dataclass(frozen=True)
class Outcome:
    """The result of one episode after an intervention."""

    episode: int
    decision: int
    asks_for: int
    """The choice that the edited memory asks for."""
    original: int
    """The right choice of the episode."""
    chosen: int | None
    same_actions: bool
    """Whether the actions equal those without the intervention to the last bit."""


@dataclass(frozen=True)
class Row:
    """An intervention and its outcomes."""

    intervention: Intervention
    outcomes: tuple[Outcome, ...]

    @property
    def follows(self) -> Rate:
        """Counterfactual choice accuracy: how often the choice follows the edited memory."""
        return Rate.of(
            sum(outcome.chosen == outcome.asks_for for outcome in self.outcomes), len(self.outcomes)
        )

    @property
    def nothing(self) -> int:
        """Number of episodes that ended without a choice."""
        return sum(outcome.chosen is None for outcome in self.outcomes)

    @property
    def original(self) -> Rate:
        """How often the choice is the right one of the episode."""
        return Rate.of(
            sum(outcome.chosen == outcome.original for outcome in self.outcomes), len(self.outcomes)
        )

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON, with choices as text and `-` for none."""
        intervention = self.intervention
        return {
            "name": intervention.name,
            "edit": intervention.edit,
            "rule": intervention.rule,
            "layers": intervention.layers,
            "part": intervention.kind,
            "donor": intervention.donor if intervention.edit == "swap" else None,
            "follows": self.follows.as_dict(),
            "original": self.original.as_dict(),
            "nothing": self.nothing,
            "same_actions": sum(outcome.same_actions for outcome in self.outcomes),
            "episodes": " ".join(str(outcome.episode) for outcome in self.outcomes),
            "decisions": "".join(str(outcome.decision) for outcome in self.outcomes),
            "asks_for": "".join(str(outcome.asks_for) for outcome in self.outcomes),
            "originals": "".join(str(outcome.original) for outcome in self.outcomes),
            "choices": "".join(
                "-" if outcome.chosen is None else str(outcome.chosen) for outcome in self.outcomes
            ),
        }


@dataclass(frozen=True)
class Addressability:
    """The results of all interventions on one policy and task."""

    rows: tuple[Row, ...]
    relevant: tuple[tuple[int, ...], ...]
    """Tokens that the rule `decoded` selects, per layer."""
    readable: tuple[tuple[float, ...], ...]
    """Accuracy of a probe on the trace of each token, per layer."""

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        return {
            "relevant": [list(tokens) for tokens in self.relevant],
            "readable": [[round(share, 3) for share in layer] for layer in self.readable],
            "rows": [row.as_dict() for row in self.rows],
        }


def trace_accuracies(material: Material) -> Tensor:
    """Fit probes of the next choice to every token's trace; return their accuracies, L N."""
    parts = []
    for part in (material.fitted, material.asked):
        rows = torch.cat([episode.traces for episode in part])  # decisions L N D
        parts.append(
            (rows, torch.tensor([answer for episode in part for answer in episode.answers]))
        )
    (known, answers), (asked, right) = parts
    layers, tokens = known.shape[1:3]
    accuracies = torch.zeros(layers, tokens)
    for layer in range(layers):
        for token in range(tokens):
            probe = LinearProbe.fit(known[:, layer, token], answers, material.choices)
            accuracies[layer, token] = (
                (probe.predict(asked[:, layer, token]) == right).float().mean()
            )
    return accuracies


def addressability(
    policy: ChameleonPolicy,
    played: PlayedEpisodes,
    twins: PlayedEpisodes,
    accuracies: Tensor,
    interventions: Sequence[Intervention] = INTERVENTIONS,
    progress: Callable[[int], object] = lambda done: None,
) -> Addressability:
    """Edit memories at every decision of the played episodes and record the choices.

    `twins` come from `play_twins`, `accuracies` (L N) from `trace_accuracies`.
    """
    outcomes: dict[str, list[Outcome]] = {intervention.name: [] for intervention in interventions}
    done = 0
    for decision in range(played.decisions):
        editor = MemoryEditor(played, twins, decision, accuracies)
        with continuation_pool(played, decision) as pool:
            for intervention in interventions:
                outcomes[intervention.name] += editor.outcomes(policy, intervention, pool)
                done += 1
                progress(done)
    return Addressability(
        rows=tuple(
            Row(intervention, tuple(outcomes[intervention.name])) for intervention in interventions
        ),
        relevant=tuple(
            tuple(layer.nonzero().flatten().tolist()) for layer in top_quarter(accuracies)
        ),
        readable=tuple(map(tuple, accuracies.tolist())),
    )


def top_quarter(scores: Tensor) -> Tensor:
    """Return a mask of the quarter of the tokens (... N) with the largest scores.

    Among equal scores the first tokens are taken.
    """
    count = max(1, scores.shape[-1] // RELEVANT_SHARE)
    order = torch.sort(scores, dim=-1, descending=True, stable=True).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order[..., :count], True)


class MemoryEditor:
    """Edits the memories of all episodes that reached one decision."""

    def __init__(
        self, played: PlayedEpisodes, twins: PlayedEpisodes, decision: int, accuracies: Tensor
    ) -> None:
        self._played, self._twins, self._decision = played, twins, decision
        self._episodes = played.reached(decision)
        self._right = {
            episode: played.right_choice(episode, decision) for episode in self._episodes
        }
        self._decoded = top_quarter(accuracies)

    def outcomes(
        self, policy: ChameleonPolicy, intervention: Intervention, pool: EnvPool
    ) -> list[Outcome]:
        """Continue every episode that has a donor with its edited memory."""
        donors = self.donors(intervention)
        memories = {
            episode: self.edited(episode, donor.memory, intervention)
            for episode, donor in donors.items()
        }
        return [
            self._outcome(episode, donors[episode].asks_for, continued.rollout)
            for episode, continued in continue_episodes(
                policy, self._played, self._decision, memories, pool
            ).items()
        ]

    def donors(self, intervention: Intervention) -> dict[int, Donor]:
        """Return the donor of every episode that has one.

        Without a swap it is the episode itself.
        """
        donors = {}
        for index, episode in enumerate(self._episodes):
            if intervention.edit != "swap" or intervention.donor == "own":
                donors[episode] = self._donor(self._played, episode)
            elif intervention.donor == "twin":
                if (episode, self._decision) in self._twins.points:
                    donors[episode] = self._donor(self._twins, episode)
            else:
                others = [*self._episodes[index + 1 :], *self._episodes[:index]]
                equal = intervention.donor == "equal"
                suitable = [
                    other
                    for other in others
                    if (self._right[other] == self._right[episode]) == equal
                ]
                if suitable:
                    donors[episode] = self._donor(self._played, suitable[0])
        return donors

    def _donor(self, played: PlayedEpisodes, episode: int) -> Donor:
        return Donor(
            played.points[episode, self._decision].memory,
            played.right_choice(episode, self._decision),
        )

    def edited(self, episode: int, donor: MemoryState, intervention: Intervention) -> MemoryState:
        """Return the memory of an episode after the intervention."""
        memory = self._played.points[episode, self._decision].memory
        count = len(memory.layers)
        for layer in range(count) if intervention.layers == "all" else [count - 1]:
            tokens = (
                None
                if intervention.rule is None
                else self.tokens(episode, layer, intervention.rule)
            )
            if intervention.edit == "swap":
                memory = swap(memory, donor, layers=[layer], tokens=tokens, kind=intervention.kind)
            elif intervention.edit != "nothing":
                memory = mask(
                    memory, layers=[layer], tokens=tokens, keep=intervention.edit == "keep"
                )
        return memory

    def tokens(self, episode: int, layer: int, rule: Rule) -> Tensor:
        """Return a mask of the tokens that a rule selects."""
        attended = top_quarter(
            self._played.points[episode, self._decision].attention[layer].mean(0)
        )
        if rule == "decoded":
            return self._decoded[layer]
        if rule == "attended":
            return attended
        rest = (~(self._decoded[layer] | attended)).nonzero().flatten()
        generator = torch.Generator().manual_seed(
            self._played.rollouts[episode].played.seed + layer
        )
        drawn = rest[torch.randperm(len(rest), generator=generator)[: int(attended.sum())]]
        return torch.zeros_like(attended).index_fill(0, drawn, True)

    def _outcome(self, episode: int, asks_for: int, rollout: Rollout) -> Outcome:
        actions = rollout.actions
        before = self._played.rollouts[episode].actions[: len(actions)]
        return Outcome(
            episode=episode,
            decision=self._decision,
            asks_for=asks_for,
            original=self._right[episode],
            chosen=rollout.played.choices[self._decision],
            same_actions=bool(np.array_equal(before, actions)),
        )
