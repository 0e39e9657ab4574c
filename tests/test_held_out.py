"""Evaluation on held-out demonstrations, shown answers, joined datasets and recipes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from camo_episodes import WAIT, wait_until_decision
from chameleon_policy import ChameleonPolicy, ObjectiveConfig
from chameleon_policy.camo import CamoEnv, task_named
from chameleon_policy.camo.dataset_variants import AnswerShownEpisodes, answer_due
from chameleon_policy.camo.recording import Recording
from chameleon_policy.camo.variants import AnswerShownEnv
from chameleon_policy.cli import main
from chameleon_policy.data import load_episodes, open_datasets, open_episodes
from chameleon_policy.evaluate.loading import load_for_evaluation
from chameleon_policy.exit_codes import REFUSED
from chameleon_policy.policy.presets import nano
from chameleon_policy.recorder import record
from chameleon_policy.train.config import RunConfig, TrainingConfig
from chameleon_policy.train.held_out import _by_task, probe, probe_metric, watch_held_out
from chameleon_policy.train.normalization import statistics_of
from chameleon_policy.train.recipes import RECIPES
from chameleon_policy.train.store import Decisions, EpisodeStore, features_of
from command_line import chameleon_here, plain
from training_data import lines, make_episodes, write_demonstrations


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    out = tmp_path_factory.mktemp("recordings")
    return [
        record(
            Recording(task="clean-plate", episodes=count, seed=seed, observation="state"),
            out / str(seed),
        )
        for seed, count in enumerate((6, 3))
    ]


def stores_and_policy(
    recordings: list[Path], **objective: int
) -> tuple[list[EpisodeStore], ChameleonPolicy]:
    """Return a store for each recording, and a policy that fits."""
    datasets = [load_episodes(open_episodes(path)) for path in recordings]
    features = features_of(open_episodes(recordings[0]), horizon=4)
    statistics = statistics_of(datasets[0])
    torch.manual_seed(0)
    config = replace(nano(), objective=ObjectiveConfig(**objective))  # type: ignore[arg-type]
    policy = ChameleonPolicy(config, features, statistics).eval()
    return [EpisodeStore(episodes, features, statistics) for episodes in datasets], policy


def write_answers(policy: ChameleonPolicy, decisions: list[Decisions]) -> list[int]:
    """Replace the working states by the answers of these episodes, one after the other."""
    seen: list[int] = []

    def working_states(observation):
        states = torch.zeros(*observation.proprioception.shape[:2], 8)
        for row in states:
            episode = decisions[len(seen) % len(decisions)]
            row[episode.steps[0], episode.answers[0]] = 1.0
            seen.append(len(seen))
        return states

    policy.working_states = working_states  # type: ignore[method-assign]
    return seen


class TestProbe:
    def test_reads_what_a_linear_classifier_can_read_and_nothing_else(self) -> None:
        generator = torch.Generator().manual_seed(0)
        answers = torch.arange(3).repeat(40)
        rows = (
            torch.randn(120, 64, generator=generator)
            + 4 * torch.randn(3, 64, generator=generator)[answers]
        )
        # rows with an offset, various scales, and a dimension that never changes
        rows = torch.cat([100 + rows * torch.logspace(-3, 3, 64), torch.ones(120, 1)], 1)
        assert bool(probe(rows[:60], answers[:60], rows[60:], answers[60:]).all())
        noise = torch.randn(1200, 64, generator=generator)
        labels = torch.randint(3, (1200,), generator=generator)
        right = probe(noise[:600], labels[:600], noise[600:], labels[600:])
        assert abs(right.float().mean() - 1 / 3) < 0.08
        assert probe(noise[:1], labels[:1], noise[:1], labels[:1]).tolist() == [True]

    def test_reads_the_working_state_of_the_decision(self, recordings: list[Path]) -> None:
        stores, policy = stores_and_policy(recordings)
        seen = write_answers(policy, [*stores[0].decisions, *stores[1].decisions])
        metrics = watch_held_out(*stores, nullcontext)(policy)
        assert metrics["held_out_probe"] == 1.0 and len(seen) == 9
        assert set(metrics) == {"held_out_action", "held_out_decision_loss", "held_out_probe"}
        for store in stores:
            store.decisions = [Decisions(known.instruction, (), ()) for known in store.decisions]
        assert "held_out_probe" not in watch_held_out(*stores, nullcontext)(policy)

    def test_every_task_has_its_own_probe(self, recordings: list[Path]) -> None:
        # The answers of the second task are written in reverse, so that one probe could not read
        # both.
        stores, policy = stores_and_policy(recordings)
        for store in stores:
            store.decisions = [
                replace(decisions, instruction=str(number % 2))
                for number, decisions in enumerate(store.decisions)
            ]
        first, second = (
            [
                decisions
                for store in stores
                for decisions in store.decisions
                if decisions.instruction == task
            ]
            for task in "01"
        )
        turned = [replace(episode, answers=(2 - episode.answers[0],)) for episode in second]
        write_answers(policy, first + turned)
        metrics = watch_held_out(*stores, nullcontext)(policy)
        for name in ("held_out_probe", probe_metric("0"), probe_metric("1")):
            assert metrics[name] == 1.0
        # nothing of the second task's answers
        write_answers(policy, first + [replace(episode, answers=(0,)) for episode in second])
        metrics = watch_held_out(*stores, nullcontext)(policy)
        assert metrics[probe_metric("0")] == 1.0
        assert metrics[probe_metric("1")] < metrics["held_out_probe"] < 1.0

    def test_a_probe_is_fitted_to_all_of_a_large_store(
        self, recordings: list[Path], monkeypatch
    ) -> None:
        monkeypatch.setattr("chameleon_policy.train.held_out.LARGEST_FIT", 3)
        assert _by_task(stores_and_policy(recordings)[0][0]) == {
            task_named("clean-plate").instruction: [0, 2, 5]
        }

    def test_losses_have_the_emphasis_of_the_training(self, recordings: list[Path]) -> None:
        stores, policy = stores_and_policy(recordings, action_steps=8)
        plain, moving = (
            watch_held_out(*stores, nullcontext, emphasis)(policy)
            for emphasis in (None, (1.0, 1e-9, 1e-9))
        )
        assert plain["held_out_action"] != moving["held_out_action"]
        assert "held_out_decision_loss" in plain and "held_out_decision_loss" not in moving

    def test_working_states_are_those_of_control(self, recordings: list[Path]) -> None:
        arrays = load_episodes(open_episodes(recordings[1]))
        features = features_of(open_episodes(recordings[1]), horizon=4)
        statistics = statistics_of(arrays)
        torch.manual_seed(0)
        policy = ChameleonPolicy(nano(), features, statistics).eval()
        batch = EpisodeStore(arrays, features, statistics).batch([0])
        states, memory = policy.working_states(batch.observation), policy.initial_state(1)
        for step in range(5):
            memory = policy.observe(batch.observation.at(step), memory)
            torch.testing.assert_close(states[:, step], memory.working, rtol=1e-4, atol=1e-4)


class TestAnswerShown:
    def test_the_answer_of_the_decision_that_is_due(self) -> None:
        expected = {0: [0, 0, 1], 1: [0, 0, 1], 2: [1, 0, 0], 3: [0, 1, 0]}
        for decisions, numbers in expected.items():
            assert answer_due((2, 0, 1), decisions).tolist() == numbers

    def test_environment_and_recording_show_the_same(self, recordings: list[Path]) -> None:
        episodes = AnswerShownEpisodes(open_episodes(recordings[0]))
        assert episodes.state_size == 13
        plain, more = open_episodes(recordings[0]).read(2), episodes.read(2)
        np.testing.assert_array_equal(more.state[:, :10], plain.state)
        env = AnswerShownEnv("clean-plate", observation="state")
        first, info = env.reset(seed=5, options={"z": plain.answers[0]})
        assert first["proprioception"].dtype == np.float32 and env.observation_space.contains(first)
        assert first["proprioception"].shape == (13,)
        assert np.unique(more.state[:, 10:], axis=0).tolist() == [
            first["proprioception"][10:].tolist()
        ]
        assert (
            wait_until_decision(env)["proprioception"][10:].tolist()
            == answer_due(plain.answers, 1).tolist()
        )
        assert info["z"] == plain.answers[0]

    def test_seasonings_are_shown_one_at_a_time(self) -> None:
        env = AnswerShownEnv("seasonings", observation="state", retention_steps=3)
        env.reset(seed=3, options={"z": (2, 0, 1)})
        assert wait_until_decision(env)["proprioception"][10:].tolist() == [0, 0, 1]
        env.decisions.append(env.step_index)  # as if the first shaker had been put back
        assert env.step(WAIT)[0]["proprioception"][10:].tolist() == [1, 0, 0]

    def test_it_cannot_be_used_by_accident(self, tmp_path: Path) -> None:
        assert CamoEnv("clean-plate", observation="state").reset(seed=1)[0][
            "proprioception"
        ].shape == (10,)
        path = write_demonstrations(tmp_path / "demos.hdf5", make_episodes([5, 6]))
        with pytest.raises(ValueError, match="no recording of Camo: there are no answers to tell"):
            AnswerShownEpisodes(open_episodes(path))

    def test_it_needs_the_packages_of_camo(
        self, recordings: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "chameleon_policy.camo", None)
        options = ["--preset", "nano", "--device", "cpu", "--steps", 1, "--tell-answer"]
        training = chameleon_here("train", recordings[0], "--out", tmp_path / "run", *options)
        assert training.returncode == REFUSED
        assert "need: pip install 'chameleon-policy[camo]'" in plain(training.stderr)

    def test_another_pace_needs_robots_that_wait(self, tmp_path: Path) -> None:
        path = write_demonstrations(tmp_path / "demos.hdf5", make_episodes([5, 6]))
        options = ["--preset", "nano", "--device", "cpu", "--steps", 1, "--batch", 2]
        options += ["--uneven-pace", 0.2]
        training = chameleon_here("train", path, "--out", tmp_path / "run", *options)
        assert training.returncode == REFUSED
        assert "begins with a robot that waits" in plain(training.stderr)


class TestJoined:
    def test_episodes_of_all_datasets_in_order(self, recordings: list[Path]) -> None:
        joined, parts = open_datasets(recordings), [open_episodes(path) for path in recordings]
        assert joined.lengths == (*parts[0].lengths, *parts[1].lengths)
        for index, (number, position) in {0: (0, 0), 5: (0, 5), 6: (1, 0), 8: (1, 2)}.items():
            ours, expected = joined.read(index), parts[number].read(position)
            np.testing.assert_array_equal(ours.actions, expected.actions)
            assert (ours.decision_steps, ours.answers) == (
                expected.decision_steps,
                expected.answers,
            )

    def test_unequal_datasets_are_refused(self, recordings: list[Path], tmp_path: Path) -> None:
        other = record(
            Recording(task="shell-game", episodes=1, observation="state"), tmp_path / "shell-game"
        )
        with pytest.raises(
            ValueError, match=r"cannot be joined with .*: it has no views, \d object slots"
        ):
            open_datasets([recordings[0], other])
        files = [
            write_demonstrations(tmp_path / f"{size}.hdf5", make_episodes([5], state=size))
            for size in (3, 4)
        ]
        with pytest.raises(ValueError, match="state of 4, actions of 2"):
            open_datasets(files)
        with pytest.raises(ValueError, match="at least one dataset"):
            open_datasets([])


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunConfig]:
    """Return the configuration of a command line, without training."""

    def configure(*arguments: str) -> RunConfig:
        asked: list[RunConfig] = []
        monkeypatch.setattr(
            "chameleon_policy.cli.train.run", lambda config, *_: asked.append(config)
        )
        monkeypatch.setattr("sys.argv", ["chameleon", "train", "data", "--out", "run", *arguments])
        main()
        return asked[0]

    return configure


class TestRecipe:
    def test_a_recipe_gives_the_defaults_of_options(self, configured) -> None:
        recipe = RECIPES["camo"]
        config = configured("--recipe", "camo")
        assert (config.training, config.objective) == (recipe.training, recipe.objective)
        assert (
            config.horizon == 8 and config.data == (Path("data"),) and config.method == "chameleon"
        )
        assert configured("--recipe=camo") == config

    def test_options_override_it(self, configured) -> None:
        config = configured(
            "--optimizer", "adamw", "--recipe", "camo", "--steps=3", "--no-mirror", "--horizon", "4"
        )
        changes = {"optimizer": "adamw", "steps": 3, "minutes": None, "mirror": False}
        assert config.training == replace(RECIPES["camo"].training, **changes)
        assert config.horizon == 4

    def test_without_one_the_defaults_are_the_papers(self, configured) -> None:
        config = configured("--minutes", "2")
        assert (
            config.training == TrainingConfig(minutes=2) and config.objective == ObjectiveConfig()
        )

    def test_a_saved_policy_decides_what_is_new(self, configured, capsys) -> None:
        assert configured("--recipe", "camo", "--start-from", "policy").start_from == "policy"
        with pytest.raises(SystemExit):
            configured("--minutes", "2", "--start-from", "policy", "--horizon=4")
        assert "leave out --horizon" in capsys.readouterr().err

    def test_one_of_two_budgets(self, configured, capsys) -> None:
        with pytest.raises(SystemExit):
            configured("--steps", "3", "--minutes", "2")
        assert "--steps or as --minutes" in capsys.readouterr().err

    def test_from_the_command_line(self, recordings: list[Path], tmp_path: Path) -> None:
        run, (trained, held_out) = tmp_path / "run", recordings
        options = ["--preset", "nano", "--device", "cpu", "--batch", 2, "--steps", 2]
        options += ["--workers", 1, "--log-steps", 1, "--tell-answer", "--no-mirror", "--warp", 0]
        options += ["--watch-times", 1, "--watch-episodes", 0]
        options += ["--recipe", "camo", "--held-out", held_out, "--out", run]
        training = chameleon_here("train", trained, trained, *options)
        assert "All 2 steps were plain (--plain-steps 2000)" in training.stderr
        settings = json.loads((run / "run.json").read_text())["training"]
        assert settings["batch"] == 2 and settings["minutes"] is None
        assert settings["optimizer"] == "muon" and settings["beta2"] == 0.99
        evaluation = lines(run)[-1]
        assert 0 <= evaluation["held_out_probe"] <= 1 and evaluation["held_out_action"] > 0
        assert "train_msr" not in evaluation
        policy, environment = load_for_evaluation(run, "clean-plate", "cpu")
        assert environment.kind == "told" and policy.features.proprioception == 13
        options = ["--task", "clean-plate", "--episodes", "1", "--steps", "1"]
        assert "and told the answer" in plain(chameleon_here("eval", run, *options).stdout)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--recipe", "soup"], "recipe"),
            (["--recipe", "camo", "--held-out", "nowhere"], "--watch-times"),
            (["--recipe", "camo", "--no-mirror"], "set both to 0"),
            (["--held-out", "nowhere", "--watch-times", "1"], "nowhere does not exist"),
            (["--recipe", "camo"], "give --no-mirror"),
            (["--recipe", "camo", "--tell-answer"], "with --tell-answer, give --no-mirror"),
            (["--tint", "0.1"], "--tint and --warp change pictures"),
            (["--warp", "0.1"], "--tint and --warp change pictures"),
            (["--watch-times", "1"], "there is nothing to evaluate"),
            (
                ["--held-out", "DATA", "--watch-times", "1"],
                "is trained on; hold out other demonstrations",
            ),
        ],
    )
    def test_mistakes(
        self, recordings: list[Path], tmp_path: Path, options: list[str], message: str
    ) -> None:
        data, run = recordings[0], tmp_path / "run"
        options = [str(data) if option == "DATA" else option for option in options]
        budget = ["--preset", "nano", "--device", "cpu", "--steps", "1", "--watch-episodes", "0"]
        training = chameleon_here("train", data, "--out", run, *budget, *options)
        assert training.returncode == REFUSED
        assert message in plain(training.stderr)
        # so that the corrected command can use the same folder
        assert not (run / "run.json").exists()
