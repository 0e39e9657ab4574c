"""Baselines against independent references: formulas, plain loops, and networks with the answer."""

from __future__ import annotations

import builtins
import dataclasses
import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from chameleon_policy import Observation
from chameleon_policy.baselines.act import KL_WEIGHT, ACTPolicy
from chameleon_policy.baselines.diffusion_transformer import DiffusionTransformerPolicy
from chameleon_policy.baselines.diffusion_unet import DiffusionUNetPolicy, UNet
from chameleon_policy.baselines.lstm import RecurrentPolicy
from chameleon_policy.baselines.transformer import TransformerPolicy
from chameleon_policy.baselines.window import frames_before
from chameleon_policy.experiments.bench.jobs import Bench
from chameleon_policy.policy.targets import Targets
from examples import STATE_FEATURES, make_batch, make_observation, nano

DIFFUSION = pytest.mark.parametrize("kind", [DiffusionTransformerPolicy, DiffusionUNetPolicy])


def cosine_schedule(levels: int = 100) -> torch.Tensor:
    """Compute alpha-bar after every noise level (Nichol and Dhariwal, 2021), by its definition."""

    def share(t: float) -> float:
        return math.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2

    betas = [
        min(1 - share((level + 1) / levels) / share(level / levels), 0.999)
        for level in range(levels)
    ]
    return torch.cumprod(1 - torch.tensor(betas), 0)


class TestDiffusion:
    @DIFFUSION
    @pytest.mark.parametrize("steps", [1, 4, 10, 100])
    def test_sampling_is_ddim_from_pure_noise(self, kind, steps: int, monkeypatch) -> None:
        """Compare an arbitrary network's samples with DDIM written out by hand."""
        policy = kind(nano(), STATE_FEATURES).eval()

        def denoised(
            noised: torch.Tensor, level: torch.Tensor, condition: torch.Tensor
        ) -> torch.Tensor:
            # Large values: clipping to [-1, 1] would show.
            return 3 * torch.tanh(noised) + level[:, None, None] / 100

        monkeypatch.setattr(policy, "_denoised", denoised)
        state = policy.observe(make_observation(STATE_FEATURES, 2), policy.initial_state(2))
        chunk = torch.randn(
            2,
            STATE_FEATURES.horizon,
            STATE_FEATURES.action,
            generator=torch.Generator().manual_seed(0),
        )
        found = policy.act(state, steps=steps, source=chunk)
        kept = cosine_schedule().double()
        levels = [round(100 - number * 100 / steps) - 1 for number in range(steps)]
        chunk = chunk.double()
        for level, after in zip(levels, [*levels[1:], -1], strict=True):
            clean = denoised(chunk, torch.tensor([level, level]), chunk)
            noise = (chunk - kept[level].sqrt() * clean) / (1 - kept[level]).sqrt()
            share = kept[after] if after >= 0 else torch.tensor(1.0, dtype=torch.float64)
            chunk = share.sqrt() * clean + (1 - share).sqrt() * noise
        torch.testing.assert_close(found.double(), chunk, rtol=1e-3, atol=1e-3)

    @DIFFUSION
    def test_a_network_with_the_answer_recovers_the_actions(self, kind, monkeypatch) -> None:
        policy = kind(nano(), STATE_FEATURES).eval()
        clean = torch.rand(2, STATE_FEATURES.horizon, STATE_FEATURES.action) * 6 - 3
        monkeypatch.setattr(policy, "_denoised", lambda noised, level, condition: clean)
        state = policy.observe(make_observation(STATE_FEATURES, 2), policy.initial_state(2))
        for steps in (1, 4, 10, 100):
            torch.testing.assert_close(policy.act(state, steps=steps), clean, rtol=0, atol=1e-4)

    @DIFFUSION
    def test_the_loss_is_that_of_the_clean_chunk_and_the_noise_is_the_schedules(
        self, kind, monkeypatch
    ) -> None:
        policy = kind(nano(), STATE_FEATURES).eval()
        batch = make_batch(STATE_FEATURES, 8, 60)
        seen = {}

        def denoised(
            noised: torch.Tensor, level: torch.Tensor, condition: torch.Tensor
        ) -> torch.Tensor:
            seen.update(noised=noised, level=level)
            return torch.zeros_like(noised)

        monkeypatch.setattr(policy, "_denoised", denoised)
        torch.manual_seed(3)
        loss = policy.loss(batch).total
        targets = Targets.of(batch, STATE_FEATURES, policy.normalize_action, torch.float32)
        chunks = targets.chunks.flatten(0, 1)
        torch.testing.assert_close(loss, chunks.square()[targets.counted.flatten(0, 1)].mean())
        share = cosine_schedule()[seen["level"]][:, None, None]
        noise = (seen["noised"] - share.sqrt() * chunks) / (1 - share).sqrt()
        assert abs(noise.mean()) < 0.05 and abs(noise.std() - 1) < 0.05
        assert (seen["level"].min(), seen["level"].max()) == (0, 99)

    @DIFFUSION
    def test_the_last_two_observations_and_their_order_matter(self, kind) -> None:
        policy = kind(nano(), STATE_FEATURES).eval()
        first, second = (make_observation(STATE_FEATURES, 1, seed=seed) for seed in (0, 1))

        def after(*seen: Observation) -> torch.Tensor:
            state = policy.initial_state(1)
            for each in seen:
                state = policy.observe(each, state)
            return policy.act(state, steps=4, source="zero")

        torch.testing.assert_close(after(first, second), after(second, first, second))
        assert not torch.allclose(after(first, second), after(second, second))
        # Before an episode's first frame the window holds copies of it.
        torch.testing.assert_close(after(first), after(first, first))

    @DIFFUSION
    def test_bad_numbers_of_steps(self, kind) -> None:
        policy = kind(nano(), STATE_FEATURES).eval()
        state = policy.observe(make_observation(STATE_FEATURES, 1), policy.initial_state(1))
        with pytest.raises(ValueError, match="100 noise levels"):
            policy.act(state, steps=101)
        with pytest.raises(ValueError, match="at least 1"):
            policy.act(state, steps=0)

    def test_a_missing_package_is_named(self, monkeypatch) -> None:
        real = builtins.__import__

        def refuse(name, *rest, **options):
            if name == "diffusers":
                raise ImportError(name)
            return real(name, *rest, **options)

        monkeypatch.setattr(builtins, "__import__", refuse)
        with pytest.raises(ImportError, match=r"pip install 'chameleon-policy\[baselines\]'"):
            DiffusionTransformerPolicy(nano(), STATE_FEATURES)
        with pytest.raises(ImportError, match="baselines"):
            # before anything is recorded
            Bench(suite="camo", methods=("chameleon", "diffusion-unet"))

    @pytest.mark.parametrize("horizon", [1, 3, 4, 8, 10])
    def test_the_unet_takes_any_horizon_and_uses_its_condition(self, horizon: int) -> None:
        unet = UNet(2, 6, 8)
        chunk, condition = torch.randn(3, horizon, 2), torch.randn(3, 6)
        assert unet(chunk, condition).shape == chunk.shape
        assert not torch.allclose(unet(chunk, condition), unet(chunk, condition + 1))


class TestACT:
    def test_a_chunk_follows_from_the_last_observation_alone(self) -> None:
        policy = ACTPolicy(nano(), STATE_FEATURES).eval()
        observation = make_observation(STATE_FEATURES, 2)
        fresh = policy.observe(observation, policy.initial_state(2))
        other = policy.observe(make_observation(STATE_FEATURES, 2, seed=1), policy.initial_state(2))
        tokens = policy.event_tokens(observation.map(lambda tensor: tensor[:, None]))[:, 0]
        expected = policy.normalize_action.inverse(policy._decode(tokens))
        torch.testing.assert_close(policy.act(fresh), expected)
        torch.testing.assert_close(policy.act(policy.observe(observation, other)), expected)
        assert policy.executed == 1 and policy.temporal_ensemble == 0.01

    def test_bad_options_are_refused_though_nothing_is_drawn(self) -> None:
        policy = ACTPolicy(nano(), STATE_FEATURES).eval()
        state = policy.observe(make_observation(STATE_FEATURES, 1), policy.initial_state(1))
        with pytest.raises(ValueError, match="at least 1"):
            policy.act(state, steps=0)
        with pytest.raises(ValueError, match="source"):
            policy.act(state, source="nonsense")

    def test_the_divergence_is_that_of_torch_distributions(self, monkeypatch) -> None:
        policy = ACTPolicy(nano(), STATE_FEATURES).eval()
        batch = make_batch(STATE_FEATURES, 2, 4)
        mean, log_variance = torch.randn(2, 8, 32)
        monkeypatch.setattr(policy.posterior, "forward", lambda chunks, body: (mean, log_variance))
        loss = policy.loss(batch)
        expected = (
            kl_divergence(Normal(mean, (log_variance / 2).exp()), Normal(0.0, 1.0)).sum(-1).mean()
        )
        torch.testing.assert_close(loss.parts["divergence"], expected)
        torch.testing.assert_close(loss.total, loss.parts["action"] + KL_WEIGHT * expected)

    def test_the_posterior_sees_the_chunk_and_is_not_saved(self, tmp_path) -> None:
        policy = ACTPolicy(nano(), STATE_FEATURES)
        chunks, body = torch.randn(2, 4, 2), torch.randn(2, nano().width)
        assert not torch.allclose(
            policy.posterior(chunks, body)[0],
            policy.posterior(chunks + 1, body)[0],
            rtol=0,
            atol=1e-4,
        )
        policy.save_pretrained(tmp_path)
        loaded = ACTPolicy.from_pretrained(tmp_path)
        assert loaded.posterior is None
        with pytest.raises(ValueError, match="without its posterior"):
            loaded.loss(make_batch(STATE_FEATURES, 1, 3))


class TestTransformer:
    def test_it_sees_64_frames_and_no_more(self) -> None:
        policy = TransformerPolicy(nano(), STATE_FEATURES).double().eval()
        time = 66
        observation = make_observation(STATE_FEATURES, 1, time, dtype=torch.float64)

        def last(changed: int) -> torch.Tensor:
            other = observation.proprioception.clone()
            other[:, changed] += 1
            return policy.working_states(dataclasses.replace(observation, proprioception=other))[
                :, -1
            ]

        unchanged = policy.working_states(observation)[:, -1]
        torch.testing.assert_close(last(time - 65), unchanged, rtol=0, atol=0)
        assert not torch.allclose(last(time - 64), unchanged, rtol=1e-9, atol=1e-12)


def test_an_untrained_lstm_remembers() -> None:
    """The first frame still counts after sixty steps; with zero biases it is lost."""
    left = {}
    for name in ("ours", "usual"):
        torch.manual_seed(0)
        policy = RecurrentPolicy(nano(), STATE_FEATURES).double().eval()
        if name == "usual":
            for layer in range(2):
                torch.nn.init.zeros_(getattr(policy.recurrence["lstm"], f"bias_ih_l{layer}"))
        observation = make_observation(STATE_FEATURES, 1, 61, dtype=torch.float64)
        other = observation.proprioception.clone()
        other[:, 0] += 1
        change = policy.working_states(observation) - policy.working_states(
            dataclasses.replace(observation, proprioception=other)
        )
        left[name] = float(change[:, 60].norm() / change[:, 0].norm())
    assert left["ours"] > 0.01 > 1e-5 > left["usual"]


def test_the_lstm_follows_its_equations() -> None:
    """Compare with two layers written out gate by gate."""
    policy = RecurrentPolicy(nano(), STATE_FEATURES).double().eval()
    lstm = policy.recurrence["lstm"]
    observation = make_observation(STATE_FEATURES, 2, 5, dtype=torch.float64)
    summaries = policy.summary(policy.event_tokens(observation))
    hidden, cell = (torch.zeros(2, 2, lstm.hidden_size, dtype=torch.float64) for _ in range(2))
    for t in range(5):
        inputs = summaries[:, t]
        for layer in range(2):
            w_i, w_h, b_i, b_h = (
                getattr(lstm, f"{name}_l{layer}")
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            gates = inputs @ w_i.T + b_i + hidden[layer].clone() @ w_h.T + b_h
            let_in, forget, new, out = gates.chunk(4, dim=-1)
            cell[layer] = forget.sigmoid() * cell[layer].clone() + let_in.sigmoid() * new.tanh()
            hidden[layer] = inputs = out.sigmoid() * cell[layer].tanh()
    expected = policy.recurrence["out"](hidden[1])
    torch.testing.assert_close(policy.working_states(observation)[:, -1], expected)


def test_frames_before_a_moment() -> None:
    observation = make_observation(STATE_FEATURES, 2, 7)
    steps = torch.tensor([[0, 6], [3, 1]])
    found = frames_before(observation, (torch.arange(2)[:, None], steps), 3).proprioception
    for episode in range(2):
        expected = [max(0, int(step) - age) for step in steps[episode] for age in (2, 1, 0)]
        torch.testing.assert_close(found[episode], observation.proprioception[episode, expected])
