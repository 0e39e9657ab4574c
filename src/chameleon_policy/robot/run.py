"""Episodes of a robot against a policy server: what `chameleon run` does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from chameleon_client import Client, Metadata
from chameleon_policy.evaluate.camo import Evaluation
from chameleon_policy.evaluate.rollouts import Rollout
from chameleon_policy.evaluate.settings import CamoSettings, observation_of
from chameleon_policy.policy import Features, ObjectSlots, View
from chameleon_policy.robot.camo_sim import CamoSim
from chameleon_policy.robot.latency import Timings, summarise_timings
from chameleon_policy.robot.lerobot_robot import LeRobotRobot
from chameleon_policy.robot.limits import Limits
from chameleon_policy.robot.loop import LoopSettings, play
from chameleon_policy.robot.recording import RobotRecording
from chameleon_policy.robot.robot import Robot

CAMO_SIM, LEROBOT = "camo-sim", "lerobot:"


@dataclass(eq=False)
class RobotRun:
    """What came of the episodes."""

    timings: list[Timings] = field(default_factory=list)
    stopped: str | None = None
    """Why the last episode was broken off, if it was."""

    evaluation: Evaluation | None = None
    """Of a simulated task: how it was scored."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        scores = {} if self.evaluation is None else {"scores": self.evaluation.as_dict()}
        return {"stopped": self.stopped, "loop": summarise_timings(self.timings), **scores}


def features_of(metadata: Metadata) -> Features:
    """What the served policy sees and does."""
    return Features(
        proprioception=metadata.proprioception,
        action=metadata.action,
        horizon=metadata.horizon,
        views=tuple(View(name=name, height=size[0], width=size[1]) for name, size in metadata.views.items()),
        objects=None if metadata.objects is None else ObjectSlots(count=metadata.objects[0], size=metadata.objects[1]),
    )


def camo_settings(metadata: Metadata, task: str, **dials: Any) -> CamoSettings:
    """The environment that shows what the served policy expects to see, or a ValueError if it plays something else."""
    return CamoSettings(task=task, **observation_of(features_of(metadata), task), **dials)


def open_robot(
    what: str, metadata: Metadata, *, task: str | None, instruction: str, first_seed: int, **dials: Any
) -> CamoSim | LeRobotRobot:
    """The robot that `--robot` names, if the served policy was made for it."""
    if what == CAMO_SIM:
        if task is None:
            raise ValueError("camo-sim plays a task: give --task clean-plate, shell-game or seasonings")
        return CamoSim(camo_settings(metadata, task, **dials), first_seed)
    if not what.startswith(LEROBOT):
        raise ValueError(f"--robot must be {CAMO_SIM} or {LEROBOT}FILE, got {what!r}")
    robot = LeRobotRobot.from_file(Path(what.removeprefix(LEROBOT)), instruction)
    try:
        check_fit(robot, metadata)
    except ValueError:
        robot.close()
        raise
    return robot


def check_fit(robot: LeRobotRobot, metadata: Metadata) -> None:
    """ValueError if a policy was made for another robot."""
    for what, names, wanted in (
        ("proprioception", robot.state_names, metadata.proprioception),
        ("action", robot.action_names, metadata.action),
    ):
        if len(names) != wanted:
            raise ValueError(
                f"{what}: the policy {metadata.policy} has {wanted} numbers, the robot {robot.name} {len(names)} "
                f"({', '.join(names)}); serve a policy that was trained on this robot's recordings"
            )
    sizes = {name: tuple(shape[:2]) for name, shape in robot.cameras.items()}
    if sizes != dict(metadata.views):
        raise ValueError(
            f"cameras: the policy {metadata.policy} sees {_pictures(metadata.views)}, the robot {robot.name} has "
            f"{_pictures(sizes)}; name and size the cameras in the robot's configuration like the policy's views"
        )


def run_episodes(
    robot: Robot,
    client: Client,
    settings: LoopSettings,
    limits: Limits,
    *,
    episodes: int,
    first_seed: int,
    recording: RobotRecording | None = None,
    progress: Callable[[int], object] = lambda done: None,
) -> RobotRun:
    """Play episodes one after another, each with a memory of its own; after one that was broken off there is no other."""
    if episodes < 1:
        raise ValueError(f"--episodes must be at least 1, got {episodes}")
    done, rollouts = RobotRun(), []
    for episode in range(episodes):
        robot.begin(episode)
        if episode == 0:
            _warm_up(robot, client, settings)
        session = client.open(seed=first_seed + episode, instruction=_instruction(robot, client))
        played = play(robot, session, settings, limits)
        done.timings.append(played.timings)
        if isinstance(robot, CamoSim) and robot.played is not None:
            rollouts.append(Rollout(robot.played, np.stack(played.actions)))
        if recording is not None:
            recording.add(played)
        progress(episode + 1)
        if played.stopped is not None:
            done.stopped = f"the robot was stopped after {len(played.actions)} ticks: {played.stopped}"
            break
        session.close()
    if isinstance(robot, CamoSim) and rollouts:
        done.evaluation = Evaluation(robot.settings, rollouts)
    return done


def _warm_up(robot: Robot, client: Client, settings: LoopSettings) -> None:
    """What is computed first takes longest: let that be over before the clock runs, in a memory that is thrown away."""
    with client.open(seed=0, instruction=_instruction(robot, client)) as session:
        for _ in range(2):
            session.observe(**robot.observe().arrays())
            session.act(steps=settings.steps)


def _instruction(robot: Robot, client: Client) -> str | None:
    return robot.instruction if client.metadata.language else None


def _pictures(views: Any) -> str:
    return ", ".join(f"{name} ({size[0]} x {size[1]})" for name, size in views.items()) or "none"
