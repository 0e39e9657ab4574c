"""Episodes of a robot with a policy server: the work of `chameleon run`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from chameleon_client import Client, Metadata, ServerError
from chameleon_policy.camo.settings import CamoSettings, observation_for
from chameleon_policy.camo.world import CONTROL_HZ
from chameleon_policy.console import check_counts, counted, progress_bar
from chameleon_policy.evaluate.evaluation import FIRST_SEED, Evaluation
from chameleon_policy.evaluate.rollouts import Rollout
from chameleon_policy.robot.camo_sim import CamoSim
from chameleon_policy.robot.latency import Timings, summarise_timings
from chameleon_policy.robot.lerobot_robot import LeRobotRobot
from chameleon_policy.robot.limits import Limits
from chameleon_policy.robot.link import Link
from chameleon_policy.robot.loop import play
from chameleon_policy.robot.recording import RobotRecording
from chameleon_policy.robot.robot import Robot
from chameleon_policy.robot.settings import LoopOptions, LoopSettings
from chameleon_policy.suite import Spaces
from chameleon_policy.train.stopping import StopRequest

CAMO_SIM, LEROBOT = "camo-sim", "lerobot:"


@dataclass(frozen=True, kw_only=True)
class RobotOptions:
    """The robot, its task and its episodes."""

    robot: str = CAMO_SIM
    """camo-sim, or lerobot:FILE with the configuration of any robot of LeRobot (docs/robot.md)."""
    task: str | None = None
    """For camo-sim: clean-plate, shell-game, seasonings or pantry."""
    instruction: str = ""
    """For a robot of LeRobot: the task in words."""
    limits: Path | None = None
    """JSON file with limits of the actions' numbers (docs/robot.md; camo-sim has some of its
    own)."""
    episodes: int = 1
    """Episodes, one after another."""
    first_seed: int = FIRST_SEED
    """Seed of the first episode: of the policy's noise and, for camo-sim, of the scene."""
    reconnect: float = 0.0
    """Seconds to connect again after a lost connection. The robot is stopped meanwhile; the episode
    goes on if the server has kept its memory (30 s), and otherwise the next one begins."""


@dataclass(eq=False)
class RobotRun:
    """The results of a run."""

    timings: list[Timings] = field(default_factory=list)
    """Measurements of every episode."""
    found: int = 0
    """Episodes of the recording that an earlier process had finished."""
    broken_off: int = 0
    """Episodes after which the next one began on another connection."""
    stopped: str | None = None
    """Why the last episode was stopped, if it was."""
    interrupted: bool = False
    """Whether it was stopped on request."""
    evaluation: Evaluation | None = None
    """Scores of a simulated task."""

    def as_dict(self) -> dict[str, Any]:
        """Return the results for a JSON file."""
        scores = {} if self.evaluation is None else {"scores": self.evaluation.as_dict()}
        return {
            "stopped": self.stopped,
            "broken_off": self.broken_off,
            "loop": summarise_timings(self.timings),
            **scores,
        }


def camo_settings(metadata: Metadata, task: str, **dials: Any) -> CamoSettings:
    """Return the environment that the served policy was trained for, or raise a ValueError."""
    spaces = Spaces(
        proprioception=metadata.proprioception,
        action=metadata.action,
        views=metadata.views,
        objects=metadata.objects,
    )
    observation = observation_for(spaces, task, dials.get("difficulty", {}))
    settings = CamoSettings(task=task, **observation, **dials)
    if settings.kind != "policy":
        raise ValueError(
            f"{metadata.policy} is given the answer, which no robot has; use chameleon eval"
        )
    return settings


def open_robot(
    options: RobotOptions, metadata: Metadata, dials: Mapping[str, Any]
) -> CamoSim | LeRobotRobot:
    """Return the robot that the options name, if the served policy fits it."""
    name = options.robot
    if name == CAMO_SIM:
        if options.task is None:
            raise ValueError(
                "camo-sim plays a task: give --task clean-plate, shell-game, seasonings or pantry"
            )
        if options.instruction:
            raise ValueError(
                "camo-sim has an instruction of its own for every task; leave out --instruction"
            )
        return CamoSim(camo_settings(metadata, options.task, **dials), options.first_seed)
    if not name.startswith(LEROBOT):
        raise ValueError(f"--robot must be {CAMO_SIM} or {LEROBOT}FILE, got {name!r}")
    if options.task is not None:
        raise ValueError(f"{name} gets its task with --instruction; leave out --task")
    if metadata.language and not options.instruction:
        raise ValueError(f"{metadata.policy} reads instructions: give --instruction")
    robot = LeRobotRobot.from_file(Path(name.removeprefix(LEROBOT)), options.instruction)
    try:
        check_fit(robot, metadata)
    except ValueError:
        robot.close()
        raise
    return robot


def check_fit(robot: LeRobotRobot, metadata: Metadata) -> None:
    """Raise a ValueError if the served policy was made for another robot."""
    for quantity, names, wanted in (
        ("proprioception", robot.state_names, metadata.proprioception),
        ("action", robot.action_names, metadata.action),
    ):
        if len(names) != wanted:
            raise ValueError(
                f"{quantity}: the policy {metadata.policy} has {wanted} numbers, the robot "
                f"{robot.name} {len(names)} ({', '.join(names)}); serve a policy that was trained "
                "on this robot's recordings"
            )
    sizes = {name: tuple(shape[:2]) for name, shape in robot.cameras.items()}
    if sizes.keys() != metadata.views.keys() or not all(
        _scales_to(sizes[name], view) for name, view in metadata.views.items()
    ):
        raise ValueError(
            f"cameras: the policy {metadata.policy} sees {_describe_images(metadata.views)}, the "
            f"robot {robot.name} has {_describe_images(sizes)}; name the cameras in the robot's "
            "configuration like the policy's views, with pictures of these sizes, or larger ones "
            "of the same shape"
        )


def _scales_to(camera: tuple[int, ...], view: Sequence[int]) -> bool:
    """Return whether a camera's pictures, scaled down by one factor, have the size of a view."""
    longest = max(view)
    scaled = [round(side * longest / max(camera)) for side in camera]
    return longest <= max(camera) and scaled == list(view)


def loop_settings(
    metadata: Metadata, robot: str, options: LoopOptions, rate: float | None, executed: int | None
) -> LoopSettings:
    """Return the settings of the loop; rate and executed actions have defaults for this robot."""
    executed = metadata.executed if executed is None else executed
    if executed > metadata.horizon:
        raise ValueError(
            f"--executed must be at most {metadata.horizon}, the actions of a chunk, got {executed}"
        )
    if robot != CAMO_SIM and rate is None:
        raise ValueError(
            "--rate: give the ticks per second that the policy's demonstrations were recorded with"
        )
    if robot != CAMO_SIM and options.seconds is None:
        raise ValueError(
            "--seconds: a robot does not know when its task is done; give the longest time of an "
            "episode"
        )
    rate = CONTROL_HZ if rate is None else rate
    return LoopSettings(rate=rate, executed=executed, views=dict(metadata.views), **asdict(options))


def run_robot(
    client: Client,
    options: RobotOptions,
    settings: LoopSettings,
    *,
    dials: Mapping[str, Any],
    record: Path | None = None,
    announce: Callable[[str], object] = print,
) -> RobotRun:
    """Open the robot, play all episodes, and record them in the folder `record`.

    Ctrl-C and SIGTERM stop the robot before the next tick. Episodes of a recording whose process
    was killed are not played again.
    """
    if not options.reconnect >= 0:
        raise ValueError(f"--reconnect must be at least 0 seconds, got {options.reconnect:g}")
    with closing(open_robot(options, client.metadata, dials)) as robot, StopRequest() as stop:
        limits = robot.limits
        if options.limits is not None:
            limits = Limits.read(options.limits, robot.action_names, limits)
        recording = None if record is None else RobotRecording(record, robot, settings.rate)
        found = 0 if recording is None else recording.found
        if found:
            announce(
                f"{record} holds {found} episodes of a run that was broken off; going on with "
                f"{max(0, options.episodes - found)} of {options.episodes}"
            )
        try:
            with progress_bar(f"running {options.robot}", options.episodes) as advance:
                return run_episodes(
                    robot,
                    client,
                    settings,
                    limits,
                    episodes=options.episodes,
                    first_seed=options.first_seed,
                    recording=recording,
                    reconnect=options.reconnect,
                    interrupted=lambda: stop.signal is not None,
                    progress=advance,
                )
        except ServerError as error:
            raise ValueError(f"{client.url}: {error}") from error
        finally:
            if recording is not None and (recorded := recording.finish()):
                announce(
                    f"{counted(recorded, 'episode')} in {record}. "
                    f"Inspect them: chameleon data inspect {record}"
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
    reconnect: float = 0.0,
    interrupted: Callable[[], bool] = lambda: False,
    progress: Callable[[int], object] = lambda done: None,
) -> RobotRun:
    """Play episodes one after another, each with a memory of its own, until one is stopped.

    Episodes that `recording` found are not played again. After a lost connection the robot is
    stopped and connected again for at most `reconnect` seconds.
    """
    check_counts(episodes=episodes)
    run, rollouts = RobotRun(found=0 if recording is None else recording.found), []
    with closing(Link(client, reconnect, interrupted)) as link:
        for episode in range(run.found, episodes):
            robot.begin(episode)
            if episode == run.found:
                _warm_up(robot, client, settings)
                robot.begin(episode)  # it may have moved since
            session = link.open(seed=first_seed + episode, instruction=_instruction(robot, client))
            report = play(
                robot,
                session,
                settings,
                limits,
                keep_observations=recording is not None,
                interrupted=interrupted,
                resume=link.resume,
            )
            try:
                if report.stopped is None:
                    link.end_episode()
            finally:  # the connection may be lost here
                if recording is not None:
                    recording.add(report)
            run.timings.append(report.timings)
            if isinstance(robot, CamoSim) and robot.played is not None:
                rollouts.append(Rollout(robot.played, np.stack(report.actions)))
            if report.error is not None:
                raise report.error
            if report.lost and link.connected and episode + 1 < episodes:
                run.broken_off += 1
            elif report.stopped is not None:
                ticks = len(report.actions)
                run.interrupted = report.interrupted
                run.stopped = f"the robot was stopped after {ticks} ticks: {report.stopped}"
                break
            progress(episode + 1)
    if isinstance(robot, CamoSim) and rollouts:
        run.evaluation = Evaluation(robot.settings, rollouts)
    return run


def _warm_up(robot: Robot, client: Client, settings: LoopSettings) -> None:
    """Compute twice in an extra session, because the first computation takes longest."""
    with client.open(seed=0, instruction=_instruction(robot, client)) as session:
        for _ in range(2):
            session.observe(**robot.observe().arrays(settings.views))
            session.act(steps=settings.steps)


def _instruction(robot: Robot, client: Client) -> str | None:
    return robot.instruction if client.metadata.language else None


def _describe_images(views: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} ({size[0]} x {size[1]})" for name, size in views.items()) or "none"
