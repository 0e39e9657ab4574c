"""The state-space layer against a loop written from its equations and transformers' Mamba2."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import delayed_recall
from benchmarks.transformers_peer import OUR_NAME_TO_THEIRS, mamba2_mixer
from chameleon_policy import ChameleonPolicy, SSMConfig
from chameleon_policy.policy.memory import LayerState, MemoryLayer
from chameleon_policy.policy.presets import FAST_HALF_LIFE, SLOW_HALF_LIFE, nano, paper, small
from chameleon_policy.policy.ssm import SelectiveSSM, SSMState
from examples import make_observation, make_policy

CONFIGS = {
    "slow": SSMConfig(expand=1, state=16, head_dim=8, half_life=(4, 2048), chunk=8),
    "fast": SSMConfig(expand=2, state=6, head_dim=16, half_life=(1, 16), chunk=8),
    "limited": SSMConfig(
        expand=2, state=6, head_dim=16, half_life=(1, 16), half_life_limit=16, chunk=8
    ),
}
LIMIT = 16
WIDTH = 32


def make_layer(kind: str, dtype: torch.dtype = torch.float64) -> SelectiveSSM:
    torch.manual_seed(0)
    return SelectiveSSM(WIDTH, CONFIGS[kind]).to(dtype)


def sequence(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(
        *shape, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).to(dtype)


def run_steps(
    layer: SelectiveSSM, inputs: torch.Tensor, state: SSMState
) -> tuple[torch.Tensor, SSMState]:
    outputs = []
    for current in inputs.unbind(-2):
        output, state = layer.step(current, state)
        outputs.append(output)
    return torch.stack(outputs, dim=-2), state


def assert_states_close(first: SSMState, second: SSMState, **tolerance: float) -> None:
    torch.testing.assert_close(first.ssm, second.ssm, **tolerance)
    torch.testing.assert_close(first.convolution, second.convolution, **tolerance)


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("time", [1, 2, 7, 8, 9, 40])
def test_scan_equals_step(kind: str, time: int) -> None:
    layer, inputs = make_layer(kind), sequence(2, 3, time)
    start = layer.initial_state(2, 3)
    scanned, scan_state = layer.scan(inputs, start)
    stepped, step_state = run_steps(layer, inputs, start)
    torch.testing.assert_close(scanned, stepped, rtol=0, atol=1e-12)
    assert_states_close(scan_state, step_state, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", CONFIGS)
def test_scan_equals_step_in_bfloat16(kind: str) -> None:
    layer, inputs = make_layer(kind, torch.bfloat16), sequence(4, 40, dtype=torch.bfloat16)
    scanned, scan_state = layer.scan(inputs, layer.initial_state(4))
    stepped, step_state = run_steps(layer, inputs, layer.initial_state(4))
    assert scan_state.ssm.dtype == step_state.ssm.dtype == torch.float32
    torch.testing.assert_close(scanned, stepped, rtol=0.05, atol=0.05)
    exact, _ = make_layer(kind).scan(sequence(4, 40), make_layer(kind).initial_state(4))
    assert (scanned.double() - exact).abs().mean() < 0.03 * exact.abs().mean()


@settings(max_examples=25)
@given(
    time=st.integers(2, 40),
    cut=st.integers(1, 39),
    chunk=st.integers(1, 48),
    kind=st.sampled_from(sorted(CONFIGS)),
)
def test_a_sequence_cut_anywhere_gives_the_same(time: int, cut: int, chunk: int, kind: str) -> None:
    cut = min(cut, time - 1)
    layer, inputs = make_layer(kind), sequence(2, time)
    whole, whole_state = layer.scan(inputs, layer.initial_state(2))
    rechunked = SelectiveSSM(WIDTH, dataclasses.replace(CONFIGS[kind], chunk=chunk)).double()
    rechunked.load_state_dict(layer.state_dict())
    first, state = rechunked(inputs[:, :cut], rechunked.initial_state(2))
    second, state = rechunked(inputs[:, cut:], state)
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=0, atol=1e-12)
    assert_states_close(state, whole_state, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", CONFIGS)
def test_equals_the_defining_recurrence(kind: str) -> None:
    """Compare with a loop over time steps, heads and channels, written from the equations."""
    layer, time = make_layer(kind), 9
    config, inputs = layer.config, sequence(1, time)
    result, _ = layer.scan(inputs, layer.initial_state(1))
    weights = {name: value.detach() for name, value in layer.named_parameters()}
    projected = inputs[0] @ weights["in_projection.weight"].T
    gate, mixed, raw_rates = projected.split([layer.inner, layer.channels, layer.heads], dim=-1)
    state = torch.zeros(layer.heads, config.head_dim, config.state, dtype=torch.float64)
    for t in range(time):
        convolved = weights["convolution_bias"].clone()
        for tap in range(config.convolution):
            source = t - (config.convolution - 1) + tap
            if source >= 0:
                convolved += weights["convolution_weight"][:, tap] * mixed[source]
        activated = convolved * torch.sigmoid(convolved)
        x, b, c = activated.split([layer.inner, config.state, config.state])
        y = torch.empty(layer.heads, config.head_dim, dtype=torch.float64)
        for head in range(layer.heads):
            delta = math.log1p(math.exp(raw_rates[t, head] + weights["rate_bias"][head]))
            if kind == "limited":
                delta = max(delta, math.log(2) / (LIMIT * math.exp(weights["log_decay"][head])))
            decay = math.exp(-delta * math.exp(weights["log_decay"][head]))
            for channel in range(config.head_dim):
                value = x[head * config.head_dim + channel]
                state[head, channel] = decay * state[head, channel] + delta * value * b
                y[head, channel] = state[head, channel] @ c + weights["skip"][head] * value
        gated = y.flatten() * gate[t] * torch.sigmoid(gate[t])
        normed = gated / torch.sqrt(gated.square().mean() + 1e-5) * weights["norm_weight"]
        torch.testing.assert_close(
            result[0, t], weights["out_projection.weight"] @ normed, rtol=0, atol=1e-10
        )


@pytest.mark.parametrize("kind", CONFIGS)
def test_transformers_mamba2_is_an_oracle_for_outputs_and_gradients(kind: str) -> None:
    """Its `time_step_limit` is shared by all heads, and equals our limit if A is, too."""
    pytest.importorskip("transformers")
    layer = make_layer(kind, torch.float32)
    with torch.no_grad():
        if kind == "limited":
            layer.log_decay.fill_(-2.0)
        layer.skip.uniform_(0.5, 1.5)
        layer.norm_weight.uniform_(0.5, 1.5)
    oracle = mamba2_mixer(layer)
    least = layer.least_rates()
    if least is not None:
        raw = F.softplus(
            layer.in_projection(sequence(3, 50, dtype=torch.float32))[..., -layer.heads :]
            + layer.rate_bias
        )
        assert 0.05 < (raw < least).float().mean() < 0.95, (
            "the limit must count at some steps and not at others"
        )
        oracle.time_step_limit = (least[0].item(), math.inf)
    ours, theirs = dict(layer.named_parameters()), dict(oracle.named_parameters())

    first, second = (sequence(3, 50, dtype=torch.float32).requires_grad_() for _ in range(2))
    our_output, _ = layer.scan(first, layer.initial_state(3))
    their_output = oracle(second)
    torch.testing.assert_close(our_output, their_output, rtol=1e-4, atol=1e-5)

    direction = sequence(3, 50, seed=2, dtype=torch.float32)
    our_output.backward(direction)
    their_output.backward(direction)
    torch.testing.assert_close(first.grad, second.grad, rtol=1e-3, atol=1e-4)
    for our_name, their_name in OUR_NAME_TO_THEIRS.items():
        if kind == "limited" and our_name == "log_decay":
            # Their limit of Delta does not depend on A; finite differences check our gradient.
            continue
        gradient, expected = ours[our_name].grad, theirs[their_name].grad
        scale = expected.abs().max().item()
        torch.testing.assert_close(
            gradient, expected.view_as(gradient), rtol=1e-3, atol=1e-4 * scale, msg=our_name
        )


@pytest.mark.parametrize("limit", [None, 8])
def test_gradients_match_finite_differences(limit: float | None) -> None:
    torch.manual_seed(0)
    config = SSMConfig(
        expand=1, state=3, head_dim=2, half_life=(1, 8), half_life_limit=limit, chunk=3
    )
    layer = SelectiveSSM(4, config).double()
    inputs = torch.randn(1, 5, 4, dtype=torch.float64, requires_grad=True)
    names, weights = zip(*layer.named_parameters(), strict=True)

    def run(sequence: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(
            layer, dict(zip(names, given, strict=True)), (sequence, layer.initial_state(1))
        )[0]

    assert torch.autograd.gradcheck(run, (inputs, *weights))


@pytest.mark.parametrize("preset", [paper, small, nano])
def test_half_lives_are_log_uniform_between_the_configured_ends(preset) -> None:
    config = preset()
    for ssm, (shortest, longest) in ((config.slow, SLOW_HALF_LIFE), (config.fast, FAST_HALF_LIFE)):
        layer = SelectiveSSM(config.width, ssm)
        z = torch.randn(200_000, generator=torch.Generator().manual_seed(0)).double()
        mean_rate = torch.stack(
            [torch.log1p(torch.exp(b + ssm.selectivity * z)).mean() for b in layer.rate_bias]
        )
        drawn = math.log(2) / (mean_rate * layer.log_decay.exp())
        torch.testing.assert_close(layer.half_lives.double(), drawn, rtol=0.05, atol=0)
        steps = layer.half_lives.log().diff()
        torch.testing.assert_close(
            layer.half_lives[[0, -1]], torch.tensor([shortest, longest]), rtol=1e-3, atol=0
        )
        torch.testing.assert_close(steps, steps.mean().expand_as(steps), rtol=1e-3, atol=0)
    assert SLOW_HALF_LIFE[1] > 1000, (
        "the longest trace must outlive the longest episode of the delay study"
    )


@pytest.mark.parametrize("preset", [paper, small, nano])
def test_only_fast_layers_have_a_limit(preset) -> None:
    config = preset()
    assert (config.slow.half_life_limit, config.fast.half_life_limit) == (None, LIMIT)
    layer = MemoryLayer(config)
    assert layer.propagation.slow.least_rates() is None
    fast = layer.consolidation.fast
    least = fast.least_rates()
    assert least is not None
    torch.testing.assert_close(
        least * fast.log_decay.exp(), torch.full_like(least, math.log(2) / LIMIT)
    )


def test_the_limit_is_exact_in_half_precision() -> None:
    layer = SelectiveSSM(64, nano().fast).to(torch.bfloat16)
    kept = layer.least_rates() * layer.log_decay.exp()
    torch.testing.assert_close(kept, torch.full_like(kept, math.log(2) / LIMIT), rtol=1e-5, atol=0)


def decay_of_a_perturbation(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Return the log decay of a perturbation of the state: (... heads P state) to (... heads)."""
    return (after.norm(dim=(-2, -1)) / before.norm(dim=(-2, -1))).log()


@pytest.mark.parametrize("half_life", [SLOW_HALF_LIFE, FAST_HALF_LIFE])
@torch.no_grad()
def test_a_perturbed_state_decays_with_the_half_lives(half_life: tuple[float, float]) -> None:
    """Perturb the state before every step on inputs of unit variance and sum up the decay."""
    torch.manual_seed(0)
    layer = SelectiveSSM(
        256, SSMConfig(expand=1, state=4, head_dim=32, half_life=half_life)
    ).double()
    state, steps, log_kept = layer.initial_state(1), 1000, torch.zeros(1, 8, dtype=torch.float64)
    perturbation = torch.randn_like(state.ssm)
    for current in torch.randn(steps, 1, 256, dtype=torch.float64):
        _, disturbed = layer.step(current, SSMState(state.convolution, state.ssm + perturbation))
        _, state = layer.step(current, state)
        log_kept += decay_of_a_perturbation(perturbation, disturbed.ssm - state.ssm)
    measured = math.log(2) * steps / -log_kept[0]
    expected = torch.logspace(*map(math.log10, half_life), layer.heads, dtype=torch.float64)
    assert ((measured / expected).log().abs() < math.log(1.6)).all(), (measured / expected).tolist()


@torch.no_grad()
def half_lives_on_a_still_scene(
    policy: ChameleonPolicy, steps: int = 60
) -> tuple[torch.Tensor, torch.Tensor]:
    """Measure half-lives of perturbations on a constant scene: of traces and working states."""
    features = policy.features
    observation = make_observation(
        features, 4, dtype=policy.event_tokens.proprioception.weight.dtype
    )
    state = policy.initial_state(4)
    for _ in range(4):  # fill the convolutions
        state = policy.observe(observation, state)
    slow, fast = state.layers[0].slow, state.layers[0].fast
    perturbations = torch.randn_like(slow.ssm), torch.randn_like(fast.ssm)
    disturbed = dataclasses.replace(
        state,
        layers=(
            LayerState(
                SSMState(slow.convolution, slow.ssm + perturbations[0]),
                SSMState(fast.convolution, fast.ssm + perturbations[1]),
            ),
            *state.layers[1:],
        ),
    )
    # The working state reads the traces: perturbed ones would write into it for ever.
    alone = dataclasses.replace(
        state, layers=(LayerState(slow, disturbed.layers[0].fast), *state.layers[1:])
    )
    for _ in range(steps):
        state, disturbed, alone = (
            policy.observe(observation, each) for each in (state, disturbed, alone)
        )
    traces, working = (
        math.log(2) * steps / -decay_of_a_perturbation(perturbation, after.ssm - before.ssm)
        for perturbation, after, before in (
            (perturbations[0], disturbed.layers[0].slow, state.layers[0].slow),
            (perturbations[1], alone.layers[0].fast, state.layers[0].fast),
        )
    )
    return traces.flatten(), working.flatten()


def check_half_lives(traces: torch.Tensor, working: torch.Tensor) -> None:
    assert (traces > 256).float().mean() > 0.3, "traces that outlive an episode"
    assert (traces < 64).float().mean() > 0.1, "traces that follow what is new"
    assert working.max() < LIMIT * 1.001, "no head of the working state lasts longer than the limit"


@pytest.mark.parametrize("size", [nano, small])
def test_a_working_state_forgets_and_a_trace_does_not_before_training(size) -> None:
    policy = make_policy(config=size(), dtype=torch.float64)
    check_half_lives(*half_lives_on_a_still_scene(policy))


def test_a_working_state_forgets_and_a_trace_does_not_after_training() -> None:
    torch.manual_seed(0)
    policy = ChameleonPolicy(delayed_recall.config(), delayed_recall.FEATURES)
    before = policy.memory[0].consolidation.fast.log_decay.detach().clone()
    assert list(delayed_recall.train(policy, steps=30, seed=0, learning_rate=2e-3, check_every=30))
    assert not torch.equal(policy.memory[0].consolidation.fast.log_decay, before)
    check_half_lives(*half_lives_on_a_still_scene(policy.double()))


def test_without_the_limit_a_working_state_lasts() -> None:
    """Without a limit, heads that are set to at most 16 steps keep their state for hundreds."""
    config = nano()
    config = dataclasses.replace(
        config, fast=dataclasses.replace(config.fast, half_life_limit=None)
    )
    _, working = half_lives_on_a_still_scene(make_policy(config=config, dtype=torch.float64))
    assert (working > 64).float().mean() > 0.1


@torch.no_grad()
def test_a_limited_head_may_forget_faster() -> None:
    """The limit is one-sided: larger values of Delta stay as they are."""
    limited, free = make_layer("limited"), make_layer("fast")
    inputs = sequence(64, 1)
    rates, without = (
        layer._inputs(inputs, layer.initial_state(64))[4] for layer in (limited, free)
    )
    least = math.log(2) / (LIMIT * limited.log_decay.exp())
    assert (without < least).any() and (without > least).any()
    torch.testing.assert_close(
        rates, torch.where(without > least, without, least.expand_as(without)), rtol=0, atol=0
    )


def test_another_limit_cuts_the_half_lives_off() -> None:
    fast = nano().fast
    for limit in (4.0, 32.0):
        other = fast.limited(limit)
        assert other.half_life_limit == limit and other.half_life == (1.0, min(16.0, limit))
        assert SelectiveSSM(64, other).half_lives.max() <= min(16.0, limit) * 1.01
    assert fast.limited(math.inf).half_life_limit is None
    for limit in (0.5, -1.0, math.nan):
        with pytest.raises(
            ValueError, match=r"at least the shortest half-life to begin with \(1.0\)"
        ):
            fast.limited(limit)


@pytest.mark.parametrize("limit", [8.0, -1.0, math.inf, math.nan])
def test_a_limit_below_the_longest_half_life_is_refused(limit: float) -> None:
    with pytest.raises(
        ValueError, match="half_life_limit must be None or at least the longest half_life"
    ):
        SSMConfig(expand=1, state=4, half_life=(1, 16), half_life_limit=limit)
