"""The Chameleon policy, in plain PyTorch.

The model, in the order to read it with the paper:

    observation -> event_tokens -> ssm -> memory -> control_jepa -> action_flow -> chameleon

Its building blocks are visual (the image encoder) and attention (the transformer block). What
Chameleon shares with the methods it is compared with is in targets and visuomotor, including the
loss of Eq. 16 and the sum of Eq. 17. Everything here is the plain reference; a faster
implementation for GPUs is separate.

Dimension letters, everywhere: B batch, T time, V views, N tokens, D width, H horizon, A action, P
proprioception. (In `ssm.py`, S streams and P channels of a head.) The mapping from the paper's
symbols is in `docs/notation.md`.
"""

from chameleon_policy.policy.budget import Budget, parameter_budget
from chameleon_policy.policy.chameleon import ChameleonPolicy
from chameleon_policy.policy.config import ObjectiveConfig, PolicyConfig, SSMConfig
from chameleon_policy.policy.features import Features, Language, ObjectSlots, View
from chameleon_policy.policy.inspection import Inspection
from chameleon_policy.policy.language import InstructionEncoder
from chameleon_policy.policy.normalizer import Range, Statistics
from chameleon_policy.policy.observation import Augmentation, EpisodeBatch, Observation
from chameleon_policy.policy.presets import PRESETS, preset
from chameleon_policy.policy.state import MemoryState
from chameleon_policy.policy.visuomotor import Loss, VisuomotorPolicy

__all__ = [
    "PRESETS",
    "Augmentation",
    "Budget",
    "ChameleonPolicy",
    "EpisodeBatch",
    "Features",
    "Inspection",
    "InstructionEncoder",
    "Language",
    "Loss",
    "MemoryState",
    "ObjectSlots",
    "ObjectiveConfig",
    "Observation",
    "PolicyConfig",
    "Range",
    "SSMConfig",
    "Statistics",
    "View",
    "VisuomotorPolicy",
    "parameter_budget",
    "preset",
]
