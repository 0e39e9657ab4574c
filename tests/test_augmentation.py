"""Augmentation: drawn once for all frames of an episode, from the seed and the step alone."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from chameleon_policy.data import EpisodeArrays
from chameleon_policy.policy import EpisodeBatch, View
from chameleon_policy.train.augmentation import (
    Appearance,
    Mirror,
    augment,
    draw_appearance,
    tint_images,
    warp_images,
)
from chameleon_policy.train.config import TrainingConfig
from chameleon_policy.train.feeder import Feeder
from chameleon_policy.train.normalization import statistics_of
from chameleon_policy.train.sampling import appearance_generator, pace_generator
from chameleon_policy.train.store import EpisodeStore
from training_data import FEATURES, make_episodes

MIRROR = Mirror((1.0, -1.0, 1.0), (1.0, -1.0))


def drawn(mirror: bool, tint: float, warp: float = 0.0) -> list[Appearance]:
    return [draw_appearance(np.random.default_rng(n), mirror, tint, warp) for n in range(400)]


def test_half_of_the_episodes_are_mirrored_and_factors_stay_in_their_range() -> None:
    assert 160 < sum(appearance.mirrored for appearance in drawn(True, 0.0)) < 240
    assert set(drawn(False, 0.0)) == {Appearance()}
    factors = np.array([appearance.tint for appearance in drawn(False, 0.2)])
    assert (np.abs(factors - 1) <= 0.2).all() and (np.ptp(factors, axis=0) > 0.38).all()
    assert abs(np.corrcoef(factors.T)[0, 1]) < 0.2  # colours, not brightness alone
    warps = np.array([appearance.warp for appearance in drawn(False, 0.0, 0.1)]) - np.eye(2)
    assert (np.abs(warps) <= 0.1).all() and (np.ptp(warps, axis=0) > 0.19).all()


def test_colours_are_multiplied_and_stay_within_a_byte() -> None:
    images = (
        torch.tensor([[100, 200, 250], [0, 50, 255]], dtype=torch.uint8)
        .expand(2, 3, 4, 2, 3)
        .contiguous()
    )
    shown = tint_images(images, [(1.0, 1.0, 1.0), (0.5, 1.5, 1.1)])
    assert shown.dtype == torch.uint8
    assert torch.equal(shown[0], images[0])
    assert shown[1, 0, 0].tolist() == [[50, 255, 255], [0, 75, 255]]
    assert tint_images(images, [(1.0, 1.0, 1.0)] * 2) is images


def test_pictures_are_warped_around_their_centre() -> None:
    """Warp a picture of its own coordinates: the point p shows the coordinates warp p."""
    coordinates = torch.arange(16) * 10
    rows, columns = torch.meshgrid(coordinates, coordinates, indexing="ij")
    picture = torch.stack([columns, rows, torch.full_like(rows, 7)], dim=-1).to(torch.uint8)
    images = picture.expand(2, 3, 16, 16, 3).contiguous()
    warp = ((1.1, 0.05), (-0.08, 0.9))
    shown = warp_images(images, [((1.0, 0.0), (0.0, 1.0)), warp])
    assert shown.dtype == torch.uint8 and shown.is_contiguous()
    assert torch.equal(shown[0], images[0]) and torch.equal(shown[1, 0], shown[1, 2])
    centred = torch.stack([columns, rows], dim=-1) - 75.0
    expected = (centred @ torch.tensor(warp).T + 75.0).clamp(0, 150)
    torch.testing.assert_close(shown[1, 1, ..., :2].float(), expected, rtol=0, atol=0.51)
    assert shown[..., 2].eq(7).all()
    assert warp_images(images, [((1.0, 0.0), (0.0, 1.0))] * 2) is images


def test_appearances_follow_from_seed_step_and_index() -> None:
    draws = {
        appearance_generator(seed, step, index).random()
        for seed in (0, 1)
        for step in (0, 1)
        for index in (0, 1)
    }
    assert len(draws) == 8 and appearance_generator(1, 1, 1).random() in draws
    assert appearance_generator(1, 2, 3).random() != pace_generator(1, 2, 3).random()


def test_the_feeder_draws_anew_for_every_step_and_keeps_it_for_all_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    episodes = make_episodes([20])
    store = EpisodeStore(episodes, FEATURES, statistics_of(episodes))
    asked: list[list[Appearance]] = []

    def recorded(batch: EpisodeBatch, appearances: list[Appearance], mirror: Mirror | None):
        assert mirror is MIRROR
        asked.append(appearances)
        return augment(batch, appearances, mirror)

    monkeypatch.setattr("chameleon_policy.train.feeder.augment", recorded)
    config = TrainingConfig(steps=99, batch=1, window=10, tint=0.3, mirror=True, plain_steps=5)
    feeder = Feeder(store, config, Accelerator(cpu=True), 0, MIRROR)
    for _ in range(17):
        feeder.next_step()
    plain, asked = asked[:10], asked[10:]
    assert plain == [[Appearance()]] * 10
    firsts, seconds = asked[::2], asked[1::2]
    assert firsts == seconds and len({appearances[0].tint for appearances in firsts}) == 12
    assert 0 < sum(appearances[0].mirrored for appearances in firsts) < 12


def test_the_batch_shows_the_drawn_appearance() -> None:
    """Compare batches of the feeder with pictures that are warped first and then mirrored."""
    rng = np.random.default_rng(0)
    features = dataclasses.replace(FEATURES, views=(View(name="third", height=16, width=16),))
    (plain,) = make_episodes([12])
    frames = rng.integers(0, 256, (12, 16, 16, 3)).astype(np.uint8)
    episode = EpisodeArrays(**{**vars(plain), "images": {"third": frames}})
    store = EpisodeStore([episode], features, statistics_of([episode]))
    original = torch.from_numpy(frames)[None]

    def shown(config: TrainingConfig, step: int) -> torch.Tensor:
        feeder = Feeder(store, config, Accelerator(cpu=True), step, MIRROR)
        return feeder.next_step()[0][0].batch.observation.images["third"]

    mirrored = set()
    for step in range(8):
        config = TrainingConfig(steps=99, batch=1, mirror=True, warp=0.1, seed=3)
        generator = appearance_generator(3, step, 0)
        appearance = draw_appearance(generator, mirror=True, tint=0.0, warp=0.1)
        expected = warp_images(original, [appearance.warp])
        expected = expected.flip(3) if appearance.mirrored else expected
        torch.testing.assert_close(shown(config, step), expected, rtol=0, atol=0)
        assert not torch.equal(expected, original)
        mirrored.add(appearance.mirrored)
    assert mirrored == {False, True}
    alone = TrainingConfig(steps=99, batch=1, warp=0.1)
    appearance = draw_appearance(appearance_generator(0, 0, 0), mirror=False, tint=0.0, warp=0.1)
    expected = warp_images(original, [appearance.warp])
    torch.testing.assert_close(shown(alone, 0), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tint", -0.1),
        ("tint", 1.0),
        ("tint", float("nan")),
        ("warp", -0.1),
        ("warp", 0.5),
        ("warp", float("nan")),
    ],
)
def test_mistakes(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        TrainingConfig(steps=1, **{name: value})
