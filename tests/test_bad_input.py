"""Errors of users are answered with what was expected, what came, and what to do."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from chameleon_policy import ChameleonPolicy, Features, ObjectiveConfig, Observation, Range, View
from examples import IMAGE_FEATURES, STATE_FEATURES, make_batch, make_observation, make_policy, nano


@pytest.fixture(scope="module")
def policy():
    return make_policy(IMAGE_FEATURES)


def with_image(name: str, image: torch.Tensor) -> Observation:
    observation = make_observation(IMAGE_FEATURES, 1)
    return dataclasses.replace(observation, images={**observation.images, name: image})


def observe(policy, **changes: object) -> None:
    policy.observe(
        dataclasses.replace(make_observation(policy.features, 1), **changes),
        policy.initial_state(1),
    )


def test_missing_and_misnamed_views(policy) -> None:
    images = make_observation(IMAGE_FEATURES, 1).images
    message = r"expects 2 views \(third, wrist\), got 1 view \(third\); missing: wrist"
    with pytest.raises(ValueError, match=message):
        observe(policy, images={"third": images["third"]})
    with pytest.raises(ValueError, match="missing: wrist; unknown: hand"):
        observe(policy, images={"third": images["third"], "hand": images["wrist"]})


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (torch.zeros(1, 3, 64, 64), r"channels first: pass image\.movedim\(-3, -1\)"),
        (torch.zeros(64, 64, 3), "batch dimension is missing"),
        (torch.zeros(1, 32, 32, 3), "resize the frames to 64 x 64"),
        (torch.zeros(1, 64, 64, 4), r"expected the shape \(1, 64, 64, 3\)"),
        (
            torch.full((1, 64, 64, 3), 200.0),
            r"must lie in \[0, 1\], got values from 200 to 200; divide by 255",
        ),
        (torch.full((1, 64, 64, 3), -0.5), r"must lie in \[0, 1\]"),
        (torch.full((1, 64, 64, 3), torch.nan), r"must lie in \[0, 1\]"),
        (torch.zeros(1, 64, 64, 3, dtype=torch.int64), "expected uint8 in 0..255 or float"),
    ],
)
def test_images(policy, image: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=rf"images\['wrist'\].*{message}"):
        policy.observe(with_image("wrist", image), policy.initial_state(1))


def test_proprioception(policy) -> None:
    broken = torch.zeros(1, 5)
    broken[0, 3] = torch.nan
    with pytest.raises(
        ValueError, match=r"proprioception: expected finite numbers, got nan at index \(0, 3\)"
    ):
        observe(policy, proprioception=broken)
    with pytest.raises(
        ValueError, match=r"got \(5,\); add the batch dimension with unsqueeze\(0\)"
    ):
        observe(policy, proprioception=torch.zeros(5))
    with pytest.raises(
        ValueError, match=r"proprioception: expected the shape \(1, 5\), got \(1, 6\)"
    ):
        observe(policy, proprioception=torch.zeros(1, 6))


def test_arrays_in_place_of_tensors(policy) -> None:
    with pytest.raises(
        ValueError,
        match=r"proprioception: expected a torch\.Tensor, got ndarray.*Observation\.single",
    ):
        observe(policy, proprioception=np.zeros((1, 5)))
    with pytest.raises(
        ValueError, match=r"images\['wrist'\]: expected a torch\.Tensor, got ndarray"
    ):
        policy.observe(
            with_image("wrist", np.zeros((1, 64, 64, 3), np.uint8)), policy.initial_state(1)
        )


def test_one_robots_arrays_become_an_observation(policy) -> None:
    observation = make_observation(IMAGE_FEATURES, 1)
    single = Observation.single(
        proprioception=observation.proprioception[0].double().numpy(),
        images={name: image[0].numpy() for name, image in observation.images.items()},
        instruction=observation.instruction[0].numpy(),
    )
    states = [policy.observe(o, policy.initial_state(1)) for o in (observation, single)]
    assert torch.equal(states[0].working, states[1].working)


def test_objects_and_instructions(policy) -> None:
    with pytest.raises(ValueError, match="built without them"):
        observe(policy, objects=torch.zeros(1, 3, 4))
    with pytest.raises(ValueError, match="expects them, and the observation has none"):
        observe(make_policy(STATE_FEATURES), objects=None)
    with pytest.raises(
        ValueError, match=r"expects an embedding for every episode.*embed\(\[\"\"\]\)"
    ):
        observe(policy, instruction=None)
    with pytest.raises(ValueError, match=r"got the text 'pick'.*embed\(\[text\]\)"):
        observe(policy, instruction="pick")
    with pytest.raises(ValueError, match=r"instruction: expected the shape \(1, 6\)"):
        observe(policy, instruction=torch.zeros(1, 7))
    with pytest.raises(ValueError, match="built without language"):
        observe(make_policy(STATE_FEATURES), instruction=torch.zeros(1, 6))


def test_states_of_another_batch_size_or_model(policy) -> None:
    observation = make_observation(IMAGE_FEATURES, 1)
    with pytest.raises(
        ValueError, match=r"memory of 2 episodes, the observation has 1.*initial_state\(1\)"
    ):
        policy.observe(observation, policy.initial_state(2))
    with pytest.raises(ValueError, match=r"another architecture.*initial_state\(1\)"):
        policy.observe(observation, make_policy(STATE_FEATURES).initial_state(1))
    with pytest.raises(ValueError, match="another architecture"):
        policy.act(make_policy(STATE_FEATURES).initial_state(1))
    with pytest.raises(ValueError, match=r"it is on meta, the policy on cpu"):
        policy.observe(observation, policy.initial_state(1).to("meta"))
    with pytest.raises(
        ValueError, match=r"expected a MemoryState, got NoneType; begin with policy\.initial_state"
    ):
        policy.observe(observation, None)
    with pytest.raises(ValueError, match="expected an Observation, got dict"):
        policy.observe({}, policy.initial_state(1))
    with pytest.raises(
        ValueError, match="batch_size: expected a whole number of at least 1, got 0"
    ):
        policy.initial_state(0)


def test_training_options_do_not_make_it_another_model() -> None:
    trained = make_policy(config=nano(control_jepa_weight=0.5))
    make_policy().observe(make_observation(STATE_FEATURES, 1), trained.initial_state(1))


def test_acting(policy) -> None:
    with pytest.raises(ValueError, match="not observed anything yet"):
        policy.act(policy.initial_state(1))
    state = policy.observe(make_observation(IMAGE_FEATURES, 1), policy.initial_state(1))
    with pytest.raises(ValueError, match="whole number of sampling steps, at least 1, got 0"):
        policy.act(state, steps=0)
    with pytest.raises(ValueError, match=r"at least 1, got 2\.5"):
        policy.act(state, steps=2.5)
    with pytest.raises(ValueError, match="one of gaussian, zero, or a tensor, got 'uniform'"):
        policy.act(state, source="uniform")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actions": torch.zeros(2, 9, 3)}, r"actions: expected \(2, at least 9, 2\)"),
        ({"actions": torch.zeros(2, 5, 2)}, r"at least 9"),
        ({"actions": torch.zeros(2, 12, 2)}, "give `actions_valid`"),
        (
            {"actions": torch.full((2, 9, 2), torch.inf)},
            r"actions: expected finite numbers, got inf at index \(0, 0, 0\)",
        ),
        ({"valid": torch.ones(2, 8, dtype=torch.bool)}, r"valid: expected the shape \(2, 9\)"),
        (
            {"valid": torch.zeros(2, 9, dtype=torch.bool)},
            r"episodes \[0, 1\] of the batch do not begin",
        ),
        ({"valid": torch.arange(9).expand(2, 9) != 4}, "padding in the middle"),
        (
            {"valid": torch.ones(2, 9)},
            r"valid: expected a mask of torch\.bool, got torch\.float32; pass mask\.bool\(\)",
        ),
        ({"emphasis": torch.ones(9)}, r"emphasis: expected the shape \(2, 9\)"),
        ({"emphasis": torch.zeros(2, 9)}, r"emphasis: .* episodes \[0, 1\] of the batch"),
        ({"emphasis": torch.full((2, 9), -1.0)}, r"none negative"),
        ({"actions": np.zeros((2, 9, 2))}, r"actions: expected a torch\.Tensor, got ndarray"),
        (
            {"observation": make_observation(STATE_FEATURES, 2)},
            r"shape \(batch, time, size\), got \(2, 5\)",
        ),
    ],
)
def test_batches(changes: dict[str, object], message: str) -> None:
    batch = dataclasses.replace(make_batch(STATE_FEATURES, 2, 9), **changes)
    with pytest.raises(ValueError, match=message):
        make_policy(config=nano(action_steps=2)).loss(batch)


def test_training_options_that_do_not_fit() -> None:
    policy, batch = make_policy(), make_batch(STATE_FEATURES, 2, 9)
    with pytest.raises(ValueError, match=r"only with objective\.action_steps"):
        policy.loss(dataclasses.replace(batch, emphasis=torch.ones(2, 9)))
    with pytest.raises(ValueError, match="drawn for 3 episodes, the batch has 2"):
        policy.loss(batch, augmentation=policy.draw_augmentation(3))
    with pytest.raises(ValueError, match=r"batch: it is on meta, the policy on cpu; use batch\.to"):
        policy.loss(batch.to("meta"))
    with pytest.raises(ValueError, match=r"lost in torch\.bfloat16.*torch\.autocast"):
        policy.bfloat16().update_target()


def test_a_state_of_another_batch_size_in_training() -> None:
    policy = make_policy()
    with pytest.raises(ValueError, match="memory of 3 episodes, the observation has 2"):
        policy.loss(make_batch(STATE_FEATURES, 2, 9), policy.initial_state(3))


def test_configurations() -> None:
    with pytest.raises(ValueError, match="different names"):
        Features(
            views=(View(name="a", height=64, width=64),) * 2, proprioception=1, action=1, horizon=1
        )
    with pytest.raises(ValueError, match=r"View 'a'\.height must be at least 1"):
        View(name="a", height=0, width=64)
    with pytest.raises(ValueError, match=r"target_momentum must lie in \[0, 1\]"):
        ObjectiveConfig(target_momentum=1.5)
    for wrong, message in [
        ({"horizon_weights": (0.0, 1.0, 1.0, 0.5, 0.5, 0.25)}, "must be positive"),
        (
            {"control_jepa_weight": float("nan")},
            "control_jepa_weight must be finite and not negative",
        ),
        ({"horizons": (0, 2, 4, 8, 16, 32)}, "horizons must be at least 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            ObjectiveConfig(**wrong)
    for wrong, message in [
        ({"encoder_blocks": (0, 1, 1, 1)}, "encoder_blocks must be at least 1"),
        ({"encoder_channels": (8, 16, 32, 50)}, "multiples of 16"),
        ({"layers": True}, "layers must be at least 1, got True"),
        ({"width": 63, "heads": 3}, "width must be even"),
    ]:
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(nano(), **wrong)
    with pytest.raises(ValueError, match=r'expected a PolicyConfig such as preset\("nano"\)'):
        ChameleonPolicy("nano", STATE_FEATURES)
    with pytest.raises(ValueError, match="finite numbers"):
        Range(low=(0.0,), high=(float("inf"),))
    with pytest.raises(ValueError, match="action_steps must be at least 1 or None"):
        ObjectiveConfig(action_steps=0)
    with pytest.raises(TypeError):
        ObjectiveConfig(alpha=0.1)
