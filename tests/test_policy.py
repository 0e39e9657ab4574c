"""The whole policy: training equals control, strictly causal, with a memory that is a value."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from contextlib import nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from chameleon_policy import EpisodeBatch, MemoryState, Observation, Range, Statistics
from chameleon_policy.policy.action_flow import FLOW_TIME_SCALE, sinusoid
from chameleon_policy.policy.memory import MemoryLayer
from examples import IMAGE_FEATURES, STATE_FEATURES, make_batch, make_observation, make_policy, nano

FEATURES = {"objects": STATE_FEATURES, "images": IMAGE_FEATURES}


def unroll(policy, observation: Observation, state: MemoryState | None = None):
    """Return working states at every time step and the memory afterwards, by the parallel scan."""
    with torch.no_grad():
        tokens = policy.event_tokens(observation)
        before = policy.initial_state(len(tokens)) if state is None else state
        outputs, after = policy.remember(tokens, before)
    return outputs[-1].working, after


def assert_same_memory(
    first: MemoryState, second: MemoryState, atol: float, rtol: float = 0
) -> None:
    for name, tensor in first.tensors().items():
        torch.testing.assert_close(
            tensor, second.tensors()[name], rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES)
def test_scan_equals_step_for_the_whole_policy(features) -> None:
    policy = make_policy(features, dtype=torch.float64)
    observation = make_observation(features, 2, 21, dtype=torch.float64)
    working, scanned = unroll(policy, observation)
    state = policy.initial_state(2)
    for t in range(21):
        state = policy.observe(observation.at(t), state)
        torch.testing.assert_close(state.working, working[:, t], rtol=0, atol=1e-9)
    assert_same_memory(state, scanned, atol=1e-9)


def test_scan_equals_step_in_bfloat16() -> None:
    policy = make_policy(dtype=torch.bfloat16)
    observation = make_observation(STATE_FEATURES, 2, 40, dtype=torch.bfloat16)
    working, _ = unroll(policy, observation)
    state = policy.initial_state(2)
    for t in range(40):
        state = policy.observe(observation.at(t), state)
    error = (state.working.float() - working[:, -1].float()).norm() / working[:, -1].float().norm()
    assert error < 0.05, error


@pytest.mark.parametrize("cut", [1, 5, 16, 20])
def test_windows_that_carry_the_state_equal_one_pass(cut: int) -> None:
    policy = make_policy(dtype=torch.float64)
    observation = make_observation(STATE_FEATURES, 2, 21, dtype=torch.float64)
    working, whole = unroll(policy, observation)
    first, state = unroll(policy, observation.map(lambda tensor: tensor[:, :cut]))
    second, state = unroll(policy, observation.map(lambda tensor: tensor[:, cut:]), state)
    torch.testing.assert_close(torch.cat([first, second], 1), working, rtol=0, atol=1e-9)
    assert_same_memory(state, whole, atol=1e-9)


def joined_at(cut: int, first: Observation, second: Observation) -> Observation:
    """Return the steps of `first` before `cut` and those of `second` from there on."""

    def join(start: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
        return torch.cat([start[:, :cut], end[:, cut:]], dim=1)

    return dataclasses.replace(
        first,
        proprioception=join(first.proprioception, second.proprioception),
        images={name: join(image, second.images[name]) for name, image in first.images.items()},
        objects=None if first.objects is None else join(first.objects, second.objects),
    )


@pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES)
def test_strictly_causal(features) -> None:
    """A change of the future changes everything after it and nothing before it."""
    policy = make_policy(features, dtype=torch.float64)
    past = make_observation(features, 1, 40, seed=0, dtype=torch.float64)
    other = make_observation(features, 1, 40, seed=1, dtype=torch.float64)
    for now in (0, 4, 13, 14, 30, 38):
        first, _ = unroll(policy, past)
        second, _ = unroll(policy, joined_at(now + 1, past, other))
        torch.testing.assert_close(first[:, : now + 1], second[:, : now + 1], rtol=0, atol=1e-12)
        assert ((first - second).abs().amax(dim=(0, 2))[now + 1 :] > 1e-6).all()


def test_gradients_do_not_flow_back_in_time_from_the_past() -> None:
    policy = make_policy(dtype=torch.float64)
    observation = make_observation(STATE_FEATURES, 1, 10, dtype=torch.float64)
    objects = observation.objects.clone().requires_grad_()
    tokens = policy.event_tokens(dataclasses.replace(observation, objects=objects))
    outputs, _ = policy.remember(tokens, policy.initial_state(1))
    outputs[-1].working[:, 4].sum().backward()
    per_step = objects.grad.abs().sum(dim=(0, 2, 3))
    assert (per_step[:5] > 0).all()
    assert (per_step[5:] == 0).all()


def test_the_state_neither_grows_nor_keeps_references() -> None:
    policy = make_policy()
    state = policy.initial_state(1)
    shapes = {name: tensor.shape for name, tensor in state.tensors().items()}
    for t in range(50):
        state = policy.observe(make_observation(STATE_FEATURES, 1, seed=t), state)
    assert {name: tensor.shape for name, tensor in state.tensors().items()} == shapes
    assert all(tensor.grad_fn is None for tensor in state.tensors().values())
    assert state.steps.tolist() == [50]


class OperationCount(TorchDispatchMode):
    """A counter of all operations by name and input shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[tuple] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        shapes = tuple(tuple(a.shape) for a in args if isinstance(a, torch.Tensor))
        self.counts[str(func), shapes] += 1
        return func(*args, **(kwargs or {}))


def test_a_step_has_constant_cost() -> None:
    """Operations and shapes at t = 10 and t = 500 are equal; `make bench` measures seconds."""
    policy, counts = make_policy(), {}
    state = policy.initial_state(1)
    for t in range(501):
        observation = make_observation(STATE_FEATURES, 1, seed=t % 7)
        with OperationCount() if t in (10, 500) else nullcontext() as operations:
            state = policy.observe(observation, state)
        if operations is not None:
            counts[t] = operations.counts
    assert sum(counts[10].values()) > 100
    assert counts[10] == counts[500]


def test_observe_changes_neither_its_state_nor_the_policy() -> None:
    policy = make_policy()
    before = policy.observe(make_observation(STATE_FEATURES, 2), policy.initial_state(2))
    copy, weights = before.clone(), {k: v.clone() for k, v in policy.state_dict().items()}
    first = policy.observe(make_observation(STATE_FEATURES, 2, seed=1), before)
    second = policy.observe(make_observation(STATE_FEATURES, 2, seed=1), before)
    assert_same_memory(before, copy, atol=0)
    assert_same_memory(first, second, atol=0)
    assert all(torch.equal(v, weights[k]) for k, v in policy.state_dict().items())


def test_different_pasts_of_one_present_give_different_actions() -> None:
    """Different pasts of one present give different working states and actions."""
    policy = make_policy()
    present = make_observation(STATE_FEATURES, 1, seed=99)
    pasts = [
        policy.observe(make_observation(STATE_FEATURES, 1, seed=s), policy.initial_state(1))
        for s in (1, 2)
    ]
    actions = [policy.act(policy.observe(present, past), source="zero") for past in pasts]
    assert (actions[0] - actions[1]).abs().max() > 1e-4


def test_training_and_control_under_autocast() -> None:
    """The paper's precision: bfloat16 products over float32 weights, here on the CPU."""
    policy = make_policy().eval()
    batch = make_batch(STATE_FEATURES, 2, 40)
    exact = policy.loss(batch).parts["alignment"].item()
    with torch.autocast("cpu", torch.bfloat16):
        loss = policy.loss(batch)
        state = policy.observe(make_observation(STATE_FEATURES, 1), policy.initial_state(1))
    loss.total.backward()
    assert loss.parts["alignment"].item() == pytest.approx(exact, rel=0.05)
    assert state.working.dtype == torch.float32
    assert torch.isfinite(policy.act(state)).all()  # outside autocast, on a state from inside


class TestActing:
    def test_shape_and_options(self) -> None:
        policy = make_policy()
        state = policy.observe(make_observation(STATE_FEATURES, 3), policy.initial_state(3))
        assert policy.act(state).shape == (3, STATE_FEATURES.horizon, STATE_FEATURES.action)
        zero = [policy.act(state, source="zero", steps=4) for _ in range(2)]
        assert torch.equal(zero[0], zero[1])
        seeded = [policy.act(state, generator=torch.Generator().manual_seed(7)) for _ in range(2)]
        assert torch.equal(seeded[0], seeded[1])
        assert not torch.equal(
            seeded[0], policy.act(state, generator=torch.Generator().manual_seed(8))
        )

    def test_euler_steps_follow_the_straight_line_to_a_fixed_endpoint(self, monkeypatch) -> None:
        """A network that always predicts E must visit A_0 + i/n (E - A_0) and end in E."""
        policy = make_policy()
        end = torch.randn(1, STATE_FEATURES.horizon, STATE_FEATURES.action)
        visited, times = [], []

        def fixed_endpoint(noised, flow_time, context):
            visited.append(noised)
            times.append(flow_time.item())
            return end

        monkeypatch.setattr(policy.action_flow, "endpoint", fixed_endpoint)
        state = policy.observe(make_observation(STATE_FEATURES, 1), policy.initial_state(1))
        result = policy.act(state, steps=5)
        torch.testing.assert_close(result, end)
        assert times == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
        for i, point in enumerate(visited):
            torch.testing.assert_close(point, visited[0] + i / 5 * (end - visited[0]))

    def test_fifty_steps_by_default(self, monkeypatch) -> None:
        policy, calls = make_policy(), itertools.count()
        endpoint = policy.action_flow.endpoint
        monkeypatch.setattr(
            policy.action_flow, "endpoint", lambda *a: (next(calls), endpoint(*a))[1]
        )
        policy.act(policy.observe(make_observation(STATE_FEATURES, 1), policy.initial_state(1)))
        assert next(calls) == 50

    def test_the_condition_computed_once_equals_joint_attention_under_its_mask(self) -> None:
        """One pass over policy and action tokens with an explicit mask gives the same endpoint."""
        policy = make_policy(dtype=torch.float64)
        flow = policy.action_flow
        working, noised = torch.randn(2, 64).double(), torch.randn(2, 4, 2).double()
        flow_time = torch.tensor([0.3, 0.9]).double()
        expected = flow.endpoint(noised, flow_time, flow.condition(working))
        conditions = flow.policy_tokens(working).view(2, -1, 64)
        time_token = flow.flow_time(sinusoid(FLOW_TIME_SCALE * flow_time, 64))[:, None]
        actions = flow.action_in(noised) + sinusoid(torch.arange(4).double(), 64) + time_token
        tokens, n = torch.cat([conditions, actions], 1), conditions.shape[1]
        mask = torch.ones(n + 4, n + 4, dtype=torch.bool)
        mask[:n, n:] = False
        for block in flow.blocks:
            normed = block.attention_norm(tokens)
            query = block.attention.query(normed).view(2, n + 4, 4, 16).transpose(1, 2)
            key, value = (
                t.reshape(2, n + 4, 4, 16).transpose(1, 2)
                for t in block.attention.key_value(normed).chunk(2, -1)
            )
            scores = (query @ key.mT / 4).masked_fill(~mask, -torch.inf).softmax(-1)
            tokens = tokens + block.attention.output(
                (scores @ value).transpose(1, 2).reshape(2, n + 4, 64)
            )
            tokens = tokens + block.feedforward(tokens)
        torch.testing.assert_close(
            flow.action_out(flow.norm(tokens[:, n:])), expected, rtol=0, atol=1e-10
        )


class TestNormalisation:
    STATISTICS = Statistics(
        proprioception=Range(low=(-2.0, 0.0, 5.0, -1.0, 3.0), high=(2.0, 1.0, 7.0, 1.0, 3.0)),
        action=Range(low=(10.0, -3.0), high=(20.0, -3.0)),
    )

    def test_units_do_not_matter(self) -> None:
        """Statistics on raw data equal no statistics on data that is normalised by hand."""
        raw = make_observation(STATE_FEATURES, 1)
        scaled = raw.proprioception.clone()
        limits = self.STATISTICS.proprioception
        for dim, (low, high) in enumerate(zip(limits.low, limits.high, strict=True)):
            if high > low:
                scaled[:, dim] = (raw.proprioception[:, dim] - low) / (high - low) * 2 - 1
        with_statistics = make_policy(statistics=self.STATISTICS)
        without = make_policy()
        first = with_statistics.observe(raw, with_statistics.initial_state(1))
        second = without.observe(
            dataclasses.replace(raw, proprioception=scaled), without.initial_state(1)
        )
        torch.testing.assert_close(first.working, second.working, rtol=1e-4, atol=1e-5)
        action = with_statistics.act(first, source="zero")
        plain = without.act(second, source="zero")
        torch.testing.assert_close(action[..., 0], 15 + 5 * plain[..., 0], rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(action[..., 1], plain[..., 1], rtol=1e-3, atol=1e-4)

    def test_units_survive_bfloat16_weights(self) -> None:
        statistics = Statistics(action=Range(low=(0.4, 100.0), high=(0.6, 100.5)))
        policy = make_policy(statistics=statistics, dtype=torch.bfloat16)
        values = torch.tensor([[0.5130, 100.26]])
        normalised = policy.normalize_action(values)
        torch.testing.assert_close(normalised, torch.tensor([[0.13, 0.04]]), rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(policy.normalize_action.inverse(normalised), values)
        state = policy.observe(make_observation(STATE_FEATURES, 1), policy.initial_state(1))
        assert policy.act(state).dtype == torch.float32

    def test_range_of_data(self) -> None:
        assert Range.of(torch.tensor([[[1.0, 4.0], [3.0, -2.0]]])) == Range(
            low=(1.0, -2.0), high=(3.0, 4.0)
        )


class TestLoss:
    def test_total_is_the_weighted_sum_of_the_named_parts(self) -> None:
        policy = make_policy()
        loss = policy.loss(make_batch(STATE_FEATURES, 3, 20))
        parts = {name: part.item() for name, part in loss.parts.items()}
        assert set(parts) == {"action", "control_jepa", "alignment", "variance"}
        assert parts["control_jepa"] == pytest.approx(
            parts["alignment"] + 0.05 * parts["variance"], rel=1e-5
        )
        assert loss.total.item() == pytest.approx(
            parts["action"] + 0.05 * parts["control_jepa"], rel=1e-5
        )

    def test_padding_does_not_matter(self) -> None:
        """Values in the padding change neither the loss nor any gradient."""
        policy = make_policy(config=nano(proprioception_noise=0.0))
        batch = make_batch(STATE_FEATURES, 2, 24, lengths=[24, 9])
        other = make_batch(STATE_FEATURES, 2, 24, seed=5)
        pad = ~batch.valid
        observation = dataclasses.replace(
            batch.observation,
            proprioception=torch.where(
                pad[..., None], other.observation.proprioception, batch.observation.proprioception
            ),
            objects=torch.where(
                pad[..., None, None], other.observation.objects, batch.observation.objects
            ),
        )
        actions = torch.where(pad[..., None], other.actions, batch.actions)
        results = []
        for candidate in (
            batch,
            dataclasses.replace(batch, observation=observation, actions=actions),
        ):
            policy.zero_grad()
            torch.manual_seed(3)
            total = policy.loss(candidate).total
            total.backward()
            results.append(
                (total.item(), [p.grad.clone() for p in policy.parameters() if p.grad is not None])
            )
        assert results[0][0] == pytest.approx(results[1][0], rel=1e-6)
        for first, second in zip(results[0][1], results[1][1], strict=True):
            torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-6)

    def test_action_loss_by_hand(self, monkeypatch) -> None:
        """For a head that predicts zero, a loop over valid chunk entries gives the loss."""
        policy = make_policy(config=nano(control_jepa_weight=0.0))
        batch = make_batch(STATE_FEATURES, 2, 7, lengths=[7, 4])
        monkeypatch.setattr(
            policy.action_flow, "endpoint", lambda noised, *_: torch.zeros_like(noised)
        )
        squares = [
            batch.actions[b, t + j].square().sum().item()
            for b, length in enumerate([7, 4])
            for t in range(length)
            for j in range(STATE_FEATURES.horizon)
            if t + j < length
        ]
        expected = sum(squares) / (len(squares) * STATE_FEATURES.action)
        assert policy.loss(batch).total.item() == pytest.approx(expected, rel=1e-5)

    def test_actions_beyond_the_window_complete_its_chunks(self, monkeypatch) -> None:
        policy = make_policy()
        seen = []
        monkeypatch.setattr(
            policy.action_flow,
            "forward",
            lambda working, chunk, power: (seen.append(chunk), torch.zeros_like(chunk))[1],
        )
        batch = make_batch(STATE_FEATURES, 1, 6)
        window = EpisodeBatch(
            observation=batch.observation.map(lambda tensor: tensor[:, :3]),
            actions=batch.actions,
            valid=batch.valid[:, :3],
            actions_valid=batch.valid,
        )
        loss = policy.loss(window)
        expected = torch.stack([batch.actions[0, t : t + 4] for t in range(3)])
        torch.testing.assert_close(seen[0], expected)
        assert loss.parts["action"].item() == pytest.approx(
            expected.square().mean().item(), rel=1e-5
        )

    def test_emphasis_chooses_the_time_steps(self, monkeypatch) -> None:
        policy = make_policy(config=nano(action_steps=5))
        batch = make_batch(STATE_FEATURES, 2, 12)
        emphasis = torch.zeros(2, 12)
        emphasis[:, 3] = 1
        seen = []
        monkeypatch.setattr(
            policy.action_flow,
            "forward",
            lambda working, chunk, power: (seen.append(chunk), torch.zeros_like(chunk))[1],
        )
        policy.loss(dataclasses.replace(batch, emphasis=emphasis))
        torch.testing.assert_close(seen[0], batch.actions[:, 3:7].repeat_interleave(5, dim=0))

    def test_windows_with_one_augmentation_equal_the_whole_episode(self) -> None:
        """Memory and crop carry over: two windows end in the state of one pass."""
        policy = make_policy(IMAGE_FEATURES, config=nano(proprioception_noise=0.0))
        batch = make_batch(IMAGE_FEATURES, 2, 12)
        augmentation = policy.draw_augmentation(2)
        whole = policy.loss(batch, augmentation=augmentation).state
        state = None
        for part in (slice(0, 5), slice(5, 12)):
            window = EpisodeBatch(
                observation=batch.observation.map(lambda tensor, p=part: tensor[:, p]),
                actions=batch.actions[:, part],
                valid=batch.valid[:, part],
            )
            state = policy.loss(window, state, augmentation).state
        assert_same_memory(state, whole, atol=1e-4, rtol=1e-4)
        assert all(tensor.grad_fn is None for tensor in state.tensors().values())

    def test_the_memory_afterwards_can_be_left_out(self) -> None:
        policy, batch = make_policy(), make_batch(STATE_FEATURES, 2, 6)
        losses = []
        for keep in (True, False):
            torch.manual_seed(0)
            losses.append(policy.loss(batch, keep_state=keep))
        assert losses[0].state is not None and losses[1].state is None
        assert losses[0].total == losses[1].total

    def test_every_exported_parameter_that_is_used_learns(self) -> None:
        """All parameters but the last layer's write-back, which nothing reads, get gradients."""
        policy = make_policy(IMAGE_FEATURES)
        policy.loss(make_batch(IMAGE_FEATURES, 2, 40)).total.backward()
        silent = {
            name for name, p in policy.named_parameters() if p.grad is None or not p.grad.any()
        }
        silent -= {name for name in silent if name.startswith("control_jepa.target.")}
        assert silent == {
            f"memory.1.consolidation.update.{part}"
            for part in ("0.weight", "0.bias", "2.weight", "2.bias")
        }

    def test_the_same_seed_gives_the_same_loss_and_eval_mode_is_not_augmented(self) -> None:
        policy = make_policy(IMAGE_FEATURES)
        batch = make_batch(IMAGE_FEATURES, 2, 10)
        totals = []
        for _ in range(2):
            torch.manual_seed(11)
            totals.append(policy.loss(batch).total.item())
        assert totals[0] == totals[1]
        policy.eval()
        alignments = [policy.loss(batch).parts["alignment"].item() for _ in range(2)]
        assert alignments[0] == alignments[1]


def test_forgotten_activations_are_recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients are the same, and every layer runs twice."""
    calls = []
    forward = MemoryLayer.forward
    monkeypatch.setattr(
        MemoryLayer, "forward", lambda *a, **k: (calls.append(1), forward(*a, **k))[1]
    )
    gradients = []
    for forget in (False, True):
        policy = make_policy(IMAGE_FEATURES, dtype=torch.float64).eval()
        policy.forget_activations = forget
        torch.manual_seed(0)
        policy.loss(make_batch(IMAGE_FEATURES, 2, 5)).total.backward()
        gradients.append([p.grad for p in policy.parameters() if p.grad is not None])
    assert len(calls) == policy.config.layers * 3
    torch.testing.assert_close(*gradients)
