"""Optimizers, and the average of the weights that they produce.

Muon is gradient descent with orthogonalised momentum, for the matrices of a network (Jordan et al.,
2024). The momentum of a weight matrix is replaced by the nearest matrix whose singular values are
all about one, so that rare directions of the gradient move the weights as far as frequent ones.
torch.optim.Muon does the same matrix by matrix and in bfloat16; here matrices of equal shape are
orthogonalised together, and on a CPU in float32.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from chameleon_policy.train.config import TrainingConfig

SMALLEST_SIDE = 16
"""Matrices with fewer rows or columns (such as those that read joints and write actions) are left
to AdamW."""

LAYERS = (nn.Linear, nn.Conv1d, nn.ConvTranspose1d, nn.Conv2d, nn.LSTM)
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
UPDATE_SIZE = 0.2
"""Size of an update per weight, before the learning rate: about AdamW's, so that one learning rate
serves both."""


def matrices_of(module: nn.Module) -> list[Tensor]:
    """Return the weights that Muon updates.

    These are the weights of linear, convolutional and recurrent layers, except thin ones.
    """
    found = [
        weight
        for layer in module.modules()
        if isinstance(layer, LAYERS)
        for name, weight in layer.named_parameters(recurse=False)
        if name.startswith("weight")
    ]
    return [
        weight
        for weight in found
        if weight.requires_grad and min(weight.flatten(1).shape) >= SMALLEST_SIDE
    ]


def orthogonalise(matrices: Tensor) -> Tensor:
    """Bring the singular values of every matrix (... m n) to about one, by Newton-Schulz steps."""
    wide = matrices.mT if matrices.shape[-2] > matrices.shape[-1] else matrices
    x: Tensor = wide / torch.linalg.matrix_norm(wide, keepdim=True).clamp(min=1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if matrices.shape[-2] > matrices.shape[-1] else x


class Muon(torch.optim.Optimizer):
    """Orthogonalised Nesterov momentum, with weight decay as in AdamW.

    Convolutions count as matrices with a row per output.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        assert closure is None
        for group in self.param_groups:
            by_shape: dict[tuple[torch.Size, torch.device], list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape[parameter.flatten(1).shape, parameter.device].append(parameter)
            for (shape, device), parameters in by_shape.items():
                self._update(
                    parameters,
                    shape,
                    torch.bfloat16 if device.type == "cuda" else torch.float32,
                    group,
                )

    def _update(
        self,
        parameters: list[Tensor],
        shape: torch.Size,
        precision: torch.dtype,
        group: dict[str, Any],
    ) -> None:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if "momentum" not in self.state[parameter]:
                self.state[parameter]["momentum"] = torch.zeros_like(gradient)
        momenta = [self.state[parameter]["momentum"] for parameter in parameters]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        ahead = torch._foreach_lerp(gradients, momenta, group["momentum"])
        directions = orthogonalise(
            torch.stack([matrix.flatten(1) for matrix in ahead]).to(precision)
        )
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        updates = [
            direction.view_as(parameter)
            for direction, parameter in zip(directions, parameters, strict=True)
        ]
        size = UPDATE_SIZE * math.sqrt(max(shape))
        torch._foreach_add_(
            parameters,
            [update.to(momenta[0].dtype) for update in updates],
            alpha=-group["lr"] * size,
        )


def make_optimizers(policy: nn.Module, config: TrainingConfig) -> list[torch.optim.Optimizer]:
    """Make AdamW for all trained parameters; or Muon for the matrices and AdamW for the rest."""
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    chosen = {id(matrix) for matrix in matrices_of(policy)} if config.optimizer == "muon" else set()
    matrices = [parameter for parameter in trained if id(parameter) in chosen]
    rest = [parameter for parameter in trained if id(parameter) not in chosen]
    settings: dict[str, Any] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    optimizers: list[torch.optim.Optimizer] = []
    if rest:
        betas = (0.9, config.beta2)
        optimizers.append(torch.optim.AdamW(rest, betas=betas, fused=True, **settings))
    if matrices:
        optimizers.append(Muon(matrices, **settings))
    return optimizers


class WeightAverage:
    """The exponential moving average of everything in a module's state dict, for evaluation.

    It follows quickly at first, since early weights are not worth keeping.
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.decay = decay
        self.weights: dict[str, Tensor] = {
            name: value.detach().clone() for name, value in module.state_dict().items()
        }

    @torch.no_grad()
    def update(self, module: nn.Module, step: int) -> None:
        """Update the average after optimizer step `step`, counted from 0."""
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        now = {name: value.detach() for name, value in module.state_dict().items()}
        smooth = [name for name, value in now.items() if value.is_floating_point()]
        torch._foreach_lerp_(
            [self.weights[name] for name in smooth], [now[name] for name in smooth], share
        )
        for name in now.keys() - set(smooth):  # counters and other integers
            self.weights[name].copy_(now[name])

    @contextmanager
    def applied(self, module: nn.Module) -> Iterator[None]:
        """Put the averaged weights into a module, in eval mode, as long as the context lasts."""
        training = module.training
        kept = {name: value.detach().clone() for name, value in module.state_dict().items()}
        module.load_state_dict(self.weights)
        module.eval()
        try:
            yield
        finally:
            module.load_state_dict(kept)
            module.train(training)
