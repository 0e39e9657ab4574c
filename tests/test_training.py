"""Parts of training, compared with independent implementations."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from rich.console import Console
from torch import Tensor, nn

from chameleon_policy import ChameleonPolicy, EpisodeBatch, Features, ObjectSlots, View
from chameleon_policy.baselines import METHODS, NoMemoryPolicy, load_policy
from chameleon_policy.data import EpisodeArrays
from chameleon_policy.policy.checks import check_batch
from chameleon_policy.train import loop
from chameleon_policy.train.config import TrainingConfig
from chameleon_policy.train.feeder import Feeder, sampled_episodes
from chameleon_policy.train.graphs import GraphedLoss, _is_out_of_memory
from chameleon_policy.train.loop import DivergedError, Trainer
from chameleon_policy.train.normalization import SLOT_REACH, directions, statistics_of
from chameleon_policy.train.optimizers import WeightAverage
from chameleon_policy.train.sampling import (
    DECIDING,
    MOVING,
    RESTING,
    balanced_pass,
    episodes_of_step,
    step_kinds,
)
from chameleon_policy.train.store import EpisodeStore, padded_length
from examples import STATE_FEATURES, make_batch, make_policy, nano
from training_data import FEATURES, make_episodes

LENGTHS = [5, 9, 3, 7]


def make_store(
    episodes: list[EpisodeArrays] | None = None, *, annotated: bool = False
) -> EpisodeStore:
    episodes = episodes or make_episodes(LENGTHS)
    return EpisodeStore(episodes, FEATURES, statistics_of(episodes), annotated_decisions=annotated)


class RecordingPolicy(nn.Module):
    """A stand-in for a policy that records its batches.

    Its loss is the mean of all actions it saw, and its state counts the time steps.
    """

    carries_memory = True
    forget_activations = False

    def __init__(self, poison_at: int | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1.0))
        self.calls: list[dict[str, Any]] = []
        self.poison_at = poison_at

    def loss(
        self,
        batch: EpisodeBatch,
        state: Tensor | None = None,
        augmentation: Tensor | None = None,
        *,
        check_values: bool,
        keep_state: bool,
    ) -> SimpleNamespace:
        self.calls.append({"batch": batch, "state": state, "augmentation": augmentation})
        before = torch.zeros(len(batch.valid)) if state is None else state
        marks = torch.rand(len(batch.valid)) if augmentation is None else augmentation
        seen = batch.actions[:, : batch.valid.shape[1]][batch.valid]
        total = self.weight * seen.mean()
        if self.poison_at is not None and len(self.calls) > self.poison_at:
            total = total * torch.nan
        return SimpleNamespace(
            total=total, parts={}, state=before + batch.valid.sum(1), augmentation=marks
        )

    def update_target(self) -> None:
        pass

    def save_pretrained(self, folder: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)


def trainer(method: Any, tmp_path: Any, **config: Any) -> Trainer:
    settings = TrainingConfig(**{"steps": 4, "batch": 2, "log_steps": 1, **config})
    return Trainer(method, make_store(), settings, tmp_path, Accelerator(cpu=True))


class TestStore:
    def test_a_batch_is_what_a_loop_would_make(self) -> None:
        episodes, chosen = make_episodes(LENGTHS), [1, 2, 3]
        batch = make_store(episodes).batch(chosen)
        check_batch(batch, FEATURES)
        assert batch.valid.shape == (3, 9)
        for row, number in enumerate(chosen):
            episode, length = episodes[number], LENGTHS[number]
            assert batch.valid[row].tolist() == [t < length for t in range(9)]
            assert batch.actions_valid is not None
            assert batch.actions_valid[row].tolist() == [t < length for t in range(9 + 3)]
            for t in range(length):
                assert (
                    batch.observation.proprioception[row, t].numpy().tolist()
                    == episode.state[t].tolist()
                )
                assert (
                    batch.observation.objects[row, t].numpy().tolist()
                    == episode.objects[t].tolist()
                )
                assert batch.actions[row, t].numpy().tolist() == episode.actions[t].tolist()

    def test_a_window_has_whole_chunks(self) -> None:
        episodes = make_episodes(LENGTHS)
        batch = make_store(episodes).batch([1], first=2, window=3)
        assert batch.actions[0].numpy().tolist() == episodes[1].actions[2:8].tolist()
        assert (
            batch.observation.proprioception[0].numpy().tolist() == episodes[1].state[2:5].tolist()
        )

    def test_statistics_are_those_of_all_frames(self) -> None:
        episodes = make_episodes(LENGTHS)
        statistics = statistics_of(episodes)
        everything = np.concatenate([episode.actions for episode in episodes])
        mean, deviation = (
            everything.astype(float).mean(axis=0),
            everything.astype(float).std(axis=0),
        )
        assert statistics.action is not None
        assert statistics.action.low == pytest.approx(mean - deviation)
        assert statistics.action.high == pytest.approx(mean + deviation)
        states = np.concatenate([episode.state for episode in episodes])
        assert statistics.proprioception is not None
        assert statistics.proprioception.low == tuple(states.min(axis=0).astype(float).tolist())

    def test_pictures_stay_uint8(self) -> None:
        rng = np.random.default_rng(0)
        frames = rng.integers(0, 256, (6, 32, 48, 3), dtype=np.uint8)
        zeros = np.zeros((6, 2), np.float32)
        episode = EpisodeArrays(
            state=zeros, actions=zeros, images={"front": frames}, objects=None, instruction=""
        )
        features = Features(
            views=(View(name="front", height=32, width=48),), proprioception=2, action=2, horizon=2
        )
        batch = EpisodeStore([episode], features, statistics_of([episode])).batch(
            [0], first=1, window=3
        )
        assert batch.observation.images["front"].dtype == torch.uint8
        assert np.array_equal(batch.observation.images["front"][0].numpy(), frames[1:4])

    def test_every_episode_has_its_own_instruction(self) -> None:
        episodes = [
            replace(episode, instruction=text)
            for episode, text in zip(make_episodes(LENGTHS), ("a", "bb", "", "dddd"), strict=True)
        ]
        encoder = SimpleNamespace(
            embed=lambda texts: torch.tensor(
                [[len(text), 1.0] for text in texts], dtype=torch.float64
            )
        )
        store = EpisodeStore(episodes, FEATURES, statistics_of(episodes), encoder=encoder)
        instruction = store.batch([3, 0, 2]).observation.instruction
        assert instruction.dtype == torch.float32
        assert instruction.tolist() == [[4, 1], [1, 1], [0, 1]]


class TestStatistics:
    def test_directions_keep_their_range(self) -> None:
        rng = np.random.default_rng(0)

        def units(size: int) -> np.ndarray:
            rows = rng.normal([5.0] + [0.0] * (size - 1), 0.01, (50, size))
            return rows / np.linalg.norm(rows, axis=1, keepdims=True)

        rows = np.concatenate(
            [rng.normal(size=(50, 2)), units(3), units(3), rng.normal(size=(50, 1)), units(4)],
            axis=1,
        )
        assert directions(rows) == [slice(2, 5), slice(5, 8), slice(9, 13)]
        zeros = np.zeros((50, 1), np.float32)
        episode = EpisodeArrays(
            state=zeros, actions=rows.astype(np.float32), images={}, objects=None, instruction=""
        )
        action = statistics_of([episode]).action
        assert action is not None
        assert (action.low[2:8], action.high[9:]) == ((-1.0,) * 6, (1.0,) * 4)
        assert action.low[0] == pytest.approx(rows[:, 0].mean() - rows[:, 0].std(), abs=1e-5)

    def test_every_slot_has_a_range_over_the_frames_in_which_it_is_seen(self) -> None:
        objects = np.zeros((6, 3, 2), np.float32)
        objects[:, 0] = [[1, x] for x in (4.0, 4.5, 5.0, 4.0, 4.5, 5.0)]
        # seen twice, hardly moved; the third slot is never seen
        objects[2:4, 1] = [[1, -10.0], [1, -10.001]]
        zeros = np.zeros((6, 1), np.float32)
        statistics = statistics_of(
            [EpisodeArrays(state=zeros, actions=zeros, images={}, objects=objects, instruction="")]
        )
        assert statistics.objects is not None
        low, high = (
            np.reshape(ends, (3, 2)) for ends in (statistics.objects.low, statistics.objects.high)
        )
        assert (low[0, 1], high[0, 1]) == pytest.approx(
            (4.5 - 0.5 / SLOT_REACH, 4.5 + 0.5 / SLOT_REACH)
        )
        assert high[1, 1] - low[1, 1] == pytest.approx(0.05 * 15.001 / SLOT_REACH, rel=1e-4)
        assert (high[1, 1] + low[1, 1]) / 2 == pytest.approx(-10.0005)
        features = Features(
            objects=ObjectSlots(count=3, size=2), proprioception=1, action=1, horizon=2
        )
        tokens = ChameleonPolicy(nano(), features, statistics).event_tokens
        normalised = tokens._normalized(torch.from_numpy(objects)[None])[0]
        assert normalised[:3, 0, 1].tolist() == pytest.approx(
            [-SLOT_REACH, 0.0, SLOT_REACH], abs=1e-4
        )
        assert not normalised[0, 1].any()  # absent: zeros, as it came
        assert not normalised[:, 2].any()
        # where demonstrations never showed anything, the range of all slots: it may be seen later
        more = torch.zeros(1, 1, 3, 2)
        more[..., 2, :] = torch.tensor([1.0, 5.0])
        assert tokens._normalized(more)[0, 0, 2, 1].item() == pytest.approx(SLOT_REACH, abs=1e-4)


class TestStepKinds:
    def test_a_recording_of_camo_annotates_its_decisions(self) -> None:
        marked = EpisodeArrays(**{**vars(make_episodes([14])[0]), "decision_steps": (8,)})
        assert (
            step_kinds(marked, 4, np.ones(2), annotated=True).tolist()
            == [RESTING] * 5 + [DECIDING] * 4 + [MOVING] * 5
        )

    def test_a_resting_robot_sets_off(self) -> None:
        actions = np.zeros((20, 2), np.float32)
        actions[12:, 0] = np.linspace(0.1, 1, 8)
        zeros = np.zeros((20, 1), np.float32)
        episode = EpisodeArrays(
            state=zeros, actions=actions, images={}, objects=None, instruction=""
        )
        found = step_kinds(episode, 6, np.ptp(actions, axis=0)).tolist()
        # At step 7 the chunk ends with 0.1: not yet a fifth of the way.
        assert found == [RESTING] * 8 + [DECIDING] * 4 + [MOVING] * 8

    def test_emphasis_follows_the_kinds(self) -> None:
        marked = EpisodeArrays(**{**vars(make_episodes([9])[0]), "decision_steps": (6,)})
        config = TrainingConfig(steps=1, rest_emphasis=0.25, decision_emphasis=3.0)
        batch = make_store([marked], annotated=True).batch([0], emphasis=config.emphasis)
        assert batch.emphasis is not None
        assert batch.emphasis.tolist() == [[0.25] * 3 + [3.0] * 4 + [1.0] * 2]
        assert TrainingConfig(steps=1).emphasis is None

    def test_the_policy_reports_the_loss_of_deciding_steps(self) -> None:
        episodes = [
            EpisodeArrays(**{**vars(e), "decision_steps": (4,)}) for e in make_episodes([9, 9, 9])
        ]
        store = make_store(episodes, annotated=True)
        torch.manual_seed(0)
        policy = ChameleonPolicy(nano(), FEATURES).eval()
        batch = store.batch([0, 1, 2])
        torch.manual_seed(1)
        decision = policy.loss(batch).parts["decision_loss"]
        everywhere = EpisodeBatch(**{**vars(batch), "deciding": batch.valid})
        torch.manual_seed(1)
        parts = policy.loss(everywhere).parts
        torch.testing.assert_close(parts["decision_loss"], parts["action"])
        assert abs(decision - parts["action"]) > 1e-3


class TestEpisodesOfStep:
    def test_a_pass_holds_no_episode_twice_and_leaves_out_others_each_time(self) -> None:
        passes = [
            [n for step in range(4 * k, 4 * k + 4) for n in episodes_of_step(0, step, 7, [5] * 30)]
            for k in range(20)
        ]
        assert all(len(set(drawn)) == 28 for drawn in passes)
        left_out = [frozenset(range(30)) - set(drawn) for drawn in passes]
        assert len(set(left_out)) > 10
        assert set().union(*passes) == set(range(30))
        assert passes[0] != passes[1]
        assert episodes_of_step(1, 0, 7, [5] * 30) != episodes_of_step(0, 0, 7, [5] * 30)

    def test_a_batch_larger_than_the_dataset(self) -> None:
        assert sorted(episodes_of_step(0, 0, 6, [3, 4, 5])) == [0, 0, 1, 1, 2, 2]
        assert len(set(episodes_of_step(0, 5, 7, [3, 4, 5]))) == 3

    @pytest.mark.parametrize(
        ("episodes", "batch"), [(200, 32), (120, 64), (10, 4), (100, 8), (24, 8)]
    )
    def test_a_batch_holds_no_copies(self, episodes: int, batch: int) -> None:
        lengths = np.random.default_rng(0).integers(50, 90, episodes).tolist()
        for step in range(60):
            assert len(set(episodes_of_step(0, step, batch, lengths))) == batch

    def test_similar_lengths_come_together_in_random_order(self) -> None:
        lengths = list(range(80))
        batches = [episodes_of_step(0, step, 10, lengths) for step in range(8)]
        assert all(max(batch) - min(batch) == 9 for batch in batches)
        assert sorted(number for batch in batches for number in batch) == lengths
        assert [min(batch) for batch in batches] != sorted(min(batch) for batch in batches)

    def test_tasks_have_about_as_many_frames(self) -> None:
        lengths, tasks = [60, 70, 190, 210, 90], ["cup", "cup", "salt", "salt", "plate"]
        shown = balanced_pass(lengths, tasks)
        assert shown == [0, 0, 0, 1, 1, 1, 2, 3, 4, 4, 4, 4]
        frames = [
            sum(lengths[number] for number in shown if tasks[number] == task)
            for task in dict.fromkeys(tasks)
        ]
        assert max(frames) < 1.2 * min(frames)
        assert (
            balanced_pass([75] * 600 + [200] * 120, ["cup"] * 600 + ["salt"] * 120).count(600) == 2
        )
        assert balanced_pass(lengths, [""] * 5) == [0, 1, 2, 3, 4]
        steps = [episodes_of_step(0, step, 6, lengths, shown) for step in range(2)]
        assert sorted(steps[0] + steps[1]) == shown

    def test_the_feeder_shows_short_tasks_more_often(self) -> None:
        episodes = [
            replace(episode, instruction=str(episode.length))
            for episode in make_episodes([8, 8, 24, 24])
        ]
        store = EpisodeStore(episodes, FEATURES, statistics_of(episodes))
        config = TrainingConfig(steps=99, batch=2, equal_frames=True)
        shown = [number for step in range(4) for number in sampled_episodes(store, config, step)]
        assert sorted(shown) == [0, 0, 0, 1, 1, 1, 2, 3]
        feeder = Feeder(store, config, Accelerator(cpu=True), 0)
        frames = [int(feeder.next_step()[0][0].batch.valid.sum()) for _ in range(4)]
        assert sum(frames) == 6 * 8 + 2 * 24


class Stream:
    """A stand-in for a CUDA stream, on which everything has already arrived."""

    def record_event(self) -> None:
        pass

    def wait_event(self, event: None) -> None:
        pass


class TestPrefetching:
    @pytest.fixture
    def make_feeder(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Feeder]:
        """Return a function that makes feeders; those with a thread believe to be on a GPU."""
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream())
        monkeypatch.setattr(torch.cuda, "stream", nullcontext)
        monkeypatch.setattr(torch.cuda, "current_stream", Stream)
        monkeypatch.setattr(EpisodeBatch, "pin_memory", lambda batch: batch)
        monkeypatch.setattr(EpisodeBatch, "record_stream", lambda batch, stream: None)
        monkeypatch.setattr(EpisodeStore, "_take", lambda store, field, rows: field[rows])

        def make(*, thread: bool) -> Feeder:
            store = make_store()
            store.resident = not thread
            config = TrainingConfig(steps=99, batch=4, window=4, accumulate=2)
            return Feeder(store, config, Accelerator(cpu=True), 3)

        return make

    def test_a_thread_prepares_the_same_batches(self, make_feeder: Callable[..., Feeder]) -> None:
        seen = []
        for thread in (False, True):
            with make_feeder(thread=thread) as feeder:
                steps = [feeder.next_step() for _ in range(9)]
                assert feeder.throughput(9)["frames_per_second"] > 0
            assert all(list(step) == [0, 1] for step in steps)
            windows = [window for step in steps for part in step.values() for window in part]
            seen.append([window.batch.actions.tolist() for window in windows])
        assert seen[0] == seen[1]

    def test_its_errors_reach_the_training(self, make_feeder: Callable[..., Feeder]) -> None:
        feeder = make_feeder(thread=True)
        feeder._store.batch = None  # type: ignore[assignment, method-assign]
        with pytest.raises(TypeError), feeder:
            feeder.next_step()


class TestLoop:
    def test_windows_carry_state_and_augmentation(self, tmp_path) -> None:
        method = RecordingPolicy()
        trainer(method, tmp_path, steps=1, batch=4, window=4).train([], Console(quiet=True))
        first, second, third = method.calls
        assert [call["batch"].valid.shape[1] for call in method.calls] == [4, 4, 1]
        assert first["state"] is None
        order = episodes_of_step(0, 0, 4, LENGTHS)
        surviving = [number for number in order if LENGTHS[number] > 4]
        assert second["state"].tolist() == [4.0] * len(surviving)
        assert len(second["augmentation"]) == 3
        assert third["state"].tolist() == [8.0]
        assert third["augmentation"].item() in second["augmentation"].tolist()

    def test_windows_count_by_their_frames(self, tmp_path) -> None:
        """Compare the gradients of whole episodes and of windows: both of the mean over frames."""
        gradients = []
        for window in (None, 2):
            method = RecordingPolicy()
            whole = trainer(
                method, tmp_path / str(window), steps=1, batch=4, window=window, weight_decay=0.0
            )
            feeder = Feeder(whole.store, whole.config, whole.accelerator, 0)
            whole._accumulate(feeder.next_step()[0])
            gradients.append(method.weight.grad)
        torch.testing.assert_close(*gradients)

    def test_windows_have_the_loss_of_whole_episodes(self, tmp_path) -> None:
        """Compare the weighted action loss of the windows with that of the whole episodes."""
        torch.manual_seed(0)
        features = replace(FEATURES, horizon=1)  # so that every time step has one chunk position
        # Such a power makes the flow time 0, so that chunks are pure noise, which is zero below:
        # nothing remains random.
        policy = ChameleonPolicy(
            nano(control_jepa_weight=0.0, proprioception_noise=0.0, flow_time_power=1e6), features
        )
        episodes, accelerator, losses = make_episodes(LENGTHS), Accelerator(cpu=True), {}
        store = EpisodeStore(episodes, features, statistics_of(episodes))
        for window in (None, 4):
            run = Trainer(
                policy,
                store,
                TrainingConfig(steps=1, batch=4, window=window),
                tmp_path,
                accelerator,
            )
            windows = Feeder(store, run.config, accelerator, 0).next_step()[0]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(torch, "randn_like", torch.zeros_like)
                losses[window] = run._accumulate(windows)["action"]
        torch.testing.assert_close(losses[4], losses[None])

    def test_not_a_number_stops_with_the_episodes(self, tmp_path) -> None:
        with pytest.raises(DivergedError, match=r"loss is nan at step 2") as error:
            trainer(RecordingPolicy(poison_at=2), tmp_path, log_steps=2).train(
                [], Console(quiet=True)
            )
        assert str(episodes_of_step(0, 2, 2, LENGTHS)) in str(error.value)

    def test_a_method_without_memory_cannot_be_windowed(self, tmp_path) -> None:
        policy = METHODS["act"](nano(), FEATURES)
        with pytest.raises(ValueError, match="ACTPolicy carries no memory"):
            trainer(policy, tmp_path, window=2)

    def test_every_step_clips_the_gradient_and_updates_the_target(
        self, tmp_path, monkeypatch
    ) -> None:
        policy, updated = ChameleonPolicy(nano(), FEATURES), []
        monkeypatch.setattr(policy, "update_target", lambda: updated.append(True))
        trainer(policy, tmp_path, steps=3, gradient_clip=0.01).train([], Console(quiet=True))
        assert len(updated) == 3
        gradients = [each.grad for each in policy.parameters() if each.grad is not None]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        assert 0 < float(norm) <= 0.01 * (1 + 1e-4)

    def test_evaluations_use_the_averaged_weights_and_cost_no_budget(self, tmp_path) -> None:
        torch.manual_seed(0)
        policy = ChameleonPolicy(nano(), FEATURES)
        evaluations: list[tuple[int, bool]] = []
        name = "action_flow.action_out.weight"
        run = trainer(policy, tmp_path, steps=6, watch_times=3, learning_rate=1e-2)

        def watch(method: nn.Module) -> dict[str, float]:
            averaged = torch.equal(method.state_dict()[name], run.average.weights[name])
            evaluations.append((run.progress.step, averaged and not method.training))
            return {"train_dsr": 1.0}

        run.watches = [watch]
        run.train([], Console(quiet=True))
        assert evaluations == [(2, True), (4, True), (6, True)]
        assert not torch.equal(policy.state_dict()[name], run.average.weights[name])


def test_the_average_is_the_textbook_average() -> None:
    module = nn.Linear(1, 1, bias=False)
    average = WeightAverage(module, decay=0.9)
    expected = module.weight.item()
    for step in range(200):
        with torch.no_grad():
            module.weight.fill_(float(step))
        average.update(module, step)
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * step
        assert average.weights["weight"].item() == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_the_schedule() -> None:
    config = TrainingConfig(steps=1000, learning_rate=1.0, warmup_steps=100)
    assert config.rate(0, 0.0) == pytest.approx(0.01)
    assert config.rate(49, 0.049) == pytest.approx(0.5 * 0.5 * (1 + np.cos(np.pi * 0.049)))
    assert config.rate(500, 0.5) == pytest.approx(0.5)
    assert config.rate(1000, 1.0) == 0.0


def test_recordings_share_the_memory_of_their_batches() -> None:
    graphed = GraphedLoss(make_policy(), nullcontext)
    small, large = (make_batch(STATE_FEATURES, 2, time, seed=time) for time in (5, 9))
    kept = {time: graphed._keep(batch).tensors() for time, batch in ((9, large), (5, small))}
    for name, tensor in small.tensors().items():
        assert (
            torch.equal(kept[5][name], tensor)
            and kept[5][name].data_ptr() == kept[9][name].data_ptr()
        )
    larger = make_batch(STATE_FEATURES, 2, 12, seed=12)
    after = graphed._keep(larger).tensors()
    for name, tensor in larger.tensors().items():
        assert torch.equal(after[name], tensor) and torch.equal(
            kept[5][name], small.tensors()[name]
        )


def test_errors_of_full_memory() -> None:
    full = torch.cuda.OutOfMemoryError("2 GiB are missing")
    assert _is_out_of_memory(full)
    try:
        try:
            raise full
        finally:
            raise RuntimeError("the recording was invalidated")
    except RuntimeError as error:
        assert _is_out_of_memory(error)
    of_cuda = RuntimeError("CUDA error")
    assert not _is_out_of_memory(of_cuda)
    of_cuda.error_code = 2  # type: ignore[attr-defined]
    assert _is_out_of_memory(of_cuda)


def test_lengths_of_batches_are_few_and_never_too_short() -> None:
    lengths = {time: padded_length(time, 8) for time in range(1, 600)}
    assert all(time <= length < time + max(8, time / 8) for time, length in lengths.items())
    assert len({length for time, length in lengths.items() if 48 <= time <= 256}) <= 20
    padded = {1: 8, 8: 8, 9: 16, 121: 128, 128: 128, 129: 144, 257: 288}
    assert {time: padded_length(time, 8) for time in padded} == padded
    assert [padded_length(time, 1) for time in (1, 77, 500)] == [1, 77, 500]


def test_the_paper_recipe_is_the_default() -> None:
    config = TrainingConfig(steps=1)
    assert (config.learning_rate, config.warmup_steps, config.weight_decay) == (1e-4, 100, 1e-6)
    assert (config.batch, config.gradient_clip, config.precision) == (64, 10.0, "auto")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "--steps or as --minutes"),
        ({"steps": 1, "minutes": 1.0}, "one of the two"),
        ({"steps": 0}, "--steps must be at least 1"),
        ({"minutes": -1.0}, "--minutes must be positive"),
        ({"steps": 1, "ema_decay": 1.0}, "--ema-decay must be in"),
        ({"steps": 1, "batch": 0}, "--batch must be at least 1"),
    ],
)
def test_wrong_settings(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainingConfig(**wrong)


@pytest.mark.parametrize(
    ("device", "fused", "used"),
    [("cuda", True, True), ("cuda", False, False), ("cpu", True, False)],
)
def test_modules_are_fused_on_a_gpu_unless_switched_off(
    device: str, fused: bool, used: bool, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fused_policies: list[nn.Module] = []
    monkeypatch.setattr(loop, "fuse", fused_policies.append)
    accelerator = SimpleNamespace(
        device=torch.device(device), num_processes=1, autocast=nullcontext
    )
    config = TrainingConfig(steps=1, batch=4, graphs=False, fused=fused)
    policy = ChameleonPolicy(nano(), FEATURES)
    Trainer(policy, make_store(), config, tmp_path, accelerator)
    assert fused_policies == ([policy] if used else [])


class TestNoMemory:
    def test_the_past_changes_nothing(self, tmp_path) -> None:
        torch.manual_seed(0)
        twin = NoMemoryPolicy(nano(), FEATURES).eval()
        batch = make_store().batch([1, 3])
        states = [twin.initial_state(2), twin.initial_state(2)]
        for t in range(6):
            states[0] = twin.observe(batch.observation.at(t), states[0])
        states[1] = twin.observe(batch.observation.at(5), states[1])
        torch.testing.assert_close(states[0].working, states[1].working)
        assert states[0].steps.tolist() == [6, 6]

    def test_it_has_the_parameters_of_chameleon_and_is_saved_under_its_name(self, tmp_path) -> None:
        torch.manual_seed(0)
        twin, policy = NoMemoryPolicy(nano(), FEATURES), ChameleonPolicy(nano(), FEATURES)
        assert {n: p.shape for n, p in twin.named_parameters()} == {
            n: p.shape for n, p in policy.named_parameters()
        }
        twin.save_pretrained(tmp_path)
        assert isinstance(load_policy(tmp_path), NoMemoryPolicy)
        with pytest.raises(ValueError, match="holds a no-memory policy"):
            ChameleonPolicy.from_pretrained(tmp_path)

    def test_its_recurrence_is_chameleons_with_an_empty_state_at_every_step(self) -> None:
        torch.manual_seed(0)
        twin, policy = (
            NoMemoryPolicy(nano(), FEATURES).double(),
            ChameleonPolicy(nano(), FEATURES).double(),
        )
        policy.load_state_dict(twin.state_dict())
        tokens = policy.event_tokens(make_store().batch([1, 3]).observation)
        forgetful, _ = twin.remember(tokens, twin.initial_state(2))
        for t in range(tokens.shape[1]):
            remembering, _ = policy.remember(tokens[:, t : t + 1], policy.initial_state(2))
            for own, other in zip(forgetful, remembering, strict=True):
                torch.testing.assert_close(own.working[:, t], other.working[:, 0])
                torch.testing.assert_close(own.traces[:, t], other.traces[:, 0])

    def test_training_and_control_agree(self) -> None:
        torch.manual_seed(0)
        twin = NoMemoryPolicy(nano(), FEATURES).eval()
        batch = make_store().batch([1, 1])
        outputs, state = twin.remember(twin.event_tokens(batch.observation), twin.initial_state(2))
        for t in (0, 3, 8):
            alone = twin.observe(batch.observation.at(t), twin.initial_state(2))
            torch.testing.assert_close(
                outputs[-1].working[:, t], alone.working, rtol=1e-4, atol=1e-5
            )
        torch.testing.assert_close(state.working, outputs[-1].working[:, -1])
