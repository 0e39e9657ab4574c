"""List which kernels fit which cards, by compiling them for cards that are not here.

    python -m benchmarks.small_cards --out docs/results/small-cards.json

Triton compiles without a card. Fused policies take a training step and a control step and sample
chunks on a CPU; every launch of a kernel compiles it for the card in question instead of running
it. Memory and head see as many tokens as the paper's cameras make. Shared memory is Triton's
allotment to a block of threads; registers and spilled bytes of a thread are read by `cuobjdump`.
"""

from __future__ import annotations

import dataclasses
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import triton
import tyro
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from benchmarks import with_arguments
from benchmarks.inputs import random_observation
from chameleon_policy import ChameleonPolicy, EpisodeBatch, ObjectSlots, fuse, kernels, preset
from chameleon_policy.kernels import euler
from chameleon_policy.kernels.frozen import freeze
from chameleon_policy.policy.presets import budget_features
from chameleon_policy.provenance import write_result

COMMAND = "python -m benchmarks.small_cards"
SEED = 0
CARDS = {
    "sm_86": (86, 99, "RTX 3090, A40"),
    "sm_89": (89, 99, "RTX 4090, L4, L40"),
    "sm_120": (120, 99, "RTX 5090"),
    "sm_87": (87, 163, "Jetson Orin"),
    "sm_80": (80, 163, "A100"),
    "sm_90": (90, 227, "H100, H200"),
}
"""Compute capability, shared memory of a block of threads at most (KiB), and cards."""
TIME = 70
"""Time steps: more than one chunk of the scan, so that its states are kept, too."""
PICTURES = budget_features()
SLOTS = dataclasses.replace(
    PICTURES, views=(), objects=ObjectSlots(count=PICTURES.tokens - 2, size=4)
)
"""The same number of tokens without pictures, which would take a CPU minutes."""
ROBOTS = (1, 2, 4)
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def main(
    out: Path = Path("runs/small-cards.json"),
    cards: tuple[str, ...] = tuple(CARDS),
    presets: tuple[Literal["paper", "small", "nano"], ...] = ("paper", "small", "nano"),
) -> None:
    """Compile, print, and write the result.

    Args:
        out: JSON file to write.
        cards: Compute capabilities to compile for.
        presets: Sizes of the policy.
    """
    unknown = [card for card in cards if card not in CARDS]
    if unknown:
        raise SystemExit(f"there is no card {unknown[0]!r}; choose from {', '.join(CARDS)}")
    if triton.knobs.runtime.interpret:
        raise SystemExit("TRITON_INTERPRET is set, and nothing would be compiled: unset it")
    rows = []
    for card in cards:
        for name in presets:
            rows.append(
                row := {"card": card, "names": CARDS[card][2], "preset": name, **needs(card, name)}
            )
            print(
                f"{card}, {name}: {len(row['kernels'])} kernels; shared memory at most "
                f"{row['shared_kib']:.0f} KiB of {row['card_kib']} ({row['largest']}); "
                f"{row['registers']} registers; spilled at most {row['spilled_bytes']} bytes "
                f"({row['most_spilled']})",
                flush=True,
            )
            write_result(
                out,
                {"rows": rows},
                command=with_arguments(COMMAND),
                seeds=[SEED],
            )
    print(f"Written to {out}")


def needs(card: str, name: str) -> dict[str, Any]:
    """Compile the kernels that a preset uses for a card; return the largest needs of all."""
    capability, memory, _ = CARDS[card]
    with compiling_for(capability) as compiled:
        use(name, memory * 1024)
    found = [Need.of(function, kernel) for function, kernel in compiled]
    largest, spiller = (
        max(found, key=lambda need: need.shared),
        max(found, key=lambda need: need.spilled),
    )
    return {
        "kernels": sorted({need.kernel for need in found}),
        "card_kib": memory,
        "shared_kib": largest.shared / 1024,
        "largest": largest.kernel,
        "registers": max(need.registers for need in found),
        "spilled_bytes": spiller.spilled,
        "most_spilled": spiller.kernel,
    }


def use(name: str, shared_memory: int) -> None:
    """Train and control with a preset, and use its Euler sampler where there is one."""
    torch.manual_seed(SEED)
    for features, time in ((PICTURES, 1), (SLOTS, TIME)):
        policy = fuse(ChameleonPolicy(preset(name), features), shared_memory=shared_memory)
        batch = EpisodeBatch(
            observation=random_observation(
                features, (1, time), torch.Generator().manual_seed(SEED)
            ),
            actions=torch.randn(1, time, features.action),
            valid=torch.ones(1, time, dtype=torch.bool),
        )
        # oneDNN's bfloat16 convolutions over few channels crash on some processors; without it they
        # take longer.
        with (
            torch.autocast("cpu", torch.bfloat16),
            torch.backends.mkldnn.flags(enabled=name != "nano"),
        ):
            policy.loss(batch, check_values=False).total.backward()
        control = freeze(policy.bfloat16())
        observation = batch.observation.map(lambda tensor: tensor[:, 0])
        control.act(control.observe(observation, control.initial_state()), steps=1)
    flow = policy.action_flow
    for robots in ROBOTS if euler.fits(flow) else ():
        working, noise = (
            torch.zeros(robots, flow.width),
            torch.zeros(robots, flow.horizon, flow.action),
        )
        with torch.no_grad():
            euler.EulerSampler(flow, robots, 2, torch.bfloat16, shared_memory)(working, noise)


@dataclass(frozen=True)
class Need:
    """Resources that one compiled kernel needs."""

    kernel: str
    shared: int
    """Bytes, for a block of threads."""
    registers: int
    spilled: int
    """Bytes of a thread that do not fit its registers."""

    @classmethod
    def of(cls, name: str, kernel: Any) -> Need:
        """Return the needs of a compiled kernel."""
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(kernel.asm["cubin"])
            file.flush()
            text = subprocess.run(
                [CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True
            ).stdout
        usage = re.search(r"REG:(\d+) STACK:(\d+)", text)
        if usage is None:
            raise RuntimeError(f"cuobjdump says nothing of the registers of {name}: {text}")
        return cls(name, kernel.metadata.shared, int(usage[1]), int(usage[2]))


@dataclass(frozen=True)
class AbsentCard:
    """A driver for Triton that names a card without having one."""

    capability: int

    def get_current_target(self) -> GPUTarget:
        """Return the card to compile for."""
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        """Return a number for each card, by which compiled kernels are cached."""
        return self.capability

    def get_current_stream(self, device: int) -> int:
        """Return the default stream; nothing runs on it."""
        return 0


@contextmanager
def compiling_for(capability: int) -> Iterator[list[tuple[str, Any]]]:
    """Compile kernels for a card instead of running them; yield the list of them by name."""
    found: list[tuple[str, Any]] = []
    run, enabled = JITFunction.run, kernels.enabled

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *arguments, grid=grid, warmup=True, **options)
        if not any(kernel is known for _, known in found):
            found.append((self.fn.__name__, kernel))
        return kernel

    driver.set_active(AbsentCard(capability))
    JITFunction.run = compile_only
    kernels.enabled = lambda tensor: kernels.compute_dtype(tensor) in kernels.HALF
    try:
        yield found
    finally:
        # the driver stays: there may be no other on this machine
        JITFunction.run, kernels.enabled = run, enabled


if __name__ == "__main__":
    tyro.cli(main, prog=COMMAND)
