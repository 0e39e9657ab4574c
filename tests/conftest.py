from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from _pytest.terminal import TerminalReporter

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from theatre_browser import Open

# Processes of tests share the cores, and runs in several processes must agree to the last bit.
# Torch reads this when it is imported.
os.environ["OMP_NUM_THREADS"] = "1"
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Shells start background jobs like this, and some tests send SIGINT to themselves and children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
# A busy machine may take any time for an example.
hypothesis.settings.register_profile("busy machine", deadline=None)
hypothesis.settings.load_profile("busy machine")
# Tests create what they need or find it installed; none may download from a model hub.
os.environ["HF_HUB_OFFLINE"] = "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


LONGEST = ("test_training_runs", "test_fused", "test_export", "test_camo_recording", "test_methods")
"""Files that take longest: `make test` begins with them, so that no process ends alone."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem not in LONGEST)
    if not config.getoption("--slow"):
        skip = pytest.mark.skip(reason="slow: make test-slow runs them")
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(skip)


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """List why tests were skipped, with their numbers: promises not checked on this machine."""
    skipped = terminalreporter.stats.get("skipped", [])
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    if reasons:
        terminalreporter.section("not checked here")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:4d}  {reason}")


@pytest.fixture(scope="session")
def lerobot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a LeRobot dataset of three episodes, for tests that do not change it."""
    from episode_files import write_lerobot

    return write_lerobot(tmp_path_factory.mktemp("parts"), tmp_path_factory.mktemp("lerobot"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start the system's Chromium."""
    from theatre_browser import chromium

    with chromium() as found:
        yield found


@pytest.fixture
def show(browser: Browser) -> Iterator[Open]:
    """Return a function that opens pages, which may neither fail nor request other files."""
    from theatre_browser import pages

    with pages(browser) as open_page:
        yield open_page


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a page of made-up episodes."""
    from theatre_browser import EPISODES, write

    return write(tmp_path_factory.mktemp("report"), EPISODES)


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    """Fill new GPU memory with NaN, so that unwritten values show, and seed every test anew."""
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.allow_tf32 = False
    filled, torch.utils.deterministic.fill_uninitialized_memory = (
        torch.utils.deterministic.fill_uninitialized_memory,
        True,
    )
    torch.seed()
    yield
    torch.utils.deterministic.fill_uninitialized_memory = filled
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def kernels_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the kernels also in float32 and on a CPU; float64 stays plain."""
    import torch

    from chameleon_policy import kernels
    from chameleon_policy.kernels import one_query

    monkeypatch.setattr(kernels, "enabled", lambda tensor: tensor.dtype == torch.float32)
    monkeypatch.setattr(one_query, "LEAST_QUERIES", 1)
