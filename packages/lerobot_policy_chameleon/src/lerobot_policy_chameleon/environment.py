"""`--env.type=camo`: the tasks of Camo as a LeRobot environment."""

# Without `from __future__ import annotations`: LeRobot's parser reads the types of the fields.
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.envs.configs import EnvConfig

GYM_ID = "lerobot_camo/Camo-v0"
VIEWS = ("third", "wrist")
TOOL_POSE = 10
"""Numbers of a tool pose and gripper: the size of proprioception and of an action."""
DIALS = ("cups", "swaps", "distractor_hovers", "length", "questions", "shown")

# Without wrappers, because LeRobot reads the task from the environment itself.
gym.register(
    id=GYM_ID,
    entry_point="lerobot_policy_chameleon.camo_env:LeRobotCamoEnv",
    order_enforce=False,
    disable_env_checker=True,
)


@EnvConfig.register_subclass("camo")
@dataclass
class CamoEnvConfig(EnvConfig):
    """A task and its difficulty.

    `--seed` s plays evaluation episodes from index s on; `chameleon eval` begins at 0.
    """

    task: str | None = "clean-plate"
    """clean-plate, shell-game, seasonings or pantry; or CleanPlate, ShellGame, Seasonings or
    Pantry."""
    fps: float = 7.5  # type: ignore[assignment]
    observation: str = "rgb"
    """rgb: two cameras; or state: object slots."""
    image_size: int = 128
    retention_steps: tuple[int, int] = (3, 10)
    """Shortest and longest wait between evidence and decision."""
    nuisance: str = "none"
    cups: tuple[int, int] | None = None
    """Shell game and pantry: fewest and most cups; None: three, and six."""
    swaps: tuple[int, int] | None = None
    """Shell game: how often cups change places; None: the task's own range."""
    distractor_hovers: tuple[int, int] | None = None
    """Clean plate: plates that the hand only hovers over."""
    length: tuple[int, int] | None = None
    """Seasonings: fewest and most additions; None: three."""
    questions: tuple[int, int] | None = None
    """Pantry: fewest and most questions; None: two."""
    shown: tuple[int, int] | None = None
    """Pantry: fewest and most cups whose block is shown; None: all."""
    features: dict[str, PolicyFeature] = field(default_factory=dict)
    features_map: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # here, because it needs MuJoCo: policies are used without the extra `camo`, too
        from lerobot_policy_chameleon.camo_env import slots_of, task_of

        self.task = task_of(self.task)
        seen = {"agent_pos": (FeatureType.STATE, (TOOL_POSE,), "observation.state")}
        if self.observation == "state":
            numbers = slots_of(self.task, self.dials)
            seen["environment_state"] = FeatureType.ENV, (numbers,), "observation.environment_state"
        elif self.observation == "rgb":
            size = (self.image_size, self.image_size, 3)
            seen |= {
                f"pixels/{view}": (FeatureType.VISUAL, size, f"observation.images.{view}")
                for view in VIEWS
            }
        else:
            raise ValueError(f"--env.observation must be rgb or state, got {self.observation!r}")
        seen["action"] = FeatureType.ACTION, (TOOL_POSE,), "action"
        self.features = {
            name: PolicyFeature(type=kind, shape=shape) for name, (kind, shape, _) in seen.items()
        }
        self.features_map = {name: key for name, (_, _, key) in seen.items()}

    @property
    def package_name(self) -> str:
        """The package that LeRobot imports to register the environment."""
        return "lerobot_policy_chameleon"

    @property
    def gym_id(self) -> str:
        """Gymnasium's id, the same for all tasks."""
        return GYM_ID

    @property
    def gym_kwargs(self) -> dict[str, Any]:
        """Arguments of the environment."""
        return {
            "task": self.task,
            "observation": self.observation,
            "image_size": self.image_size,
            "retention_steps": tuple(self.retention_steps),
            "nuisance": self.nuisance,
            "render_mode": "rgb_array",
            **self.dials,
        }

    @property
    def dials(self) -> dict[str, tuple[int, int]]:
        """The task's own dials that are set."""
        spans = {name: getattr(self, name) for name in DIALS}
        return {name: tuple(span) for name, span in spans.items() if span is not None}
