"""One observation as one vector: Chameleon's binding and control context without memory."""

from __future__ import annotations

from torch import Tensor, nn

from chameleon_policy.baselines.size import make_block
from chameleon_policy.policy import PolicyConfig
from chameleon_policy.policy.memory import ControlContext


class FrameSummary(nn.Module):
    """Blocks that bind the tokens of a time step (Eq. 5), and its control context (Eqs. 7-8)."""

    def __init__(self, config: PolicyConfig, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(make_block(config) for _ in range(blocks))
        self.control_context = ControlContext(config)

    def forward(self, tokens: Tensor) -> Tensor:
        """Summarise event tokens (... N D) as one vector per time step (... D)."""
        for block in self.blocks:
            tokens = block(tokens)
        return self.control_context(tokens)
