"""Record expert demonstrations of a task."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import tyro

from chameleon_policy.cli.options import DEFAULT_DIALS, TASK, UNSET, FlatDials
from chameleon_policy.console import progress_bar
from chameleon_policy.exit_codes import INTERRUPTED
from chameleon_policy.recorder import record
from chameleon_policy.suite import Mode, find_task


def main(
    task: Annotated[tyro.conf.Positional[str], TASK],
    out: Path,
    episodes: int = 120,
    size: Annotated[int | None, UNSET] = None,
    seed: int = 0,
    workers: int = 2,
    observation: Mode = "rgb",
    noise: Annotated[float | None, UNSET] = None,
    object_slots: Annotated[int | None, UNSET] = None,
    dials: FlatDials = DEFAULT_DIALS,
) -> None:
    """Record expert demonstrations of a task as a LeRobot v3 dataset.

    The same command continues a recording that was interrupted.

    Args:
        task: clean-plate, shell-game, seasonings or pantry.
        out: Folder of the dataset; never overwritten.
        episodes: Demonstrations, balanced over the answers.
        size: Height and width of the images (default: 128).
        seed: Number of the recording; different numbers share no episode.
        workers: Processes that record.
        observation: Images of both cameras, or object slots.
        noise: Strength of the disturbance that the expert corrects (default: 1, the benchmark's).
        object_slots: Rows of object slots, for a policy that will see more objects than these
            (default: as many as the task has).
        dials: Appearance and difficulty.
    """
    suite, name = find_task(task)
    given = {"image_size": size, "noise": noise, "object_slots": object_slots}
    recording = suite.recording(
        name,
        episodes=episodes,
        seed=seed,
        observation=observation,
        **{option: value for option, value in given.items() if value is not None},
        **dials.settings,
    )
    with progress_bar(f"recording {task}", episodes) as advance:
        try:
            record(recording, out, workers=workers, progress=advance)
        except KeyboardInterrupt:
            print(f"chameleon: interrupted; the same command goes on with {out}", file=sys.stderr)
            sys.exit(INTERRUPTED)
        except FileExistsError:
            raise
        except OSError as error:
            raise ValueError(
                f"{error}; correct that, and the same command goes on with {out}"
            ) from error
    print(
        f"{episodes} demonstrations of {task} in {out}. Look at them: chameleon data inspect {out}"
    )
