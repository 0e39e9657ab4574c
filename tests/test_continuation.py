"""Episodes continued with other memories: their own changes nothing, a twin's the choice."""

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
    MemoryEditor,
    Outcome,
    Row,
    addressability,
)
from chameleon_policy.probes.continuation import (
    PlayedEpisodes,
    continuation_pool,
    continue_episodes,
    play_episodes,
    play_twins,
)
from chameleon_policy.probes.surgery import trace_states
from examples import nano

NAMED = {each.name: each for each in INTERVENTIONS}
SEEDS = range(FIRST_SEED, FIRST_SEED + 3)


@pytest.fixture(scope="module")
def shipped() -> tuple[ChameleonPolicy, PlayedEpisodes]:
    """Play a few episodes of clean-plate with the policy that comes with the package."""
    policy, settings = load_for_evaluation("camo-small", "clean-plate", "cpu")
    assert isinstance(policy, ChameleonPolicy)
    return policy, play_episodes(policy, settings, SEEDS, steps=4, workers=1)


def test_memories_are_kept_at_every_decision(
    shipped: tuple[ChameleonPolicy, PlayedEpisodes],
) -> None:
    policy, played = shipped
    assert (
        sorted(played.points) == [(episode, 0) for episode in range(len(SEEDS))]
        and played.decisions == 1
    )
    for point in played.points.values():
        assert len(point.memory) == 1 and len(point.control_context) == policy.config.layers
        torch.testing.assert_close(
            point.attention.sum(-1), torch.ones(policy.config.layers, policy.config.heads)
        )
        assert point.memory.steps.item() > 20  # the evidence has been seen


def assert_equals_an_evaluation(policy: ChameleonPolicy, played: PlayedEpisodes) -> None:
    seeds = [rollout.played.seed for rollout in played.rollouts]
    usual = evaluate(
        policy,
        played.settings,
        seeds,
        steps=played.sampling_steps,
        parallel=len(seeds),
        workers=played.workers,
    )
    for mine, theirs in zip(played.rollouts, usual.rollouts, strict=True):
        np.testing.assert_array_equal(mine.actions, theirs.actions)


@pytest.mark.slow
def test_the_first_pass_equals_an_evaluation(
    shipped: tuple[ChameleonPolicy, PlayedEpisodes],
) -> None:
    assert_equals_an_evaluation(*shipped)


@pytest.fixture(scope="module")
def twins(shipped: tuple[ChameleonPolicy, PlayedEpisodes]) -> PlayedEpisodes:
    return play_twins(*shipped)


def test_twins_have_another_answer_and_the_same_scene(
    shipped: tuple[ChameleonPolicy, PlayedEpisodes], twins: PlayedEpisodes
) -> None:
    played = shipped[1]
    for episode in range(len(SEEDS)):
        mine, theirs = played.rollouts[episode].played, twins.rollouts[episode].played
        assert (
            mine.seed == theirs.seed
            and theirs.z == (mine.z + 1) % 3
            and mine.difficulty == theirs.difficulty
        )
    # The first layer's control context depends on the scene alone, which is the same bits.
    assert all(
        torch.equal(played.points[place].control_context[0], twins.points[place].control_context[0])
        for place in played.points
    )
    assert not any(
        torch.equal(trace_states(played.points[p].memory), trace_states(twins.points[p].memory))
        for p in played.points
    )


@pytest.fixture(scope="module")
def outcomes(
    shipped: tuple[ChameleonPolicy, PlayedEpisodes], twins: PlayedEpisodes
) -> dict[str, Row]:
    """Run some interventions with random accuracies of traces; the rules have their own test."""
    policy, played = shipped
    accuracies = torch.rand(
        policy.config.layers, policy.features.tokens, generator=torch.Generator().manual_seed(0)
    )
    chosen = [
        NAMED[name] for name in ("Swap, everything", "Own memory", "Equal answer, another scene")
    ]
    return {
        row.intervention.name: row
        for row in addressability(policy, played, twins, accuracies, chosen).rows
    }


def test_own_memory_changes_nothing_bit_for_bit(outcomes: dict[str, Row]) -> None:
    row = outcomes["Own memory"]
    assert [each.same_actions for each in row.outcomes] == [True] * len(SEEDS)
    assert row.follows.value == row.original.value == 1.0


def test_the_memory_of_an_equal_answer_changes_no_decision(outcomes: dict[str, Row]) -> None:
    row = outcomes["Equal answer, another scene"]
    chosen = [each for each in row.outcomes if each.chosen is not None]
    # The memory also holds positions, so that in another scene nothing may be taken.
    assert len(chosen) >= 2
    assert all(each.chosen == each.original == each.asks_for for each in chosen)
    assert not any(each.same_actions for each in row.outcomes)


def test_the_choice_follows_the_memory_of_a_twin(outcomes: dict[str, Row]) -> None:
    row = outcomes["Swap, everything"]
    assert len(row.outcomes) == len(SEEDS) and all(
        each.asks_for != each.original for each in row.outcomes
    )
    assert row.follows.value == 1.0 and row.original.value == 0.0 and row.nothing == 0
    said = row.as_dict()
    assert said["choices"] == said["asks_for"] and said["same_actions"] == 0


def test_rules_select_tokens_and_donors(
    shipped: tuple[ChameleonPolicy, PlayedEpisodes], twins: PlayedEpisodes
) -> None:
    policy, played = shipped
    tokens = policy.features.tokens
    accuracies = torch.linspace(0, 1, tokens).expand(policy.config.layers, tokens)
    editor = MemoryEditor(played, twins, 0, accuracies)
    decoded = editor.tokens(0, 1, "decoded")
    assert decoded.nonzero().flatten().tolist() == list(range(tokens - tokens // 4, tokens))
    attended = editor.tokens(0, 1, "attended")
    weights = played.points[0, 0].attention[1].mean(0)
    assert attended.sum() == tokens // 4 and weights[attended].min() >= weights[~attended].max()
    random = editor.tokens(0, 1, "random")
    assert random.sum() == tokens // 4 and not (random & (decoded | attended)).any()
    assert torch.equal(
        random, editor.tokens(0, 1, "random")
    )  # the draw depends on the episode alone
    given = {
        name: editor.donors(NAMED[name])
        for name in (
            "Swap",
            "Mask+",
            "Own memory",
            "Swap, everything, another scene",
            "Equal answer, another scene",
        )
    }
    memory = played.points[0, 0].memory
    assert given["Swap"][0].memory is twins.points[0, 0].memory
    assert given["Mask+"][0].memory is given["Own memory"][0].memory is memory
    for name, same in (
        ("Swap, everything, another scene", False),
        ("Equal answer, another scene", True),
    ):
        for episode, donor in given[name].items():
            assert (donor.asks_for == played.right_choice(episode, 0)) == same
            assert donor.memory is not played.points[episode, 0].memory
    assert editor.edited(0, memory, NAMED["Full"]) is memory
    twin = given["Swap"][0].memory
    edited = editor.edited(0, twin, NAMED["Swap"])
    assert torch.equal(trace_states(edited, layers=[0]), trace_states(memory, layers=[0]))
    assert torch.equal(
        trace_states(edited, layers=[1], tokens=decoded),
        trace_states(twin, layers=[1], tokens=decoded),
    )
    assert torch.equal(
        trace_states(edited, layers=[1], tokens=~decoded),
        trace_states(memory, layers=[1], tokens=~decoded),
    )
    kept = editor.edited(0, memory, NAMED["Mask-"])
    assert torch.equal(
        trace_states(kept, layers=[1], tokens=decoded),
        trace_states(memory, layers=[1], tokens=decoded),
    )
    assert not trace_states(kept, layers=[1], tokens=~decoded).any()
    removed = editor.edited(0, memory, NAMED["Mask+, all layers"])
    assert not trace_states(removed, tokens=decoded).any()


def test_own_memories_repeat_the_actions_of_an_untrained_policy() -> None:
    """Even an untrained policy, which chooses nothing, repeats its actions."""
    policy, settings = untrained("clean-plate")
    played = play_episodes(policy, settings, range(FIRST_SEED, FIRST_SEED + 2), steps=2, workers=0)
    assert_equals_an_evaluation(policy, played)
    memories = {episode: played.points[episode, 0].memory for episode in range(2)}
    with continuation_pool(played, 0, until_choice=False) as pool:
        again = continue_episodes(policy, played, 0, memories, pool)
        alone = continue_episodes(policy, played, 0, {1: memories[1]}, pool)
        other = continue_episodes(policy, played, 0, {0: memories[1]}, pool)
        asked_anew = continue_episodes(
            policy, played, 0, {0: memories[1]}, pool, same_question=False
        )
    for episode, continued in again.items():
        np.testing.assert_array_equal(continued.rollout.actions, played.rollouts[episode].actions)
        np.testing.assert_array_equal(
            continued.plan[0], played.rollouts[episode].actions[first_decision(played, episode)]
        )
    np.testing.assert_array_equal(alone[1].rollout.actions, played.rollouts[1].actions)
    assert list(alone) == [1]
    assert list(other) == [0] and not np.array_equal(
        other[0].rollout.actions, played.rollouts[0].actions
    )
    assert not torch.equal(other[0].working, asked_anew[0].working)
    assert continue_episodes(policy, played, 0, {}, pool) == {}


def first_decision(played: PlayedEpisodes, episode: int) -> int:
    """Return the time step of the first decision."""
    env = played.settings.make_env()
    env.reset(seed=played.rollouts[episode].played.seed)
    return env.decision_step


def untrained(task: str) -> tuple[ChameleonPolicy, CamoSettings]:
    torch.manual_seed(0)
    features = Features(
        objects=ObjectSlots(count=5, size=7), proprioception=10, action=10, horizon=4
    )
    return ChameleonPolicy(nano(), features).eval(), CamoSettings(task=task, observation="state")


def test_rates_of_a_row() -> None:
    row = Row(
        Intervention("Swap", "swap"),
        (Outcome(0, 0, 1, 2, 2, False), Outcome(1, 0, 1, 2, None, False)),
    )
    assert (row.follows.value, row.original.value, row.nothing) == (0.0, 0.5, 1) and row.as_dict()[
        "choices"
    ] == "2-"


@pytest.mark.slow
def test_edits_at_later_decisions() -> None:
    """Own memories change nothing at any of three decisions; twins' memories change the second."""
    policy, settings = load_for_evaluation("camo-small", "seasonings", "cpu")
    assert isinstance(policy, ChameleonPolicy)
    played = play_episodes(policy, settings, SEEDS[:2], steps=4, workers=1)
    assert played.decisions == 3
    accuracies = torch.rand(
        policy.config.layers, policy.features.tokens, generator=torch.Generator().manual_seed(0)
    )
    chosen = [NAMED["Own memory"], NAMED["Swap, everything"]]
    own, swapped = addressability(
        policy, played, play_twins(policy, played), accuracies, chosen
    ).rows
    assert [each.decision for each in own.outcomes] == [0, 0, 1, 1, 2, 2]
    assert all(each.same_actions and each.chosen == each.original for each in own.outcomes)
    assert [each.chosen for each in swapped.outcomes if each.decision == 1] == [
        each.asks_for for each in swapped.outcomes if each.decision == 1
    ]
