"""How a command's options are read: what is wrong is one sentence, as everywhere else."""

from __future__ import annotations

import functools
import io
import sys
import traceback
import types
import typing
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

PLACEHOLDERS = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}
"""Kinds of options that may also be left open, and how `--help` shows their values."""


def parse(command: Callable[..., Any], prog: str, arguments: list[str]) -> Callable[[], Any]:
    """Return a command with the options of a command line.

    A ValueError of a configuration is raised as it is; other mistakes end the process with tyro's
    own message and status 2.
    """

    @functools.wraps(command)
    def collect(**options: Any) -> dict[str, Any]:
        return options

    said = io.StringIO()
    try:
        with redirect_stderr(said), _registry():
            options = tyro.cli(collect, prog=prog, args=arguments)
    except SystemExit as stopped:
        refusal = _refusal(stopped)
        if refusal is not None:
            raise refusal from None
        sys.stderr.write(said.getvalue())
        raise
    return functools.partial(command, **options)


def _refusal(stopped: BaseException) -> ValueError | None:
    """Return the error of a configuration's own checks that made tyro stop, if that was it."""
    cause = stopped.__context__
    while cause is not None:
        frames = traceback.extract_tb(cause.__traceback__)
        if isinstance(cause, ValueError) and "__post_init__" in {each.name for each in frames}:
            return cause
        cause = cause.__context__
    return None


def _registry() -> ConstructorRegistry:
    """Return rules for options that may be left open: `INT`, where tyro says `{None}|INT`."""
    registry = ConstructorRegistry()

    @registry.primitive_rule
    def left_open(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        arguments = set(typing.get_args(info.type))
        union = info.type_origin in (types.UnionType, typing.Union)
        kinds = arguments - {types.NoneType}
        if not union or types.NoneType not in arguments or not kinds <= PLACEHOLDERS.keys():
            return None
        (kind,) = kinds
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar=PLACEHOLDERS[kind],
            instance_from_str=lambda texts: None if texts == ["None"] else kind(texts[0]),
            is_instance=lambda value: value is None or isinstance(value, kind),
            str_from_instance=lambda value: [str(value)],
        )

    return registry
