"""Flow Matching: the paper's action head on the current observation alone."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from chameleon_policy.baselines.frame_summary import FrameSummary
from chameleon_policy.baselines.size import blocks_for, count, memory_size
from chameleon_policy.baselines.window import SummaryWindowPolicy
from chameleon_policy.policy.action_flow import ActionFlow
from chameleon_policy.policy.initialization import initialise
from chameleon_policy.policy.memory import ControlContext
from chameleon_policy.policy.visuomotor import FlowPolicy


class FlowMatchingPolicy(SummaryWindowPolicy, FlowPolicy):
    """Transformer blocks with as many parameters replace the memory layers."""

    method: ClassVar[str] = "flow-matching"
    frames: ClassVar[int] = 1

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        config = self.config
        blocks = blocks_for(config, memory_size(config) - count(lambda: ControlContext(config)))
        self.summary = FrameSummary(config, blocks)
        self.action_flow = ActionFlow(config, self.features.action, self.features.horizon)
        initialise(self)

    def _condition(self, context: Tensor) -> Tensor:
        return context[:, -1]
