"""Every fused module against its plain twin: values, gradients, state dicts, on memory full of NaN.

On a CUDA device the kernels are compiled; elsewhere Triton's interpreter runs them on the CPU.
Either way they run in float32, against the plain module in float64: rounding hides nothing.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from triton_device import DEVICE  # isort: skip
from triton.runtime.interpreter import GridExecutor
from triton.runtime.jit import JITFunction

from chameleon_policy import SSMConfig, View, fuse, kernels, preset
from chameleon_policy.kernels import attention as short_attention
from chameleon_policy.kernels import euler
from chameleon_policy.kernels import fused as fused_modules
from chameleon_policy.kernels.frozen import FrozenAttention, adopt
from chameleon_policy.kernels.fused import TWINS, FusedSSM, twin_of
from chameleon_policy.kernels.selective_layer import LayerShape, longest_chunk
from chameleon_policy.policy.action_flow import ActionFlow
from chameleon_policy.policy.attention import Attention, TransformerBlock
from chameleon_policy.policy.control_jepa import ControlJEPA
from chameleon_policy.policy.event_tokens import EventTokens
from chameleon_policy.policy.memory import ControlContext, MemoryLayer, WorkingStateConsolidation
from chameleon_policy.policy.normalizer import Statistics
from chameleon_policy.policy.observation import Augmentation
from chameleon_policy.policy.ssm import SelectiveSSM, SSMState
from chameleon_policy.policy.visual import PatchEncoder
from examples import SMALL_IMAGES, STATE_FEATURES, make_observation, make_policy, nano

TOLERANCE = 1e-4
"""In float32 with numbers that are new in every run: the largest error seen is 3e-5."""
CONFIG = nano()
WIDTH = CONFIG.width
SMALL_CARD, LARGE_CARD = 99 * 1024, 227 * 1024
CARDS = [SMALL_CARD, LARGE_CARD] if DEVICE == "cuda" else [SMALL_CARD]
SSM_CONFIGS = {
    "slow": SSMConfig(expand=1, state=16, head_dim=8, half_life=(4, 2048), chunk=16),
    "fast": SSMConfig(expand=2, state=6, head_dim=16, half_life=(1, 16), chunk=32),
    "limited": SSMConfig(
        expand=2, state=6, head_dim=16, half_life=(1, 16), half_life_limit=16, chunk=16
    ),
}

pytestmark = pytest.mark.usefixtures("poisoned_memory")

Run = Callable[[Any, torch.dtype], tuple[dict[str, Tensor], dict[str, Tensor]]]
"""Runs a module in a precision: outputs and inputs by name."""


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which every launched kernel adds its name."""
    ran: list[str] = []
    for kind, name in ((GridExecutor, "__call__"), (JITFunction, "run")):
        launch = getattr(kind, name)

        def counted(self: Any, *arguments: Any, launch: Any = launch, **options: Any) -> Any:
            ran.append(self.fn.__name__)
            return launch(self, *arguments, **options)

        monkeypatch.setattr(kind, name, counted)
    return ran


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, device=DEVICE)


def calls(
    function: Callable[..., Any], *inputs: Tensor, names: tuple[str, ...] = ("output", "second")
) -> Run:
    """Make a function that calls `function(module, *inputs)`."""

    def run(module: Any, dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        given = [
            tensor.to(dtype).requires_grad_() if tensor.is_floating_point() else tensor
            for tensor in inputs
        ]
        outputs = function(module, *given)
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        named = {
            f"input {index}": tensor for index, tensor in enumerate(given) if tensor.requires_grad
        }
        return dict(zip(names, outputs, strict=False)), named

    return run


def compare(plain: nn.Module, run: Run, *, shared_memory: int = SMALL_CARD) -> None:
    """Compute errors of a twin's outputs and gradients, relative to the plain module in float64."""
    plain = plain.to(DEVICE)
    with torch.no_grad():  # zero biases would hide mistakes
        for parameter in plain.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    exact = copy.deepcopy(plain).double()
    twin = twin_of(copy.deepcopy(plain), shared_memory)
    for child in twin.modules():
        if child is not twin and type(child) in TWINS:
            fuse(twin, shared_memory=shared_memory)
            break
    assert type(twin) is TWINS[type(plain)]
    found = []
    directions: dict[str, Tensor] = {}
    for module, dtype in ((exact, torch.float64), (twin, torch.float32)):
        outputs, inputs = run(module, dtype)
        directions = directions or {
            name: torch.randn_like(tensor) for name, tensor in outputs.items()
        }
        total = sum(
            (outputs[name].double() * direction).sum() for name, direction in directions.items()
        )
        sources = inputs | {name: p for name, p in module.named_parameters() if p.requires_grad}
        gradients = torch.autograd.grad(total, list(sources.values()), allow_unused=True)
        found.append((outputs, dict(zip(sources, gradients, strict=True))))
    (right, right_gradients), (got, got_gradients) = found
    assert got.keys() == right.keys()
    largest = max(g.norm() for g in right_gradients.values() if g is not None)
    for name, expected in {**right, **right_gradients}.items():
        value = {**got, **got_gradients}[name]
        assert (value is None) == (expected is None), name
        if expected is not None:
            error = (value.double() - expected).norm() / expected.norm().clamp(min=1e-5 * largest)
            assert error < TOLERANCE, f"{name} is off by {error:.2e}"


def _attention(queries: int, sources: int) -> tuple[nn.Module, Run]:
    inputs = normal(2, 3, queries, WIDTH), normal(2, 3, sources, WIDTH)
    return Attention(WIDTH, 4), calls(lambda module, q, s: module(q, s), *inputs)


def _frozen_attention() -> tuple[nn.Module, Run]:
    plain, run = _attention(7, 9)
    return adopt(FrozenAttention, plain), run


def _block(context: int) -> tuple[nn.Module, Run]:
    def run(module: TransformerBlock, tokens: Tensor, *seen: Tensor) -> tuple[Tensor, ...]:
        return (*module.forward_and_cache(tokens, *seen), module.keys_and_values(tokens))

    inputs = (normal(2, 5, WIDTH), *([normal(2, context, 2 * WIDTH)] if context else []))
    return TransformerBlock(WIDTH, 4, 4), calls(
        run, *inputs, names=("tokens", "cache", "keys and values")
    )


def _encoder(
    positions: bool, channels: tuple[int, int, int, int] = (8, 16, 32, 64)
) -> tuple[nn.Module, Run]:
    config = dataclasses.replace(CONFIG, encoder_channels=channels)
    images = torch.randint(256, (2, 3, 40, 48, 3), device=DEVICE).byte()
    where = torch.tensor([[0.0, 0.9], [0.4, 0.1]], device=DEVICE) if positions else None
    encoder = PatchEncoder(config, View(name="third", height=40, width=48))
    return encoder, calls(lambda module: module(images, where))


def _event_tokens() -> tuple[nn.Module, Run]:
    observation = make_observation(SMALL_IMAGES, 2, 3).to(DEVICE)
    offset = torch.zeros(2, SMALL_IMAGES.proprioception, device=DEVICE)
    drawn = Augmentation(crop=torch.rand(2, 2, 2, device=DEVICE), proprioception_offset=offset)
    silent = dataclasses.replace(
        CONFIG, objective=dataclasses.replace(CONFIG.objective, proprioception_noise=0.0)
    )
    return EventTokens(silent, SMALL_IMAGES, Statistics()), calls(
        lambda module: module(observation, drawn)
    )


def _ssm(kind: str) -> tuple[nn.Module, Run]:
    return SelectiveSSM(32, SSM_CONFIGS[kind]), calls(
        lambda module, x: module(x, None)[0], normal(1, 2, 20, 32)
    )


def _consolidation() -> tuple[nn.Module, Run]:
    inputs = normal(2, 3, 4, WIDTH), normal(2, 3, 4, WIDTH), normal(2, 3, WIDTH)
    return WorkingStateConsolidation(CONFIG), calls(
        lambda module, *tensors: module.write_back(*tensors), *inputs
    )


def _layer() -> tuple[nn.Module, Run]:
    def run(module: MemoryLayer, tokens: Tensor) -> tuple[Tensor, ...]:
        output = module(tokens, None, write_back=True)
        return output.working, output.tokens, output.traces

    return MemoryLayer(CONFIG), calls(
        run, normal(1, 20, 5, WIDTH), names=("working", "tokens", "traces")
    )


def _control_jepa() -> tuple[nn.Module, Run]:
    valid = torch.ones(2, 40, dtype=torch.bool, device=DEVICE)
    branch = ControlJEPA(CONFIG, ControlContext(CONFIG))
    inputs = normal(2, 40, WIDTH), normal(2, 40, 5, WIDTH)
    return branch, calls(lambda module, h, bound: module(h, bound.detach(), valid), *inputs)


def _action_flow() -> tuple[nn.Module, Run]:
    flow_time = torch.rand(3, dtype=torch.float64, device=DEVICE)

    def run(module: ActionFlow, working: Tensor, noised: Tensor) -> Tensor:
        return module.endpoint(noised, flow_time.to(noised.dtype), module.condition(working))

    return ActionFlow(CONFIG, 2, 4), calls(run, normal(3, WIDTH), normal(3, 4, 2))


CASES: dict[str, tuple[type[nn.Module], Callable[[], tuple[nn.Module, Run]]]] = {
    "attention, many queries": (Attention, lambda: _attention(7, 9)),
    "attention, one query": (Attention, lambda: _attention(1, 9)),
    "attention, too many tokens": (Attention, lambda: _attention(130, 3)),
    "attention, frozen": (FrozenAttention, _frozen_attention),
    "block": (TransformerBlock, lambda: _block(0)),
    "block, with a context": (TransformerBlock, lambda: _block(3)),
    "encoder, centred": (PatchEncoder, lambda: _encoder(False)),
    "encoder, cropped": (PatchEncoder, lambda: _encoder(True)),
    "encoder, a third layer that its kernels do not take": (
        PatchEncoder,
        lambda: _encoder(True, (8, 16, 48, 64)),
    ),
    "event tokens": (EventTokens, _event_tokens),
    "slow layer": (SelectiveSSM, lambda: _ssm("slow")),
    "fast layer": (SelectiveSSM, lambda: _ssm("limited")),
    "consolidation": (WorkingStateConsolidation, _consolidation),
    "memory layer": (MemoryLayer, _layer),
    "control-jepa": (ControlJEPA, _control_jepa),
    "action flow": (ActionFlow, _action_flow),
}


def test_no_twin_is_left_out() -> None:
    assert {kind for kind, _ in CASES.values()} == set(TWINS)


@pytest.mark.usefixtures("kernels_on")
@pytest.mark.parametrize("name", CASES)
def test_a_twin_computes_what_its_plain_module_computes(name: str, launches: list[str]) -> None:
    compare(*CASES[name][1]())
    assert bool(launches) == (name != "attention, too many tokens"), (
        "kernels ran, and not the plain module's code"
    )


@pytest.mark.usefixtures("kernels_on")
@pytest.mark.parametrize("shared_memory", CARDS)
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("time", [5, 40])
@pytest.mark.parametrize(
    ("kind", "streams"), [("slow", (2, 1)), ("fast", (2,)), ("limited", (1, 2))]
)
def test_state_space_layer(
    kind: str, streams: tuple[int, ...], time: int, begun: bool, shared_memory: int
) -> None:
    """One chunk and several, with and without a state, with gradients through both states."""
    layer = SelectiveSSM(32, SSM_CONFIGS[kind])
    start = layer.initial_state(*streams)
    inputs = [
        normal(*streams, time, 32),
        *([normal(*start.convolution.shape), normal(*start.ssm.shape)] if begun else []),
    ]

    def run(module: SelectiveSSM, sequence: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        output, after = module(sequence, SSMState(*state) if state else None)
        assert after is not None
        return output, after.ssm, after.convolution

    compare(
        layer,
        calls(run, *inputs, names=("output", "ssm", "convolution")),
        shared_memory=shared_memory,
    )


@pytest.mark.usefixtures("kernels_on")
def test_the_kernels_respect_the_limit() -> None:
    """On a constant input the fused layer forgets within its limit, and not without one."""
    torch.manual_seed(0)
    streams, steps = 3, 48
    kept = {}
    for kind in ("fast", "limited"):
        layer = twin_of(SelectiveSSM(32, SSM_CONFIGS[kind]).to(DEVICE))
        assert isinstance(layer, FusedSSM)
        state = layer.initial_state(streams)
        state = SSMState(state.convolution, torch.randn_like(state.ssm))
        still = torch.randn(streams, 1, 32, device=DEVICE).expand(-1, steps, -1).contiguous()
        after, fresh = (layer(still, begun)[1].ssm for begun in (state, None))
        kept[kind] = ((after - fresh) / state.ssm).median(-1).values.median(-1).values.abs().max()
    assert kept["limited"] < 0.5 ** (steps / 16) * 1.01
    assert kept["fast"] > 0.5


@pytest.mark.usefixtures("kernels_on")
@pytest.mark.parametrize("time", [16, 40])
def test_an_unwanted_state_is_left_out(time: int) -> None:
    layer = twin_of(SelectiveSSM(32, SSM_CONFIGS["slow"]).to(DEVICE))
    found = []
    for keep in (True, False):
        sequence = torch.ones(1, 2, time, 32, device=DEVICE).cumsum(2).requires_grad_()
        output, state = layer(sequence, None, keep_state=keep)
        assert (state is not None) == keep
        found.append(
            (output, torch.autograd.grad(output.square().sum(), [sequence, *layer.parameters()]))
        )
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("state", "head", "memory", "steps"),
    [
        (128, 64, 227, 64),
        (128, 64, 99, 32),
        (64, 128, 99, 16),
        (256, 64, 99, None),
        (32, 64, 99, 64),
        (512, 64, 227, None),
    ],
)
def test_chunks_are_as_long_as_shared_memory_allows(
    state: int, head: int, memory: int, steps: int | None
) -> None:
    shape = LayerShape(
        inner=4 * head, state=state, heads=4, chunk=64, epsilon=1e-5, shared_memory=memory * 1024
    )
    assert longest_chunk(shape) == steps


@pytest.mark.usefixtures("kernels_on")
def test_a_layer_that_does_not_fit_computes_as_the_plain_one(launches: list[str]) -> None:
    layer = SelectiveSSM(64, SSMConfig(expand=1, state=256, head_dim=64, half_life=(4, 2048)))
    sequence = torch.randn(1, 2, 20, 64)
    expected = layer(sequence, None)[0]
    torch.testing.assert_close(
        twin_of(layer, SMALL_CARD)(sequence, None)[0], expected, rtol=0, atol=0
    )
    assert not launches


@pytest.mark.usefixtures("kernels_on")
@pytest.mark.parametrize(("time", "taps"), [(2, 4), (3, 4), (5, 3)])
def test_short_sequences_and_other_convolutions(time: int, taps: int, launches: list[str]) -> None:
    """Kernels take at least three steps and convolutions over four; others run plainly."""
    layer = SelectiveSSM(32, dataclasses.replace(SSM_CONFIGS["slow"], convolution=taps)).to(DEVICE)
    before, sequence = torch.randn(2, 2, 3, 6, 32, device=DEVICE)
    _, state = layer(before, None)
    expected, after = layer(sequence[:, :, :time], state)
    output, found = twin_of(layer, SMALL_CARD)(sequence[:, :, :time], state)
    torch.testing.assert_close(
        (output, found.ssm, found.convolution), (expected, after.ssm, after.convolution)
    )
    assert bool(launches) == (time >= 3 and taps == 4)


@pytest.mark.usefixtures("kernels_on")
def test_a_faint_event_is_written() -> None:
    """Where Delta is far below one, softplus is exp: state and gradients stay precise."""
    layer = SelectiveSSM(32, SSM_CONFIGS["slow"])
    with torch.no_grad():
        layer.rate_bias.fill_(-16.0)
        layer.in_projection.weight[-layer.heads :] *= 0.1

    def run(module: SelectiveSSM, sequence: Tensor) -> tuple[Tensor, Tensor]:
        output, state = module(sequence, None)
        return output, state.ssm

    compare(layer, calls(run, normal(1, 2, 20, 32)))


def test_block_sizes_follow_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Block sizes follow the device, or the shared memory given to `fuse`."""
    asked: list[int] = []
    monkeypatch.setattr(kernels, "shared_memory_of", lambda device: LARGE_CARD)
    monkeypatch.setattr(
        fused_modules, "longest_chunk", lambda shape: asked.append(shape.shared_memory)
    )
    monkeypatch.setattr(short_attention, "fits", lambda memory, *_: asked.append(memory))
    monkeypatch.setattr(kernels, "enabled", lambda tensor: True)
    for memory in (None, SMALL_CARD):
        twin_of(SelectiveSSM(32, SSM_CONFIGS["slow"]), memory)(torch.randn(1, 2, 20, 32), None)
        twin_of(Attention(WIDTH, 4), memory)(torch.randn(1, 7, WIDTH), torch.randn(1, 9, WIDTH))
    assert asked == [LARGE_CARD, LARGE_CARD, SMALL_CARD, SMALL_CARD]
    with pytest.raises(ValueError, match="shared_memory: expected bytes"):
        fuse(make_policy(STATE_FEATURES), shared_memory=99)


def test_sizes_that_fit_a_card() -> None:
    """Sizes that were compiled for a card run in kernels, larger ones plainly."""
    for memory, size, tokens, fits in [
        (SMALL_CARD, 64, (74, 74), True),
        (SMALL_CARD, 128, (74, 74), False),
        (SMALL_CARD, 256, (34, 34), False),
        (LARGE_CARD, 128, (74, 74), True),
        (LARGE_CARD, 24, (9, 9), False),
        (LARGE_CARD, 16, (129, 3), False),
    ]:
        assert short_attention.fits(memory, size, *tokens) == fits
    paper = preset("paper")
    for policy_tokens, action, fits in [(8, 10, True), (32, 10, False), (8, 70, False)]:
        head = ActionFlow(dataclasses.replace(paper, policy_tokens=policy_tokens), action, 16)
        assert euler.fits(head) == fits
