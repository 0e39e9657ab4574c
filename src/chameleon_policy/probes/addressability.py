"""Addressability (Appendix F.2): does the policy act on the trace that the decision asks for?

A policy plays an episode up to a decision. There its memory is edited, the same question is asked
(the control contexts u_t stay those of the unedited episode), and the policy goes on in closed loop
until it has chosen. An edit is judged by whether the choice follows the edited memory: the donor's
answer after a swap, the episode's own otherwise.

Which traces are relevant is found by rule, for each layer:

    decoded    the quarter of the tokens from whose trace a linear probe reads the next choice best, at the decisions of
               demonstrations that are not played here
    attended   the quarter of the tokens that recall attends to most at this decision, in the mean over heads
    random     as many tokens, drawn from those that are in neither quarter

What is swapped in comes from a donor at the same decision:

    twin       the same scene with another answer: at the decision it looks the same, to the last bit
    another    the next episode that asks for another choice: also the scene is another
    equal      the next episode that asks for the same choice
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
from chameleon_policy.policy.state import Part
from chameleon_policy.probes.continuation import Played, go_on, stage
from chameleon_policy.probes.representations import Material
from chameleon_policy.rates import Rate
from chameleon_policy.train.held_out import LinearProbe

SHARE = 4
"""A quarter of the tokens is relevant."""
Rule = Literal["decoded", "attended", "random"]
Edit = Literal["nothing", "swap", "remove", "keep"]
Donor = Literal["twin", "another", "equal", "own"]


@dataclass(frozen=True)
class Intervention:
    """What is done to the memory at a decision."""

    name: str
    edit: Edit
    rule: Rule | None = None
    """Which tokens; None: all."""
    layers: Literal["last", "all"] = "last"
    part: Part = "traces"
    donor: Donor = "twin"
    """Of a swap."""


FOUR = FULL, SWAP, REMOVED, KEPT = "Full", "Swap", "Mask+", "Mask-"
"""The paper's."""


def by_rule(rule: Rule) -> tuple[str, ...]:
    """The names of the paper's four interventions on the traces that a rule chooses."""
    return FOUR if rule == "decoded" else (FULL, *(f"{name}, {rule}" for name in FOUR[1:]))


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
    Intervention("Swap, working state", "swap", layers="all", part="working"),
    Intervention("Swap, everything", "swap", layers="all", part="both"),
    Intervention(
        "Swap, everything, another scene", "swap", layers="all", part="both", donor="another"
    ),
    Intervention("Equal answer, another scene", "swap", layers="all", part="both", donor="equal"),
    Intervention("Own memory", "swap", layers="all", part="both", donor="own"),
)


@dataclass(frozen=True, eq=False)
class Given:
    """A donor's memory, and the choice that it stands for."""

    memory: MemoryState
    asks_for: int


@dataclass(frozen=True)
class Outcome:
    """What became of one episode after an intervention."""

    episode: int
    decision: int
    asks_for: int
    """What the edited memory stands for."""
    original: int
    """What the episode asks for."""
    chosen: int | None
    same_actions: bool
    """Whether the policy did, to the last bit, what it does without the intervention."""


@dataclass(frozen=True)
class Row:
    """An intervention and its outcomes."""

    intervention: Intervention
    outcomes: tuple[Outcome, ...]

    @property
    def follows(self) -> Rate:
        """Counterfactual choice accuracy: the choice is what the edited memory stands for."""
        return Rate.of(
            sum(each.chosen == each.asks_for for each in self.outcomes), len(self.outcomes)
        )

    @property
    def nothing(self) -> int:
        """Episodes in which nothing was chosen before the time was over."""
        return sum(each.chosen is None for each in self.outcomes)

    @property
    def original(self) -> Rate:
        """The choice is what the episode itself asks for."""
        return Rate.of(
            sum(each.chosen == each.original for each in self.outcomes), len(self.outcomes)
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON; choices as text, `-` for none."""
        intervention = self.intervention
        return {
            "name": intervention.name,
            "edit": intervention.edit,
            "rule": intervention.rule,
            "layers": intervention.layers,
            "part": intervention.part,
            "donor": intervention.donor if intervention.edit == "swap" else None,
            "follows": self.follows.as_dict(),
            "original": self.original.as_dict(),
            "nothing": self.nothing,
            "same_actions": sum(each.same_actions for each in self.outcomes),
            "episodes": " ".join(str(each.episode) for each in self.outcomes),
            "decisions": "".join(str(each.decision) for each in self.outcomes),
            "asks_for": "".join(str(each.asks_for) for each in self.outcomes),
            "originals": "".join(str(each.original) for each in self.outcomes),
            "choices": "".join(
                "-" if each.chosen is None else str(each.chosen) for each in self.outcomes
            ),
        }


@dataclass(frozen=True)
class Addressability:
    """All interventions on the memory of one policy and task."""

    rows: tuple[Row, ...]
    relevant: tuple[tuple[int, ...], ...]
    """Tokens that the rule `decoded` chose, layer by layer."""
    readable: tuple[tuple[float, ...], ...]
    """How often the next choice is read from each token's trace, layer by layer."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "relevant": [list(tokens) for tokens in self.relevant],
            "readable": [[round(share, 3) for share in layer] for layer in self.readable],
            "rows": [row.as_dict() for row in self.rows],
        }


def readable(material: Material) -> Tensor:
    """How often a linear probe reads the next choice from the trace of each token at the decisions,
    L N.
    """
    parts = []
    for part in (material.fitted, material.asked):
        rows = torch.cat([episode.traces for episode in part])  # decisions L N D
        parts.append(
            (rows, torch.tensor([answer for episode in part for answer in episode.answers]))
        )
    (known, answers), (asked, right) = parts
    layers, tokens = known.shape[1:3]
    shares = torch.zeros(layers, tokens)
    for layer in range(layers):
        for token in range(tokens):
            probe = LinearProbe.fit(known[:, layer, token], answers, material.choices)
            shares[layer, token] = (probe.predict(asked[:, layer, token]) == right).float().mean()
    return shares


def addressability(
    policy: ChameleonPolicy,
    played: Played,
    twins: Played,
    shares: Tensor,
    interventions: Sequence[Intervention] = INTERVENTIONS,
    progress: Callable[[int], object] = lambda done: None,
) -> Addressability:
    """Edit memories at every decision of the episodes that were played, and see what is chosen.

    `twins` are what `play_twins` makes of them; `shares` says how well the next choice is read from
    each token (L N), which `readable` measures.
    """
    outcomes: dict[str, list[Outcome]] = {each.name: [] for each in interventions}
    done = 0
    for decision in range(played.decisions):
        surgeon = Surgeon(played, twins, decision, shares)
        with stage(played, decision) as pool:
            for intervention in interventions:
                outcomes[intervention.name] += surgeon.perform(policy, intervention, pool)
                done += 1
                progress(done)
    return Addressability(
        rows=tuple(Row(each, tuple(outcomes[each.name])) for each in interventions),
        relevant=tuple(tuple(layer.nonzero().flatten().tolist()) for layer in largest(shares)),
        readable=tuple(map(tuple, shares.tolist())),
    )


def largest(shares: Tensor) -> Tensor:
    """A mask of the quarter of the tokens with the largest shares, ... N; of equal ones the
    first.
    """
    count = max(1, shares.shape[-1] // SHARE)
    order = torch.sort(shares, dim=-1, descending=True, stable=True).indices
    return torch.zeros_like(shares, dtype=torch.bool).scatter(-1, order[..., :count], True)


class Surgeon:
    """Edits the memories of all episodes that came to one decision."""

    def __init__(self, played: Played, twins: Played, decision: int, shares: Tensor) -> None:
        self._played, self._twins, self._decision = played, twins, decision
        self._episodes = played.reached(decision)
        self._asked_for = {
            episode: played.asked_for(episode, decision) for episode in self._episodes
        }
        self._decoded = largest(shares)

    def perform(
        self, policy: ChameleonPolicy, intervention: Intervention, pool: EnvPool
    ) -> list[Outcome]:
        """The outcome of every episode that has a donor, where one is needed."""
        donors = self.donors(intervention)
        memories = {
            episode: self.edited(episode, donor.memory, intervention)
            for episode, donor in donors.items()
        }
        return [
            self._outcome(episode, donors[episode].asks_for, continued.rollout)
            for episode, continued in go_on(
                policy, self._played, self._decision, memories, pool
            ).items()
        ]

    def donors(self, intervention: Intervention) -> dict[int, Given]:
        """Episode -> what it is given in a swap; without one, its own memory."""
        found = {}
        for place, episode in enumerate(self._episodes):
            if intervention.edit != "swap" or intervention.donor == "own":
                found[episode] = self._given(self._played, episode)
            elif intervention.donor == "twin":
                if (episode, self._decision) in self._twins.decided:
                    found[episode] = self._given(self._twins, episode)
            else:
                others = [*self._episodes[place + 1 :], *self._episodes[:place]]
                wanted = intervention.donor == "equal"
                fitting = [
                    each
                    for each in others
                    if (self._asked_for[each] == self._asked_for[episode]) == wanted
                ]
                if fitting:
                    found[episode] = self._given(self._played, fitting[0])
        return found

    def _given(self, played: Played, episode: int) -> Given:
        return Given(
            played.decided[episode, self._decision].memory,
            played.asked_for(episode, self._decision),
        )

    def edited(self, episode: int, given: MemoryState, intervention: Intervention) -> MemoryState:
        """The memory of an episode after the intervention."""
        memory = self._played.decided[episode, self._decision].memory
        count = len(memory.layers)
        for layer in range(count) if intervention.layers == "all" else [count - 1]:
            tokens = (
                None
                if intervention.rule is None
                else self.tokens(episode, layer, intervention.rule)
            )
            if intervention.edit == "swap":
                memory = memory.swap(given, layers=[layer], tokens=tokens, part=intervention.part)
            elif intervention.edit != "nothing":
                memory = memory.mask(
                    layers=[layer], tokens=tokens, keep=intervention.edit == "keep"
                )
        return memory

    def tokens(self, episode: int, layer: int, rule: Rule) -> Tensor:
        """A mask of the tokens that a rule chooses."""
        attended = largest(self._played.decided[episode, self._decision].attention[layer].mean(0))
        if rule == "decoded":
            return self._decoded[layer]
        if rule == "attended":
            return attended
        rest = (~(self._decoded[layer] | attended)).nonzero().flatten()
        generator = torch.Generator().manual_seed(
            self._played.rollouts[episode].played.seed + layer
        )
        mask = torch.zeros_like(attended)
        mask[rest[torch.randperm(len(rest), generator=generator)[: int(attended.sum())]]] = True
        return mask

    def _outcome(self, episode: int, asks_for: int, rollout: Rollout) -> Outcome:
        actions = rollout.actions
        before = self._played.rollouts[episode].actions[: len(actions)]
        return Outcome(
            episode=episode,
            decision=self._decision,
            asks_for=asks_for,
            original=self._asked_for[episode],
            chosen=rollout.played.choices[self._decision],
            same_actions=bool(np.array_equal(before, actions)),
        )
