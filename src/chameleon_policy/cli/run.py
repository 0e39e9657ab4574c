"""Control a robot at a fixed rate from a policy server."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from chameleon_client import Client, ServerError
from chameleon_policy import exit_codes
from chameleon_policy.cli.options import DEFAULT_DIALS, FlatDials, typed
from chameleon_policy.console import progress_bar
from chameleon_policy.evaluate.evaluation import FIRST_SEED
from chameleon_policy.provenance import write_result
from chameleon_policy.report.evaluation_table import evaluation_table
from chameleon_policy.robot.limits import Limits
from chameleon_policy.robot.loop import INTERRUPTED, LoopSettings
from chameleon_policy.robot.loop_table import loop_table
from chameleon_policy.robot.recording import RobotRecording
from chameleon_policy.robot.run import loop_settings, open_robot, run_episodes
from chameleon_policy.serve.authentication import find_token
from chameleon_policy.train.stopping import StopRequest


def main(
    server: str,
    robot: str = "camo-sim",
    task: str | None = None,
    instruction: str = "",
    episodes: int = 1,
    rate: float | None = None,
    seconds: float | None = None,
    steps: int | None = None,
    executed: int | None = None,
    blend: int = LoopSettings.blend,
    patience: float = LoopSettings.patience,
    timeout: float = LoopSettings.timeout,
    limits: Path | None = None,
    record: Path | None = None,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
    first_seed: int = FIRST_SEED,
    token_file: Path | None = None,
    dials: FlatDials = DEFAULT_DIALS,
) -> None:
    """Control a robot at a fixed rate from a policy server: the memory gets every tick, chunks come
    beside it.

    The robot is stopped when the connection is lost, when the server falls behind, and on Ctrl-C.

    Args:
        server: Where `chameleon serve` listens, like ws://127.0.0.1:8765. robot: camo-sim, or
        lerobot:FILE with the configuration of any robot of LeRobot (docs/robot.md). task: For
        camo-sim: clean-plate, shell-game or seasonings. instruction: For a robot of LeRobot: the
        task in words. episodes: Episodes, one after another. rate: Ticks per second: what the
        policy's demonstrations were recorded with (default for camo-sim: 7.5, its own time;
            it may be run faster).
        seconds: Longest episode; a simulated one ends of itself. steps: Sampling steps of a chunk
        (default: the policy's own). executed: Ticks from one chunk to the next (default: as the
        policy says, half of a chunk). blend: Ticks over which a new chunk takes over from the last
        one. patience: Seconds for which a tick waits for a chunk that is due, before it goes on
        with the last one. timeout: Seconds by which the memory may fall behind before the robot is
        stopped. limits: JSON file with limits of the actions' numbers (docs/robot.md; camo-sim has
        some of its own). record: Folder for what was seen and done, as a LeRobot dataset.
        json_file: File for delays and, of a simulation, scores. first_seed: Seed of the first
        episode: of the policy's noise and, for camo-sim, of the scene. token_file: File with the
        server's token (default: the variable CHAMELEON_TOKEN). dials: Looks and difficulty of
        camo-sim.
    """
    with Client(server, token=find_token(token_file)) as client:
        metadata = client.metadata
        loop = loop_settings(
            metadata,
            robot,
            rate=rate,
            executed=executed,
            blend=blend,
            steps=steps,
            patience=patience,
            timeout=timeout,
            seconds=seconds,
        )
        body = open_robot(
            robot,
            metadata,
            task=task,
            instruction=instruction,
            first_seed=first_seed,
            **dials.settings,
        )
        with closing(body), StopRequest() as stop:
            allowed = (
                body.limits
                if limits is None
                else Limits.read(limits, body.action_names, body.limits)
            )
            recording = None if record is None else RobotRecording(record, body, loop.rate)
            try:
                with progress_bar(f"running {robot}", episodes) as advance:
                    done = run_episodes(
                        body,
                        client,
                        loop,
                        allowed,
                        episodes=episodes,
                        first_seed=first_seed,
                        recording=recording,
                        interrupted=lambda: stop.signal is not None,
                        progress=advance,
                    )
            except ServerError as error:
                raise ValueError(f"{server}: {error}") from error
            finally:
                if recording is not None and (recorded := recording.finish()):
                    print(
                        f"{recorded} episodes in {record}. Look at them: chameleon data inspect {record}"
                    )
    if done.evaluation is not None:
        Console().print(evaluation_table(done.evaluation, metadata.policy))
    result = done.as_dict()
    Console().print(
        loop_table(result["loop"], f"{robot} at {loop.rate:g} Hz, {metadata.policy} on {server}")
    )
    if json_file is not None:
        given = {
            "robot": robot,
            "policy": metadata.policy,
            "steps": steps or metadata.sampling_steps,
        }
        seeds = list(range(first_seed, first_seed + len(done.timings)))
        write_result(json_file, {**asdict(loop), **given, **result}, command=typed(), seeds=seeds)
        print(f"Delays and scores: {json_file}")
    if done.stopped is not None and done.stopped.endswith(INTERRUPTED):
        print(f"chameleon: {done.stopped}", file=sys.stderr)
        sys.exit(exit_codes.INTERRUPTED)
    if done.stopped is not None:
        raise ConnectionError(done.stopped)
