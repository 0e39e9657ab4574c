"""Promises of every method: Chameleon, the baselines and the ablations, in one list."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest
import torch

from chameleon_policy import ChameleonPolicy, Features, VisuomotorPolicy, preset
from chameleon_policy.baselines import ABLATIONS, METHODS, load_policy, method_named
from chameleon_policy.baselines.window import WindowPolicy
from chameleon_policy.train.optimizers import matrices_of
from examples import IMAGE_FEATURES, STATE_FEATURES, make_batch, make_observation, nano

CAMO = Features(views=IMAGE_FEATURES.views, proprioception=10, action=10, horizon=8)
EVERY_METHOD = pytest.mark.parametrize("method", METHODS)
MEMORYLESS = ("diffusion-transformer", "diffusion-unet", "act", "flow-matching", "no-memory")
WITHOUT_DECAY = {"no-memory": ("slow.log_decay", "fast.log_decay"), "brief": ("fast.log_decay",)}
TIME = 9


def make(
    method: str, features: Features = STATE_FEATURES, seed: int = 0, **objective: object
) -> VisuomotorPolicy:
    torch.manual_seed(seed)
    return METHODS[method](nano(**objective), features)


@EVERY_METHOD
@pytest.mark.parametrize("features", [STATE_FEATURES, IMAGE_FEATURES], ids=["state", "images"])
def test_training_and_control_see_the_same(method: str, features: Features) -> None:
    policy = make(method, features).double().eval()
    observation = make_observation(features, 2, TIME, dtype=torch.float64)
    whole = policy.working_states(observation)
    state = policy.initial_state(2)
    for t in range(TIME):
        state = policy.observe(observation.at(t), state)
        torch.testing.assert_close(
            policy._condition(state.working), whole[:, t], rtol=1e-8, atol=1e-9
        )
    assert state.steps.tolist() == [TIME, TIME]


@EVERY_METHOD
def test_strictly_causal(method: str) -> None:
    policy = make(method).eval()
    observation = make_observation(STATE_FEATURES, 2, TIME)
    later = make_observation(STATE_FEATURES, 2, TIME, seed=1)
    cut = 5
    mixed = dataclasses.replace(
        observation,
        proprioception=torch.cat(
            [observation.proprioception[:, :cut], later.proprioception[:, cut:]], 1
        ),
        objects=torch.cat([observation.objects[:, :cut], later.objects[:, cut:]], 1),
    )
    before, after = policy.working_states(observation), policy.working_states(mixed)
    torch.testing.assert_close(before[:, :cut], after[:, :cut])
    assert not torch.allclose(before[:, cut], after[:, cut])


@EVERY_METHOD
def test_the_distant_past_matters_exactly_for_methods_with_memory(method: str) -> None:
    policy = make(method).eval()
    first = make_observation(STATE_FEATURES, 1, TIME)
    second = make_observation(STATE_FEATURES, 1, TIME, seed=1)
    state, other = policy.initial_state(1), policy.initial_state(1)
    for t in range(TIME - 2):  # two pasts
        state, other = policy.observe(first.at(t), state), policy.observe(second.at(t), other)
    for t in (TIME - 2, TIME - 1):  # one present
        state, other = policy.observe(first.at(t), state), policy.observe(first.at(t), other)
    same = torch.allclose(
        policy._condition(state.working), policy._condition(other.working), rtol=1e-5, atol=1e-6
    )
    assert same == (method in MEMORYLESS)
    chunks = [policy.act(each, steps=4, source="zero") for each in (state, other)]
    assert torch.allclose(*chunks, rtol=1e-4, atol=1e-5) == same


@EVERY_METHOD
def test_saved_and_loaded_it_acts_the_same(method: str, tmp_path: Path) -> None:
    policy = make(method).eval()
    policy.save_pretrained(tmp_path)
    loaded = load_policy(tmp_path)
    assert type(loaded) is METHODS[method]
    assert sum(p.numel() for p in loaded.parameters()) == policy.parameter_count
    actions = []
    for each in (policy, loaded):
        state = each.initial_state(2)
        for t in range(3):
            state = each.observe(make_observation(STATE_FEATURES, 2, seed=t), state)
        actions.append(each.act(state, steps=4, source=torch.ones(2, 4, 2)))
    torch.testing.assert_close(actions[0], actions[1], rtol=0, atol=0)
    assert actions[0].shape == (2, STATE_FEATURES.horizon, STATE_FEATURES.action)


@EVERY_METHOD
@pytest.mark.parametrize("drawn", [None, 2], ids=["every step", "drawn steps"])
def test_every_parameter_that_control_uses_learns(method: str, drawn: int | None) -> None:
    policy = make(method, IMAGE_FEATURES, action_steps=drawn).train()
    policy.loss(make_batch(IMAGE_FEATURES, 3, 20, lengths=[20, 12, 7])).total.backward()
    without = [
        name
        for name, parameter in policy.named_parameters()
        if parameter.requires_grad and (parameter.grad is None or not parameter.grad.any())
    ]
    # Nothing reads the last layer's write-back, and an SSM without memory has no decay.
    unused = ("memory.1.consolidation.update", *WITHOUT_DECAY.get(method, ()))
    assert [name for name in without if not any(part in name for part in unused)] == []


@EVERY_METHOD
def test_padding_does_not_matter(method: str) -> None:
    policy = make(method).eval()
    batch = make_batch(STATE_FEATURES, 2, 12, lengths=[12, 7])
    padding = ~batch.valid[..., None]
    changed = dataclasses.replace(
        batch,
        observation=batch.observation.map(
            lambda tensor: tensor + 5 * padding.view(2, 12, *[1] * (tensor.dim() - 2))
        ),
        actions=batch.actions + 5 * padding,
    )
    losses = []
    for each in (batch, changed):
        torch.manual_seed(3)
        loss = policy.loss(each)
        losses.append({"total": loss.total, **loss.parts})
    torch.testing.assert_close(*losses)


@pytest.mark.parametrize("size", ["nano", "small", "paper"])
def test_parameters_match_chameleons(size: str) -> None:
    with torch.device("meta"):
        counts = {
            method: kind(preset(size), CAMO).parameter_count for method, kind in METHODS.items()
        }
    assert {m: n for m, n in counts.items() if abs(n / counts["chameleon"] - 1) > 0.2} == {}


@EVERY_METHOD
def test_forty_steps_lower_the_loss(method: str) -> None:
    policy = make(method).train()
    batch = make_batch(STATE_FEATURES, 4, 8)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = policy.loss(batch)
        loss.total.backward()
        optimizer.step()
        losses.append(float(loss.parts["action"]))
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])


@pytest.mark.parametrize(
    "method", [name for name, kind in METHODS.items() if issubclass(kind, WindowPolicy)]
)
class TestWindows:
    def test_encoding_only_the_needed_frames_gives_the_same_loss(
        self, method: str, monkeypatch
    ) -> None:
        policy = make(method, action_steps=3).eval()
        policy.frames = min(policy.frames, 2)  # type: ignore[misc]
        batch = make_batch(STATE_FEATURES, 2, 20, lengths=[20, 11])
        steps = torch.tensor([[0, 4, 19], [10, 1, 0]])
        for place in ("visuomotor", "window"):
            room = "policy" if place == "visuomotor" else "baselines"
            monkeypatch.setattr(
                f"chameleon_policy.{room}.{place}.draw_moments",
                lambda batch, count: (torch.arange(2)[:, None], steps),
            )
        encoded, losses = [], []
        forward = type(policy.event_tokens).forward
        monkeypatch.setattr(
            type(policy.event_tokens),
            "forward",
            lambda self, seen, *rest: (
                encoded.append(seen.proprioception.shape[1]) or forward(self, seen, *rest)
            ),
        )
        for drawn in (3, 40):  # the second: as many as there are, so that all frames are encoded
            policy.config = nano(action_steps=drawn)
            torch.manual_seed(0)
            losses.append(policy.loss(batch).total)
        assert encoded == [3 * policy.frames, 20]
        torch.testing.assert_close(*losses)

    def test_windows_of_a_training_are_refused(self, method: str) -> None:
        policy = make(method)
        assert not policy.carries_memory
        with pytest.raises(ValueError, match="carries no memory from window to window"):
            policy.loss(make_batch(STATE_FEATURES, 2, 4), policy.initial_state(2))


@pytest.mark.parametrize("method", METHODS)
def test_muon_takes_every_large_matrix(method: str) -> None:
    """Every method trains its matrices with Muon; embeddings and tables use AdamW."""
    policy = make(method, IMAGE_FEATURES)
    taken = {id(weight) for weight in matrices_of(policy)}
    left = [
        n
        for n, p in policy.named_parameters()
        if p.dim() > 1 and p.requires_grad and id(p) not in taken
    ]
    small = (
        "slots.",
        "convolution_weight",
        "action_in",
        "action_out",
        "proprioception",
        "language",
        "ages",
        "queries",
    )
    small += ("unet.down.0.0", "unet.out.1", "stem.0", "horizon_tokens", "encoders")
    assert [name for name in left if not any(part in name for part in small)] == []


def test_an_unknown_method_is_refused_with_a_list() -> None:
    with pytest.raises(
        ValueError, match="no method 'difusion'; choose one of chameleon, diffusion-transformer"
    ):
        method_named("difusion")


def test_nothing_is_copied_between_methods() -> None:
    """No six equal statements, whatever their format, occur in two of the files."""
    package = Path(__file__).parent.parent / "src/chameleon_policy"
    runs: dict[tuple[str, ...], str] = {}
    for path in sorted([*package.glob("baselines/*.py"), *package.glob("policy/*.py")]):
        code = ast.unparse(ast.parse(path.read_text()))  # one line per statement
        lines = [line.strip() for line in code.splitlines() if line.strip()]
        for first in range(len(lines) - 5):
            run = tuple(lines[first : first + 6])
            assert runs.setdefault(run, path.name) == path.name, (
                f"{path.name} and {runs[run]} share {run}"
            )


def test_the_ablations_are_chameleon() -> None:
    assert all(issubclass(kind, ChameleonPolicy) for kind in ABLATIONS)
