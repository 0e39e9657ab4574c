"""A fused policy computes what the plain one does; fusing can be undone, repeated, switched off."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from triton_device import DEVICE  # isort: skip

from chameleon_policy import ChameleonPolicy, Features, fuse, kernels
from chameleon_policy.baselines import METHODS
from chameleon_policy.baselines.no_memory import ForgetfulSSM
from chameleon_policy.export import programs
from chameleon_policy.kernels import fast_control
from chameleon_policy.kernels.frozen import FrozenAttention, adopt, freeze
from chameleon_policy.kernels.fused import TWINS, FusedSSM, half_weights
from chameleon_policy.policy.attention import Attention, TransformerBlock
from examples import (
    IMAGE_FEATURES,
    SMALL_IMAGES,
    STATE_FEATURES,
    make_batch,
    make_observation,
    make_policy,
    nano,
)

pytestmark = pytest.mark.usefixtures("poisoned_memory")
SMALL_CARD = 99 * 1024


@pytest.mark.usefixtures("kernels_on")
@pytest.mark.parametrize(
    "features",
    [
        pytest.param(STATE_FEATURES, id="objects", marks=pytest.mark.slow),
        pytest.param(SMALL_IMAGES, id="images"),
    ],
)
def test_the_whole_loss_and_its_gradients(
    features: Features, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All kernels in eval mode, with the same noise, against the plain policy in float64."""
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
    fused, plain = found
    assert fused.keys() == plain.keys()
    largest = max(expected.norm() for expected in plain.values())
    for name, expected in plain.items():
        error = (fused[name].double() - expected).norm() / expected.norm().clamp(min=1e-6 * largest)
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
    assert all(
        (a == b).all() for a, b in zip(copied.parameters(), policy.parameters(), strict=True)
    )


def test_other_modules_are_left_alone() -> None:
    torch.manual_seed(0)
    policy = fuse(METHODS["brief"](nano(), STATE_FEATURES))
    kinds = {type(module) for module in policy.modules()}
    assert ForgetfulSSM in kinds and FusedSSM in kinds


@pytest.mark.parametrize("method", METHODS)
def test_where_kernels_cannot_compute_a_fused_policy_is_the_plain_one(
    method: str, tmp_path
) -> None:
    """Losses, gradients, actions and checkpoints in float32, to the last bit."""
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
        found.append(
            (
                fused,
                "gradients",
                torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None]),
            )
        )
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
        frozen.act(state, steps=3, source="zero"),
        policy.act(state, steps=3, source="zero"),
        rtol=0,
        atol=0,
    )
    assert not any(parameter.requires_grad for parameter in frozen.parameters())


@pytest.mark.usefixtures("kernels_on")
def test_the_loss_stays_precise_while_weights_are_converted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The metrics equal those of autocast's own conversions in float32."""
    batch = make_batch(STATE_FEATURES, 2, 6).to(DEVICE)
    monkeypatch.setattr(kernels, "enabled", lambda tensor: False)
    policy = make_policy().to(DEVICE).eval()
    found = []
    for at_once in (False, True):
        torch.manual_seed(0)
        with torch.autocast(DEVICE, torch.bfloat16):
            if at_once:
                monkeypatch.setattr(kernels, "enabled", lambda tensor: True)
                with (
                    half_weights(policy.memory, batch.actions),
                    half_weights(policy.action_flow, batch.actions),
                ):
                    assert policy.action_flow.action_in.weight.dtype == torch.bfloat16
                    loss = policy.loss(batch)
            else:
                loss = policy.loss(batch)
        assert {part.dtype for part in (loss.total, *loss.parts.values())} == {torch.float32}
        loss.total.backward()
        trained = {n: p for n, p in policy.named_parameters() if p.grad is not None}
        found.append((loss.parts, {name: p.grad.clone() for name, p in trained.items()}))
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


@pytest.mark.usefixtures("kernels_on")
def test_fusing_a_frozen_policy_drops_cached_weights() -> None:
    """The weights of a policy that is fused or unfused may change again."""
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


@pytest.mark.parametrize("use_kernels", [True, False])
def test_control_can_switch_kernels_off_and_exported_programs_have_none(
    use_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the modules of `FastControl(fused=...)`, built as for a GPU, and of an export."""
    policy = make_policy(STATE_FEATURES)
    monkeypatch.setattr(ChameleonPolicy, "device", torch.device("cuda"))
    frozen = fast_control._frozen(policy, fused=use_kernels, shared_memory=None)
    assert any(type(module) in TWINS.values() for module in frozen.modules()) == use_kernels
    exported = programs._frozen(fuse(policy))
    assert not any(type(module) in TWINS.values() for module in exported.modules())


@pytest.mark.slow
@pytest.mark.usefixtures("kernels_on")
def test_a_fused_policy_may_forget_its_activations() -> None:
    found = []
    for forget in (False, True):
        policy = fuse(make_policy(STATE_FEATURES).to(DEVICE).eval())
        policy.forget_activations = forget
        torch.manual_seed(0)
        loss = policy.loss(make_batch(STATE_FEATURES, 1, 4).to(DEVICE))
        loss.total.backward()
        found.append(
            (loss.total.detach(), [p.grad for p in policy.parameters() if p.grad is not None])
        )
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
