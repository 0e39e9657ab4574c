"""LeRobot's pipelines around the policy: they add a batch dimension and move to the device.

The policy normalises inside; normalising steps exist because lerobot-train and lerobot-eval
override them by name when they load a policy.
"""

from typing import Any

from lerobot.processor import (
    AddBatchDimensionProcessorStep,
    DeviceProcessorStep,
    NormalizerProcessorStep,
    PolicyAction,
    PolicyProcessorPipeline,
    RenameObservationsProcessorStep,
    UnnormalizerProcessorStep,
)
from lerobot.processor.converters import policy_action_to_transition, transition_to_policy_action
from lerobot.utils.constants import (
    POLICY_POSTPROCESSOR_DEFAULT_NAME,
    POLICY_PREPROCESSOR_DEFAULT_NAME,
)

from lerobot_policy_chameleon.configuration_chameleon import ChameleonConfig

Processors = tuple[
    PolicyProcessorPipeline[dict[str, Any], dict[str, Any]],
    PolicyProcessorPipeline[PolicyAction, PolicyAction],
]


def make_chameleon_pre_post_processors(
    config: ChameleonConfig, dataset_stats: dict[str, dict[str, Any]] | None = None
) -> Processors:
    """Return the pipelines of observations and actions; LeRobot finds this function by name."""
    inputs, outputs, modes = (
        config.input_features or {},
        config.output_features or {},
        config.normalization_mapping,
    )
    before = [
        RenameObservationsProcessorStep(rename_map={}),
        AddBatchDimensionProcessorStep(),
        DeviceProcessorStep(device=config.device),
        NormalizerProcessorStep(
            features={**inputs, **outputs}, norm_map=modes, stats=dataset_stats
        ),
    ]
    after = [
        UnnormalizerProcessorStep(features=outputs, norm_map=modes, stats=dataset_stats),
        DeviceProcessorStep(device="cpu"),
    ]
    return (
        PolicyProcessorPipeline[dict[str, Any], dict[str, Any]](
            steps=before, name=POLICY_PREPROCESSOR_DEFAULT_NAME
        ),
        PolicyProcessorPipeline[PolicyAction, PolicyAction](
            steps=after,
            name=POLICY_POSTPROCESSOR_DEFAULT_NAME,
            to_transition=policy_action_to_transition,
            to_output=transition_to_policy_action,
        ),
    )
