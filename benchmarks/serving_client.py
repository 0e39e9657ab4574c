"""Play one robot of the serving benchmark with nothing but the client's package.

The process prints `ready`, waits for a line, ticks as fast as it is answered for some seconds, and
prints its waits as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from chameleon_client import Client, Metadata


def observation(metadata: Metadata, rng: np.random.Generator) -> dict[str, Any]:
    """Return random arrays in the shapes of the policy's inputs."""
    seen: dict[str, Any] = {
        "proprioception": rng.standard_normal(metadata.proprioception).astype(np.float32)
    }
    if metadata.views:
        sizes = metadata.views.items()
        seen["images"] = {
            name: rng.integers(0, 256, (*size, 3), dtype=np.uint8) for name, size in sizes
        }
    if metadata.objects is not None:
        seen["objects"] = rng.standard_normal(metadata.objects).astype(np.float32)
    return seen


def main(url: str, seed: int, seconds: float, warm_up: float, steps: int) -> None:
    """Play one episode: `observe` on every tick, `act` whenever the last chunk is used up."""
    with Client(url, timeout=120) as client:
        session = client.open(seed=seed)
        seen = observation(client.metadata, np.random.default_rng(seed))
        executed = client.metadata.executed
        session.observe(**seen)
        session.act(steps=steps)
        print("ready", flush=True)
        sys.stdin.readline()
        waits: dict[str, list[float]] = {"observe": [], "act": []}
        begin = time.perf_counter() + warm_up
        tick = 0
        while (now := time.perf_counter()) < begin + seconds:
            session.observe(**seen)
            observed = time.perf_counter()
            if now >= begin:
                waits["observe"].append(1e3 * (observed - now))
            if tick % executed == 0:
                session.act(steps=steps)
                if now >= begin:
                    waits["act"].append(1e3 * (time.perf_counter() - observed))
            tick += 1
        print(json.dumps(waits), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
