"""Dials that decide which answers there are: episodes of one task with other numbers of cups."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from camo_episodes import WAIT, Case, wait_until_decision
from chameleon_policy.camo import CamoEnv
from chameleon_policy.camo.dataset_variants import AnswerShownEpisodes
from chameleon_policy.camo.env import SLOT_NAMES
from chameleon_policy.camo.objects import CUP_RIM
from chameleon_policy.camo.play import parse_answer
from chameleon_policy.camo.recording import Recording, demonstrate
from chameleon_policy.camo.settings import CamoSettings, observation_for
from chameleon_policy.camo.tasks import make_task
from chameleon_policy.data import open_episodes
from chameleon_policy.probes.representations import gather_material
from chameleon_policy.recorder import record
from chameleon_policy.seeds import evaluation_seed
from chameleon_policy.suite import Spaces, suite_named

CUPS = (3, 5)


def many_cups(**options: object) -> CamoEnv:
    """Return a shell game with 3 to 5 cups in an episode."""
    return CamoEnv("shell-game", observation="state", cups=CUPS, **options)  # type: ignore[arg-type]


def spaces(slots: int) -> Spaces:
    """Return the spaces of a policy with this many object slots."""
    return Spaces(proprioception=10, action=10, objects=(slots, len(SLOT_NAMES)))


def test_the_seed_draws_the_number_and_z_does_not_change_it() -> None:
    env = many_cups()
    drawn = Counter()
    for seed in range(40):
        _, info = env.reset(seed=seed)
        cups = info["difficulty"]["cups"]
        drawn[cups] += 1
        assert env.z in range(cups)
        start = {name: env.world.position(name) for name in env.task.objects}
        _, again = env.reset(seed=seed, options={"z": cups - 1})
        assert (again["difficulty"], again["z"]) == (info["difficulty"], cups - 1)
        for name in env.task.candidates:
            np.testing.assert_array_equal(env.world.position(name), start[name])
    assert set(drawn) == {3, 4, 5} and min(drawn.values()) > 4


def test_an_answer_that_the_episode_does_not_have_is_refused() -> None:
    env = many_cups()
    seed = next(seed for seed in range(40) if env.task.draw(seed)["cups"] == 4)
    env.reset(seed=seed, options={"z": 3})
    with pytest.raises(ValueError, match=r"no answer z = 4; it has 0, 1, 2 ... 3 \(4 in all\)"):
        env.reset(seed=seed, options={"z": 4})


def test_cups_that_an_episode_does_not_use_are_out_of_sight_and_touch_nothing() -> None:
    env = many_cups()
    seed = next(seed for seed in range(40) if env.task.draw(seed)["cups"] == 3)
    demonstrate(env, seed)
    absent = set(env.task.candidates) - set(env.task.present)
    assert absent == {"cup_3", "cup_4"} <= env.task.hidden(env.world)
    assert not any(pair & absent and "table" not in pair for pair in env.world.touching())
    # Where they stand makes no pixel: the same picture without them
    env.world.refresh()
    drawn = env.frames(96)
    for name in absent:
        env.world.place(name, env.world.pose(name).translated(0, 0, -5))
    env.world.refresh()
    for view, frame in env.frames(96).items():
        np.testing.assert_array_equal(frame, drawn[view])
    env.world.place("cup_3", env.world.pose("cup_0").translated(0.1, 0, 0))
    env.world.refresh()
    assert not np.array_equal(env.frames(96)["third"], drawn["third"])  # it can be seen elsewhere
    env.close()


def test_their_rows_are_zero_after_the_other_candidates() -> None:
    env, few = many_cups(), CamoEnv("shell-game", observation="state")
    seed = next(seed for seed in range(40) if env.task.draw(seed)["cups"] == 3)
    seen, expected = (each.reset(seed=seed)[0]["objects"] for each in (env, few))
    assert seen.shape == (8, 7) and expected.shape == (6, 7)
    np.testing.assert_array_equal(seen[3:5], 0)
    np.testing.assert_allclose(np.delete(seen, (3, 4), axis=0), expected, atol=1e-6)


def test_a_policy_with_more_slots_sees_zero_rows_after_the_candidates() -> None:
    exact = CamoEnv("shell-game", observation="state")
    wide = CamoSettings(task="shell-game", **observation_for(spaces(9), "shell-game")).make_env()
    assert wide.observation_space["objects"].shape == (9, 7)
    few, many = (env.reset(seed=3)[0]["objects"] for env in (exact, wide))
    np.testing.assert_array_equal(many[3:6], 0)
    np.testing.assert_array_equal(np.delete(many, range(3, 6), axis=0), few)
    assert wide.observation_space.contains(wide.step(WAIT)[0])


def test_the_slots_of_a_policy_are_compared_with_those_that_the_dials_need() -> None:
    assert observation_for(spaces(8), "shell-game", {"cups": CUPS})["object_slots"] is None
    assert observation_for(spaces(8), "shell-game", {"cups": 4})["object_slots"] == 8
    with pytest.raises(ValueError, match="shell-game has 8 object slots of 7 numbers; this policy"):
        observation_for(spaces(6), "shell-game", {"cups": CUPS})
    with pytest.raises(ValueError, match="at least 6, which shell-game needs"):
        CamoEnv("shell-game", observation="state", object_slots=5)


def test_only_a_given_number_of_slots_is_written() -> None:
    camo = suite_named("camo")
    for recording in (
        Recording(task="shell-game", observation="state"),
        Recording(task="shell-game", observation="state", object_slots=8),
    ):
        written = recording.as_dict()
        assert written.get("object_slots") == recording.object_slots
        assert ("object_slots" in written) == (recording.object_slots is not None)
        names = recording.schema().vectors["observation.environment_state"]
        settings = camo.recorded_settings(written, spaces(8))
        assert len(names) == 7 * (recording.object_slots or 6)
        assert settings.as_dict()["object_slots"] == 8  # type: ignore[index]
        assert "object_slots" not in camo.recorded_settings(written, spaces(6)).as_dict()
    with pytest.raises(ValueError, match="object_slots = 8 is for recordings of object slots"):
        Recording(task="shell-game", object_slots=8)


@pytest.mark.parametrize(
    ("task", "dials"), [("shell-game", {"cups": CUPS}), ("seasonings", {"length": (1, 2)})]
)
def test_answers_are_balanced_for_every_number(task: str, dials: dict) -> None:
    recording = Recording(task=task, episodes=100, observation="state", difficulty=dials)
    drawing = make_task(task, dials)
    counts: dict[int, Counter] = defaultdict(Counter)
    for episode in range(recording.episodes):
        drawing.drawn = drawing.draw(recording_seed_of(recording, episode))
        z = recording.answer(episode)
        assert z in drawing.possible
        counts[len(drawing.possible)][z] += 1
    assert len(counts) == dials[next(iter(dials))][1] - dials[next(iter(dials))][0] + 1
    for number, found in counts.items():
        assert len(found) == number and max(found.values()) - min(found.values()) <= 1


def recording_seed_of(recording: Recording, episode: int) -> int:
    """Return the seed of the first try of an episode, as documented: 100,000 for a recording."""
    return recording.seed * 100_000 + episode


def test_chance_is_the_mean_over_the_episodes() -> None:
    env = CamoEnv("seasonings", observation="state", length=(1, 3))
    assert env.task.chance == pytest.approx((1 / 3 + 1 / 9 + 1 / 27) / 3)
    played = []
    for index in range(6):
        env.reset(seed=evaluation_seed(index))
        assert len(env.z) == env.task.decisions == env.difficulty["length"]
        played.append(env.result())
    summary = env.task.summarise(played)
    assert summary.chance == pytest.approx(np.mean([3.0 ** -len(each.z) for each in played]))
    assert len({each.chance for each in played}) > 1
    # whoever summarises need not know the dials
    assert suite_named("camo").task("seasonings").summarise(played).chance == summary.chance


@pytest.mark.parametrize("cups", [4, 5])
def test_no_carried_cup_passes_through_another(cups: int) -> None:
    """All pairs swap places, also across others; cups are widest at the rim, which has a bead."""
    env = CamoEnv("shell-game", observation="state", cups=cups, swaps=6)
    nearest, moved = [], set()
    for seed in range(30):
        env.reset(seed=seed)
        tracks = [
            np.array([pose.position[:2] for pose in env.script.objects[name]])
            for name in env.task.present
        ]
        for one, other in combinations(tracks, 2):
            nearest.append(np.linalg.norm(one - other, axis=1).min())
        moved |= {np.ptp(track[:, 1]).round(1) for track in tracks}
    assert len(moved) >= cups  # cups went one, two, three ... places
    assert min(nearest) > 2 * (CUP_RIM + 0.003)


def test_a_longer_sequence_has_more_decisions_and_more_time() -> None:
    env = CamoEnv("seasonings", observation="state", length=5, retention_steps=0)
    env.reset(seed=1, options={"z": (2, 0, 0, 1, 2)})
    assert (env.task.decisions, env.task.execution_steps) == (5, 450)
    demonstration = demonstrate(env, 1, (2, 0, 0, 1, 2))
    assert demonstration.score.success and env.task.choices(env.events) == (2, 0, 0, 1, 2)
    facts = demonstration.annotation
    assert len(facts["decision_steps"]) == 5 and facts["length"] == len(demonstration.actions)
    assert env.task.answers[facts["z_index"]] == (2, 0, 0, 1, 2)


def test_time_runs_out_after_as_many_choices_as_the_episode_has() -> None:
    env = CamoEnv("seasonings", observation="state", length=(1, 2), retention_steps=0)
    for seed, length in ((1, 1), (2, 2)):
        env.reset(seed=seed)
        assert len(env.z) == length
        wait_until_decision(env)
        steps = 0
        while not env.score().reason.startswith("timeout") and steps < 400:
            steps += 1
            if env.step(WAIT)[3]:
                break
        assert steps == 90 * length


def test_the_answer_on_the_command_line() -> None:
    assert parse_answer(make_task("seasonings", {"length": 1}), "2") == (2,)
    assert parse_answer(make_task("seasonings", {"length": (1, 5)}), "0,2,2,1,0") == (0, 2, 2, 1, 0)
    assert parse_answer(make_task("shell-game", {"cups": 5}), "4") == 4
    with pytest.raises(ValueError, match="shell-game has no answer z = 3"):
        parse_answer(make_task("shell-game", {}), "3")


def test_only_three_candidates_can_be_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="among 3 candidates, and shell-game has 5"):
        CamoSettings(
            task="shell-game", observation="state", kind="told", difficulty={"cups": CUPS}
        ).make_env()
    recording = Recording(
        task="shell-game", observation="state", episodes=4, difficulty={"cups": 4, "swaps": 0}
    )
    data = open_episodes(record(recording, tmp_path / "data"))
    with pytest.raises(ValueError, match="answers up to 3, and only 0 to 2 can be told"):
        AnswerShownEpisodes(data)


def test_a_recording_goes_on_only_with_as_many_slots(tmp_path: Path) -> None:
    begun = Recording(task="clean-plate", observation="state", episodes=1, object_slots=9)
    folder = tmp_path / "data/camo"
    folder.mkdir(parents=True)
    (folder / "recording.json").write_text(json.dumps(begun.as_dict()))
    with pytest.raises(FileExistsError, match="object_slots: 9 then, None now"):
        record(replace(begun, object_slots=None), tmp_path / "data")


def test_probes_refuse_a_range(tmp_path: Path) -> None:
    settings = CamoSettings(task="seasonings", observation="state", difficulty={"length": (1, 3)})
    with pytest.raises(ValueError, match="length of seasonings is a range: give one number"):
        gather_material(None, settings, (1, 1), tmp_path, None, 1)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        Case("shell-game", {"cups": cups, "swaps": swaps})
        for cups in (4, 5)
        for swaps in ((1, 2), (0, 8))
    ]
    + [Case("seasonings", {"length": (1, 6)})],
    ids=str,
)
def test_experts_succeed_on_99_of_100_seeds(case: Case) -> None:
    env = case.env(observation="state")
    scores = [demonstrate(env, evaluation_seed(index)).score for index in range(100)]
    assert sum(score.success for score in scores) >= 99, Counter(each.reason for each in scores)
