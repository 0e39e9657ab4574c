"""Print the measurements as a table."""

from __future__ import annotations

from typing import Any

import torch
from rich.console import Console
from rich.table import Table


def print_table(result: dict[str, Any], device: torch.device) -> None:
    """Print one table of all measurements."""
    same = (
        ""
        if device.type == "cuda"
        else "; ours and plain are the same code here, so their ratio is noise"
    )
    table = Table(title=f"Speed on {device}{same}")
    for column in ("what", "ours", "others", "ratio"):
        table.add_column(column, justify="left" if column == "what" else "right")
    parts = {
        "training": add_training,
        "control": add_control,
        "ssm": add_state_space,
        "length": add_length,
        "recording": add_recording,
    }
    for name, add in parts.items():
        if name in result:
            add(table, result[name])
    Console(width=140).print(table)


def add_training(table: Table, part: dict[str, Any]) -> None:
    """Add time and memory of a training step."""
    ours, plain = part["ours"], part["plain"]
    table.add_row(
        f"training step, {part['preset']}, {part['episodes']} x {part['steps']} frames, two views",
        f"{ours['step_ms']:.0f} ms",
        f"{plain['step_ms']:.0f} ms plain",
        f"{part['speedup']:.2f} x",
    )
    if part["memory_ratio"] is not None:
        table.add_row(
            "peak memory of it",
            f"{ours['peak_memory_bytes'] / 2**30:.1f} GiB",
            f"{plain['peak_memory_bytes'] / 2**30:.1f} GiB plain",
            f"{part['memory_ratio']:.2f}",
        )


def add_control(table: Table, part: dict[str, Any]) -> None:
    """Add latency of control, next to eager code and peers."""
    for name in ("observe", "act_8", "act_50"):
        fast, eager = part["fast"][name], part["eager"][name]
        table.add_row(
            f"{name.replace('_', ' ')}, paper, two 224 x 224 views",
            f"{fast['p50_ms']:.2f} ms (p99 {fast['p99_ms']:.2f})",
            f"{eager['p50_ms']:.1f} ms eager",
            f"{eager['p50_ms'] / fast['p50_ms']:.1f} x",
        )
    whole = part["fast"]["observe"]["p50_ms"] + part["fast"]["act_8"]["p50_ms"]
    for name, peer in part["peers"].items():
        if "p50_ms" in peer:
            table.add_row(
                "a chunk of 16 actions from new pictures",
                f"{whole:.2f} ms",
                f"{peer['p50_ms']:.1f} ms {name}",
                f"{peer['p50_ms'] / whole:.1f} x",
            )
    for t, late in part["late"].items():
        table.add_row(f"observe at t = {int(t):,}", f"{late['p50_ms']:.2f} ms", "", "")


def add_state_space(table: Table, part: dict[str, Any]) -> None:
    """Add the state-space layer next to its peers."""
    for shape, row in part["shapes"].items():
        milliseconds = row["forward_backward_ms"]
        for name in [name for name in milliseconds if name != "ours"]:
            table.add_row(
                f"state-space layer, {shape}",
                f"{milliseconds['ours']:.1f} ms",
                f"{milliseconds[name]:.1f} ms {name}",
                f"{milliseconds[name] / milliseconds['ours']:.2f} x",
            )


def add_length(table: Table, part: dict[str, Any]) -> None:
    """Add the cost of a step by the length of its episode."""
    for steps, row in part["lengths"].items():
        table.add_row(
            f"memory layers, episodes of {steps} steps",
            f"{row['ours']['ms_per_step']:.3f} ms/step",
            f"{row['plain']['ms_per_step']:.3f} ms/step plain",
            f"{row['plain']['ms'] / row['ours']['ms']:.2f} x",
        )


def add_recording(table: Table, part: dict[str, Any]) -> None:
    """Add a training step as a CUDA graph and without."""
    for name, row in part.items():
        table.add_row(
            f"recorded step, {name}, {row['episodes']} x {row['steps']} frames",
            f"{row['recorded_ms']:.1f} ms",
            f"{row['not_recorded_ms']:.1f} ms not recorded",
            f"{row['not_recorded_ms'] / row['recorded_ms']:.2f} x",
        )
