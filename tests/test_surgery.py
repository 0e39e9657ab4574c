"""Memory surgery changes exactly what is named, and its effect shows at the next observation."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from chameleon_policy import ChameleonPolicy, MemoryState, Observation
from chameleon_policy.baselines import METHODS
from chameleon_policy.probes.surgery import mask, swap, trace_states
from examples import IMAGE_FEATURES, STATE_FEATURES, make_observation, nano

TIME = 6
TOKENS = STATE_FEATURES.tokens


@pytest.fixture(scope="module")
def policy() -> ChameleonPolicy:
    torch.manual_seed(0)
    return ChameleonPolicy(nano(), STATE_FEATURES).eval()


def remembered(policy: ChameleonPolicy, seed: int, episodes: int = 3) -> MemoryState:
    return policy.inspect(make_observation(policy.features, episodes, TIME, seed=seed)).state


@pytest.fixture(scope="module")
def states(policy: ChameleonPolicy) -> tuple[MemoryState, MemoryState]:
    return remembered(policy, 1), remembered(policy, 2)


@pytest.fixture(scope="module")
def now() -> Observation:
    return make_observation(STATE_FEATURES, 3, 1, seed=9)


def changed(before: MemoryState, after: MemoryState) -> set[tuple[str, int, int]]:
    """Return tensor, episode and token (-1 without tokens) of everything that differs."""
    found = set()
    for (name, one), other in zip(before.tensors().items(), after.tensors().values(), strict=True):
        for episode in range(len(before)):
            if ".slow." in name:
                found |= {
                    (name, episode, i)
                    for i in range(TOKENS)
                    if not torch.equal(one[episode, i], other[episode, i])
                }
            elif not torch.equal(one[episode], other[episode]):
                found.add((name, episode, -1))
    return found


def slow(layers: list[int], tokens: dict[int, list[int]] | list[int]) -> set[tuple[str, int, int]]:
    tokens = tokens if isinstance(tokens, dict) else {0: tokens, 1: tokens, 2: tokens}
    return {
        (f"layers.{layer}.slow.{part}", episode, token)
        for layer in layers
        for part in ("convolution", "ssm")
        for episode, each in tokens.items()
        for token in each
    }


def test_own_memory_changes_nothing_bit_for_bit(
    policy: ChameleonPolicy, states: tuple, now: Observation
) -> None:
    state = states[0]
    for kind in ("traces", "working", "both"):
        edited = swap(state, state.clone(), kind=kind)
        assert changed(state, edited) == set()
        usual, then = policy.inspect(now, state), policy.inspect(now, edited)
        assert torch.equal(usual.working, then.working)
        assert torch.equal(
            policy.act(usual.state, source="zero"), policy.act(then.state, source="zero")
        )


def test_a_swap_changes_only_the_named_tokens_and_layers(
    states: tuple[MemoryState, MemoryState],
) -> None:
    state, other = states
    every = list(range(TOKENS))
    assert changed(state, swap(state, other)) == slow([0, 1], every)
    assert changed(state, swap(state, other, layers=[-1], tokens=[0, -1])) == slow(
        [1], [0, TOKENS - 1]
    )
    chosen = torch.zeros(3, TOKENS, dtype=torch.bool)
    chosen[0, 1] = chosen[2, 0] = True
    edited = swap(state, other, layers=[0], tokens=chosen)
    assert changed(state, edited) == slow([0], {0: [1], 2: [0]})
    assert torch.equal(edited.layers[0].slow.ssm[2, 0], other.layers[0].slow.ssm[2, 0])
    fast = {
        (f"layers.{layer}.fast.{part}", e, -1)
        for layer in (0, 1)
        for part in ("convolution", "ssm")
        for e in range(3)
    }
    assert changed(state, swap(state, other, kind="working")) == fast
    assert changed(state, swap(state, other, kind="both")) == fast | slow([0, 1], every)
    whole = swap(state, other, kind="both")
    # h_t stays that of the last observation.
    assert {name for name, *_ in changed(other, whole)} == {"working"}


def test_swapping_everything_gives_the_other_episode(
    policy: ChameleonPolicy, states: tuple[MemoryState, MemoryState], now: Observation
) -> None:
    state, other = states
    then = policy.inspect(now, swap(state, other, kind="both"))
    assert torch.equal(then.working, policy.inspect(now, other).working)


def test_masks_keep_or_empty_the_named_tokens(states: tuple[MemoryState, MemoryState]) -> None:
    state = states[0]
    removed, kept = (
        mask(state, tokens=[1, 2], layers=[0]),
        mask(state, tokens=[1, 2], layers=[0], keep=True),
    )
    rest = [token for token in range(TOKENS) if token not in (1, 2)]
    assert changed(state, removed) == slow([0], [1, 2])
    assert changed(state, kept) == slow([0], rest)
    assert (
        not trace_states(removed, layers=[0], tokens=[1, 2]).any()
        and not trace_states(kept, layers=[0], tokens=rest).any()
    )
    assert torch.equal(trace_states(removed, tokens=rest), trace_states(state, tokens=rest))


def test_an_emptied_memory_is_that_of_a_new_episode(
    policy: ChameleonPolicy, states: tuple[MemoryState, MemoryState], now: Observation
) -> None:
    then = policy.inspect(now, mask(states[0], kind="both"))
    assert torch.equal(then.working, policy.inspect(now, policy.initial_state(3)).working)


def test_an_edit_of_the_last_layer_keeps_the_control_contexts(
    policy: ChameleonPolicy, states: tuple[MemoryState, MemoryState], now: Observation
) -> None:
    """The last layer writes nothing back: an edit there changes recall, not control contexts."""
    usual = policy.inspect(now, states[0])
    last = policy.inspect(now, swap(states[0], states[1], layers=[-1]))
    assert all(
        torch.equal(*pair) for pair in zip(usual.control_context, last.control_context, strict=True)
    )
    assert not torch.equal(usual.layers[-1].recalled, last.layers[-1].recalled)
    first = policy.inspect(now, swap(states[0], states[1], layers=[0]))
    assert not torch.equal(usual.control_context[-1], first.control_context[-1])


def test_recall_uses_a_given_control_context(
    policy: ChameleonPolicy, states: tuple[MemoryState, MemoryState], now: Observation
) -> None:
    usual, edited = policy.inspect(now, states[0]), swap(states[0], states[1])
    frozen = policy.inspect(now, edited, control_context=usual.control_context)
    assert all(
        torch.equal(*pair)
        for pair in zip(usual.control_context, frozen.control_context, strict=True)
    )
    assert not torch.equal(usual.working, frozen.working)
    again = policy.inspect(now, states[0], control_context=usual.control_context)
    assert torch.equal(again.working, usual.working)
    only_last = policy.inspect(now, edited, control_context=(None, usual.control_context[1]))
    assert torch.equal(
        only_last.working,
        policy.inspect(now, edited, control_context=only_last.control_context).working,
    )


def test_an_inspection_equals_control() -> None:
    torch.manual_seed(0)
    policy = ChameleonPolicy(nano(), STATE_FEATURES).double().eval()
    observation = make_observation(STATE_FEATURES, 2, TIME, seed=4, dtype=torch.float64)
    seen, state = policy.inspect(observation), policy.initial_state(2)
    for t in range(TIME):
        state = policy.observe(observation.at(t), state)
        torch.testing.assert_close(seen.working[:, t], state.working)
    torch.testing.assert_close(trace_states(seen.state), trace_states(state))


@pytest.mark.parametrize("features", [STATE_FEATURES, IMAGE_FEATURES], ids=["state", "images"])
def test_recall_is_the_mean_of_traces_under_its_attention_weights(features) -> None:
    torch.manual_seed(0)
    policy = ChameleonPolicy(nano(), features).double().eval()
    seen = policy.inspect(make_observation(features, 2, TIME, dtype=torch.float64))
    assert seen.attention.shape == (2, TIME, 2, policy.config.heads, features.tokens)
    torch.testing.assert_close(
        seen.attention.sum(-1), torch.ones(2, TIME, 2, policy.config.heads, dtype=torch.float64)
    )
    for index, layer in enumerate(policy.memory):
        values = layer.recall.attention.key_value(seen.layers[index].traces).chunk(2, dim=-1)[1]
        values = values.unflatten(-1, (policy.config.heads, -1))
        mixed = torch.einsum("bthn,btnhc->bthc", seen.attention[:, :, index], values).flatten(-2)
        recalled = layer.recall.norm(layer.recall.attention.output(mixed))
        torch.testing.assert_close(recalled, seen.layers[index].recalled)


def test_reading_traces(policy: ChameleonPolicy) -> None:
    seen = policy.inspect(make_observation(STATE_FEATURES, 2, TIME))
    everything = seen.traces()
    assert everything.shape == (2, 2, TIME, TOKENS, policy.config.width)
    assert torch.equal(everything[:, 1], seen.layers[1].traces)
    some = seen.traces(layers=[-1], tokens=[2, 0], times=[5, 1])
    assert torch.equal(some, everything[:, [1]][:, :, [5, 1]][:, :, :, [2, 0]])
    assert trace_states(seen.state, layers=[0], tokens=[1]).shape[:3] == (2, 1, 1)


def test_bad_arguments_are_refused(
    policy: ChameleonPolicy, states: tuple[MemoryState, MemoryState]
) -> None:
    state, other = states
    with pytest.raises(IndexError, match=f"there is no token {TOKENS} among {TOKENS}"):
        swap(state, other, tokens=[TOKENS])
    with pytest.raises(IndexError, match="there is no layer 2 among 2"):
        mask(state, layers=[2])
    with pytest.raises(ValueError, match="one of traces, working, both, got 'slow'"):
        mask(state, kind="slow")
    with pytest.raises(ValueError, match="the working state has none"):
        mask(state, tokens=[0], kind="working")
    with pytest.raises(ValueError, match="keep=True keeps the tokens that are named"):
        mask(state, keep=True)
    with pytest.raises(ValueError, match="a memory of 3 episodes to take from, got one of 2"):
        swap(state, other[:2])
    with pytest.raises(ValueError, match=f"a mask of {TOKENS}, or of 3 x {TOKENS}"):
        mask(state, tokens=torch.ones(2, dtype=torch.bool))
    with pytest.raises(ValueError, match="different architectures"):
        swap(state, replace(other, signature="another"))
    chosen = torch.zeros(3, TOKENS, dtype=torch.bool)
    chosen[0, 0] = True
    with pytest.raises(ValueError, match="the same tokens for all episodes"):
        trace_states(state, tokens=chosen)
    with pytest.raises(ValueError, match="for each of 2 layers, got 1"):
        policy.inspect(make_observation(STATE_FEATURES, 3, 1), state, control_context=(None,))
    with pytest.raises(ValueError, match="control_context of layer 0: expected the shape"):
        policy.inspect(
            make_observation(STATE_FEATURES, 3, 1), state, control_context=(torch.zeros(3, 5), None)
        )


@pytest.mark.parametrize("method", ["similarity", "lstm", "act"])
def test_memories_without_traces_are_refused(method: str) -> None:
    with pytest.raises(ValueError, match="this memory has no traces"):
        mask(METHODS[method](nano(), STATE_FEATURES).initial_state(1))
