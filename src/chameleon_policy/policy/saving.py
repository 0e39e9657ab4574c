"""A saved policy: `config.json`, `normalizer.json` (statistics), `model.safetensors` (weights).

Loading is strict: a missing, truncated or foreign file, or a key that is unknown, missing or of
another shape, is an error that names the file and the key. No pickle is read or written.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from chameleon_policy.json_files import read_json, read_json_object
from chameleon_policy.policy.config import PolicyConfig, from_json, to_json
from chameleon_policy.policy.features import Features
from chameleon_policy.policy.normalizer import Statistics
from chameleon_policy.policy.places import CONFIG, NORMALIZER, WEIGHTS, find_policy
from chameleon_policy.policy.size_limit import SizeLimit, TooLargeError
from chameleon_policy.writing import whole_file

if TYPE_CHECKING:
    from chameleon_policy.policy.visuomotor import VisuomotorPolicy

PolicyT = TypeVar("PolicyT", bound="VisuomotorPolicy")
LOG = logging.getLogger("chameleon_policy")

FORMAT = "chameleon-policy"
FORMAT_VERSION = 1
FLOATS = ("F64", "F32", "F16", "BF16")
"""Names of the types that weights may have in a file."""
SPARE = 2**22
"""Numbers that building a policy may need beside its weights and their random draws."""
LARGEST_MEMORY = 2**28
"""Most numbers in the memory of one robot; the paper's policy has 10 million."""


def exported_weights(policy: VisuomotorPolicy) -> dict[str, Tensor]:
    """Return the weights that control needs: all but those of a training branch."""
    return {
        name: tensor
        for name, tensor in policy.state_dict().items()
        if not name.startswith(policy.training_only)
    }


def save(policy: VisuomotorPolicy, directory: Path) -> None:
    """Write the three files; no file is ever incomplete."""
    directory.mkdir(parents=True, exist_ok=True)
    description = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "method": policy.method,
        "config": to_json(policy.config),
        "features": to_json(policy.features),
        "provenance": policy.provenance,
    }
    weights = {
        name: tensor.detach().cpu().contiguous()
        for name, tensor in exported_weights(policy).items()
    }
    texts = {CONFIG: _json(description), NORMALIZER: _json(to_json(policy.statistics))}
    # The weights carry hashes of the texts, so that an interrupted save is detected.
    metadata = {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()}
    _write(directory / WEIGHTS, serialized(weights, metadata))
    for name, text in texts.items():
        _write(directory / name, text)


def load(cls: type[PolicyT], path_or_hub_id: str | Path, device: torch.device) -> PolicyT:
    """Load the policy that `save` wrote."""
    directory, description = describe(path_or_hub_id)
    if description["method"] != cls.method:
        raise ValueError(
            f"{directory} holds a {description['method']} policy, and {cls.__name__} is "
            f"{cls.method}; chameleon_policy.baselines.load_policy loads every kind"
        )
    config = from_json(PolicyConfig, description["config"], f"{directory / CONFIG}: config")
    features = from_json(Features, description["features"], f"{directory / CONFIG}: features")
    statistics = from_json(
        Statistics, read_json(directory / NORMALIZER), str(directory / NORMALIZER)
    )
    shapes = _read_shapes(directory / WEIGHTS)
    held = sum(map(math.prod, shapes.values()))
    try:
        if config.width**2 > held:  # every method has such a matrix
            raise TooLargeError
        # Random weights are drawn and then replaced; the global generator stays as it was.
        with torch.random.fork_rng(devices=[]), SizeLimit(SPARE + 2 * held):
            policy = cls.for_control(config, features, statistics)
    except TooLargeError as error:
        raise ValueError(
            f"{directory / CONFIG} asks for a much larger policy than {WEIGHTS} next to it holds "
            f"({held:,} numbers): they do not belong together; copy all three files again"
        ) from error
    _check_shapes(policy, shapes, directory / WEIGHTS)
    check_memory(policy, directory / CONFIG)
    if cls.has_working_state and "half_life_limit" not in description["config"]["fast"]:
        _warn_of_missing_limit(directory)
    _load_weights(policy, directory / WEIGHTS)
    policy.provenance = description["provenance"]
    return policy.to(device).eval()


@cache
def _warn_of_missing_limit(directory: Path) -> None:
    """Warn, once, that an older policy has no limit of the fast layer's half-life."""
    LOG.warning(
        "%s was saved before the fast layer had a half_life_limit and keeps its layer without "
        "one: its working state may outlast the traces (docs/deviations.md)",
        directory,
    )


def describe(path_or_hub_id: str | Path) -> tuple[Path, dict[str, Any]]:
    """Return the directory of a saved policy and its `config.json`, with checks of the format."""
    directory = find_policy(path_or_hub_id)
    description = read_json_object(directory / CONFIG)
    if description.get("format") != FORMAT:
        raise ValueError(
            f'{directory / CONFIG} does not describe a Chameleon policy (no "format": "{FORMAT}"); '
            "save one with policy.save_pretrained(directory)"
        )
    if description.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"{directory / CONFIG} has format version {description.get('format_version')!r:.40}, "
            f"this package reads {FORMAT_VERSION}; install the version of chameleon-policy that "
            "wrote it"
        )
    description.setdefault("provenance", {})  # older policies do not have it
    known = {"format", "format_version", "method", "config", "features", "provenance"}
    if set(description) != known:
        raise ValueError(
            f"{directory / CONFIG}: expected the keys {sorted(known)}, got "
            f"{sorted(description)!s:.200}"
        )
    return directory, description


def check_memory(policy: VisuomotorPolicy, path: Path, limit: int = LARGEST_MEMORY) -> None:
    """Raise a ValueError if the memory of one robot would have more numbers than a limit."""
    try:
        with SizeLimit(limit):
            policy.initial_state(1)
    except TooLargeError as error:
        raise ValueError(
            f"{path}: the memory of one robot would have more than {limit:,} numbers; fewer object "
            "slots, smaller pictures or smaller state-space layers need less"
        ) from error


def _read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights in a file, whose header alone is read."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            types = {held.get_dtype() for held in slices.values()}
            shapes = {name: tuple(held.get_shape()) for name, held in slices.items()}
    except safetensors.SafetensorError as error:
        raise ValueError(
            f"{path} cannot be read ({error}); it may have been cut short while copying: copy or "
            "download it again"
        ) from error
    if len(types) != 1 or not types <= set(FLOATS):
        raise ValueError(
            f"{path}: expected weights of one floating-point type ({', '.join(FLOATS)}), got "
            f"{sorted(types)}"
        )
    return shapes


def _check_shapes(
    policy: VisuomotorPolicy, shapes: Mapping[str, tuple[int, ...]], path: Path
) -> None:
    """Raise a ValueError unless weights of these shapes are those of the policy."""
    expected = policy.state_dict()
    missing = sorted(expected.keys() - shapes.keys())
    unknown = sorted(shapes.keys() - expected.keys())
    if missing or unknown:
        raise ValueError(
            f"{path} does not belong to the {CONFIG} next to it: {_some('missing', missing)}; "
            f"{_some('unknown', unknown)}"
        )
    for name, tensor in expected.items():
        if shapes[name] != tensor.shape:
            raise ValueError(
                f"{path}: {name} has the shape {shapes[name]}, {CONFIG} says {tuple(tensor.shape)}"
            )


def _load_weights(policy: VisuomotorPolicy, path: Path) -> None:
    with safetensors.safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        loaded = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for name, tensor in loaded.items():
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(
                f"{path}: {name} holds numbers that are not finite; the training that made it has "
                "diverged"
            )
    for name in (CONFIG, NORMALIZER):
        if metadata.get(name) != hashlib.sha256((path.parent / name).read_bytes()).hexdigest():
            raise ValueError(
                f"{path} and {name} next to it do not come from one save_pretrained; copy all "
                "three files again, or save the policy again if you edited one of them"
            )
    (dtype,) = {tensor.dtype for tensor in loaded.values()}
    policy.to(dtype)
    policy.load_state_dict(loaded, strict=True)


def serialized(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return a safetensors file; equal content gives equal bytes.

    The library writes the metadata in an order of its own each time: here it is sorted.
    """
    content = safetensors.torch.save(dict(tensors), dict(metadata))
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    ordered = {"__metadata__": dict(sorted(metadata.items()))} | {
        name: value for name, value in header.items() if name != "__metadata__"
    }
    text = json.dumps(ordered, separators=(",", ":"), ensure_ascii=False).encode().ljust(size)
    assert len(text) == size, "the same header in another order"
    return content[:8] + text + content[8 + size :]


def _some(word: str, names: list[str]) -> str:
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"{len(names)} {word} keys" + (f" ({shown})" if names else "")


def _json(data: Any) -> bytes:
    return (json.dumps(data, indent=2) + "\n").encode()


def _write(path: Path, content: bytes) -> None:
    with whole_file(path) as unfinished:
        unfinished.write_bytes(content)
