"""LeRobot's own Diffusion and ACT policies (lerobot 0.6) as peers in control latency.

Random weights, since only time counts; no backbone is downloaded. `act` is the whole answer to one
new observation: for Diffusion the observation enters the policy's queue, the last `n_obs_steps` are
encoded and the full denoising loop runs; for ACT it is one forward pass. Normalisation and copies
to the GPU, which LeRobot does outside the policy, are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Act = Callable[[dict[str, Tensor]], Tensor]
VIEWS, SIZE, NUMBERS, HORIZON = 2, 224, 10, 16


def observation(device: torch.device) -> dict[str, Tensor]:
    """Make a random observation in LeRobot's form: float images in [0, 1] without time, a state."""
    images = {
        f"observation.images.view{i}": torch.rand(1, 3, SIZE, SIZE, device=device)
        for i in range(VIEWS)
    }
    return images | {"observation.state": torch.randn(1, NUMBERS, device=device)}


def _features() -> dict[str, Any]:
    from lerobot.configs import FeatureType, PolicyFeature

    inputs = {
        f"observation.images.view{i}": PolicyFeature(FeatureType.VISUAL, (3, SIZE, SIZE))
        for i in range(VIEWS)
    }
    inputs["observation.state"] = PolicyFeature(FeatureType.STATE, (NUMBERS,))
    return {
        "input_features": inputs,
        "output_features": {"action": PolicyFeature(FeatureType.ACTION, (NUMBERS,))},
    }


def make_diffusion(device: torch.device, **options: Any) -> tuple[Any, Act]:
    """Make LeRobot's default Diffusion policy, but with a horizon of 16, half of it executed."""
    from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy
    from lerobot.policies.utils import populate_queues

    config = DiffusionConfig(
        horizon=HORIZON,
        n_action_steps=HORIZON // 2,
        pretrained_backbone_weights=None,
        device=str(device),
        **_features(),
        **options,
    )
    policy = DiffusionPolicy(config).to(device).eval()

    @torch.no_grad()
    def act(seen: dict[str, Tensor]) -> Tensor:
        # What select_action does when its queue of actions is empty.
        batch = {
            **seen,
            "observation.images": torch.stack([seen[key] for key in config.image_features], dim=-4),
        }
        policy._queues = populate_queues(policy._queues, batch)
        chunk: Tensor = policy.predict_action_chunk(batch)
        return chunk

    return policy, act


def make_act(device: torch.device) -> tuple[Any, Act]:
    """Make LeRobot's default ACT policy, but with chunks of 16 actions."""
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy

    config = ACTConfig(
        chunk_size=HORIZON,
        n_action_steps=HORIZON,
        pretrained_backbone_weights=None,
        device=str(device),
        **_features(),
    )
    policy = ACTPolicy(config).to(device).eval()
    return policy, policy.predict_action_chunk
