"""Event tokens: patch grids, crops that are constant within an episode, slots, and ResNet-18."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from chameleon_policy import Features, View, preset
from chameleon_policy.policy.crop import corners, crop
from chameleon_policy.policy.event_tokens import EventTokens
from chameleon_policy.policy.observation import Augmentation
from chameleon_policy.policy.visual import PatchEncoder
from examples import IMAGE_FEATURES, STATE_FEATURES, make_batch, make_observation, make_policy, nano


@pytest.mark.parametrize(
    ("size", "cropped", "tokens"), [(224, 192, 36), (128, 110, 16), (96, 82, 9)]
)
def test_the_grid_of_the_papers_tables(size: int, cropped: int, tokens: int) -> None:
    view = View(name="camera", height=size, width=size)
    assert view.crop == (cropped, cropped)
    assert view.tokens == tokens
    encoder = PatchEncoder(preset("nano"), view)
    assert encoder(torch.zeros(1, 1, size, size, 3)).shape == (1, 1, tokens, 64)


def test_the_encoder_is_resnet18_by_count() -> None:
    trunk = PatchEncoder(preset("paper"), View(name="camera", height=224, width=224))
    projection = sum(p.numel() for p in trunk.projection.parameters())
    assert sum(p.numel() for p in trunk.parameters()) - projection == 11_176_512
    assert {
        m.num_channels // m.num_groups for m in trunk.modules() if isinstance(m, torch.nn.GroupNorm)
    } == {16}


def test_token_order_and_count() -> None:
    policy = make_policy(IMAGE_FEATURES)
    tokens = policy.event_tokens(make_observation(IMAGE_FEATURES, 2, 3))
    assert IMAGE_FEATURES.tokens == 2 * 3 + 2 * 2 + 2
    assert tokens.shape == (2, 3, IMAGE_FEATURES.tokens, 64)
    observation = make_observation(IMAGE_FEATURES, 2, 3)
    moved = dataclasses.replace(observation, proprioception=observation.proprioception + 1)
    changed = (policy.event_tokens(moved) - policy.event_tokens(observation)).abs().amax(
        dim=(0, 1, 3)
    ) > 0
    assert changed.nonzero().flatten().tolist() == [IMAGE_FEATURES.tokens - 2], (
        "proprioception is the last but one"
    )
    instructed = dataclasses.replace(observation, instruction=observation.instruction + 1)
    changed = (policy.event_tokens(instructed) - policy.event_tokens(observation)).abs().amax(
        dim=(0, 1, 3)
    ) > 0
    assert changed.nonzero().flatten().tolist() == [IMAGE_FEATURES.tokens - 1], (
        "language is the last"
    )
    one = dataclasses.replace(
        observation, instruction=observation.instruction + torch.tensor([[0.0], [1.0]])
    )
    changed = (policy.event_tokens(one) - policy.event_tokens(observation)).abs().amax(
        dim=(1, 2, 3)
    ) > 0
    assert changed.tolist() == [False, True], "every episode has its own"


def test_patches_are_in_the_order_of_their_pixels() -> None:
    """A view's tokens have embeddings in order, and a crop's corner reaches its token most."""
    policy = make_policy(IMAGE_FEATURES)
    slots = policy.event_tokens.slots[0]()
    assert slots.shape == (6, 64)
    assert torch.cdist(slots, slots).fill_diagonal_(1).min() > 0.5
    embedding, (rows, columns) = policy.event_tokens.slots[0], IMAGE_FEATURES.views[0].grid
    for index in range(rows * columns):
        row, column = divmod(index, columns)  # row by row, as the patches
        expected = embedding.rows[row, 0] + embedding.columns[0, column]
        torch.testing.assert_close(slots[index], expected)
    images = torch.zeros(1, 1, 64, 96, 3)
    bright = images.clone()
    bright[:, :, 5:20, 76:88] = 1
    encoder = policy.event_tokens.encoders[0]
    view = IMAGE_FEATURES.views[0]
    difference = (encoder(bright) - encoder(images)).norm(dim=-1)[0, 0].view(view.grid)
    assert divmod(int(difference.argmax()), view.grid[1]) == (0, view.grid[1] - 1)


def test_a_crop_is_constant_within_an_episode_and_view() -> None:
    """Images of their own coordinates show the offsets of the crops."""
    view = View(name="camera", height=70, width=70)
    rows = torch.arange(70).view(1, 1, 70, 1, 1).expand(4, 5, 70, 70, 3).to(torch.uint8)
    position = torch.tensor([[0.0, 0.0], [0.5, 0.5], [0.999, 0.999], [0.25, 0.0]])
    cut = crop(rows, *corners(view, position), view.crop)
    assert cut.shape == (4, 5, 60, 60, 3)
    assert cut[:, :, 0, 0, 0].tolist() == [[0] * 5, [5] * 5, [10] * 5, [2] * 5]


def test_random_offsets_are_uniform() -> None:
    view = View(name="camera", height=14, width=14)
    rows = torch.arange(14).view(1, 1, 14, 1, 1).expand(6000, 1, 14, 14, 3)
    torch.manual_seed(0)
    tops = crop(rows, *corners(view, torch.rand(6000, 2)), view.crop)[:, 0, 0, 0, 0]
    counts = torch.bincount(tops, minlength=3)
    assert len(counts) == 3
    assert ((counts / 6000 - 1 / 3).abs() < 0.03).all()


def test_training_crops_differ_between_episodes_and_control_never_crops_at_random() -> None:
    policy = make_policy(IMAGE_FEATURES).train()
    augmentation = policy.draw_augmentation(8)
    assert len({tuple(row.tolist()) for row in augmentation.crop[:, 0]}) == 8
    observation = make_observation(IMAGE_FEATURES, 2)
    first, second = (policy.observe(observation, policy.initial_state(2)) for _ in range(2))
    assert torch.equal(first.working, second.working)


def test_a_loss_draws_an_augmentation_in_training_mode_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The event tokens receive one crop and offset for every episode."""
    policy, batch = make_policy(IMAGE_FEATURES), make_batch(IMAGE_FEATURES, 3, 4)
    seen: list[Augmentation | None] = []
    forward = EventTokens.forward
    monkeypatch.setattr(
        EventTokens,
        "forward",
        lambda self, observation, drawn=None: (
            seen.append(drawn) or forward(self, observation, drawn)
        ),
    )
    policy.train().loss(batch)
    policy.eval().loss(batch)
    drawn, nothing = seen
    assert drawn is not None and nothing is None
    assert len({tuple(row.flatten().tolist()) for row in drawn.crop}) == 3
    assert len({tuple(row.tolist()) for row in drawn.proprioception_offset}) == 3


def test_uint8_and_float_images_mean_the_same() -> None:
    policy = make_policy(IMAGE_FEATURES)
    observation = make_observation(IMAGE_FEATURES, 1)
    as_float = dataclasses.replace(
        observation, images={k: v / 255 for k, v in observation.images.items()}
    )
    first, second = (
        policy.observe(o, policy.initial_state(1)).working for o in (observation, as_float)
    )
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-4)


def test_proprioceptive_noise_has_the_configured_size_per_step_and_per_episode() -> None:
    policy = make_policy(STATE_FEATURES, config=nano(proprioception_noise=0.1), dtype=torch.float64)
    observation = make_observation(STATE_FEATURES, 400, 20, dtype=torch.float64)
    clean = policy.event_tokens(observation)[:, :, -2]
    noisy = policy.event_tokens(observation, policy.draw_augmentation(400))[:, :, -2]
    weight = policy.event_tokens.proprioception.weight
    noise = torch.linalg.lstsq(weight, (noisy - clean).flatten(0, 1).T).solution.T.view(400, 20, 5)
    assert noise.mean(1).std().item() == pytest.approx(0.1 * (1 + 1 / 20) ** 0.5, rel=0.1)
    assert (noise - noise.mean(1, keepdim=True)).std().item() == pytest.approx(
        0.1 * (1 - 1 / 20) ** 0.5, rel=0.1
    )


def test_no_language_means_a_learned_null_token() -> None:
    policy = make_policy(STATE_FEATURES)
    tokens = policy.event_tokens(make_observation(STATE_FEATURES, 2, 3))
    torch.testing.assert_close(
        tokens[:, :, -1], policy.event_tokens.null_instruction.expand(2, 3, -1)
    )
    assert policy.event_tokens.null_instruction.requires_grad


def test_objects_and_views_together() -> None:
    both = Features(
        views=IMAGE_FEATURES.views,
        objects=STATE_FEATURES.objects,
        proprioception=5,
        action=2,
        horizon=4,
    )
    policy = make_policy(both)
    assert (
        policy.event_tokens(make_observation(both, 1, 2)).shape[2] == both.tokens == 6 + 4 + 3 + 2
    )
