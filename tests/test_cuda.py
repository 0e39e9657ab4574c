"""Policies on a GPU against a CPU, and kernels against plain code; skipped without a GPU."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn

from chameleon_policy import ChameleonPolicy, FastControl, fuse, kernels, preset
from chameleon_policy.baselines import METHODS
from chameleon_policy.data import EpisodeArrays
from chameleon_policy.policy import Features, ObjectSlots, View
from chameleon_policy.policy.presets import PRESETS
from chameleon_policy.policy.ssm import SelectiveSSM
from chameleon_policy.train.augmentation import Appearance, Mirror, augment, warp_images
from chameleon_policy.train.config import TrainingConfig
from chameleon_policy.train.feeder import Feeder, _receive
from chameleon_policy.train.graphs import GraphedLoss
from chameleon_policy.train.normalization import statistics_of
from chameleon_policy.train.store import EpisodeStore
from examples import IMAGE_FEATURES, STATE_FEATURES, make_batch, make_observation, make_policy
from training_data import make_episodes

IMAGE_FEATURES_16 = dataclasses.replace(IMAGE_FEATURES, horizon=16, action=10)
BLOCKS = pytest.mark.parametrize(
    "shared_memory", [kernels.LEAST_SHARED_MEMORY, None], ids=["small blocks", "own blocks"]
)
Tensors = dict[str, torch.Tensor]
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_control_on_the_gpu_equals_control_on_the_cpu() -> None:
    """Compare in float64, so that only the code can differ; observations may be on the CPU."""
    chunks = []
    for device in ("cpu", "cuda"):
        policy = make_policy(IMAGE_FEATURES, dtype=torch.float64).to(device)
        state = policy.initial_state(2)
        for t in range(6):
            state = policy.observe(
                make_observation(IMAGE_FEATURES, 2, seed=t, dtype=torch.float64), state
            )
        chunks.append(policy.act(state, source="zero").cpu())
    torch.testing.assert_close(chunks[0], chunks[1], rtol=1e-6, atol=1e-8)


def test_training_in_bfloat16_on_the_gpu() -> None:
    policy = make_policy(IMAGE_FEATURES).cuda()
    batch = make_batch(IMAGE_FEATURES, 4, 40).to("cuda")
    exact = policy.eval().loss(batch).parts["alignment"].item()
    with torch.autocast("cuda", torch.bfloat16):
        loss = policy.loss(batch)
        assert loss.parts["alignment"].item() == pytest.approx(exact, rel=0.05)
        loss.total.backward()
    gradients = [p.grad for p in policy.parameters() if p.grad is not None]
    assert gradients
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


def test_loading_straight_to_the_gpu(tmp_path) -> None:
    make_policy().save_pretrained(tmp_path)
    policy = ChameleonPolicy.from_pretrained(tmp_path, device="cuda", with_control_jepa=True)
    assert {p.device.type for p in policy.parameters()} == {"cuda"}
    assert policy.initial_state(1).to("cpu").working.device.type == "cpu"


def test_batches_copied_to_the_gpu_equal_resident_ones() -> None:
    """Copies run ahead on their own stream; 40 steps, so that their memory is reused."""
    episodes = make_episodes([9, 30, 14, 22, 5, 17])
    features = Features(objects=ObjectSlots(count=2, size=4), proprioception=3, action=2, horizon=4)
    config, accelerator, taken = TrainingConfig(steps=40, batch=4, window=8), Accelerator(), {}
    for resident in (True, False):
        store = EpisodeStore(
            episodes, features, statistics_of(episodes), device="cuda", resident=resident
        )
        with Feeder(store, config, accelerator, 0) as feeder:
            sums = []
            for _ in range(40):
                for window in feeder.next_step()[0]:
                    torch.cuda._sleep(1_000_000)  # so that the copies are ahead of what uses them
                    sums.append(
                        (
                            window.batch.actions.sum()
                            + window.batch.observation.proprioception.sum()
                        ).double()
                    )
            taken[resident] = torch.stack(sums).cpu()
    torch.testing.assert_close(taken[True], taken[False], rtol=0, atol=0)


@pytest.mark.parametrize("resident", [True, False])
def test_mirrored_and_tinted_images_equal_those_of_the_cpu(resident: bool) -> None:
    rng, mirror = np.random.default_rng(0), Mirror((1.0, -1.0, 1.0), (-1.0, 1.0))
    features = Features(
        views=(View(name="third", height=32, width=32),), proprioception=3, action=2, horizon=4
    )
    episodes = [
        EpisodeArrays(
            state=rng.normal(size=(length, 3)).astype(np.float32),
            actions=rng.normal(size=(length, 2)).astype(np.float32),
            images={"third": rng.integers(0, 256, (length, 32, 32, 3)).astype(np.uint8)},
            objects=None,
            instruction="",
        )
        for length in (9, 6, 12)
    ]
    appearances = (
        Appearance(mirrored=True, tint=(0.8, 1.1, 1.2)),
        Appearance(),
        Appearance(mirrored=True),
    )
    stores = [
        EpisodeStore(episodes, features, statistics_of(episodes), device=device, resident=stays)
        for device, stays in (("cpu", None), ("cuda", resident))
    ]
    on_cpu, on_gpu = (
        augment(store.batch([0, 1, 2]).to(store.device), appearances, mirror).to("cpu").tensors()
        for store in stores
    )
    for name, tensor in on_cpu.items():
        torch.testing.assert_close(on_gpu[name], tensor, rtol=0, atol=0)


def test_warped_images_equal_those_of_the_cpu() -> None:
    images = (
        F.interpolate(torch.rand(1, 3, 5, 5), (64, 64), mode="bicubic")
        .clamp(0, 1)
        .mul(255)
        .to(torch.uint8)
    )
    images = images.permute(0, 2, 3, 1).expand(2, 3, 64, 64, 3)
    matrices = [((1.1, 0.05), (-0.08, 0.9)), ((0.95, 0.0), (0.1, 1.05))]
    on_cpu, on_gpu = warp_images(images, matrices), warp_images(images.to("cuda"), matrices).cpu()
    assert int((on_cpu.int() - on_gpu.int()).abs().max()) <= 2  # half precision on the GPU


def test_a_recorded_step_is_the_step() -> None:
    """Replayed batches have the losses and gradients of plain ones.

    Replays include other batches than the recorded one, and two shapes that alternate in the same
    memory.
    """
    policy = fuse(make_policy(IMAGE_FEATURES).cuda())
    graphed = GraphedLoss(policy, lambda: torch.autocast("cuda", torch.bfloat16))
    batches = [
        make_batch(IMAGE_FEATURES, 4, time, seed=seed).to("cuda")
        for seed, time in enumerate((32, 32, 32, 24, 24))
    ]

    def run(number: int, *, recorded: bool) -> tuple[float, torch.Tensor]:
        policy.zero_grad(set_to_none=True)
        torch.manual_seed(7)
        metrics = (graphed if recorded else graphed._run)(batches[number])
        return metrics["loss"].item(), torch.cat(
            [p.grad.flatten() for p in policy.parameters() if p.grad is not None]
        )

    plain = [run(number, recorded=False) for number in range(5)]
    assert len({loss for loss, _ in plain}) == 5
    # Of each shape: plain, recorded, and then replayed.
    for number in (0, 0, 1, 2, 3, 3, 4, 0, 3, 1):
        loss, gradients = run(number, recorded=True)
        expected_loss, expected = plain[number]
        assert loss == pytest.approx(expected_loss, rel=2e-3)
        assert (gradients - expected).norm() < 0.05 * expected.norm()
    long, short = (
        recording.batch.tensors()
        for recording in graphed.recordings.values()
        if recording is not None
    )
    assert all(tensor.data_ptr() == short[name].data_ptr() for name, tensor in long.items())
    torch.manual_seed(8)
    assert graphed(batches[0])["loss"].item() != pytest.approx(plain[0][0], rel=1e-4), (
        "the noise must be drawn anew"
    )


def assert_as_exact(right: Tensors, plain: Tensors, fused: Tensors, *, slack: float) -> None:
    """Allow kernels twice the plain code's half-precision error, and `slack`."""
    assert fused.keys() == plain.keys() == right.keys()
    largest = max(tensor.norm() for tensor in right.values())
    for name, expected in right.items():
        scale = expected.norm().clamp(min=1e-4 * largest)
        of_fused, of_plain = (
            (each[name].float() - expected).norm() / scale for each in (fused, plain)
        )
        assert of_fused < slack + 2 * of_plain, (
            f"{name}: fused is off by {of_fused:.3f}, plain by {of_plain:.3f}"
        )


@BLOCKS
@pytest.mark.parametrize("layer", ["slow", "fast"])
@pytest.mark.parametrize("size", PRESETS)
def test_fused_memory_is_as_exact_as_a_plain_one(
    size: str, layer: str, shared_memory: int | None
) -> None:
    """Compare outputs, state and gradients in bfloat16 with float32, over several chunks."""
    torch.manual_seed(0)
    config = preset(size)
    exact = SelectiveSSM(config.width, getattr(config, layer)).cuda()
    sequence, direction = torch.randn(2, 2, 3, 80, config.width, device="cuda")

    def run(module: nn.Module, *, half: bool) -> Tensors:
        inputs = sequence.clone().requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            output, state = module(inputs, None)
        sources = {"input": inputs, **dict(module.named_parameters())}
        gradients = torch.autograd.grad((output.float() * direction).sum(), list(sources.values()))
        return {
            "output": output.detach(),
            "state": state.ssm.detach(),
            **dict(zip(sources, gradients, strict=True)),
        }

    fused = fuse(nn.ModuleList([copy.deepcopy(exact)]), shared_memory=shared_memory)[0]
    assert_as_exact(
        run(exact, half=False), run(exact, half=True), run(fused, half=True), slack=0.02
    )


@BLOCKS
@pytest.mark.parametrize("size", PRESETS)
def test_fused_step_is_as_exact_as_a_plain_one(size: str, shared_memory: int | None) -> None:
    """Compare the loss and every module's gradient in bfloat16 with float32.

    Only a few time steps: over many, rounding hides the gradient of an untrained policy.
    """
    torch.manual_seed(0)
    exact = ChameleonPolicy(preset(size), IMAGE_FEATURES).cuda().eval()
    batch = make_batch(IMAGE_FEATURES, 2, 6).to("cuda")

    def run(policy: ChameleonPolicy, *, half: bool) -> Tensors:
        torch.manual_seed(1)
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            loss = policy.loss(batch)
        loss.total.backward()
        parts = {"loss": [loss.total.detach()[None]], "memory": [loss.state.working.flatten()]}
        for name, parameter in policy.named_parameters():
            if parameter.grad is not None:
                parts.setdefault(".".join(name.split(".")[:4]), []).append(parameter.grad.flatten())
        return {name: torch.cat(tensors) for name, tensors in parts.items()}

    right, plain = (run(copy.deepcopy(exact), half=half) for half in (False, True))
    fused = run(fuse(copy.deepcopy(exact), shared_memory=shared_memory), half=True)
    assert_as_exact(right, plain, fused, slack=0.1)


@pytest.mark.parametrize("method", METHODS)
class TestEveryMethod:
    def test_control_on_the_gpu_equals_control_on_the_cpu(self, method: str) -> None:
        """Compare working states of episodes and of single steps, and actions, in float32."""
        found = []
        for device in ("cpu", "cuda"):
            torch.manual_seed(0)
            policy = METHODS[method](preset("small"), IMAGE_FEATURES).to(device).eval()
            observation = make_observation(IMAGE_FEATURES, 2, 6).to(device)
            whole, state = policy.working_states(observation), policy.initial_state(2)
            for t in range(6):
                state = policy.observe(observation.at(t), state)
            chunk = policy.act(state, steps=4, source=torch.ones(2, 4, 2))
            torch.testing.assert_close(
                policy._condition(state.working), whole[:, -1], rtol=1e-2, atol=1e-2
            )
            found.append((whole.cpu(), chunk.cpu()))
        for on_cpu, on_gpu in zip(*found, strict=True):
            assert (on_cpu - on_gpu).norm() < 0.01 * on_cpu.norm()

    def test_a_recorded_step_is_the_step(self, method: str) -> None:
        torch.manual_seed(0)
        config = preset("small")
        config = dataclasses.replace(
            config, objective=dataclasses.replace(config.objective, action_steps=8)
        )
        policy = fuse(METHODS[method](config, IMAGE_FEATURES).cuda().train())
        graphed = GraphedLoss(policy, lambda: torch.autocast("cuda", torch.bfloat16))
        batches = [make_batch(IMAGE_FEATURES, 4, 32, seed=seed).to("cuda") for seed in range(2)]

        def run(number: int, *, recorded: bool) -> tuple[float, torch.Tensor]:
            policy.zero_grad(set_to_none=True)
            torch.manual_seed(7)
            metrics = (graphed if recorded else graphed._run)(batches[number])
            return metrics["loss"].item(), torch.cat(
                [p.grad.flatten() for p in policy.parameters() if p.grad is not None]
            )

        plain = [run(number, recorded=False) for number in range(2)]
        for number in (0, 0, 1, 0):  # plain, recorded, and then replayed
            loss, gradients = run(number, recorded=True)
            assert loss == pytest.approx(plain[number][0], rel=5e-3)
            assert (gradients - plain[number][1]).norm() < 0.1 * plain[number][1].norm()


def test_fast_sampling_is_exact_and_repeatable() -> None:
    """Sample with the paper's action head: many kernels start before the previous one has ended."""
    features = dataclasses.replace(STATE_FEATURES, horizon=16, action=10)
    policy = make_policy(features, config=preset("paper")).eval().cuda()
    control, state = FastControl(policy), policy.initial_state()
    observation = make_observation(features, 1)
    control.observe(observation)
    state = policy.observe(observation, state)
    noise = torch.randn(1, 16, 10, device="cuda")
    chunks = torch.stack([control.act(steps=8, source=noise) for _ in range(100)])
    assert (chunks == chunks[0]).all()
    # Weights and state in bfloat16, eight steps.
    torch.testing.assert_close(
        chunks[0], policy.act(state, steps=8, source=noise), rtol=0.2, atol=0.2
    )


def test_control_with_small_blocks_is_control() -> None:
    """Use the blocks of an RTX 3090, 4090 or 5090 at the paper's size."""
    policy = make_policy(IMAGE_FEATURES_16, config=preset("paper")).eval().cuda()
    own, small = FastControl(policy), FastControl(policy, shared_memory=kernels.LEAST_SHARED_MEMORY)
    for t in range(3):
        for control in (own, small):
            control.observe(make_observation(IMAGE_FEATURES_16, 1, seed=t))
    noise = torch.randn(1, 16, 10, device="cuda")
    torch.testing.assert_close(
        small.act(steps=8, source=noise), own.act(steps=8, source=noise), rtol=0.05, atol=0.05
    )


def test_step_waits_for_the_copy_of_its_batch() -> None:
    """Delay the copy on its stream: a step that does not wait would read the previous content."""
    episodes = make_episodes([40] * 8)
    features = Features(objects=ObjectSlots(count=2, size=4), proprioception=3, action=2, horizon=4)
    store = EpisodeStore(episodes, features, statistics_of(episodes), device="cuda", resident=False)
    feeder = Feeder(store, TrainingConfig(steps=40, batch=4), Accelerator(), 0)
    expected = [window.batch.actions.clone() for window in feeder._sub_batches(0)[0]]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(400_000_000)
    sub_batches, arrival = feeder._prefetch(0, stream)
    assert not arrival.query(), "the copy must still be under way for this test to mean anything"
    received = [window.batch.actions.clone() for window in _receive(sub_batches, arrival)[0]]
    for got, right in zip(received, expected, strict=True):
        torch.testing.assert_close(got.cpu(), right, rtol=0, atol=0)
