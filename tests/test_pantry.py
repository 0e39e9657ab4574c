"""Pantry: what is shown, what is asked, and that the answer follows from both alone."""

from __future__ import annotations

import numpy as np
import pytest

from camo_episodes import WAIT
from chameleon_policy.camo import CamoEnv
from chameleon_policy.camo.experts import make_expert
from chameleon_policy.camo.geometry import Pose
from chameleon_policy.camo.objects import PALETTE, UNDERGROUND
from chameleon_policy.camo.recording import Recording
from chameleon_policy.camo.tasks import make_task
from chameleon_policy.camo.tasks.pantry import CARD_POSE

COLOURS = tuple(PALETTE)
MARKS = slice(7, 15)
"""Numbers of a slot that are colours."""


def watched(env: CamoEnv) -> tuple[dict[int, str], list[str]]:
    """Play an episode as an observer of object slots: cup -> colour seen, and the cards."""
    expert, cups, over = make_expert(env, noise=0.0), len(env.task.present), False
    seen: dict[int, str] = {}
    cards: list[str] = []
    observation, info = env._observation(), env._info(clamped=False)
    while not over:
        rows = observation["objects"][:, MARKS]
        if not env.decisions:
            for cup in range(cups):
                for colour in rows[cup].nonzero()[0]:
                    assert seen.setdefault(cup, COLOURS[colour]) == COLOURS[colour]
            assert not rows[cups].any(), "no card before the question"
        elif info["decision"]:
            assert not rows[:cups].any(), "nothing is seen under a cup"
            (card,) = rows[cups].nonzero()[0]
            cards.append(COLOURS[card])
        observation, _, terminated, truncated, info = env.step(expert.act().executed)
        over = terminated or truncated
    return seen, cards


@pytest.mark.parametrize(
    "dials",
    [{}, {"cups": 3, "questions": 1}, {"cups": 8, "questions": 3}, {"shown": 2}],
    ids=["default", "three", "eight", "few"],
)
def test_an_observer_who_remembers_can_answer(dials: dict[str, int]) -> None:
    env = CamoEnv("pantry", observation="state", **dials)
    for seed in range(4):
        env.reset(seed=seed)
        seen, cards = watched(env)
        assert len(seen) == len(set(seen.values())) == env.difficulty["shown"]
        assert len(seen) == min(dials.get("shown", 8), dials.get("cups", 6))
        cup_of = {colour: cup for cup, colour in seen.items()}
        assert tuple(cup_of[card] for card in cards) == env.z
        assert env.score().success


def test_z_moves_colours_and_nothing_else() -> None:
    """The hands move to the same cups at the same steps, and the same cards ask."""
    env = CamoEnv("pantry", observation="state")
    found = []
    for z in ((0, 1), (5, 3)):
        env.reset(seed=2, options={"z": z})
        seen, cards = watched(env)
        found.append((env.evidence_steps, env.decision_step, cards))
        assert [seen[cup] for cup in z] == cards
    assert found[0] == found[1]


def test_no_instruction_and_no_card_tells_the_cup() -> None:
    """Over many seeds every cup is asked about, and every colour is under every cup."""
    env = CamoEnv("pantry", observation="state", cups=3, questions=1, retention_steps=0)
    pairs = set()
    for seed in range(120):
        env.reset(seed=seed)
        while not env.decisions:
            observation, *_ = env.step(WAIT)
        card = observation["objects"][3, MARKS].argmax()
        pairs.add((env.z[0], int(card)))
    assert len(pairs) == 3 * len(COLOURS)


def test_colours_are_told_apart_at_128_pixels() -> None:
    """A block under a lifted cup, and a card, in the third view: different in every pair."""
    env = CamoEnv("pantry", observation="rgb", image_size=128, cups=8)
    env.reset(seed=0)
    world = env.world
    for cup in env.task.candidates:
        world.place(cup, Pose(np.array([-1.5, 0.0, 0.0]), np.eye(3)))
    away = Pose(UNDERGROUND, np.eye(3))

    def picture() -> np.ndarray:
        world.refresh()
        return env.frames()["third"].astype(float)

    for kind, pose, least in (
        ("block", Pose(np.array([0.51, 0.2, 0.0]), np.eye(3)), 20),
        ("card", CARD_POSE, 150),
    ):
        for colour in COLOURS:
            for each in ("block", "card"):
                world.place_scenery(f"{colour}_{each}", away)
        empty, means = picture(), []
        for colour in COLOURS:
            world.place_scenery(f"{colour}_{kind}", pose)
            shown = picture()
            changed = np.abs(shown - empty).max(-1) > 20
            assert changed.sum() >= least, f"{colour}: {changed.sum()} pixels of a {kind}"
            means.append(shown[changed].mean(0))
            world.place_scenery(f"{colour}_{kind}", away)
        distances = np.linalg.norm(np.subtract.outer(means, means).diagonal(0, 1, 3), axis=-1)
        closest = distances[~np.eye(len(COLOURS), dtype=bool)].min()
        assert closest > 50, f"{kind}s: two colours are only {closest:.0f} apart"


def test_demonstrations_show_a_varying_number_of_cups() -> None:
    """Without few shown cups nothing is learned; evaluation shows all."""
    recording = Recording(task="pantry", observation="state", episodes=40)
    assert recording.difficulty == {"shown": (1, 8)}
    env = recording.make_env()
    counts = {}
    for seed in range(40):
        env.reset(seed=seed)
        counts[env.difficulty["shown"]] = counts.get(env.difficulty["shown"], 0) + 1
    assert set(counts) == {2, 3, 4, 5, 6}, "at least as many as there are questions"
    fixed = Recording(task="pantry", observation="state", episodes=1, difficulty={"shown": 4})
    assert fixed.difficulty == {"shown": 4}


def test_dials_out_of_range_are_refused() -> None:
    for wrong in ({"cups": 2}, {"cups": 9}, {"questions": 0}, {"questions": 4}, {"shown": 0}):
        ((name, _),) = wrong.items()
        with pytest.raises(ValueError, match=f"{name} must be a number or a .* pair"):
            make_task("pantry", wrong)


def test_chance_is_that_of_every_question() -> None:
    assert make_task("pantry", {}).chance == pytest.approx(1 / 36)
    assert make_task("pantry", {"cups": 8, "questions": 3}).chance == pytest.approx(1 / 512)
    assert make_task("pantry", {"cups": (3, 4), "questions": 1}).chance == pytest.approx(
        (1 / 3 + 1 / 4) / 2
    )
