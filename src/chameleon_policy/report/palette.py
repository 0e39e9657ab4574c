"""The colours of all pages and charts."""

from __future__ import annotations

from typing import NamedTuple


class Colour(NamedTuple):
    """One role in three values."""

    light: str
    """On a light page."""
    dark: str
    """On a dark page."""
    image: str
    """In an image file, which may be shown on either: a contrast of 3 or more with both."""


PALETTE = {
    "ink": Colour("#22242a", "#e8e6e1", "#737a87"),
    "faint": Colour("#62656d", "#a4a6ad", "#838994"),
    "line-0": Colour("#1f6ea8", "#5fb0ea", "#3a86c4"),
    "line-1": Colour("#c2611a", "#f0a05a", "#cc6e2c"),
    "line-2": Colour("#5b7d1e", "#a5cf5a", "#6b9430"),
    "line-3": Colour("#8a4fa3", "#cf9be6", "#a06bbd"),
    "line-4": Colour("#0f7f7a", "#52cdc6", "#23958f"),
    "line-5": Colour("#a8862a", "#dcbc63", "#ad8b30"),
}
"""The colours that charts are drawn in."""

PAGE_COLOURS = {
    "paper": ("#fcfbf8", "#17181b"),
    "card": ("#ffffff", "#202226"),
    "edge": ("#dedcd6", "#3b3d44"),
    "track": ("#e8e6e0", "#33353b"),
    "share": ("#d3e5f3", "#1d4460"),
    "chance": ("#be2640", "#ff7f92"),
    "decision-line": ("#be263c", "#ff5d75"),
    "good": ("#1d6b3a", "#7ed39b"),
    "bad": ("#b3223b", "#ff8d9d"),
    "accent": (PALETTE["line-0"].light, PALETTE["line-0"].dark),
}
"""The other colours of a page, for light and dark."""

INK, FAINT = PALETTE["ink"].image, PALETTE["faint"].image
LINES = tuple(colour.image for name, colour in PALETTE.items() if name.startswith("line-"))
"""The colours of successive lines in an image file."""


def css_variables(*, dark: bool) -> dict[str, str]:
    """Return the CSS variables of a page and their values."""
    charts = {name: colour.dark if dark else colour.light for name, colour in PALETTE.items()}
    return charts | {name: pair[dark] for name, pair in PAGE_COLOURS.items()}


def with_page_colours(svg: str) -> str:
    """Replace the colours of an SVG image by the CSS variables of the page around it."""
    for name, colour in PALETTE.items():
        svg = svg.replace(colour.image, f"var(--{name})")
    return svg
