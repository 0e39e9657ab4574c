"""Self-contained pages from the templates in this folder, which share one base and one style."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from chameleon_policy.rates import interval
from chameleon_policy.report.palette import css_variables


@dataclass(frozen=True)
class Clip:
    """A video and its caption."""

    path: Path
    caption: str


def render(template: str, **values: Any) -> str:
    """Fill in a template; text is escaped, `Markup` is not."""
    return _environment().get_template(template).render(values)


def source(path: str) -> Markup:
    """Return a style sheet or a script of this package, for a page to carry."""
    text = files(__package__).joinpath(path).read_text(encoding="utf-8")
    return Markup(text)  # noqa: S704  # our own file


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"css_variables": css_variables, "source": source}
    environment.filters |= {
        "capital": _capital,
        "code": _code,
        "css_percent": _css_percent,
        "interval": interval,
        "video": _video,
    }
    return environment


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _css_percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _code(text: str) -> Markup:
    """Turn words between backticks into code."""
    marked = re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(marked)  # noqa: S704  # escaped before


def _video(path: Path) -> str:
    return f"data:video/mp4;base64,{base64.b64encode(path.read_bytes()).decode()}"
