"""What training shows an episode as: drawn once for all of its frames, from the seed and the step
alone.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from chameleon_policy.data import EpisodeArrays
from chameleon_policy.policy import View
from chameleon_policy.train.augmentation import (
    Appearance,
    Mirror,
    draw_appearance,
    tint_images,
    warp_images,
)
from chameleon_policy.train.config import TrainingConfig
from chameleon_policy.train.feeder import Feeder
from chameleon_policy.train.normalization import statistics_of
from chameleon_policy.train.sampling import appearance_generator, pace_generator
from chameleon_policy.train.store import EpisodeStore
from test_timeline import FEATURES
from training_data import make_episodes


def drawn(mirror: bool, tint: float, warp: float = 0.0) -> list[Appearance]:
    return [draw_appearance(np.random.default_rng(n), mirror, tint, warp) for n in range(400)]


def test_every_other_episode_is_mirrored_and_colours_stay_within_reach() -> None:
    assert 160 < sum(each.mirrored for each in drawn(True, 0.0)) < 240
    assert set(drawn(False, 0.0)) == {Appearance()}
    factors = np.array([each.tint for each in drawn(False, 0.2)])
    assert (np.abs(factors - 1) <= 0.2).all() and (np.ptp(factors, axis=0) > 0.38).all()
    assert abs(np.corrcoef(factors.T)[0, 1]) < 0.2  # colours, not brightness alone
    warps = np.array([each.warp for each in drawn(False, 0.0, 0.1)]) - np.eye(2)
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
    """Against coordinates: a picture of its own rows and columns shows at p what was at warp p."""
    places = torch.arange(16) * 10
    rows, columns = torch.meshgrid(places, places, indexing="ij")
    picture = torch.stack([columns, rows, torch.full_like(rows, 7)], dim=-1).to(torch.uint8)
    images = picture.expand(2, 3, 16, 16, 3).contiguous()
    warp = ((1.1, 0.05), (-0.08, 0.9))
    shown = warp_images(images, [((1.0, 0.0), (0.0, 1.0)), warp])
    assert shown.dtype == torch.uint8 and shown.is_contiguous()
    assert torch.equal(shown[0], images[0]) and torch.equal(shown[1, 0], shown[1, 2])
    centred = torch.stack([columns, rows], dim=-1) - 75.0
    wanted = (centred @ torch.tensor(warp).T + 75.0).clamp(0, 150)
    torch.testing.assert_close(shown[1, 1, ..., :2].float(), wanted, rtol=0, atol=0.51)
    assert shown[..., 2].eq(7).all()
    assert warp_images(images, [((1.0, 0.0), (0.0, 1.0))] * 2) is images


def test_it_follows_from_seed_step_and_place() -> None:
    assert (
        appearance_generator(1, 2, 3).random()
        == appearance_generator(1, 2, 3).random()
        != pace_generator(1, 2, 3).random()
    )
    assert (
        len(
            {
                appearance_generator(seed, step, place).random()
                for seed in (0, 1)
                for step in (0, 1)
                for place in (0, 1)
            }
        )
        == 8
    )


def test_the_feeder_draws_anew_for_every_step_and_keeps_it_for_all_windows() -> None:
    from accelerate import Accelerator

    episodes = make_episodes([20])
    store = EpisodeStore(
        episodes, FEATURES, statistics_of(episodes), mirror=Mirror((1.0, -1.0, 1.0), (1.0, -1.0))
    )
    asked: list[list[Appearance]] = []
    batch_of = store.batch
    store.batch = lambda shown, *rest: (
        asked.append([each.appearance for each in shown]) or batch_of(shown, *rest)
    )  # type: ignore[method-assign, func-returns-value, union-attr]
    config = TrainingConfig(steps=99, batch=1, window=10, tint=0.3, mirror=True, plain_steps=5)
    feeder = Feeder(store, config, Accelerator(cpu=True), 0)
    for _ in range(17):
        feeder.next_step()
    plain, asked = asked[:10], asked[10:]
    assert plain == [[Appearance()]] * 10
    firsts, seconds = asked[::2], asked[1::2]
    assert firsts == seconds and len({each[0].tint for each in firsts}) == 12
    assert 0 < sum(each[0].mirrored for each in firsts) < 12


def test_what_is_drawn_is_what_is_seen() -> None:
    """From the feeder to the batch: warped first, then mirrored."""
    from accelerate import Accelerator

    rng, features = (
        np.random.default_rng(0),
        dataclasses.replace(FEATURES, views=(View(name="third", height=16, width=16),)),
    )
    (plain,) = make_episodes([12])
    frames = rng.integers(0, 256, (12, 16, 16, 3)).astype(np.uint8)
    episode = EpisodeArrays(**{**vars(plain), "images": {"third": frames}})
    statistics = statistics_of([episode])
    store = EpisodeStore(
        [episode], features, statistics, mirror=Mirror((1.0, -1.0, 1.0), (1.0, -1.0))
    )
    mirrored = set()
    for step in range(8):
        config = TrainingConfig(steps=99, batch=1, mirror=True, warp=0.1, seed=3)
        look = draw_appearance(appearance_generator(3, step, 0), mirror=True, tint=0.0, warp=0.1)
        expected = warp_images(torch.from_numpy(frames)[None], [look.warp])
        expected = expected.flip(3) if look.mirrored else expected
        seen = (
            Feeder(store, config, Accelerator(cpu=True), step)
            .next_step()[0]
            .windows[0]
            .batch.observation.images["third"]
        )
        torch.testing.assert_close(seen, expected, rtol=0, atol=0)
        assert not torch.equal(seen, torch.from_numpy(frames)[None])
        mirrored.add(look.mirrored)
    assert mirrored == {False, True}
    alone = TrainingConfig(steps=99, batch=1, warp=0.1)
    seen = (
        Feeder(store, alone, Accelerator(cpu=True), 0)
        .next_step()[0]
        .windows[0]
        .batch.observation.images["third"]
    )
    look = draw_appearance(appearance_generator(0, 0, 0), mirror=False, tint=0.0, warp=0.1)
    torch.testing.assert_close(
        seen, warp_images(torch.from_numpy(frames)[None], [look.warp]), rtol=0, atol=0
    )


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
