"""Record expert demonstrations of a Camo task."""

from __future__ import annotations

from pathlib import Path

import tyro

from chameleon_policy.camo.recording import Recording
from chameleon_policy.cli.options import DEFAULT_DIALS, FlatDials
from chameleon_policy.console import progress_bar
from chameleon_policy.recorder import record
from chameleon_policy.suite import Mode


def main(
    task: tyro.conf.Positional[str],
    out: Path,
    episodes: int = Recording.episodes,
    size: int = Recording.image_size,
    seed: int = Recording.seed,
    workers: int = 2,
    observation: Mode = Recording.observation,
    noise: float = Recording.noise,
    dials: FlatDials = DEFAULT_DIALS,
) -> None:
    """Record expert demonstrations of a Camo task as a LeRobot v3 dataset.

    The same command goes on with a recording that was interrupted.

    Args:
        task: clean-plate, shell-game or seasonings.
        out: Folder of the dataset; never overwritten.
        episodes: Demonstrations, balanced over the answers.
        size: Height and width of the pictures.
        seed: Number of the recording; different numbers share no episode.
        workers: Processes.
        observation: Pictures of both cameras, or object slots.
        noise: Strength of the disturbance that the expert corrects (1 is the benchmark's).
        dials: Looks and difficulty.
    """
    recording = Recording(
        task=task,
        episodes=episodes,
        seed=seed,
        observation=observation,
        image_size=size,
        noise=noise,
        **dials.settings,
    )
    with progress_bar(f"recording {task}", episodes) as advance:
        try:
            record(recording, out, workers=workers, progress=advance)
        except KeyboardInterrupt:
            raise ValueError(f"interrupted; the same command goes on with {out}") from None
        except FileExistsError:
            raise
        except OSError as error:
            raise ValueError(
                f"{error}; put that right, and the same command goes on with {out}"
            ) from error
    print(
        f"{episodes} demonstrations of {task} in {out}. Look at them: chameleon data inspect {out}"
    )
