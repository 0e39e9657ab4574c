"""The memoryless twin of Chameleon, with the same parameters and loss."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from chameleon_policy.policy import ChameleonPolicy
from chameleon_policy.policy.memory import MemoryLayer
from chameleon_policy.policy.ssm import SelectiveSSM, SSMState


class ForgetfulSSM(SelectiveSSM):
    """A selective SSM with an empty state at every step: y = Delta (C . B) x + D x."""

    def forward(
        self, sequence: Tensor, state: SSMState | None, *, keep_state: bool = True
    ) -> tuple[Tensor, SSMState | None]:
        """Run over a sequence (... T width); return the given state, or else an empty one."""
        if state is None and keep_state:
            state = self.initial_state(*sequence.shape[:-2])
        gate, mixed, rates = self.split_inputs(sequence)
        # Earlier inputs of the convolution are zeros.
        convolved = mixed * self.convolution_weight[:, -1] + self.convolution_bias
        values, write, read = self.split_convolved(convolved)
        strength = self._rates(rates) * (read * write).sum(-1, keepdim=True)
        output = self._outputs((strength[..., None] + self.skip[:, None]) * values, gate)
        return output, state if keep_state else None


class NoMemoryPolicy(ChameleonPolicy):
    """Chameleon whose memory is empty at every step: actions follow from one observation."""

    method: ClassVar[str] = "no-memory"
    has_working_state: ClassVar[bool] = False

    def _make_layer(self) -> MemoryLayer:
        return MemoryLayer(self.config, slow=ForgetfulSSM, fast=ForgetfulSSM)
