"""`chameleon demo`: the paper-size policy at work on random observations."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from chameleon_policy.policy import ChameleonPolicy, Features, Observation, parameter_budget
from chameleon_policy.policy.presets import budget_features, preset
from chameleon_policy.report.budget_table import budget_table

CONTROL_HZ = 7.5
FEWER_SAMPLING_STEPS = 8

Result = TypeVar("Result")


def random_observation(
    features: Features, leading: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> Observation:
    """An observation of the right shape with nothing in it; `leading` is (batch,) or (batch, time)."""

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype)

    language, objects = features.language, features.objects
    return Observation(
        proprioception=normal(*leading, features.proprioception),
        images={
            view.name: torch.randint(256, (*leading, view.height, view.width, 3), generator=generator, dtype=torch.uint8)
            for view in features.views
        },
        objects=normal(*leading, objects.count, objects.size) if objects else None,
        instruction=normal(leading[0], language.width) if language else None,
    )


class Stopwatch:
    """Collects durations under names."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def time(self, name: str, function: Callable[[], Result]) -> Result:
        """Run `function` and keep how long it took."""
        start = time.perf_counter()
        result = function()
        self.seconds.setdefault(name, []).append(time.perf_counter() - start)
        return result


def stream_demo(control_steps: int, seed: int) -> None:
    """Build, stream, and print the budget table and the step timings."""
    if control_steps < 1:
        raise ValueError(f"--control-steps must be at least 1, got {control_steps}")
    console = Console()
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    features = budget_features()
    with console.status("Building the policy of the paper ..."):
        policy = ChameleonPolicy(preset("paper"), features, with_control_jepa=False).eval()
    console.print(budget_table(parameter_budget(policy), beside_paper=True))

    watch = Stopwatch()
    state = policy.initial_state()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        for step in progress.track(range(control_steps), description="Streaming observations"):
            observation = random_observation(features, (1,), generator)
            state = watch.time("observe", partial(policy.observe, observation, state))
            if step % features.executed == 0:
                watch.time("act", partial(policy.act, state, generator=generator))
                watch.time("act, fewer steps", partial(policy.act, state, steps=FEWER_SAMPLING_STEPS))
    console.print(_timing_table(watch, policy))
    console.print(f"Memory after {control_steps} steps: {state.nbytes / 2**20:.1f} MiB, the same as after the first.")


def _timing_table(watch: Stopwatch, policy: ChameleonPolicy) -> Table:
    """Median and slowest time of each operation, and what a control step costs on average."""
    executed = policy.features.executed
    steps = policy.config.sampling_steps
    rows = {
        "observe: one control step into memory": watch.seconds["observe"],
        f"act: one chunk, {steps} Euler steps": watch.seconds["act"],
        f"act: one chunk, {FEWER_SAMPLING_STEPS} Euler steps": watch.seconds["act, fewer steps"],
    }
    device = f"{torch.get_num_threads()} CPU threads"
    table = Table(title=f"Step timings, one robot, two {policy.features.views[0].height}-pixel views, {device}")
    for column in ("operation", "median", "slowest"):
        table.add_column(column, justify="left" if column == "operation" else "right")
    for label, seconds in rows.items():
        table.add_row(label, f"{1e3 * statistics.median(seconds):.1f} ms", f"{1e3 * max(seconds):.1f} ms")
    table.add_section()
    for name, sampling in (("act", steps), ("act, fewer steps", FEWER_SAMPLING_STEPS)):
        amortised = statistics.median(watch.seconds["observe"]) + statistics.median(watch.seconds[name]) / executed
        table.add_row(
            f"control step with a chunk every {executed} ({sampling} Euler steps)",
            f"{1e3 * amortised:.1f} ms",
            f"{1 / amortised:.1f} Hz",
        )
    table.add_row("the paper's control tick", f"{1e3 / CONTROL_HZ:.1f} ms", f"{CONTROL_HZ} Hz")
    return table
