"""Commands that bring policies to robots: serve, run, export."""

from __future__ import annotations

import logging
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from chameleon_policy.cli.dials import UNTURNED, FlatDials
from chameleon_policy.cli.shared import Where, extra, typed
from chameleon_policy.console import progress_bar


def serve(
    run: tyro.conf.Positional[Path],
    port: int = 8765,
    host: str = "127.0.0.1",
    token_file: Path | None = None,
    sessions: int = 32,
    idle_seconds: float = 120.0,
    device: Where = "auto",
) -> None:
    """Serve a policy to robots over websockets: one memory each, computed together. Ctrl-C ends it.

    Health: GET /healthz on the same port. The client is the package chameleon-policy-client; docs/serving.md has what it
    says.

    Args:
        run: Folder of a run or of a saved policy, or camo-small, which comes with the package.
        port: Where to listen; 0: any port that is free.
        host: Address to listen on; any but this machine's own needs a token.
        token_file: File with the token that clients have to know (default: the variable CHAMELEON_TOKEN).
        sessions: Memories of all clients together.
        idle_seconds: A session without a request for so long is closed.
        device: Where the policy computes (default: a GPU if there is one).
    """
    with extra("serve"):
        from chameleon_policy.serve import Settings, find_token
        from chameleon_policy.serve import serve as serve_policy

    logging.basicConfig(format="chameleon: %(message)s", level=logging.WARNING)
    settings = Settings(
        host=host, port=port, token=find_token(token_file), max_sessions=sessions, idle_seconds=idle_seconds,
        max_sessions_per_connection=min(sessions, Settings.max_sessions_per_connection),
    )  # fmt: skip
    serve_policy(run, settings, device=device, announce=lambda line: print(line, flush=True))


def run(
    server: str,
    robot: str = "camo-sim",
    task: str | None = None,
    instruction: str = "",
    episodes: int = 1,
    rate: float | None = None,
    seconds: float | None = None,
    steps: int | None = None,
    executed: int | None = None,
    blend: int = 2,
    patience: float = 0.0,
    timeout: float = 1.0,
    limits: Path | None = None,
    record: Path | None = None,
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
    first_seed: int = 1_000_000_000,
    token_file: Path | None = None,
    dials: FlatDials = UNTURNED,
) -> None:
    """Control a robot at a fixed rate from a policy server: the memory gets every tick, chunks come beside it.

    The robot is stopped when the connection is lost, when the server falls behind, and on Ctrl-C.

    Args:
        server: Where `chameleon serve` listens, like ws://127.0.0.1:8765.
        robot: camo-sim, or lerobot:FILE with the configuration of any robot of LeRobot (docs/robot.md).
        task: For camo-sim: clean-plate, shell-game or seasonings.
        instruction: For a robot of LeRobot: the task in words.
        episodes: Episodes, one after another.
        rate: Ticks per second: what the policy's demonstrations were recorded with (default for camo-sim: 7.5, its own time;
            it may be run faster).
        seconds: Longest episode; a simulated one ends of itself.
        steps: Sampling steps of a chunk (default: the policy's own).
        executed: Ticks from one chunk to the next (default: as the policy says, half of a chunk).
        blend: Ticks over which a new chunk takes over from the last one.
        patience: Seconds for which a tick waits for a chunk that is due, before it goes on with the last one.
        timeout: Seconds by which the memory may fall behind before the robot is stopped.
        limits: JSON file with limits of the actions' numbers (docs/robot.md; camo-sim has some of its own).
        record: Folder for what was seen and done, as a LeRobot dataset.
        json_file: File for delays and, of a simulation, scores.
        first_seed: Seed of the first episode: of the policy's noise and, for camo-sim, of the scene.
        token_file: File with the server's token (default: the variable CHAMELEON_TOKEN).
        dials: Looks and difficulty of camo-sim.
    """
    with extra("camo,serve"):
        from chameleon_client import Client, ServerError
        from chameleon_policy.provenance import write_result
        from chameleon_policy.report.evaluation_table import evaluation_table
        from chameleon_policy.robot.limits import Limits
        from chameleon_policy.robot.loop import INTERRUPTED
        from chameleon_policy.robot.loop_table import loop_table
        from chameleon_policy.robot.recording import RobotRecording
        from chameleon_policy.robot.run import loop_settings, open_robot, run_episodes
        from chameleon_policy.serve.authentication import find_token
        from chameleon_policy.train.stopping import StopRequest

    with Client(server, token=find_token(token_file)) as client:
        metadata = client.metadata
        loop = loop_settings(
            metadata, robot, rate=rate, executed=executed, blend=blend, steps=steps, patience=patience, timeout=timeout,
            seconds=seconds,
        )  # fmt: skip
        body = open_robot(
            robot, metadata, task=task, instruction=instruction, first_seed=first_seed, nuisance=dials.nuisance,
            retention_steps=dials.retention, difficulty=dials.difficulty,
        )  # fmt: skip
        with closing(body), StopRequest() as stop:
            allowed = body.limits if limits is None else Limits.read(limits, body.action_names, body.limits)
            recording = None if record is None else RobotRecording(record, body, loop.rate)
            try:
                with progress_bar(f"running {robot}", episodes) as advance:
                    done = run_episodes(
                        body, client, loop, allowed, episodes=episodes, first_seed=first_seed, recording=recording,
                        interrupted=lambda: stop.signal is not None, progress=advance,
                    )  # fmt: skip
            except ServerError as error:
                raise ValueError(f"{server}: {error}") from error
            finally:
                if recording is not None and (recorded := recording.finish()):
                    print(f"{recorded} episodes in {record}. Look at them: chameleon data inspect {record}")
    if done.evaluation is not None:
        Console().print(evaluation_table(done.evaluation, metadata.policy))
    result = done.as_dict()
    Console().print(loop_table(result["loop"], f"{robot} at {loop.rate:g} Hz, {metadata.policy} on {server}"))
    if json_file is not None:
        given = {"robot": robot, "policy": metadata.policy, "steps": steps or metadata.sampling_steps}
        seeds = list(range(first_seed, first_seed + len(done.timings)))
        write_result(json_file, {**asdict(loop), **given, **result}, command=typed(), seeds=seeds)
        print(f"Delays and scores: {json_file}")
    if done.stopped is not None and done.stopped.endswith(INTERRUPTED):
        print(f"chameleon: {done.stopped}", file=sys.stderr)
        sys.exit(130)
    if done.stopped is not None:
        raise ConnectionError(done.stopped)


def export(
    run: tyro.conf.Positional[Path],
    out: Path,
    steps: int | None = None,
    batch_size: int | None = None,
    onnx: bool = True,
    device: Where = "cpu",
) -> None:
    """Write a policy as programs for observe and act that run without its code: torch.export, and ONNX where that works.

    Both are compared with the policy itself before they are written.

    Args:
        run: Folder of a run or of a saved policy, or camo-small, which comes with the package.
        out: Folder for the programs and their description, policy.json.
        steps: Sampling steps of a chunk, fixed in the program (default: the policy's own).
        batch_size: Robots, fixed in the program (default: any number).
        onnx: Write ONNX programs, too.
        device: Where the torch programs compute.
    """
    with extra("export"):
        from chameleon_policy.export.exporting import export_policy
        from chameleon_policy.export.table import export_table

    place = "cpu" if device == "auto" else device
    with Console(stderr=True).status(f"exporting {run} ..."):
        report = export_policy(run, out, steps=steps, batch_size=batch_size, onnx=onnx, device=place)
    Console().print(export_table(report))
    print(f"Written: {out}. How to run it: docs/export.md")
