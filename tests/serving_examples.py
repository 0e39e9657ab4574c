"""Episodes for the tests of the server, played in this process for comparison."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chameleon_client import Client, Session
from chameleon_policy import Features, Observation
from chameleon_policy.policy import VisuomotorPolicy
from examples import make_observation

Arrays = dict[str, Any]
STEPS = 3
"""Sampling steps of a chunk, unless a test says otherwise."""


def episode(features: Features, length: int, seed: int) -> list[Arrays]:
    """Return the observations of an episode as arguments for the client."""
    ticks = []
    for tick in range(length):
        seen = make_observation(features, 1, seed=1000 * seed + tick)
        arrays: Arrays = {"proprioception": seen.proprioception[0].numpy()}
        if features.views:
            arrays["images"] = {name: image[0].numpy() for name, image in seen.images.items()}
        if seen.objects is not None:
            arrays["objects"] = seen.objects[0].numpy()
        ticks.append(arrays)
    return ticks


def in_process(
    policy: VisuomotorPolicy,
    ticks: Sequence[Arrays],
    seed: int,
    *,
    at: Sequence[int] | None = None,
    instruction: torch.Tensor | None = None,
    steps: int | None = STEPS,
) -> list[np.ndarray]:
    """Return the chunks of an episode, computed with the noise of evaluate/rollouts.py.

    A chunk is planned after each of the ticks `at`, by default after every second one.
    """
    generator, state, chunks = torch.Generator().manual_seed(seed), policy.initial_state(1), []
    shape = (policy.features.horizon, policy.features.action)
    for number, arrays in enumerate(ticks):
        state = policy.observe(Observation.single(**arrays, instruction=instruction), state)
        if number in (range(0, len(ticks), 2) if at is None else at):
            noise = torch.randn(shape, generator=generator)
            chunks.append(
                policy.act(state, steps=steps, source=noise[None].to(policy.device))[0]
                .cpu()
                .numpy()
            )
    return chunks


def over_the_network(
    session: Session, ticks: Sequence[Arrays], *, steps: int | None = STEPS
) -> list[np.ndarray]:
    """Return the chunks of the same episode on a server."""
    chunks = []
    for number, arrays in enumerate(ticks):
        assert session.observe(**arrays) == number + 1
        if number % 2 == 0:
            chunks.append(session.act(steps=steps))
    return chunks


def assert_same(chunks: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """Compare to the last bit."""
    assert len(chunks) == len(expected) > 0
    for chunk, wanted in zip(chunks, expected, strict=True):
        assert chunk.dtype == np.float32
        np.testing.assert_array_equal(chunk, wanted)


def assert_close(chunks: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """Compare up to the last bits, which depend on the size of a batch."""
    assert len(chunks) == len(expected) > 0
    for chunk, wanted in zip(chunks, expected, strict=True):
        np.testing.assert_allclose(chunk, wanted, rtol=1e-4, atol=1e-5)


def health(url: str) -> Mapping[str, Any]:
    """Return the reply of /healthz."""
    with urllib.request.urlopen(f"{url.replace('ws://', 'http://')}/healthz", timeout=60) as answer:
        return json.load(answer)


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until a condition holds; fail after so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"still false after {seconds:g} s"
        time.sleep(0.01)


@dataclass
class ServerProcess:
    """A server in a process of its own."""

    url: str
    process: subprocess.Popen[str]

    def memory(self, kind: str = "VmRSS") -> float:
        """Return its memory in MiB: the present one, or (VmHWM) the peak."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(kind):
                return int(line.split()[1]) / 1024
        raise AssertionError(f"no {kind}")

    def reset_peak(self) -> None:
        """Reset the peak that VmHWM reports."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def files(self) -> int:
        """Return the number of open files and sockets."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))  # noqa: PTH208


@contextmanager
def server_process(
    policy: VisuomotorPolicy, folder: Path, **settings: Any
) -> Iterator[ServerProcess]:
    """Serve a policy until the block ends."""
    policy.save_pretrained(folder / "policy")
    code = (
        "from functools import partial; from chameleon_policy.serve import ServerSettings, serve\n"
        f"settings = ServerSettings(**{ {'port': 0, **settings}!r})\n"
        f"serve({str(folder / 'policy')!r}, settings, device='cpu', "
        "announce=partial(print, flush=True))"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert server.stdout is not None
        said = server.stdout.readline()
        assert said.startswith("Serving policy (chameleon) on cpu at ws://"), said
        yield ServerProcess(said.partition(" at ")[2].partition(",")[0], server)
    finally:
        server.kill()
        server.wait()


class Robot(threading.Thread):
    """A correct client that plays episodes, at least one, until it is stopped, and checks them."""

    def __init__(self, policy: VisuomotorPolicy, url: str, seed: int, length: int = 12) -> None:
        super().__init__(name=f"robot-{seed}", daemon=True)
        self.url, self.seed = url, seed
        self.ticks = episode(policy.features, length, seed)
        self.expected = in_process(policy, self.ticks, seed)
        self.episodes = 0
        self.failure: BaseException | None = None
        self.playing = threading.Event()
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            with Client(self.url, timeout=120) as client:
                while self.episodes == 0 or not self._stopping.is_set():
                    with client.open(seed=self.seed) as session:
                        self.playing.set()
                        chunks = over_the_network(session, self.ticks)
                    # another memory would make a difference in the first digit
                    assert_close(chunks, self.expected)
                    self.episodes += 1
        except BaseException as error:
            self.failure = error
        finally:
            self.playing.set()  # also after an error: `robots` waits for it

    def stop(self) -> None:
        """Stop after the running episode."""
        self._stopping.set()

    def finish(self) -> int:
        """Stop after the running episode, raise its error, return the number of episodes."""
        self.stop()
        self.join(240)
        if self.failure is not None:
            raise self.failure
        assert not self.is_alive(), "its episode did not end"
        return self.episodes


@contextmanager
def robots(policy: VisuomotorPolicy, url: str, count: int = 1) -> Iterator[list[Robot]]:
    """Run robots through the whole block; nothing else in it may disturb them."""
    playing = [Robot(policy, url, seed) for seed in range(count)]
    for robot in playing:
        robot.start()
    try:
        for robot in playing:
            assert robot.playing.wait(120), "it could not connect"
        yield playing
    except BaseException:
        for robot in playing:
            robot.stop()
        raise
    for robot in playing:
        robot.finish()
