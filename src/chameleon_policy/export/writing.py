"""Write the files of an export: programs, manifest, and a directory that appears whole or not."""

from __future__ import annotations

import logging
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import torch

from chameleon_policy import __version__
from chameleon_policy.export.manifest import FILES, MANIFEST, Manifest, digest, read_manifest
from chameleon_policy.export.programs import Traced, trace_act, trace_observe
from chameleon_policy.policy import VisuomotorPolicy
from chameleon_policy.policy.config import to_json
from chameleon_policy.provenance import git_revision

EXPORT_FILES = {MANIFEST, *(name for files in FILES.values() for name in files.values())}
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
ONNX_LOGGERS = ("torch.onnx", "onnxscript", "onnx_ir")


def write_programs(
    policy: VisuomotorPolicy, folder: Path, *, steps: int, batch_size: int | None, onnx: bool
) -> Manifest:
    """Trace a policy, write its programs and their manifest to `folder`, and return the manifest.

    The programs are not compared with the policy here; see `check`.
    """
    traced = {
        "observe": trace_observe(policy, batch_size),
        "act": trace_act(policy, steps, batch_size),
    }
    no_onnx = _write_onnx_programs(traced, folder) if onnx else "it was exported without them"
    for name, file in FILES["torch"].items():
        # The example inputs would go into the file.
        traced[name].program.example_inputs = None
        torch.export.save(traced[name].program, folder / file)
    manifest = Manifest(
        method=policy.method,
        batch_size=batch_size,
        sampling_steps=steps,
        executed=policy.executed,
        device=str(policy.device),
        observe=traced["observe"].signature,
        act=traced["act"].signature,
        no_onnx=no_onnx,
        files={path.name: digest(path) for path in sorted(folder.iterdir())},
        details={
            "features": to_json(policy.features),
            "statistics_inside_the_programs": to_json(policy.statistics),
            "versions": _versions(onnx),
            "trained": policy.provenance,
            "git_revision": git_revision(),
        },
    )
    (folder / MANIFEST).write_text(manifest.text())
    return manifest


def check_onnx_packages() -> None:
    """Raise an ImportError that says what to install if a package for ONNX is missing."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"ONNX programs need {error.name}: pip install 'chameleon-policy[export]', "
            "or leave them out: --no-onnx"
        ) from error


def _write_onnx_programs(traced: dict[str, Traced], folder: Path) -> str | None:
    """Write both ONNX programs, or neither and return the reason."""
    for name, file in FILES["onnx"].items():
        if (reason := _write_onnx(traced[name], folder / file)) is not None:
            for written in FILES["onnx"].values():
                (folder / written).unlink(missing_ok=True)
            return f"{name}: {reason}"
    return None


def _write_onnx(traced: Traced, path: Path) -> str | None:
    """Write a program and its weights as one file; return None, or the reason why it failed."""
    inputs, outputs = (
        [spec.name for spec in side] for side in (traced.signature.inputs, traced.signature.outputs)
    )
    try:
        with _quiet():
            written = torch.onnx.export(
                traced.program,
                (),
                dynamo=True,
                verbose=False,
                input_names=inputs,
                output_names=outputs,
            )
    except torch.onnx.OnnxExporterError as error:
        return f"torch.onnx cannot convert it: {str(error).strip().splitlines()[-1]}"
    assert written is not None
    written.save(path, external_data=False)
    return None


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's warnings about optional packages; errors are exceptions anyway."""
    loggers = [logging.getLogger(name) for name in ONNX_LOGGERS]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def _versions(onnx: bool) -> dict[str, str]:
    return {
        "chameleon-policy": __version__,
        "torch": torch.__version__,
        **{name: version(name) for name in (ONNX_PACKAGES if onnx else ())},
    }


def check_replaceable(out: Path) -> None:
    """Raise a ValueError if `out` holds anything but an export."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ValueError(f"{out} is a file; name another folder: --out")
    found = {path.name for path in out.iterdir()}
    if not found:
        return
    try:
        read_manifest(out)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{out} is not empty and holds no exported policy that could be replaced ({error}); "
            "name another folder: --out"
        ) from error
    if foreign := sorted(found - EXPORT_FILES):
        raise ValueError(
            f"{out} holds an exported policy, but also {', '.join(foreign)}; "
            "move that away, or use another --out"
        )


@contextmanager
def whole_directory(out: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `out` at the end of the block.

    After an error the folder is deleted and `out` is as it was. Only an export is replaced.
    """
    check_replaceable(out)
    out = out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f".{out.name}.unfinished-{os.getpid()}")
    unfinished.mkdir()
    try:
        yield unfinished
        check_replaceable(out)  # again: the block may have taken minutes
        if out.exists():
            replaced = out.with_name(f".{out.name}.replaced-{os.getpid()}")
            out.rename(replaced)
            try:
                unfinished.rename(out)
            except OSError:
                replaced.rename(out)
                raise
            shutil.rmtree(replaced)
        else:
            unfinished.rename(out)
    finally:
        if unfinished.exists():
            shutil.rmtree(unfinished)
