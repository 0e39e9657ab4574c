"""Read and write `policy.json`: inputs and outputs of an export's programs in order, and its files.

Reading needs no torch. The file has everything that a program of your own needs to run the two
graphs.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from chameleon_policy.json_files import read_json_object

FORMAT = "chameleon-export"
FORMAT_VERSION = 1
MANIFEST = "policy.json"
BATCH = "batch"
"""Stands in a shape for the number of robots, where any number is possible."""
NEXT = "next."
"""Prefix of the names of `observe`'s outputs: the memory after the step."""
NOISE = "noise"
Runtime = Literal["torch", "onnx"]
FILES: dict[Runtime, dict[str, str]] = {
    "torch": {"observe": "observe.pt2", "act": "act.pt2"},
    "onnx": {"observe": "observe.onnx", "act": "act.onnx"},
}


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One input or output of a program."""

    name: str
    shape: tuple[int | str, ...]
    """The first dimension is the batch: a number, or "batch" for any."""
    dtype: str
    """NumPy's name of the type."""

    def __post_init__(self) -> None:
        sizes = all(size == BATCH or (type(size) is int and size >= 0) for size in self.shape)
        if not (isinstance(self.name, str) and isinstance(self.dtype, str) and sizes):
            raise ValueError(f"a tensor needs a name, a type and a shape, got {self}")

    def sizes(self, batch: int) -> tuple[int, ...]:
        """Return the shape for `batch` robots."""
        return tuple(batch if isinstance(size, str) else size for size in self.shape)


@dataclass(frozen=True, kw_only=True)
class Signature:
    """Inputs and outputs of a program, in order."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Content of `policy.json`."""

    method: str
    batch_size: int | None
    """Robots at a time; None: any number."""
    sampling_steps: int
    """Sampling steps of a chunk; they are part of `act` and cannot be changed."""
    executed: int
    """Actions of a chunk to carry out before the next one is due."""
    device: str
    """Where the torch programs compute. ONNX programs compute where their runtime does."""
    observe: Signature
    act: Signature
    no_onnx: str | None
    """Why there are no ONNX programs; None if there are."""
    files: dict[str, str]
    """SHA-256 of each program's file."""
    details: dict[str, Any] = field(default_factory=dict)
    """Information for people that no program needs.

    Features, statistics (already inside the programs), versions, revision, and the comparison with
    the policy.
    """

    @property
    def memory(self) -> tuple[TensorSpec, ...]:
        """Tensors of the memory, by their names as inputs. A memory begins with zeros."""
        return tuple(
            TensorSpec(name=spec.name.removeprefix(NEXT), shape=spec.shape, dtype=spec.dtype)
            for spec in self.observe.outputs
        )

    @property
    def observation(self) -> tuple[TensorSpec, ...]:
        """Tensors of an observation."""
        return self.observe.inputs[: len(self.observe.inputs) - len(self.memory)]

    def to_json(self) -> dict[str, Any]:
        """Return the document to write."""
        own = {
            name: value
            for name, value in asdict(self).items()
            if name not in ("observe", "act", "details")
        }
        programs = {"observe": asdict(self.observe), "act": asdict(self.act)}
        memory = {"names": [spec.name for spec in self.memory], "begins_with": "zeros"}
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            **own,
            "programs": programs,
            "memory": memory,
            **self.details,
        }

    def text(self) -> str:
        """Return the text of the file."""
        return json.dumps(self.to_json(), indent=2) + "\n"


def read_manifest(directory: Path | str) -> Manifest:
    """Read an export's manifest, or raise an error that says what is wrong with the directory."""
    path = Path(directory) / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(
            f"{directory} is no exported policy: {MANIFEST} is missing; "
            "write one: chameleon export RUN"
        )
    document = read_json_object(path)
    if document.get("format") != FORMAT:
        raise ValueError(
            f'{path} does not describe an exported policy (no "format": "{FORMAT}"); '
            "use chameleon export RUN"
        )
    if document.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"{path} has format version {document.get('format_version')!r:.40}, this package reads "
            f"{FORMAT_VERSION}; export the policy again, or install the version of "
            "chameleon-policy that wrote it"
        )
    try:
        return _parsed(document)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is not complete ({error!r:.200}); export the policy again"
        ) from error


def _parsed(document: dict[str, Any]) -> Manifest:
    rest = {
        name: value
        for name, value in document.items()
        if name not in ("format", "format_version", "memory")
    }
    programs = rest.pop("programs")
    own = {
        name: rest.pop(name)
        for name in (
            "method",
            "batch_size",
            "sampling_steps",
            "executed",
            "device",
            "no_onnx",
            "files",
        )
    }
    return Manifest(
        **own,
        observe=_signature(programs["observe"]),
        act=_signature(programs["act"]),
        details=rest,
    )


def _signature(document: dict[str, Any]) -> Signature:
    def specs(side: str) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(**{**spec, "shape": tuple(spec["shape"])}) for spec in document[side]
        )

    return Signature(inputs=specs("inputs"), outputs=specs("outputs"))


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_file(directory: Path, name: str, manifest: Manifest) -> Path:
    """Return the path of an export's file, after comparing its SHA-256 with the manifest."""
    path = directory / name
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing; copy the whole directory, or export the policy again"
        )
    if digest(path) != manifest.files.get(name):
        raise ValueError(
            f"{path} is not the file that {MANIFEST} next to it was written with "
            "(its SHA-256 differs); copy the whole directory again, or export the policy again"
        )
    return path
