"""Muon compared with its definition and with the one of PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from chameleon_policy.policy import ChameleonPolicy
from chameleon_policy.train.config import TrainingConfig
from chameleon_policy.train.optimizers import Muon, make_optimizers, matrices_of, orthogonalise
from examples import IMAGE_FEATURES, make_policy

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    ),
]


@pytest.mark.parametrize("shape", [(3, 24, 24), (2, 16, 80), (2, 80, 16), (64, 32)])
def test_singular_values_become_one_and_singular_vectors_stay(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    matrices = torch.randn(*shape)
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    found = left.mT @ orthogonalise(matrices) @ right.mT
    diagonal = found.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(found, torch.diag_embed(diagonal), rtol=0, atol=1e-4)
    # The iteration is cut short: it ends between 0.68 and 1.2; only the smallest of a square matrix
    # lag behind.
    assert diagonal.max() < 1.25
    assert (diagonal > 0.65).float().mean() > 0.9


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(24, 40), (40, 24)])
def test_updates_are_those_of_pytorch(shape: tuple[int, int], device: str) -> None:
    """Two matrices at once, on fresh gradients.

    torch.optim.Muon orthogonalises in bfloat16, so that updates are equal up to its last bits.
    """
    torch.manual_seed(1)
    start = [torch.randn(shape, device=device) for _ in range(2)]
    ours, theirs = ([nn.Parameter(value.clone()) for value in start] for _ in range(2))
    our_optimizer = Muon(ours, lr=0.1, weight_decay=0.1)
    options = {"lr": 0.1, "weight_decay": 0.1, "momentum": 0.95, "adjust_lr_fn": "match_rms_adamw"}
    their_optimizer = torch.optim.Muon(theirs, **options)
    for _ in range(5):
        for own, other in zip(ours, theirs, strict=True):
            own.grad = torch.randn(shape, device=device)
            other.grad = own.grad.clone()
        our_optimizer.step()
        their_optimizer.step()
    for own, other, before in zip(ours, theirs, start, strict=True):
        assert (own - before).norm() > 0.01 * before.norm()
        assert (own - other).norm() < 0.02 * (own - before).norm()


def test_a_convolution_is_a_matrix_with_a_row_per_output() -> None:
    convolution, linear = nn.Conv2d(16, 24, 3, bias=False), nn.Linear(16 * 9, 24, bias=False)
    linear.weight.data.copy_(convolution.weight.data.flatten(1))
    convolution.weight.grad = torch.randn_like(convolution.weight)
    linear.weight.grad = convolution.weight.grad.flatten(1).clone()
    before = linear.weight.detach().clone()
    Muon([convolution.weight, linear.weight], lr=0.1).step()
    assert not torch.allclose(linear.weight, before)
    torch.testing.assert_close(convolution.weight.flatten(1), linear.weight)


def test_a_parameter_without_a_gradient_stays() -> None:
    weights = [nn.Parameter(torch.randn(20, 20)) for _ in range(2)]
    before = [weight.detach().clone() for weight in weights]
    weights[0].grad = torch.randn(20, 20)
    Muon(weights, lr=0.1, weight_decay=0.5).step()
    assert not torch.equal(weights[0], before[0])
    assert torch.equal(weights[1], before[1])


def test_every_parameter_has_one_optimizer() -> None:
    policy: ChameleonPolicy = make_policy(IMAGE_FEATURES)
    trained = {id(parameter) for parameter in policy.parameters() if parameter.requires_grad}
    for name, kinds in (("adamw", ["AdamW"]), ("muon", ["AdamW", "Muon"])):
        optimizers = make_optimizers(policy, TrainingConfig(steps=1, optimizer=name))
        assert [type(optimizer).__name__ for optimizer in optimizers] == kinds
        owned = [
            id(parameter)
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]
        assert len(owned) == len(set(owned))
        assert set(owned) == trained
    matrices = {id(matrix) for matrix in matrices_of(policy)}
    named = {name for name, parameter in policy.named_parameters() if id(parameter) in matrices}
    assert "memory.0.propagation.slow.in_projection.weight" in named
    assert any(name.endswith("first.weight") for name in named), "convolutions of the encoder"
    assert not any("target" in name or "slots" in name for name in named)
    assert "action_flow.action_out.weight" not in named, "too thin"
