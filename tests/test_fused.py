"""Every fused module against its plain twin: values, gradients and state dicts, with memory full of NaN beforehand.

On a CUDA device the kernels are compiled; elsewhere Triton's interpreter runs them on the CPU. Either way they run in
float32, against the plain module in float64: rounding hides nothing.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)

from chameleon_policy import ChameleonPolicy, Features, SSMConfig, View, fuse, kernels, preset  # noqa: E402
from chameleon_policy.baselines import METHODS  # noqa: E402
from chameleon_policy.baselines.no_memory import ForgetfulSSM  # noqa: E402
from chameleon_policy.export import programs  # noqa: E402
from chameleon_policy.kernels import attention as short_attention  # noqa: E402
from chameleon_policy.kernels import euler, fast_control, one_query  # noqa: E402
from chameleon_policy.kernels import fused as fused_modules  # noqa: E402
from chameleon_policy.kernels.frozen import FrozenAttention, adopt, freeze  # noqa: E402
from chameleon_policy.kernels.fused import TWINS, FusedSSM, half_weights, twin_of  # noqa: E402
from chameleon_policy.kernels.selective_layer import LayerShape, longest_chunk  # noqa: E402
from chameleon_policy.policy.action_flow import ActionFlow  # noqa: E402
from chameleon_policy.policy.attention import Attention, TransformerBlock  # noqa: E402
from chameleon_policy.policy.control_jepa import ControlJEPA  # noqa: E402
from chameleon_policy.policy.event_tokens import Augmentation, EventTokens  # noqa: E402
from chameleon_policy.policy.memory import ControlContext, MemoryLayer, WorkingStateConsolidation  # noqa: E402
from chameleon_policy.policy.normalizer import Statistics  # noqa: E402
from chameleon_policy.policy.ssm import SelectiveSSM, SSMState  # noqa: E402
from chameleon_policy.policy.visual import PatchEncoder  # noqa: E402
from examples import IMAGE_FEATURES, STATE_FEATURES, make_batch, make_observation, make_policy, nano  # noqa: E402

TOLERANCE = 1e-4
"""In float32 with numbers that are new in every run: the largest error seen is 3e-5."""
CONFIG = nano()
WIDTH = CONFIG.width
SMALL_CARD, LARGE_CARD = 99 * 1024, 227 * 1024
CARDS = [SMALL_CARD, LARGE_CARD] if DEVICE == "cuda" else [SMALL_CARD]
SMALL_IMAGES = dataclasses.replace(
    IMAGE_FEATURES, views=tuple(View(name=n, height=20, width=24) for n in ("third", "wrist"))
)
SSM_CONFIGS = {
    "slow": SSMConfig(expand=1, state=16, head_dim=8, half_life=(4, 2048), chunk=16),
    "fast": SSMConfig(expand=2, state=6, head_dim=16, half_life=(1, 16), chunk=32),
    "limited": SSMConfig(expand=2, state=6, head_dim=16, half_life=(1, 16), half_life_limit=16, chunk=16),
}

pytestmark = pytest.mark.usefixtures("poisoned_memory")

Run = Callable[[Any, torch.dtype], tuple[dict[str, Tensor], dict[str, Tensor]]]
"""Runs a module in a precision: outputs and inputs by name."""


@pytest.fixture
def kernels_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels compute where they otherwise would not: in float32, and on a CPU. Float64 stays plain."""
    monkeypatch.setattr(kernels, "enabled", lambda tensor: tensor.dtype == torch.float32)
    monkeypatch.setattr(one_query, "LEAST_QUERIES", 1)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that run."""
    from triton.runtime.interpreter import GridExecutor
    from triton.runtime.jit import JITFunction

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


def calls(function: Callable[..., Any], *inputs: Tensor, names: tuple[str, ...] = ("output", "second")) -> Run:
    """A run that calls `function(module, *inputs)`."""

    def run(module: Any, dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        given = [tensor.to(dtype).requires_grad_() if tensor.is_floating_point() else tensor for tensor in inputs]
        outputs = function(module, *given)
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        named = {f"input {place}": tensor for place, tensor in enumerate(given) if tensor.requires_grad}
        return dict(zip(names, outputs, strict=False)), named

    return run


def compare(plain: nn.Module, run: Run, *, shared_memory: int = SMALL_CARD) -> None:
    """Relative errors of the twin's outputs and of all gradients, against the plain module in float64."""
    plain = plain.to(DEVICE)
    with torch.no_grad():  # away from where a fresh module stands: biases of zero hide much
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
        directions = directions or {name: torch.randn_like(tensor) for name, tensor in outputs.items()}
        total = sum((outputs[name].double() * direction).sum() for name, direction in directions.items())
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
    return TransformerBlock(WIDTH, 4, 4), calls(run, *inputs, names=("tokens", "cache", "keys and values"))


def _encoder(positions: bool, channels: tuple[int, int, int, int] = (8, 16, 32, 64)) -> tuple[nn.Module, Run]:
    config = dataclasses.replace(CONFIG, encoder_channels=channels)
    images = torch.randint(256, (2, 3, 40, 48, 3), device=DEVICE).byte()
    where = torch.tensor([[0.0, 0.9], [0.4, 0.1]], device=DEVICE) if positions else None
    encoder = PatchEncoder(config, View(name="third", height=40, width=48))
    return encoder, calls(lambda module: module(images, where))


def _event_tokens() -> tuple[nn.Module, Run]:
    observation = make_observation(SMALL_IMAGES, 2, 3).to(DEVICE)
    offset = torch.zeros(2, SMALL_IMAGES.proprioception, device=DEVICE)
    drawn = Augmentation(crop=torch.rand(2, 2, 2, device=DEVICE), proprioception_offset=offset)
    silent = dataclasses.replace(CONFIG, objective=dataclasses.replace(CONFIG.objective, proprioception_noise=0.0))
    return EventTokens(silent, SMALL_IMAGES, Statistics()), calls(lambda module: module(observation, drawn))


def _ssm(kind: str) -> tuple[nn.Module, Run]:
    return SelectiveSSM(32, SSM_CONFIGS[kind]), calls(lambda module, x: module(x, None)[0], normal(2, 3, 20, 32))


def _consolidation() -> tuple[nn.Module, Run]:
    inputs = normal(2, 3, 4, WIDTH), normal(2, 3, 4, WIDTH), normal(2, 3, WIDTH)
    return WorkingStateConsolidation(CONFIG), calls(lambda module, *tensors: module.write_back(*tensors), *inputs)


def _layer() -> tuple[nn.Module, Run]:
    def run(module: MemoryLayer, tokens: Tensor) -> tuple[Tensor, ...]:
        output = module(tokens, None, write_back=True)
        return output.working, output.tokens, output.traces

    return MemoryLayer(CONFIG), calls(run, normal(2, 20, 5, WIDTH), names=("working", "tokens", "traces"))


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
    "encoder, a third layer that its kernels do not take": (PatchEncoder, lambda: _encoder(True, (8, 16, 48, 64))),
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
    assert bool(launches) == (name != "attention, too many tokens"), "kernels ran, and not the plain module's code"


@pytest.mark.usefixtures("kernels_on")
@pytest.mark.parametrize("shared_memory", CARDS)
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("time", [5, 40])
@pytest.mark.parametrize(("kind", "streams"), [("slow", (2, 3)), ("fast", (4,)), ("limited", (2, 3))])
def test_state_space_layer(kind: str, streams: tuple[int, ...], time: int, begun: bool, shared_memory: int) -> None:
    """One chunk and several, from the beginning and from a state, with gradients through the state on both sides."""
    layer = SelectiveSSM(32, SSM_CONFIGS[kind])
    start = layer.initial_state(*streams)
    inputs = [normal(*streams, time, 32), *([normal(*start.convolution.shape), normal(*start.ssm.shape)] if begun else [])]

    def run(module: SelectiveSSM, sequence: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        output, after = module(sequence, SSMState(*state) if state else None)
        assert after is not None
        return output, after.ssm, after.convolution

    compare(layer, calls(run, *inputs, names=("output", "ssm", "convolution")), shared_memory=shared_memory)


@pytest.mark.usefixtures("kernels_on")
def test_the_limit_counts_in_the_kernels() -> None:
    """On a still input the fused layer forgets as fast as the limit says, and without one it does not."""
    torch.manual_seed(0)
    streams, steps = 6, 48
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
def test_a_state_that_nobody_wants_is_left_out(time: int) -> None:
    layer = twin_of(SelectiveSSM(32, SSM_CONFIGS["slow"]).to(DEVICE))
    found = []
    for keep in (True, False):
        sequence = torch.ones(2, 3, time, 32, device=DEVICE).cumsum(2).requires_grad_()
        output, state = layer(sequence, None, keep_state=keep)
        assert (state is not None) == keep
        found.append((output, torch.autograd.grad(output.square().sum(), [sequence, *layer.parameters()])))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


@pytest.mark.usefixtures("kernels_on")
@pytest.mark.parametrize("features", [STATE_FEATURES, SMALL_IMAGES], ids=["objects", "images"])
def test_the_whole_loss_and_its_gradients(features: Features, monkeypatch: pytest.MonkeyPatch) -> None:
    """All kernels together, in eval mode and with the same noise, against the plain policy in float64."""
    flow_time, noise = torch.rand(6, dtype=torch.float64), torch.randn(6, 4, 2, dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda _, dtype, device: flow_time.to(device, dtype))
    monkeypatch.setattr(torch, "randn_like", lambda like: noise.to(like))
    found = []
    for dtype in (torch.float32, torch.float64):
        policy = fuse(make_policy(features, dtype=dtype).to(DEVICE).eval())
        loss = policy.loss(make_batch(features, 1, 6).to(DEVICE))
        loss.total.backward()
        gradients = {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}
        found.append({"loss": loss.total.detach(), "working": loss.state.working} | gradients)
    ours, right = found
    assert ours.keys() == right.keys()
    largest = max(expected.norm() for expected in right.values())
    for name, expected in right.items():
        error = (ours[name].double() - expected).norm() / expected.norm().clamp(min=1e-6 * largest)
        assert error < 1e-3, f"{name} is off by {error:.2e}"


def test_fusing_keeps_parameters_and_names() -> None:
    policy = make_policy(SMALL_IMAGES)
    before, keys = dict(policy.named_parameters()), list(policy.state_dict())
    fuse(policy)
    after = dict(policy.named_parameters())
    assert list(after) == list(before) and list(policy.state_dict()) == keys
    assert all(after[name] is before[name] for name in before)
    assert {type(module) for module in policy.modules()} >= set(TWINS.values())
    assert not {type(module) for module in policy.modules()} & set(TWINS)
    copied = copy.deepcopy(policy)
    assert all((a == b).all() for a, b in zip(copied.parameters(), policy.parameters(), strict=True))


def test_what_is_no_plain_module_is_left_alone() -> None:
    torch.manual_seed(0)
    policy = fuse(METHODS["brief"](nano(), STATE_FEATURES))
    kinds = {type(module) for module in policy.modules()}
    assert ForgetfulSSM in kinds and FusedSSM in kinds


@pytest.mark.parametrize("method", METHODS)
def test_where_kernels_cannot_compute_a_fused_policy_is_the_plain_one(method: str, tmp_path) -> None:
    """To the last bit, in float32: losses, gradients, actions; saved and loaded, too."""
    found = []
    for fused in (False, True):
        torch.manual_seed(0)
        policy = METHODS[method](nano(), IMAGE_FEATURES).to(DEVICE)
        if fused:
            fuse(policy)
        torch.manual_seed(1)
        loss = policy.loss(make_batch(IMAGE_FEATURES, 2, 6).to(DEVICE))
        loss.total.backward()
        policy.save_pretrained(tmp_path / str(fused))
        loaded = METHODS[method].from_pretrained(tmp_path / str(fused), device=DEVICE)
        for each in (policy.eval(), loaded):
            state = each.initial_state(1)
            for t in range(3):
                state = each.observe(make_observation(IMAGE_FEATURES, 1, seed=t).to(DEVICE), state)
            found.append((fused, each is policy, each.act(state, steps=2, source="zero")))
        found.append((fused, "gradients", torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])))
    tolerance = {"rtol": 0, "atol": 0} if DEVICE == "cpu" else {"rtol": 1e-3, "atol": 1e-4}
    plain, fused_ = found[: len(found) // 2], found[len(found) // 2 :]
    for (_, what, expected), (_, same, got) in zip(plain, fused_, strict=True):
        assert what == same
        torch.testing.assert_close(got, expected, **tolerance)


def test_frozen_policies_act_as_before() -> None:
    policy = make_policy(IMAGE_FEATURES).eval()
    frozen = freeze(copy.deepcopy(policy))
    state = policy.observe(make_observation(IMAGE_FEATURES, 1), policy.initial_state())
    torch.testing.assert_close(
        frozen.act(state, steps=3, source="zero"), policy.act(state, steps=3, source="zero"), rtol=0, atol=0
    )
    assert not any(parameter.requires_grad for parameter in frozen.parameters())


@pytest.mark.usefixtures("kernels_on")
def test_the_loss_stays_precise_while_weights_are_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same figures as with autocast's own conversions, in float32."""
    batch = make_batch(STATE_FEATURES, 2, 6).to(DEVICE)
    monkeypatch.setattr(kernels, "enabled", lambda tensor: False)
    policy = make_policy().to(DEVICE).eval()
    found = []
    for at_once in (False, True):
        torch.manual_seed(0)
        with torch.autocast(DEVICE, torch.bfloat16):
            if at_once:
                monkeypatch.setattr(kernels, "enabled", lambda tensor: True)
                with half_weights(policy.memory, batch.actions), half_weights(policy.action_flow, batch.actions):
                    assert policy.action_flow.action_in.weight.dtype == torch.bfloat16
                    loss = policy.loss(batch)
            else:
                loss = policy.loss(batch)
        assert {figure.dtype for figure in (loss.total, *loss.parts.values())} == {torch.float32}
        loss.total.backward()
        found.append((loss.parts, {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}))
        policy.zero_grad()
    torch.testing.assert_close(found[0], found[1], rtol=1e-2, atol=1e-4)


def test_fusing_can_be_undone_and_repeated() -> None:
    policy = make_policy(SMALL_IMAGES)
    kinds = [type(module) for module in policy.modules()]
    fuse(policy)
    assert kernels.unfuse(policy) is policy
    assert [type(module) for module in policy.modules()] == kinds
    for memory in (None, SMALL_CARD):
        fuse(policy, shared_memory=memory)
        ssms = [module for module in policy.modules() if isinstance(module, FusedSSM)]
        assert ssms and all(ssm.shared_memory == memory for ssm in ssms)


@pytest.mark.parametrize(
    ("state", "head", "memory", "steps"),
    [(128, 64, 227, 64), (128, 64, 99, 32), (64, 128, 99, 16), (256, 64, 99, None), (32, 64, 99, 64), (512, 64, 227, None)],
)
def test_chunks_are_as_long_as_shared_memory_allows(state: int, head: int, memory: int, steps: int | None) -> None:
    shape = LayerShape(inner=4 * head, state=state, heads=4, chunk=64, epsilon=1e-5, shared_memory=memory * 1024)
    assert longest_chunk(shape) == steps


@pytest.mark.usefixtures("kernels_on")
def test_a_layer_that_does_not_fit_computes_as_the_plain_one(launches: list[str]) -> None:
    layer = SelectiveSSM(64, SSMConfig(expand=1, state=256, head_dim=64, half_life=(4, 2048)))
    sequence = torch.randn(1, 2, 20, 64)
    expected = layer(sequence, None)[0]
    torch.testing.assert_close(twin_of(layer, SMALL_CARD)(sequence, None)[0], expected, rtol=0, atol=0)
    assert not launches


@pytest.mark.usefixtures("kernels_on")
@pytest.mark.parametrize(("time", "taps"), [(2, 4), (3, 4), (5, 3)])
def test_short_sequences_and_other_convolutions(time: int, taps: int, launches: list[str]) -> None:
    """Kernels take sequences from three steps on, and convolutions over four; whatever they do not take runs plainly."""
    layer = SelectiveSSM(32, dataclasses.replace(SSM_CONFIGS["slow"], convolution=taps)).to(DEVICE)
    before, sequence = torch.randn(2, 2, 3, 6, 32, device=DEVICE)
    _, state = layer(before, None)
    expected, after = layer(sequence[:, :, :time], state)
    output, found = twin_of(layer, SMALL_CARD)(sequence[:, :, :time], state)
    torch.testing.assert_close((output, found.ssm, found.convolution), (expected, after.ssm, after.convolution))
    assert bool(launches) == (time >= 3 and taps == 4)


@pytest.mark.usefixtures("kernels_on")
def test_a_faint_event_is_written() -> None:
    """Where Delta is far below one, softplus is exp: state and gradients keep their precision."""
    layer = SelectiveSSM(32, SSM_CONFIGS["slow"])
    with torch.no_grad():
        layer.rate_bias.fill_(-16.0)
        layer.in_projection.weight[-layer.heads :] *= 0.1

    def run(module: SelectiveSSM, sequence: Tensor) -> tuple[Tensor, Tensor]:
        output, state = module(sequence, None)
        return output, state.ssm

    compare(layer, calls(run, normal(2, 3, 20, 32)))


def test_block_sizes_follow_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or what `fuse` was told of another one."""
    asked: list[int] = []
    monkeypatch.setattr(kernels, "shared_memory_of", lambda device: LARGE_CARD)
    monkeypatch.setattr(fused_modules, "longest_chunk", lambda shape: asked.append(shape.shared_memory))
    monkeypatch.setattr(short_attention, "fits", lambda memory, *_: asked.append(memory))
    monkeypatch.setattr(kernels, "enabled", lambda tensor: True)
    for memory in (None, SMALL_CARD):
        twin_of(SelectiveSSM(32, SSM_CONFIGS["slow"]), memory)(torch.randn(1, 2, 20, 32), None)
        twin_of(Attention(WIDTH, 4), memory)(torch.randn(1, 7, WIDTH), torch.randn(1, 9, WIDTH))
    assert asked == [LARGE_CARD, LARGE_CARD, SMALL_CARD, SMALL_CARD]
    with pytest.raises(ValueError, match="shared_memory: expected bytes"):
        fuse(make_policy(STATE_FEATURES), shared_memory=99)


def test_what_fits_a_card() -> None:
    """Heads and tokens of the attention, and sizes of the head, as compiled: what is larger runs plainly."""
    for memory, size, tokens, fits in [
        (SMALL_CARD, 64, (74, 74), True), (SMALL_CARD, 128, (74, 74), False), (SMALL_CARD, 256, (34, 34), False),
        (LARGE_CARD, 128, (74, 74), True), (LARGE_CARD, 24, (9, 9), False), (LARGE_CARD, 16, (129, 3), False),
    ]:  # fmt: skip
        assert short_attention.fits(memory, size, *tokens) == fits
    paper = preset("paper")
    for policy_tokens, action, fits in [(8, 10, True), (32, 10, False), (8, 70, False)]:
        head = ActionFlow(dataclasses.replace(paper, policy_tokens=policy_tokens), action, 16)
        assert euler.fits(head) == fits


@pytest.mark.usefixtures("kernels_on")
def test_a_frozen_policy_can_be_fused_and_thawed() -> None:
    """What was kept of weights is not kept any longer: they may change."""
    policy = make_policy(STATE_FEATURES).eval()
    fuse(freeze(policy))
    assert not any(type(module) is FrozenAttention for module in policy.modules())
    kernels.unfuse(policy)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.1)
    chunks = []
    for each in (copy.deepcopy(policy), fuse(policy)):
        state = each.observe(make_observation(STATE_FEATURES, 1), each.initial_state())
        chunks.append(each.act(state, steps=3, source="zero"))
    torch.testing.assert_close(*chunks, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("kernels_on")
def test_a_block_with_an_attention_of_its_own_stays_plain() -> None:
    class Loud(Attention):
        def forward(self, queries: Tensor, sources: Tensor) -> Tensor:
            return 2 * super().forward(queries, sources)

    policy = make_policy(STATE_FEATURES).eval()
    block = policy.action_flow.blocks[0]
    block.attention = adopt(Loud, block.attention)
    plain = copy.deepcopy(policy)
    fuse(policy)
    assert type(block) is TransformerBlock and policy.action_flow.blocks[0] is block
    chunks = []
    for each in (plain, policy):
        state = each.observe(make_observation(STATE_FEATURES, 1), each.initial_state())
        chunks.append(each.act(state, steps=3, source="zero"))
    torch.testing.assert_close(*chunks, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("wanted", [True, False])
def test_the_switch_of_control_and_export(wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`FastControl(fused=...)` on a GPU; exported programs have no kernels."""
    policy = make_policy(STATE_FEATURES)
    monkeypatch.setattr(ChameleonPolicy, "device", torch.device("cuda"))
    frozen = fast_control._frozen(policy, fused=wanted, shared_memory=None)
    assert any(type(module) in TWINS.values() for module in frozen.modules()) == wanted
    exported = programs._frozen(fuse(policy))
    assert not any(type(module) in TWINS.values() for module in exported.modules())


@pytest.mark.usefixtures("kernels_on")
def test_a_fused_policy_may_forget_its_activations() -> None:
    found = []
    for forget in (False, True):
        policy = fuse(make_policy(STATE_FEATURES).to(DEVICE).eval())
        policy.forget_activations = forget
        torch.manual_seed(0)
        loss = policy.loss(make_batch(STATE_FEATURES, 1, 6).to(DEVICE))
        loss.total.backward()
        found.append((loss.total.detach(), [p.grad for p in policy.parameters() if p.grad is not None]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("kernels_on")
def test_a_fused_policy_that_is_frozen_acts_as_before() -> None:
    policy = make_policy(SMALL_IMAGES).to(DEVICE).eval()
    frozen = freeze(fuse(copy.deepcopy(policy)))
    chunks = []
    for each in (policy, frozen):
        state = each.observe(make_observation(SMALL_IMAGES, 1).to(DEVICE), each.initial_state())
        chunks.append(each.act(state, steps=3, source="zero"))
    torch.testing.assert_close(*chunks, rtol=1e-3, atol=1e-4)


def test_a_policy_built_for_control_can_be_fused() -> None:
    policy = ChameleonPolicy(nano(), STATE_FEATURES, with_control_jepa=False)
    assert fuse(policy) is policy
    policy.add_training_branch()
    assert policy.loss(make_batch(STATE_FEATURES, 1, 4)).total.isfinite()
