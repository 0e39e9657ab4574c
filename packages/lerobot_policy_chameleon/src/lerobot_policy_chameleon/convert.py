"""Convert a policy of `chameleon train`, or a shipped one, for LeRobot.

python -m lerobot_policy_chameleon.convert RUN_OR_NAME OUT
lerobot-eval --policy.path=OUT --env.type=camo --env.task=shell-game
"""

from __future__ import annotations

import argparse
from pathlib import Path

from lerobot.configs.types import FeatureType, PolicyFeature

from chameleon_policy.policy import VisuomotorPolicy
from chameleon_policy.policy.saving import exported_weights
from chameleon_policy.train.checkpoint import load_trained
from lerobot_policy_chameleon.configuration_chameleon import ChameleonConfig
from lerobot_policy_chameleon.modeling_chameleon import ChameleonPolicy
from lerobot_policy_chameleon.processor_chameleon import make_chameleon_pre_post_processors
from lerobot_policy_chameleon.statistics import as_plain


def configuration_of(policy: VisuomotorPolicy) -> ChameleonConfig:
    """Return LeRobot's configuration of a policy; raise a ValueError if there is none."""
    features, objective = policy.features, policy.config.objective
    inputs = {
        f"observation.images.{view.name}": _feature("VISUAL", 3, view.height, view.width)
        for view in features.views
    }
    inputs["observation.state"] = _feature("STATE", features.proprioception)
    if features.objects is not None:
        inputs["observation.environment_state"] = _feature(
            "ENV", features.objects.count * features.objects.size
        )
    config = ChameleonConfig(
        input_features=inputs,
        output_features={"action": _feature("ACTION", features.action)},
        device="cpu",
        push_to_hub=False,
        preset=policy.config.preset,
        method=policy.method,
        horizon=features.horizon,
        n_action_steps=policy.executed,
        sampling_steps=policy.config.sampling_steps,
        object_size=features.objects.size if features.objects else None,
        language=features.language.encoder if features.language else None,
        action_steps=objective.action_steps,
        flow_time_power=objective.flow_time_power,
        proprioception_noise=objective.proprioception_noise,
        control_jepa_weight=objective.control_jepa_weight,
        statistics=as_plain(policy.statistics),
        half_life_limit=policy.config.fast.half_life_limit,
    )
    if config.policy_features(features.language) != features:
        raise ValueError(
            "LeRobot's configuration would have this policy's inputs in another order or number: "
            "it takes cameras in the order of their names, and object slots only without cameras. "
            f"This policy has {features}"
        )
    if config.policy_config() != policy.config:
        raise ValueError(
            f"this policy is not the preset {policy.config.preset}, but of a size of its own: "
            "LeRobot's configuration has presets only. Evaluate it with `chameleon eval`"
        )
    return config


def convert(source: str | Path, out: Path) -> ChameleonPolicy:
    """Write a folder for --policy.path; a training branch, if there is one, starts anew."""
    policy = load_trained(source)
    converted = ChameleonPolicy(configuration_of(policy))
    weights = exported_weights(policy)
    for copy in (converted.model, converted.averaged):
        copy.load_state_dict({**copy.state_dict(), **weights})
        copy.provenance = policy.provenance
        # after the weights: Control-JEPA's target begins as a copy of them
        copy.add_training_branch()
    converted.averaged.load_state_dict(converted.model.state_dict())
    converted.averaged.requires_grad_(False).eval()
    converted.save_pretrained(out)
    for processor in make_chameleon_pre_post_processors(converted.config):
        processor.save_pretrained(out)
    return converted


def _feature(kind: str, *shape: int) -> PolicyFeature:
    return PolicyFeature(type=FeatureType[kind], shape=shape)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m lerobot_policy_chameleon.convert", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "source", help="run of `chameleon train`, folder of a policy, or a name such as camo-small"
    )
    parser.add_argument("out", type=Path, help="folder to write")
    arguments = parser.parse_args()
    if arguments.out.exists():
        raise SystemExit(f"{arguments.out} exists already; name a new folder")
    convert(arguments.source, arguments.out)
    print(f"Evaluate it: lerobot-eval --policy.path={arguments.out}")


if __name__ == "__main__":
    main()
