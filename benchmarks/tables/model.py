"""Tables of sizes: the parameter budget, the presets, the memory state, the methods."""

from __future__ import annotations

from benchmarks.tables.layout import Result, Rows, markdown
from chameleon_policy.policy.budget import PAPER_MILLIONS

PRESETS = ("paper", "small", "nano")
BUDGET_ROWS = {
    "visual": "visual encoders",
    "memory": "memory layers",
    "memory_ssm": "- slow and fast SSMs",
    "memory_rest": "- the rest",
    "head": "action head",
    "projections": "projections, slot embeddings",
    "trainable": "trainable",
}
STATE_SHAPES = {
    "layers.0.slow.ssm": ("`layers[i].slow.ssm`", "B 74 8 64 128"),
    "layers.0.slow.convolution": ("`layers[i].slow.convolution`", "B 74 3 768"),
    "layers.0.fast.ssm": ("`layers[i].fast.ssm`", "B 16 64 32"),
    "layers.0.fast.convolution": ("`layers[i].fast.convolution`", "B 3 1088"),
    "working": ("`working`", "B 512"),
    "steps": ("`steps` (int64)", "B"),
}


def budget(sizes: Result) -> str:
    """Compare the parameter budget with the paper's."""
    rows = []
    for key, label in BUDGET_ROWS.items():
        cells = [label, f"{sizes['paper'][key]:,}", f"{PAPER_MILLIONS[key]:.1f}M"]
        rows.append([f"**{cell}**" for cell in cells] if key == "trainable" else cells)
    return markdown("part | ours | paper", rows)


def preset_sizes(sizes: Result) -> str:
    """List the parameters and the bytes of memory of every preset."""
    labels = {
        "trainable": "trainable parameters",
        "trainable_without_language": "the same without language",
        "control_jepa": "Control-JEPA branch",
        "control_jepa_trained": "of which trained",
        "state_bytes": "memory state, bytes",
    }
    rows = [
        [label, *(f"{sizes[name][key]:,}" for name in PRESETS)] for key, label in labels.items()
    ]
    return markdown(" | ".join(["size", *PRESETS]), rows)


def memory_state(sizes: Result) -> str:
    """List the tensors of a memory state with shapes and bytes, for the `paper` preset."""
    found = sizes["paper"]["state_tensor_bytes"]
    rows = [[name, shape, f"{found[key]:,}"] for key, (name, shape) in STATE_SHAPES.items()]
    return markdown("tensor | shape | bytes, B = 1, float32", rows)


def method_sizes(counts: Result) -> str:
    """List the parameters of every method, and the difference to Chameleon."""
    sizes = ("small", "paper", "nano")
    rows: Rows = []
    for method in counts["small"]:
        cells = [f"`{method}`"]
        for size in sizes:
            count, reference = counts[size][method], counts[size]["chameleon"]
            difference = f" ({100 * (count / reference - 1):+.1f} %)"
            cells.append(f"{count:,}" + ("" if method == "chameleon" else difference))
        rows.append(cells)
    return markdown(" | ".join(["method", *sizes]), rows)
