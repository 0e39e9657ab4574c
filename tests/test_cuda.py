"""The same policy on a GPU; skipped where there is none."""

from __future__ import annotations

import pytest
import torch
from accelerate import Accelerator

from chameleon_policy import ChameleonPolicy
from chameleon_policy.policy import Features, ObjectSlots
from chameleon_policy.train.config import TrainingConfig
from chameleon_policy.train.feeder import Feeder
from chameleon_policy.train.statistics import statistics_of
from chameleon_policy.train.store import EpisodeStore
from examples import IMAGE_FEATURES, make_batch, make_observation, make_policy
from training_data import make_episodes

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_control_on_the_gpu_equals_control_on_the_cpu() -> None:
    """In float64, so that nothing but the code can differ; observations may come from the CPU."""
    chunks = []
    for device in ("cpu", "cuda"):
        policy = make_policy(IMAGE_FEATURES, dtype=torch.float64).to(device)
        state = policy.initial_state(2)
        for t in range(6):
            state = policy.observe(make_observation(IMAGE_FEATURES, 2, seed=t, dtype=torch.float64), state)
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


def test_batches_that_travel_are_those_that_lie_there() -> None:
    """Copied on a stream of their own, ahead of time; more steps than are prepared ahead, so that memory is used again."""
    episodes = make_episodes([9, 30, 14, 22, 5, 17])
    features = Features(objects=ObjectSlots(count=2, size=4), proprioception=3, action=2, horizon=4)
    config, accelerator, taken = TrainingConfig(steps=40, batch=4, window=8), Accelerator(), {}
    for resident in (True, False):
        store = EpisodeStore(episodes, features, statistics_of(episodes), device="cuda", resident=resident)
        with Feeder(store, config, accelerator, 0) as feeder:
            sums = []
            for _ in range(40):
                for window in feeder.next_step()[0].windows:
                    torch.cuda._sleep(1_000_000)  # so that the copies are ahead of what uses them
                    sums.append((window.batch.actions.sum() + window.batch.observation.proprioception.sum()).double())
            taken[resident] = torch.stack(sums).cpu()
    torch.testing.assert_close(taken[True], taken[False], rtol=0, atol=0)
