"""Each ablation differs from Chameleon in exactly one mechanism."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from chameleon_policy import ChameleonPolicy
from chameleon_policy.baselines import ABLATIONS, METHODS
from chameleon_policy.baselines import similarity as similarity_module
from chameleon_policy.baselines.constant_index import ConstantIndexPolicy
from chameleon_policy.baselines.no_jepa import NoJepaPolicy
from chameleon_policy.baselines.similarity import RETRIEVED, SimilarityBank, SimilarityPolicy
from chameleon_policy.baselines.undirected import UndirectedPolicy
from chameleon_policy.baselines.vanilla_mamba import PooledPropagation, VanillaMambaPolicy
from chameleon_policy.policy.memory import TracePropagation
from examples import STATE_FEATURES, make_batch, make_observation, nano

GONE = {
    "no-memory": (set(), set()),
    "similarity": ({"propagation.slow"}, set()),
    "vanilla-mamba": (set(), set()),
    "constant-index": (
        {
            "recall.control_context.index.0",
            "recall.control_context.index.2",
            "recall.control_context.index.3",
        },
        {"recall.control_context.index"},
    ),
    "undirected": (set(), {"recall"}),
    "no-jepa": (set(), set()),
    "brief": (set(), set()),
}
"""Modules of a memory layer that only Chameleon has, and modules that only the ablation has."""


def weights(policy: ChameleonPolicy) -> dict[str, torch.Size]:
    return {n: w.shape for n, w in policy.state_dict().items() if not n.startswith("control_jepa.")}


def modules(names: set[str]) -> set[str]:
    """Return paths such as propagation.slow for names such as memory.0.propagation.slow.skip."""
    shorter = {name.split(".", 2)[2].rpartition(".")[0] for name in names}
    return {"propagation.slow" if name.startswith("propagation.slow") else name for name in shorter}


@pytest.mark.parametrize("kind", ABLATIONS, ids=lambda kind: kind.method)
def test_the_weights_differ_in_the_mechanism_alone(kind: type[ChameleonPolicy]) -> None:
    full = weights(ChameleonPolicy(nano(), STATE_FEATURES))
    ablated = weights(kind(nano(), STATE_FEATURES))
    gone, new = GONE[kind.method]
    assert modules(full.keys() - ablated.keys()) == gone
    assert modules(ablated.keys() - full.keys()) == new
    assert all(full[name] == ablated[name] for name in full.keys() & ablated.keys())


def restore_mechanism(ablated: ChameleonPolicy, full: ChameleonPolicy) -> None:
    """Undo an ablation by putting Chameleon's mechanism back."""
    for layer, whole in zip(ablated.memory, full.memory, strict=True):
        layer.propagation = copy.deepcopy(whole.propagation)
        layer.recall = copy.deepcopy(whole.recall)
        layer.consolidation.fast = copy.deepcopy(whole.consolidation.fast)
    if ablated.control_jepa is not None:
        ablated.control_jepa.target.index = copy.deepcopy(full.control_jepa.target.index)


@pytest.mark.parametrize("kind", ABLATIONS, ids=lambda kind: kind.method)
def test_with_its_mechanism_restored_it_equals_chameleon_bit_for_bit(
    kind: type[ChameleonPolicy],
) -> None:
    torch.manual_seed(0)
    full, ablated = ChameleonPolicy(nano(), STATE_FEATURES), kind(nano(), STATE_FEATURES)
    batch = make_batch(STATE_FEATURES, 3, 12)

    def action_loss(policy: ChameleonPolicy) -> torch.Tensor:
        torch.manual_seed(1)
        return policy.eval().loss(batch).parts["action"]

    ablated.load_state_dict(
        {n: w for n, w in full.state_dict().items() if n in weights(ablated)}, strict=False
    )
    # `NoJepaPolicy` differs in training alone.
    assert (action_loss(ablated) == action_loss(full)) == (kind is NoJepaPolicy)
    restore_mechanism(ablated, full)
    assert action_loss(ablated) == action_loss(full)


class TestVanillaMamba:
    def test_one_state_for_the_whole_scene(self) -> None:
        pooled, traces = (
            kind(nano(), STATE_FEATURES).initial_state(2).layers[0].slow.ssm
            for kind in (VanillaMambaPolicy, ChameleonPolicy)
        )
        assert pooled.shape == (2, 1, *traces.shape[2:])
        assert traces.shape[1] == STATE_FEATURES.tokens

    def test_it_is_the_trace_of_the_mean(self) -> None:
        torch.manual_seed(0)
        pooled, traces = PooledPropagation(nano()).double(), TracePropagation(nano()).double()
        traces.load_state_dict(pooled.state_dict())
        bound = torch.randn(2, 7, 5, nano().width, dtype=torch.float64)
        one, _ = pooled(bound, None, keep_state=False)
        many, _ = traces(bound.mean(2, keepdim=True).expand(-1, -1, 5, -1), None, keep_state=False)
        torch.testing.assert_close(one.expand_as(many), many)

    def test_its_trace_does_not_depend_on_the_token(self) -> None:
        pooled = PooledPropagation(nano())
        bound = torch.randn(2, 7, 5, nano().width)
        first, _ = pooled(bound, None, keep_state=False)
        second, _ = pooled(bound[:, :, torch.randperm(5)], None, keep_state=False)
        torch.testing.assert_close(first, second)


class TestSimilarity:
    @pytest.mark.parametrize("bank", [256, 4])
    def test_it_finds_the_most_similar_frames_of_the_past(self, bank: int, monkeypatch) -> None:
        monkeypatch.setattr(similarity_module, "BANK", bank)
        torch.manual_seed(1)
        layer = SimilarityBank(nano()).double()
        bound = torch.randn(2, 20, 3, nano().width, dtype=torch.float64)
        retrieved, _ = layer(bound, None, keep_state=False)
        frames = bound.mean(2)
        for episode in range(2):
            for now in range(20):
                past = range(max(0, now - bank), now)
                alike = {
                    t: F.cosine_similarity(frames[episode, t], frames[episode, now], dim=0).item()
                    for t in past
                }
                best = sorted(alike, key=alike.__getitem__, reverse=True)[:RETRIEVED]
                expected = [frames[episode, t] for t in best]
                expected += [torch.zeros_like(frames[0, 0])] * (RETRIEVED - len(best))
                torch.testing.assert_close(retrieved[episode, now], torch.stack(expected))

    def test_half_precision_finds_the_same_frames(self) -> None:
        """Neighbouring frames differ by less than the resolution of bfloat16."""
        torch.manual_seed(0)
        frames = torch.randn(1, 1, 1, nano().width) + 0.01 * torch.randn(
            1, 30, 1, nano().width
        ).cumsum(1)
        layer = SimilarityBank(nano())
        precise, _ = layer(frames, None, keep_state=False)
        with torch.autocast("cpu", torch.bfloat16):
            found, _ = layer(frames, None, keep_state=False)
        torch.testing.assert_close(found, precise, rtol=0, atol=0)

    @pytest.mark.parametrize("cut", [1, 5, 19])
    def test_a_continued_bank_finds_the_same(self, cut: int, monkeypatch) -> None:
        monkeypatch.setattr(similarity_module, "BANK", 6)
        layer, bound = SimilarityBank(nano()), torch.randn(2, 20, 3, nano().width)
        whole, after = layer(bound, None, keep_state=True)
        first, state = layer(bound[:, :cut], None, keep_state=True)
        second, end = layer(bound[:, cut:], state, keep_state=True)
        torch.testing.assert_close(torch.cat([first, second], 1), whole)
        torch.testing.assert_close(end, after)
        from_nothing, _ = layer(bound, layer.initial_state(2, 3), keep_state=False)
        torch.testing.assert_close(from_nothing, whole)

    def test_a_full_bank_keeps_its_size(self) -> None:
        policy = SimilarityPolicy(nano(), STATE_FEATURES).eval()
        state = policy.initial_state(1)
        size = state.nbytes
        for t in range(3):
            state = policy.observe(make_observation(STATE_FEATURES, 1, seed=t), state)
        assert state.nbytes == size
        assert state.layers[1].slow["count"].tolist() == [3]

    def test_a_bank_can_be_saved_and_joined(self, tmp_path) -> None:
        policy = SimilarityPolicy(nano(), STATE_FEATURES).eval()
        state = policy.observe(make_observation(STATE_FEATURES, 2), policy.initial_state(2))
        state.save(tmp_path / "memory.safetensors")
        loaded = type(state).load(tmp_path / "memory.safetensors")
        again = type(state).cat([loaded[1], loaded[0]])[[1, 0]]
        torch.testing.assert_close(again.tensors(), state.tensors(), rtol=0, atol=0)
        observation = make_observation(STATE_FEATURES, 2, seed=5)
        torch.testing.assert_close(
            policy.observe(observation, again).working, policy.observe(observation, state).working
        )


class TestConstantIndex:
    def test_the_control_index_does_not_depend_on_body_or_instruction(self) -> None:
        for kind, same in ((ConstantIndexPolicy, True), (ChameleonPolicy, False)):
            torch.manual_seed(0)
            index = kind(nano(), STATE_FEATURES).memory[0].recall.control_context.index
            first, second = torch.randn(2, 3, 2 * nano().width)
            assert torch.equal(index(first), index(second)) == same

    def test_its_target_follows_the_constant(self) -> None:
        policy = ConstantIndexPolicy(nano(), STATE_FEATURES)
        query = policy.memory[-1].recall.control_context.index.query
        with torch.no_grad():
            query.add_(1)
        before = policy.control_jepa.target.index.query.clone()
        policy.update_target()
        torch.testing.assert_close(policy.control_jepa.target.index.query, before.lerp(query, 0.01))


class TestUndirected:
    def test_recall_does_not_depend_on_the_control_context(self) -> None:
        traces, contexts = torch.randn(1, 1, 7, 64), torch.randn(2, 1, 1, 64)
        for kind, same in ((UndirectedPolicy, True), (ChameleonPolicy, False)):
            torch.manual_seed(0)
            recall = kind(nano(), STATE_FEATURES).memory[0].recall
            first, second = (recall(context, traces) for context in contexts)
            assert torch.equal(first, second) == same

    def test_its_working_state_still_sees_the_control_context(self) -> None:
        """What recall does not ask, the working state and Control-JEPA still get."""
        torch.manual_seed(0)
        layer = UndirectedPolicy(nano(), STATE_FEATURES).memory[0]
        tokens, contexts = torch.randn(1, 5, 7, 64), torch.randn(2, 1, 5, 64)
        first, second = (
            layer(tokens, None, write_back=False, control_context=context) for context in contexts
        )
        assert torch.equal(first.recalled, second.recalled)
        assert not torch.equal(first.working, second.working)

    def test_the_constant_learns(self) -> None:
        policy = UndirectedPolicy(nano(), STATE_FEATURES)
        policy.loss(make_batch(STATE_FEATURES, 3, 12)).total.backward()
        assert all(layer.recall.asked.grad.any() for layer in policy.memory)


class TestNoJepa:
    def test_it_is_chameleon_in_control_and_learns_from_actions_alone(self) -> None:
        torch.manual_seed(0)
        full = ChameleonPolicy(nano(), STATE_FEATURES)
        without = NoJepaPolicy(nano(), STATE_FEATURES)
        without.load_state_dict(
            {n: w for n, w in full.state_dict().items() if not n.startswith("control_jepa.")}
        )
        batch, losses = make_batch(STATE_FEATURES, 3, 12), []
        for policy in (full, without):
            torch.manual_seed(1)
            losses.append(policy.eval().loss(batch))
        assert losses[1].total == losses[1].parts["action"] == losses[0].parts["action"]
        assert set(losses[0].parts) - set(losses[1].parts) == {
            "control_jepa",
            "alignment",
            "variance",
        }
        observation = make_observation(STATE_FEATURES, 2)
        states = [
            policy.observe(observation, policy.initial_state(2)) for policy in (full, without)
        ]
        assert torch.equal(states[0].working, states[1].working)

    def test_it_has_no_target_to_move(self) -> None:
        policy = NoJepaPolicy(nano(), STATE_FEATURES)
        before = {name: weight.clone() for name, weight in policy.state_dict().items()}
        policy.update_target()
        torch.testing.assert_close(dict(policy.state_dict()), before, rtol=0, atol=0)
        assert not any("jepa" in name for name in before)


def test_memory_states_of_different_methods_do_not_mix() -> None:
    states = {
        method: kind(nano(), STATE_FEATURES).initial_state(1) for method, kind in METHODS.items()
    }
    assert len({state.signature for state in states.values()}) == len(METHODS)
    with pytest.raises(ValueError, match="another architecture"):
        VanillaMambaPolicy(nano(), STATE_FEATURES).observe(
            make_observation(STATE_FEATURES, 1), states["chameleon"]
        )
