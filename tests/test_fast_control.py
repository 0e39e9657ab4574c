"""The fast controller computes what the policy does."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from chameleon_policy import ChameleonPolicy, FastControl, Features, Observation
from examples import IMAGE_FEATURES, STATE_FEATURES, make_observation, make_policy

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    ),
]
# On a GPU the fast controller has weights in bfloat16.
TOLERANCE = {"cpu": {"rtol": 1e-4, "atol": 1e-4}, "cuda": {"rtol": 0.1, "atol": 0.1}}


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


def policy_on(device: str, features: Features) -> ChameleonPolicy:
    return make_policy(features).eval().to(device)


@pytest.mark.parametrize("features", [STATE_FEATURES, IMAGE_FEATURES], ids=["objects", "images"])
def test_an_episode_gives_the_same_actions(features: Features, device: str) -> None:
    policy = policy_on(device, features)
    control, state = FastControl(policy, batch_size=2), policy.initial_state(2)
    for t in range(6):
        observation = make_observation(features, 2, seed=t)
        control.observe(observation)
        state = policy.observe(observation, state)
        if t % 2:
            noise = torch.randn(2, features.horizon, features.action, device=device)
            for steps in (1, 4):
                expected = policy.act(state, steps=steps, source=noise)
                torch.testing.assert_close(
                    control.act(steps=steps, source=noise), expected, **TOLERANCE[device]
                )
    assert control.state.steps.tolist() == [6, 6]
    assert policy.control_jepa is not None, "the policy itself is left as it was"
    assert {p.dtype for p in policy.parameters()} == {torch.float32}


def test_reset_of_one_robot_and_assignment_of_a_state(device: str) -> None:
    control = FastControl(policy_on(device, STATE_FEATURES), batch_size=2)
    observations = [make_observation(STATE_FEATURES, 2, seed=t) for t in range(5)]
    control.observe(observations[0])
    fresh = control.act(source="zero")
    for observation in observations[1:]:
        control.observe(observation)
    before, later = control.state, control.act(source="zero")
    control.reset([1, 1])
    with pytest.raises(ValueError, match="has not observed anything since its reset"):
        control.act()
    control.observe(observations[0])
    assert control.state.steps.tolist() == [6, 1]
    again = control.act(source="zero")
    torch.testing.assert_close(again[1], fresh[1])
    assert not torch.equal(again[0], fresh[0])
    control.state = before
    torch.testing.assert_close(control.act(source="zero"), later)


def test_a_returned_state_does_not_change(device: str) -> None:
    control = FastControl(policy_on(device, STATE_FEATURES))
    control.observe(make_observation(STATE_FEATURES, 1))
    kept, working = control.state, control.state.working.clone()
    control.observe(make_observation(STATE_FEATURES, 1, seed=1))
    assert torch.equal(kept.working, working)
    assert not torch.equal(control.state.working, working)


def test_later_changes_of_the_policy_have_no_effect(device: str) -> None:
    policy = policy_on(device, STATE_FEATURES)
    control = FastControl(policy)
    observation = make_observation(STATE_FEATURES, 1)
    control.observe(observation)
    before = control.act(source="zero")
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
    control.reset()
    control.observe(observation)
    torch.testing.assert_close(control.act(source="zero"), before)


def test_noise_comes_from_the_generator(device: str) -> None:
    control = FastControl(policy_on(device, STATE_FEATURES))
    control.observe(make_observation(STATE_FEATURES, 1))
    first, second = (
        control.act(generator=torch.Generator(device).manual_seed(3)) for _ in range(2)
    )
    assert torch.equal(first, second)
    assert not torch.equal(control.act(), first)


def test_bad_input(device: str) -> None:
    control = FastControl(policy_on(device, IMAGE_FEATURES))
    observation = make_observation(IMAGE_FEATURES, 1)
    with pytest.raises(ValueError, match=r"call observe\(observation\) first"):
        control.act()
    with pytest.raises(ValueError, match="expected an Observation"):
        control.observe({"image": 1})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected a ChameleonPolicy"):
        FastControl(torch.nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="third"):
        control.observe(Observation(proprioception=observation.proprioception, images={}))
    with pytest.raises(IndexError, match="no robot 1 among 1"):
        control.reset([1])
    control.observe(observation)
    with pytest.raises(ValueError, match="sampling steps"):
        control.act(steps=0)
    if device == "cuda":
        floats = {name: image / 255 for name, image in observation.images.items()}
        with pytest.raises(ValueError, match="uint8"):
            control.observe(dataclasses.replace(observation, images=floats))
