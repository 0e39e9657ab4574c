"""The same policy on a GPU; skipped where there is none."""

from __future__ import annotations

import pytest
import torch

from chameleon_policy import ChameleonPolicy
from examples import IMAGE_FEATURES, make_batch, make_observation, make_policy

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
