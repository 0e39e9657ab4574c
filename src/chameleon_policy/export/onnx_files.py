"""Traced programs as ONNX files."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from chameleon_policy.export.programs import Traced

LOGGERS = ("torch.onnx", "onnxscript", "onnx_ir")


def check_packages() -> None:
    """ImportError that says what to install if a package is missing that writing or trying an ONNX
    file needs.
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"ONNX programs need {error.name}: pip install 'chameleon-policy[export]', or leave them out: --no-onnx"
        ) from error


def write_onnx(traced: Traced, path: Path) -> str | None:
    """Write one program as one file, weights and all; returns None, or why it cannot be done."""
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
    """Without the exporter's remarks on packages that nobody asked for; what goes wrong is an
    exception.
    """
    loggers = [logging.getLogger(name) for name in LOGGERS]
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
