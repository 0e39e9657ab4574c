"""Write a policy as programs that run without its code: torch.export and ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from chameleon_policy.cli.options import POLICY, UNSET
from chameleon_policy.console import Terminal
from chameleon_policy.device import Device
from chameleon_policy.export.exporting import export_policy, export_table


def main(
    run: Annotated[tyro.conf.Positional[Path], POLICY],
    out: Path,
    steps: Annotated[int | None, UNSET] = None,
    batch_size: Annotated[int | None, UNSET] = None,
    onnx: bool = True,
    device: Device = "cpu",
) -> None:
    """Write a policy as programs for observe and act: torch.export, and ONNX where that works.

    The programs are kept only if they compute the same as the policy itself.

    Args:
        run: Folder of a run or of a saved policy, camo-small, which comes with the
            package, or hf:owner/name on the Hugging Face hub.
        out: Folder for the programs and their description, policy.json.
        steps: Sampling steps of a chunk, fixed in the program (default: the policy's own).
        batch_size: Robots, fixed in the program (default: any number).
        onnx: Write ONNX programs, too.
        device: Where the torch programs compute.
    """
    with Terminal(stderr=True).status(f"exporting {run} ..."):
        report = export_policy(
            run,
            out,
            steps=steps,
            batch_size=batch_size,
            onnx=onnx,
            device="cpu" if device == "auto" else device,
        )
    Terminal().print(export_table(report))
    print(f"Written: {out}. How to run it: docs/export.md")
