"""Episodes of a robot against a policy server: what `chameleon run` does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from chameleon_client import Client, Metadata
from chameleon_policy.camo.settings import CamoSettings, observation_for
from chameleon_policy.camo.world import CONTROL_HZ
from chameleon_policy.evaluate.evaluation import Evaluation
from chameleon_policy.evaluate.loading import spaces_of
from chameleon_policy.evaluate.rollouts import Rollout
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
        views=tuple(
            View(name=name, height=size[0], width=size[1]) for name, size in metadata.views.items()
        ),
        objects=None
        if metadata.objects is None
        else ObjectSlots(count=metadata.objects[0], size=metadata.objects[1]),
    )


def camo_settings(metadata: Metadata, task: str, **dials: Any) -> CamoSettings:
    """The environment that shows what the served policy expects to see, or a ValueError if it plays
    something else.
    """
    spaces = spaces_of(features_of(metadata))
    settings = CamoSettings(task=task, **observation_for(spaces, task), **dials)
    if settings.kind != "policy":
        raise ValueError(
            f"{metadata.policy} is told the answer, which no robot is; play it with chameleon eval"
        )
    return settings


def open_robot(
    what: str,
    metadata: Metadata,
    *,
    task: str | None,
    instruction: str,
    first_seed: int,
    **dials: Any,
) -> CamoSim | LeRobotRobot:
    """The robot that `--robot` names, if the served policy was made for it."""
    if what == CAMO_SIM:
        if task is None:
            raise ValueError(
                "camo-sim plays a task: give --task clean-plate, shell-game or seasonings"
            )
        if instruction:
            raise ValueError(
                "camo-sim has an instruction of its own for every task; leave out --instruction"
            )
        return CamoSim(camo_settings(metadata, task, **dials), first_seed)
    if not what.startswith(LEROBOT):
        raise ValueError(f"--robot must be {CAMO_SIM} or {LEROBOT}FILE, got {what!r}")
    if task is not None:
        raise ValueError(f"{what} is told what to do with --instruction; leave out --task")
    if metadata.language and not instruction:
        raise ValueError(f"{metadata.policy} reads instructions: give --instruction")
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


def loop_settings(
    metadata: Metadata, what: str, *, rate: float | None, executed: int | None, **options: Any
) -> LoopSettings:
    """What the command line says of the loop, completed by what policy and robot say."""
    executed = metadata.executed if executed is None else executed
    if executed > metadata.horizon:
        raise ValueError(
            f"--executed must be at most {metadata.horizon}, the actions of a chunk, got {executed}"
        )
    if what != CAMO_SIM and rate is None:
        raise ValueError(
            "--rate: give the ticks per second that the policy's demonstrations were recorded with"
        )
    if what != CAMO_SIM and options.get("seconds") is None:
        raise ValueError(
            "--seconds: a robot does not know when its task is done; say how long an episode may last"
        )
    return LoopSettings(rate=CONTROL_HZ if rate is None else rate, executed=executed, **options)


def run_episodes(
    robot: Robot,
    client: Client,
    settings: LoopSettings,
    limits: Limits,
    *,
    episodes: int,
    first_seed: int,
    recording: RobotRecording | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    progress: Callable[[int], object] = lambda done: None,
) -> RobotRun:
    """Play episodes one after another, each with a memory of its own; after one that was broken off
    there is no other.
    """
    if episodes < 1:
        raise ValueError(f"--episodes must be at least 1, got {episodes}")
    done, rollouts = RobotRun(), []
    for episode in range(episodes):
        robot.begin(episode)
        if episode == 0:
            _warm_up(robot, client, settings)
            robot.begin(episode)  # it may have moved, or been moved, since
        session = client.open(seed=first_seed + episode, instruction=_instruction(robot, client))
        played = play(
            robot,
            session,
            settings,
            limits,
            keep_sights=recording is not None,
            interrupted=interrupted,
        )
        if played.stopped is None:
            session.close()  # before anything that takes long: the server closes what is idle
        done.timings.append(played.timings)
        if isinstance(robot, CamoSim) and robot.played is not None:
            rollouts.append(Rollout(robot.played, np.stack(played.actions)))
        if recording is not None:
            recording.add(played)
        if played.error is not None:
            raise played.error
        if played.stopped is not None:
            done.stopped = (
                f"the robot was stopped after {len(played.actions)} ticks: {played.stopped}"
            )
            break
        progress(episode + 1)
    if isinstance(robot, CamoSim) and rollouts:
        done.evaluation = Evaluation(robot.settings, rollouts)
    return done


def _warm_up(robot: Robot, client: Client, settings: LoopSettings) -> None:
    """What is computed first takes longest: let that be over before the clock runs, in a memory
    that is thrown away.
    """
    with client.open(seed=0, instruction=_instruction(robot, client)) as session:
        for _ in range(2):
            session.observe(**robot.observe().arrays())
            session.act(steps=settings.steps)


def _instruction(robot: Robot, client: Client) -> str | None:
    return robot.instruction if client.metadata.language else None


def _pictures(views: Any) -> str:
    return ", ".join(f"{name} ({size[0]} x {size[1]})" for name, size in views.items()) or "none"
