"""Episodes that go on with another memory: their own changes nothing, that of another is acted
on.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from chameleon_policy import ChameleonPolicy, Features, ObjectSlots
from chameleon_policy.camo.settings import CamoSettings
from chameleon_policy.evaluate.evaluation import FIRST_SEED, evaluate
from chameleon_policy.evaluate.loading import load_for_evaluation
from chameleon_policy.probes.addressability import (
    INTERVENTIONS,
    Intervention,
    Outcome,
    Row,
    Surgeon,
    addressability,
)
from chameleon_policy.probes.continuation import Played, go_on, play, play_twins, stage
from examples import nano

NAMED = {each.name: each for each in INTERVENTIONS}
SEEDS = range(FIRST_SEED, FIRST_SEED + 5)


@pytest.fixture(scope="module")
def shipped() -> tuple[ChameleonPolicy, Played]:
    """The policy that comes with the package, on five plates."""
    policy, settings = load_for_evaluation("camo-small", "clean-plate", "cpu")
    assert isinstance(policy, ChameleonPolicy)
    return policy, play(policy, settings, SEEDS, steps=4, workers=1)


def test_memories_are_kept_at_every_decision(shipped: tuple[ChameleonPolicy, Played]) -> None:
    policy, played = shipped
    assert (
        sorted(played.decided) == [(episode, 0) for episode in range(5)] and played.decisions == 1
    )
    for decided in played.decided.values():
        assert len(decided.memory) == 1 and len(decided.control_context) == policy.config.layers
        torch.testing.assert_close(
            decided.attention.sum(-1), torch.ones(policy.config.layers, policy.config.heads)
        )
        assert decided.memory.steps.item() > 20  # the evidence has been seen


def test_the_first_pass_is_an_evaluation(shipped: tuple[ChameleonPolicy, Played]) -> None:
    policy, played = shipped
    usual = evaluate(policy, played.settings, list(SEEDS), steps=4, parallel=5, workers=1)
    for mine, theirs in zip(played.rollouts, usual.rollouts, strict=True):
        np.testing.assert_array_equal(mine.actions, theirs.actions)


@pytest.fixture(scope="module")
def twins(shipped: tuple[ChameleonPolicy, Played]) -> Played:
    return play_twins(*shipped)


def test_twins_have_another_answer_and_the_same_scene(
    shipped: tuple[ChameleonPolicy, Played], twins: Played
) -> None:
    played = shipped[1]
    for episode in range(5):
        mine, theirs = played.rollouts[episode].played, twins.rollouts[episode].played
        assert (
            mine.seed == theirs.seed
            and theirs.z == (mine.z + 1) % 3
            and mine.difficulty == theirs.difficulty
        )
    # The first layer's question follows from the scene alone, which is the same to the last bit.
    assert all(
        torch.equal(
            played.decided[place].control_context[0], twins.decided[place].control_context[0]
        )
        for place in played.decided
    )
    assert not any(
        torch.equal(played.decided[p].memory.carried(), twins.decided[p].memory.carried())
        for p in played.decided
    )


@pytest.fixture(scope="module")
def outcomes(shipped: tuple[ChameleonPolicy, Played], twins: Played) -> dict[str, Row]:
    """Some interventions, with the relevance of traces made up: the rule is tested elsewhere."""
    policy, played = shipped
    shares = torch.rand(
        policy.config.layers, policy.features.tokens, generator=torch.Generator().manual_seed(0)
    )
    chosen = [
        NAMED[name]
        for name in ("Full", "Swap, everything", "Own memory", "Equal answer, another scene")
    ]
    return {
        row.intervention.name: row
        for row in addressability(policy, played, twins, shares, chosen).rows
    }


def test_own_memory_changes_nothing_bit_for_bit(outcomes: dict[str, Row]) -> None:
    for name in ("Full", "Own memory"):
        assert [each.same_actions for each in outcomes[name].outcomes] == [True] * 5
        assert outcomes[name].follows.value == outcomes[name].original.value == 1.0


def test_the_memory_of_an_equal_answer_changes_no_decision(outcomes: dict[str, Row]) -> None:
    row = outcomes["Equal answer, another scene"]
    chosen = [each for each in row.outcomes if each.chosen is not None]
    # where things stand is remembered too: in another scene the hand may not find them
    assert len(chosen) >= 2
    assert all(each.chosen == each.original == each.asks_for for each in chosen)
    assert not any(each.same_actions for each in row.outcomes)


def test_the_memory_of_a_twin_is_acted_on(outcomes: dict[str, Row]) -> None:
    row = outcomes["Swap, everything"]
    assert len(row.outcomes) == 5 and all(each.asks_for != each.original for each in row.outcomes)
    assert row.follows.value == 1.0 and row.original.value == 0.0 and row.nothing == 0
    said = row.as_dict()
    assert said["choices"] == said["asks_for"] and said["same_actions"] == 0


def test_which_tokens_and_which_donors(
    shipped: tuple[ChameleonPolicy, Played], twins: Played
) -> None:
    policy, played = shipped
    tokens = policy.features.tokens
    shares = torch.linspace(0, 1, tokens).expand(policy.config.layers, tokens)
    surgeon = Surgeon(played, twins, 0, shares)
    decoded = surgeon.tokens(0, 1, "decoded")
    assert decoded.nonzero().flatten().tolist() == list(range(tokens - tokens // 4, tokens))
    attended = surgeon.tokens(0, 1, "attended")
    weights = played.decided[0, 0].attention[1].mean(0)
    assert attended.sum() == tokens // 4 and weights[attended].min() >= weights[~attended].max()
    random = surgeon.tokens(0, 1, "random")
    assert random.sum() == tokens // 4 and not (random & (decoded | attended)).any()
    assert torch.equal(random, surgeon.tokens(0, 1, "random"))  # of this episode always the same
    given = {
        name: surgeon.donors(NAMED[name])
        for name in (
            "Swap",
            "Mask+",
            "Own memory",
            "Swap, everything, another scene",
            "Equal answer, another scene",
        )
    }
    memory = played.decided[0, 0].memory
    assert given["Swap"][0].memory is twins.decided[0, 0].memory
    assert given["Mask+"][0].memory is given["Own memory"][0].memory is memory
    for name, same in (
        ("Swap, everything, another scene", False),
        ("Equal answer, another scene", True),
    ):
        for episode, donor in given[name].items():
            assert (donor.asks_for == played.asked_for(episode, 0)) == same
            assert donor.memory is not played.decided[episode, 0].memory
    twin = given["Swap"][0].memory
    edited = surgeon.edited(0, twin, NAMED["Swap"])
    assert torch.equal(edited.carried(layers=[0]), memory.carried(layers=[0]))
    assert torch.equal(
        edited.carried(layers=[1], tokens=decoded), twin.carried(layers=[1], tokens=decoded)
    )
    assert torch.equal(
        edited.carried(layers=[1], tokens=~decoded), memory.carried(layers=[1], tokens=~decoded)
    )
    kept = surgeon.edited(0, memory, NAMED["Mask-"])
    assert torch.equal(
        kept.carried(layers=[1], tokens=decoded), memory.carried(layers=[1], tokens=decoded)
    )
    assert not kept.carried(layers=[1], tokens=~decoded).any()
    removed = surgeon.edited(0, memory, NAMED["Mask+, all layers"])
    assert not removed.carried(tokens=decoded).any()


def test_what_was_done_is_done_again() -> None:
    """A policy that was never trained does not choose; what it does is repeated all the same."""
    policy, settings = untrained("clean-plate")
    played = play(policy, settings, range(FIRST_SEED, FIRST_SEED + 2), steps=2, workers=0)
    memories = {episode: played.decided[episode, 0].memory for episode in range(2)}
    with stage(played, 0, until_choice=False) as pool:
        again = go_on(policy, played, 0, memories, pool)
        alone = go_on(policy, played, 0, {1: memories[1]}, pool)
        other = go_on(policy, played, 0, {0: memories[1]}, pool)
        asked_anew = go_on(policy, played, 0, {0: memories[1]}, pool, same_question=False)
    for episode, continued in again.items():
        np.testing.assert_array_equal(continued.rollout.actions, played.rollouts[episode].actions)
        np.testing.assert_array_equal(
            continued.plan[0], played.rollouts[episode].actions[played_until(played, episode)]
        )
    np.testing.assert_array_equal(alone[1].rollout.actions, played.rollouts[1].actions)
    assert list(alone) == [1]
    assert list(other) == [0] and not np.array_equal(
        other[0].rollout.actions, played.rollouts[0].actions
    )
    assert not torch.equal(other[0].working, asked_anew[0].working)
    assert go_on(policy, played, 0, {}, pool) == {}


def played_until(played: Played, episode: int) -> int:
    """The step of the first decision."""
    env = played.settings.make_env()
    env.reset(seed=played.rollouts[episode].played.seed)
    return env.decision_step


def untrained(task: str) -> tuple[ChameleonPolicy, CamoSettings]:

    torch.manual_seed(0)
    features = Features(
        objects=ObjectSlots(count=5, size=7), proprioception=10, action=10, horizon=4
    )
    return ChameleonPolicy(nano(), features).eval(), CamoSettings(task=task, observation="state")


def test_a_row_in_figures() -> None:
    row = Row(
        Intervention("Swap", "swap"),
        (Outcome(0, 0, 1, 2, 2, False), Outcome(1, 0, 1, 2, None, False)),
    )
    assert (row.follows.value, row.original.value, row.nothing) == (0.0, 0.5, 1) and row.as_dict()[
        "choices"
    ] == "2-"


@pytest.mark.slow
def test_at_later_decisions_too() -> None:
    """Three decisions in an episode: own memories change nothing at any of them, twins' are acted
    on at the second.
    """
    policy, settings = load_for_evaluation("camo-small", "seasonings", "cpu")
    assert isinstance(policy, ChameleonPolicy)
    played = play(policy, settings, SEEDS[:2], steps=4, workers=1)
    assert played.decisions == 3
    shares = torch.rand(
        policy.config.layers, policy.features.tokens, generator=torch.Generator().manual_seed(0)
    )
    chosen = [NAMED["Own memory"], NAMED["Swap, everything"]]
    own, swapped = addressability(policy, played, play_twins(policy, played), shares, chosen).rows
    assert [each.decision for each in own.outcomes] == [0, 0, 1, 1, 2, 2]
    assert all(each.same_actions and each.chosen == each.original for each in own.outcomes)
    assert [each.chosen for each in swapped.outcomes if each.decision == 1] == [
        each.asks_for for each in swapped.outcomes if each.decision == 1
    ]
