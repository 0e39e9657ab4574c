"""Measure LeRobot's policy server (lerobot 0.4.4, gRPC) as a peer of ours.

    scripts/lerobot-venv && .lerobot-venv/bin/pip install grpcio==1.73.1 'protobuf>=6.31.1,<6.32'
    .lerobot-venv/bin/python benchmarks/lerobot_server_peer.py 5

It needs a Python that has lerobot and grpcio. Its policies are not ours, so times of policies are
not compared; two other questions are asked:

- What does the network cost? A round trip (`SendObservations` that must go through, then
  `GetActions`), less the time of the same server object for the same observation without a network.
- Which observations reach the policy? A robot sends one in every tick of 30 Hz, and a second thread
  fetches chunks, as LeRobot's own client does. Small movements (less than 1 in joint space) are
  filtered out there, and while the policy computes only the newest observation is kept.

The policy is a tiny ACT with random weights, two 128 x 128 pictures and 10 numbers, chunks of 8.
The last line of output is JSON.
"""

from __future__ import annotations

import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent import futures
from typing import Any

import grpc
import numpy as np
import torch

# torchvision's compiled operators belong to another torch; they are never called, but must be known
# when it is imported.
LIBRARY = torch.library.Library("torchvision", "DEF")
for operator in ("nms", "qnms"):
    LIBRARY.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from lerobot.async_inference.configs import PolicyServerConfig  # noqa: E402
from lerobot.async_inference.helpers import RemotePolicyConfig, TimedObservation  # noqa: E402
from lerobot.async_inference.policy_server import PolicyServer  # noqa: E402
from lerobot.configs.types import FeatureType, PolicyFeature  # noqa: E402
from lerobot.policies.act.configuration_act import ACTConfig  # noqa: E402
from lerobot.policies.act.modeling_act import ACTPolicy  # noqa: E402
from lerobot.policies.factory import make_pre_post_processors  # noqa: E402
from lerobot.transport import services_pb2, services_pb2_grpc  # noqa: E402
from lerobot.transport.utils import send_bytes_in_chunks  # noqa: E402

VIEWS, SIZE, NUMBERS, CHUNK, RATE = ("third", "wrist"), 128, 10, 8, 30
JOINTS = [f"joint{number}.pos" for number in range(NUMBERS)]
FEATURES: dict[str, dict[str, Any]] = {
    "observation.state": {"dtype": "float32", "shape": (NUMBERS,), "names": JOINTS},
    **{
        f"observation.images.{name}": {"dtype": "image", "shape": (SIZE, SIZE, 3), "names": None}
        for name in VIEWS
    },
}


def save_policy(folder: str) -> None:
    """Save a policy with random weights, and its processors."""
    torch.manual_seed(0)
    inputs = {
        f"observation.images.{name}": PolicyFeature(FeatureType.VISUAL, (3, SIZE, SIZE))
        for name in VIEWS
    }
    config = ACTConfig(
        input_features={
            **inputs,
            "observation.state": PolicyFeature(FeatureType.STATE, (NUMBERS,)),
        },
        output_features={"action": PolicyFeature(FeatureType.ACTION, (NUMBERS,))},
        chunk_size=CHUNK,
        n_action_steps=CHUNK,
        dim_model=64,
        n_heads=4,
        dim_feedforward=128,
        n_encoder_layers=1,
        n_vae_encoder_layers=1,
        pretrained_backbone_weights=None,
        device="cpu",
    )
    ACTPolicy(config).save_pretrained(folder)
    for processor in make_pre_post_processors(config):
        processor.save_pretrained(folder)


def instructions(folder: str) -> Any:
    """Return the first message of a robot to the server."""
    wanted = RemotePolicyConfig("act", folder, FEATURES, CHUNK, "cpu")
    return services_pb2.PolicySetup(data=pickle.dumps(wanted))


def observed(tick: int, joints: np.ndarray, *, must_go: bool) -> TimedObservation:
    """Make an observation with random pictures."""
    rng = np.random.default_rng(tick)
    pictures = {name: rng.integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8) for name in VIEWS}
    seen = {**dict(zip(JOINTS, joints.tolist(), strict=True)), **pictures}
    return TimedObservation(timestamp=time.time(), timestep=tick, observation=seen, must_go=must_go)


def configuration(port: int) -> PolicyServerConfig:
    """Return settings without the pause that the server makes by default."""
    return PolicyServerConfig(
        host="127.0.0.1", port=port, fps=RATE, inference_latency=0.0, obs_queue_timeout=1.0
    )


def serve(port: int) -> None:
    """Serve as LeRobot's own `serve` does."""
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    services_pb2_grpc.add_AsyncInferenceServicer_to_server(
        PolicyServer(configuration(port)), server
    )
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()


def send(stub: Any, observation: TimedObservation) -> None:
    """Send one observation."""
    stub.SendObservations(send_bytes_in_chunks(pickle.dumps(observation), services_pb2.Observation))


class LocalConnection:
    """A stand-in for a gRPC connection."""

    def peer(self) -> str:
        """Return a name."""
        return "local"


def server_object(folder: str) -> PolicyServer:
    """Return the same server as an object to call without a network."""
    server = PolicyServer(configuration(1))
    server.Ready(services_pb2.Empty(), LocalConnection())
    server.SendPolicyInstructions(instructions(folder), LocalConnection())
    return server


def in_turns(stub: Any, server: PolicyServer, seconds: float) -> tuple[list[float], list[float]]:
    """Time observation to chunk in milliseconds, with and without a network, in turns."""
    networked, direct = [], []
    for tick in _for(2 * seconds):
        observation = observed(tick, np.zeros(NUMBERS), must_go=True)
        start = time.perf_counter()
        send(stub, observation)
        chunk = stub.GetActions(services_pb2.Empty())
        arrived = time.perf_counter()
        server._predict_action_chunk(observation)
        networked.append(1e3 * (arrived - start))
        direct.append(1e3 * (time.perf_counter() - arrived))
        assert len(pickle.loads(chunk.data)) == CHUNK
    return networked[1:], direct[1:]


def share(stub: Any, seconds: float, step: float, first: int) -> float:
    """Return the share of observations that reach the policy when joints move by `step` a tick."""
    done, chunks = threading.Event(), [0]

    def fetch() -> None:
        while not done.is_set():
            chunks[0] += bool(stub.GetActions(services_pb2.Empty()).data)

    fetching = threading.Thread(target=fetch)
    fetching.start()
    sent, begin = 0, time.perf_counter()
    for tick in _for(seconds):
        send(
            stub,
            observed(first + tick, np.full(NUMBERS, tick * step / NUMBERS**0.5), must_go=False),
        )
        sent += 1
        time.sleep(max(0.0, begin + sent / RATE - time.perf_counter()))
    time.sleep(1.5)
    done.set()
    fetching.join()
    return chunks[0] / sent


def _for(seconds: float) -> Any:
    begin, tick = time.perf_counter(), 0
    while time.perf_counter() < begin + seconds or tick < 3:
        yield tick
        tick += 1


def main(seconds: float) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        save_policy(folder)
        port = 50_000 + os.getpid() % 10_000
        server = subprocess.Popen(
            [sys.executable, __file__, "serve", str(port)], stdout=subprocess.DEVNULL
        )
        try:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                grpc.channel_ready_future(channel).result(120)
                stub = services_pb2_grpc.AsyncInferenceStub(channel)
                stub.Ready(services_pb2.Empty())
                stub.SendPolicyInstructions(instructions(folder))
                networked, direct = in_turns(stub, server_object(folder), seconds)
                moving = {
                    "0.05": share(stub, seconds, 0.05, 10**6),
                    "2": share(stub, seconds, 2.0, 2 * 10**6),
                }
        finally:
            server.terminate()
            server.wait()
    result = {
        "version": "0.4.4",
        "policy": f"ACT, {len(VIEWS)} x {SIZE} x {SIZE}",
        "without_network_p50_ms": statistics.median(direct),
        "round_trip_p50_ms": statistics.median(networked),
        "round_trip_p99_ms": float(np.percentile(networked, 99)),
        "overhead_ms": statistics.median(
            there - here for there, here in zip(networked, direct, strict=True)
        ),
        "rate_hz": RATE,
        "share_reaching_the_policy_by_step": moving,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        main(float(sys.argv[1]))
