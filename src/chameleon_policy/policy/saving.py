"""A saved policy: `config.json`, `normalizer.json` (statistics), `model.safetensors` (weights).

Loading is strict: a missing, truncated or foreign file, or a key that is unknown, missing or of
another shape, is an error that names the file and the key. No pickle is read or written.
"""

from __future__ import annotations

import hashlib
import json
import logging
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from chameleon_policy.policy.config import PolicyConfig, from_json, to_json
from chameleon_policy.policy.features import Features
from chameleon_policy.policy.normalizer import Statistics
from chameleon_policy.writing import whole_file

if TYPE_CHECKING:
    from chameleon_policy.policy.visuomotor import VisuomotorPolicy

PolicyT = TypeVar("PolicyT", bound="VisuomotorPolicy")
LOG = logging.getLogger("chameleon_policy")

FORMAT = "chameleon-policy"
FORMAT_VERSION = 1
CONFIG, NORMALIZER, WEIGHTS = "config.json", "normalizer.json", "model.safetensors"
SHIPPED = Path(__file__).parents[1] / "pretrained"
"""Policies that come with the package, each in a folder of its name."""


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
    _write(directory / WEIGHTS, safetensors.torch.save(weights, metadata=metadata))
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
    # Random weights are drawn and then replaced; the global generator stays as it was.
    with torch.random.fork_rng(devices=[]):
        policy = cls.for_control(
            from_json(PolicyConfig, description["config"], f"{directory / CONFIG}: config"),
            from_json(Features, description["features"], f"{directory / CONFIG}: features"),
            from_json(Statistics, _read_json(directory / NORMALIZER), str(directory / NORMALIZER)),
        )
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
    directory = _find(path_or_hub_id)
    description = _read_json(directory / CONFIG)
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise ValueError(
            f'{directory / CONFIG} does not describe a Chameleon policy (no "format": "{FORMAT}"); '
            "save one with policy.save_pretrained(directory)"
        )
    if description.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"{directory / CONFIG} has format version {description.get('format_version')}, this "
            f"package reads {FORMAT_VERSION}; install the version of chameleon-policy that wrote it"
        )
    description.setdefault("provenance", {})  # older policies do not have it
    known = {"format", "format_version", "method", "config", "features", "provenance"}
    if set(description) != known:
        raise ValueError(
            f"{directory / CONFIG}: expected the keys {sorted(known)}, got {sorted(description)}"
        )
    return directory, description


def _load_weights(policy: VisuomotorPolicy, path: Path) -> None:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            loaded = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        raise ValueError(
            f"{path} cannot be read ({error}); it may have been cut short while copying: copy or "
            "download it again"
        ) from error
    expected = policy.state_dict()
    missing = sorted(expected.keys() - loaded.keys())
    unknown = sorted(loaded.keys() - expected.keys())
    if missing or unknown:
        raise ValueError(
            f"{path} does not belong to the {CONFIG} next to it: {_some('missing', missing)}; "
            f"{_some('unknown', unknown)}"
        )
    for name, tensor in expected.items():
        if loaded[name].shape != tensor.shape:
            raise ValueError(
                f"{path}: {name} has the shape {tuple(loaded[name].shape)}, {CONFIG} says "
                f"{tuple(tensor.shape)}"
            )
        if not bool(torch.isfinite(loaded[name]).all()):
            raise ValueError(
                f"{path}: {name} holds numbers that are not finite; the training that made it has "
                "diverged"
            )
    dtypes = {tensor.dtype for tensor in loaded.values()}
    if len(dtypes) != 1 or not next(iter(dtypes)).is_floating_point:
        raise ValueError(
            f"{path}: expected weights of one floating-point type, got {sorted(map(str, dtypes))}"
        )
    for name in (CONFIG, NORMALIZER):
        if metadata.get(name) != hashlib.sha256((path.parent / name).read_bytes()).hexdigest():
            raise ValueError(
                f"{path} and {name} next to it do not come from one save_pretrained; copy all "
                "three files again, or save the policy again if you edited one of them"
            )
    policy.to(dtypes.pop())
    policy.load_state_dict(loaded, strict=True)


def _some(word: str, names: list[str]) -> str:
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    return f"{len(names)} {word} keys" + (f" ({shown})" if names else "")


def _find(path_or_hub_id: str | Path) -> Path:
    """Return the directory of a local policy, a shipped one, or a snapshot from the hub."""
    path, text = Path(path_or_hub_id), str(path_or_hub_id)
    if text and path.is_dir():
        return _complete(path)
    shipped = sorted(config.parent.name for config in SHIPPED.glob(f"*/{CONFIG}"))
    if text in shipped:
        return _complete(SHIPPED / text)
    if isinstance(path_or_hub_id, Path) or text.count("/") != 1 or text.startswith((".", "/", "~")):
        raise FileNotFoundError(
            f"there is no directory {text}; save a policy there with "
            f"policy.save_pretrained({text!r}), or take one that comes with the package: "
            f"{', '.join(shipped)}"
        )
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ImportError(
            f"{text} is no local directory, and loading from the hub needs: pip install "
            "'chameleon-policy[hub]'"
        ) from error
    try:
        snapshot = Path(snapshot_download(text, allow_patterns=[CONFIG, NORMALIZER, WEIGHTS]))
    except Exception as error:  # the hub client raises many kinds
        raise FileNotFoundError(
            f"{text} is neither a local directory nor reachable on the hub: {error}"
        ) from error
    return _complete(snapshot)


def _complete(directory: Path) -> Path:
    for name in (CONFIG, NORMALIZER, WEIGHTS):
        if not (directory / name).is_file():
            found = ", ".join(sorted(p.name for p in directory.iterdir())) or "nothing"
            raise FileNotFoundError(
                f"{directory} is no saved policy: {name} is missing (it holds {found})"
            )
    return directory


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} is not valid JSON ({error}); it may have been cut short"
        ) from error


def _json(data: Any) -> bytes:
    return (json.dumps(data, indent=2) + "\n").encode()


def _write(path: Path, content: bytes) -> None:
    with whole_file(path) as unfinished:
        unfinished.write_bytes(content)
