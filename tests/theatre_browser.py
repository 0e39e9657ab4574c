"""A real browser for the report's page, and ways to read off what it shows."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from chameleon_policy.probes.theatre_episode import TheatreEpisode, TokenLayout
from chameleon_policy.report.theatre.page import report_page
from theatre_episodes import make_episode, make_run, number_of

STEPS = 60
GUTTER = 46, 14
"""Of the timeline, in pixels: left and right of the steps."""
SLOTS = TokenLayout({}, (*(f"object {number}" for number in range(5)), "body", "instruction"))
EPISODES = [
    make_episode(STEPS, decisions=(20, 40)),
    make_episode(STEPS, seed=1, layout=SLOTS, outcome="wrong choice", edits=0),
    replace(
        make_episode(STEPS, seed=2, edits=0),
        attention=np.zeros((STEPS, 0, 0, 0)),
        beliefs=(),
        policy="Diffusion",
    ),
]
Open = Callable[..., Page]
NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Open the system's own browser; skip the test where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


def write(folder: Path, episodes: list[TheatreEpisode], **run: Any) -> Path:
    path = folder / "report.html"
    path.write_text(report_page([make_run(**run)], episodes, ["a fact"]), encoding="utf-8")
    return path


@contextmanager
def pages(browser: Browser) -> Iterator[Open]:
    """Yield a function that opens a file.

    In the end nothing may have failed, and nothing but the files may have been requested.
    """
    opened: list[tuple[Path, list[str], list[str]]] = []
    contexts = []

    def open_page(path: Path, fragment: str = "", **given: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 720}, **given})
        contexts.append(context)
        page = context.new_page()
        errors: list[str] = []
        requests: list[str] = []
        page.on("console", lambda message: message.type == "error" and errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        opened.append((path, errors, requests))
        page.goto(f"{path.as_uri()}#{fragment}")
        settle(page)
        return page

    yield open_page
    for context in contexts:
        context.close()
    for path, errors, requests in opened:
        assert errors == []
        assert {url.split("#")[0] for url in requests} == {path.as_uri()}


def settle(page: Page) -> None:
    page.wait_for_function("theatre.settled")


def state(page: Page, *names: str) -> list[Any]:
    settle(page)
    return [page.evaluate(f"theatre.{name}") for name in names]


def pixel(page: Page, canvas: str, across: float, down: float) -> list[int]:
    """Return the colour at a point that is given as shares of width and height."""
    code = """(canvas, [x, y]) => [...canvas.getContext("2d").getImageData(
        Math.floor(x * canvas.width), Math.floor(y * canvas.height), 1, 1).data]"""
    return page.locator(canvas).evaluate(code, [across, down])


def camera(view: int) -> str:
    return f"#cameras figure:nth-child({view + 1}) canvas"


def shown_number(page: Page, canvas: str) -> int:
    return number_of(pixel(page, canvas, 0.5, 0.5))


def bars(page: Page, within: str, kind: str = ".fill:not(.before)") -> list[float]:
    """Return the lengths of bars as shares of their tracks, as drawn."""
    code = """(fills) => fills.map((fill) => fill.getBoundingClientRect().width
        / fill.parentElement.getBoundingClientRect().width)"""
    return page.locator(f"{within} {kind}").evaluate_all(code)


def scrub(page: Page, step: int) -> None:
    page.locator("#scrubber").fill(str(step))
    settle(page)
