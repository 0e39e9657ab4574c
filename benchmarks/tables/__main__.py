"""Write every table into its pages: `python -m benchmarks.tables`."""

from __future__ import annotations

import tyro

from benchmarks.tables import memory, model, scores, speed
from benchmarks.tables.layout import Table, write

# Result files
BENCH = ("camo-table.json",)
BUSY = ("robot-loop-busy.json", "robot-loop-busy-again.json")
CAMO_SMALL = ("camo-chameleon.json",)
EMPTIED = ("which-memory-small.json", "which-memory-nano.json")
FAIRNESS = ("fairness-cpu-before.json", "fairness-cpu.json")
PROBES = ("probes.json", "probes-nano.json")
QUESTIONS = (
    "delayed-question.json",
    "delayed-question-h200.json",
    "delayed-question-muon.json",
)
SERVING = ("serving-cpu.json", "serving-h200.json")
SIZES = ("parameters.json",)
SPEED = ("performance-h200.json",)
SPEEDS = ("performance-cpu.json", "performance-h200.json")
TRAINING = ("training-cpu.json", "training-h200.json")

# Pages
ARCHITECTURE = ("docs/architecture.md",)
BASELINES = ("docs/baselines.md",)
PERFORMANCE = ("docs/performance.md",)
PROBES_PAGE = ("docs/probes.md",)
SCORES = ("docs/scores.md",)
SHIPPED_CARD = "src/chameleon_policy/pretrained/camo-small/README.md"

TABLES = {
    "camo-small": Table(scores.camo_small, CAMO_SMALL, ("README.md",)),
    "methods": Table(scores.methods, BENCH, ("README.md",)),
    "camo-chameleon": Table(scores.camo_chameleon, CAMO_SMALL, (*SCORES, SHIPPED_CARD)),
    "swaps": Table(scores.swaps, CAMO_SMALL, SCORES),
    "delays": Table(scores.delays, ("delay-shell-game.json", "delay-shell-game-long.json"), SCORES),
    "demo": Table(scores.demo, ("demo.json",), SCORES),
    "images": Table(scores.images, ("clean-plate-images.json",), SCORES),
    "experts": Table(scores.experts, ("camo-experts.json",), ("docs/camo.md",)),
    "camo": Table(speed.camo, ("camo-speed.json",), ("docs/camo.md",)),
    "comparison": Table(scores.comparison, BENCH, BASELINES),
    "choices": Table(scores.choices, BENCH, BASELINES),
    "method-sizes": Table(model.method_sizes, ("method-parameters.json",), BASELINES),
    "which-memory": Table(memory.which_memory, EMPTIED, BASELINES),
    "brief": Table(memory.brief, ("brief-working-state.json", *BENCH), BASELINES),
    "delayed-question": Table(memory.delayed_question, QUESTIONS, BASELINES),
    "emptied": Table(memory.emptied, QUESTIONS, BASELINES),
    "half-lives": Table(memory.half_lives, ("half-lives.json",), ("docs/deviations.md",)),
    "initialisation": Table(
        memory.initialisation, ("initialisation.json",), ("docs/log/2026-11-15-first-weights.md",)
    ),
    "separability": Table(memory.separability, PROBES, PROBES_PAGE),
    "addressability": Table(memory.addressability, PROBES, PROBES_PAGE),
    "prospectiveness": Table(memory.prospectiveness, PROBES, PROBES_PAGE),
    "budget": Table(model.budget, SIZES, ARCHITECTURE),
    "preset-sizes": Table(model.preset_sizes, SIZES, ARCHITECTURE),
    "memory-state": Table(model.memory_state, SIZES, ARCHITECTURE),
    "performance": Table(speed.performance, SPEED, PERFORMANCE),
    "rewrite": Table(speed.rewrite, ("performance-h200-before.json", *SPEED), PERFORMANCE),
    "control": Table(speed.control, SPEEDS, PERFORMANCE),
    "length": Table(speed.length, SPEED, PERFORMANCE),
    "ssm": Table(speed.state_space, SPEEDS, PERFORMANCE),
    "curves": Table(speed.curves, SPEED, PERFORMANCE),
    "euler": Table(speed.euler, ("euler-steps.json",), PERFORMANCE),
    "cpu-control": Table(speed.cpu_control, ("performance-cpu.json",), PERFORMANCE),
    "training": Table(speed.training, TRAINING, PERFORMANCE),
    "floor": Table(speed.floor, ("floor.json",), PERFORMANCE),
    "kinds": Table(speed.kinds, SPEED, PERFORMANCE),
    "recording": Table(speed.recording, SPEED, PERFORMANCE),
    "small-cards": Table(speed.small_cards, ("small-cards.json",), PERFORMANCE),
    "lerobot": Table(scores.lerobot, ("lerobot.json",), ("docs/lerobot.md",)),
    "robot-loop": Table(scores.robot_loop, ("robot-loop.json",), ("docs/robot.md",)),
    "busy-loop": Table(scores.busy_loop, BUSY, ("docs/robot.md",)),
    "serving": Table(speed.serving, SERVING, ("docs/serving.md",)),
    "fairness": Table(speed.fairness, FAIRNESS, ("docs/security.md",)),
    "lerobot-server": Table(speed.lerobot_server, ("serving-cpu.json",), ("docs/serving.md",)),
    "lerobot-arrivals": Table(speed.lerobot_arrivals, ("serving-cpu.json",), ("docs/serving.md",)),
    "export-errors": Table(speed.export_errors, ("exporting.json",), ("docs/export.md",)),
    "export-speed": Table(speed.export_speed, ("exporting.json",), ("docs/export.md",)),
    "trials": Table(
        scores.trials, ("camo-trials.json",), ("docs/log/2026-11-16-hands-and-memory.md",)
    ),
    "trials-pictures": Table(
        scores.trials,
        ("camo-trials-pictures.json",),
        ("docs/log/2026-11-16-one-policy-three-tasks.md",),
    ),
    "trials-mirror": Table(
        scores.trials, ("camo-trials-mirror.json",), ("docs/log/2026-11-16-120-demonstrations.md",)
    ),
}
"""By the name in the marker."""


def main() -> None:
    """Write every table into its pages."""
    for name, table in TABLES.items():
        write(name, table)
        print(f"{name}: {', '.join(table.pages)}")


if __name__ == "__main__":
    tyro.cli(main, prog="python -m benchmarks.tables")
