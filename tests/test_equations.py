"""The equations of the paper, written out by hand in float64, against their modules."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from chameleon_policy import Features, View
from chameleon_policy.policy.action_flow import ActionFlow
from chameleon_policy.policy.attention import Attention, TransformerBlock
from chameleon_policy.policy.event_tokens import EventTokens
from chameleon_policy.policy.memory import MemoryLayer
from chameleon_policy.policy.normalizer import Statistics
from chameleon_policy.policy.ssm import SelectiveSSM
from chameleon_policy.policy.visual import PatchEncoder
from examples import STATE_FEATURES, make_batch, make_observation, make_policy, nano

CONFIG = nano()
BODY, INSTRUCTION = -2, -1
"""Indices of p_t and q_t among the tokens."""


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def with_random_weights(module: torch.nn.Module) -> torch.nn.Module:
    """Move all weights of a module, in float64: zero biases and unit gains would hide mistakes."""
    module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module


def normalised(norm: torch.nn.LayerNorm, x: Tensor) -> Tensor:
    """Compute LN: zero mean and unit variance over the width, then gain and bias."""
    centred = x - x.mean(-1, keepdim=True)
    return (
        centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight
        + norm.bias
    )


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def affine(layer: torch.nn.Linear, x: Tensor) -> Tensor:
    return x @ layer.weight.T + layer.bias


def mlp(layers: torch.nn.Sequential, x: Tensor) -> Tensor:
    return affine(layers[2], gelu(affine(layers[0], x)))


def attended(attention: Attention, query: Tensor, sources: Tensor) -> Tensor:
    """Compute Attn(query, sources, sources) for one query (D) and sources (N D), head by head."""
    width = query.shape[-1]
    size = width // attention.heads
    projected = affine(attention.query, query)
    keys, values = affine(attention.key_value, sources).split(width, dim=-1)
    heads = []
    for first in range(0, width, size):
        part = slice(first, first + size)
        scores = torch.stack([projected[part] @ key for key in keys[:, part]]) / math.sqrt(size)
        weights = scores.exp() / scores.exp().sum()
        heads.append(
            sum(weight * value for weight, value in zip(weights, values[:, part], strict=True))
        )
    return affine(attention.output, torch.cat(heads))


def mixed(block: TransformerBlock, tokens: Tensor) -> Tensor:
    """Compute the textbook block over (N D): x + attn(norm(x)), then x + mlp(norm(x))."""
    normed = normalised(block.attention_norm, tokens)
    tokens = tokens + torch.stack([attended(block.attention, query, normed) for query in normed])
    norm, *layers = block.feedforward
    return tokens + mlp(torch.nn.Sequential(*layers), normalised(norm, tokens))


def recurrence(ssm: SelectiveSSM, sequence: Tensor) -> Tensor:
    """Run an SSM over (T D), step by step from an empty state; `test_ssm.py` tests the step."""
    state, outputs = ssm.initial_state(1), []
    for current in sequence:
        output, state = ssm.step(current[None], state)
        outputs.append(output[0])
    return torch.stack(outputs)


@torch.no_grad()
def test_memory_layer() -> None:
    """Eqs. 5 to 11, for one episode, time step by time step and token by token."""
    layer = with_random_weights(MemoryLayer(CONFIG))
    episodes, time, tokens = 2, 5, 4
    events = torch.randn(episodes, time, tokens, CONFIG.width, dtype=torch.float64)
    output = layer(events, None, write_back=True)
    recall, consolidation = layer.recall, layer.consolidation
    index, index_norm = recall.control_context.index, recall.control_context.index[-1]
    for episode in range(episodes):
        # Eq. 5
        bound = torch.stack([mixed(layer.binding.mixer, moment) for moment in events[episode]])
        # Eq. 6
        traces = torch.stack(
            [recurrence(layer.propagation.slow, bound[:, i]) for i in range(tokens)], dim=1
        )
        contexts, recalled, fused = [], [], []
        for moment, trace in zip(bound, traces, strict=True):
            body_and_instruction = torch.cat([moment[BODY], moment[INSTRUCTION]])
            c = normalised(index_norm, mlp(index[:3], body_and_instruction))  # Eq. 7
            # Eq. 8
            u = normalised(
                recall.control_context.norm,
                c + attended(recall.control_context.attention, c, moment),
            )
            r = normalised(recall.norm, attended(recall.attention, u, trace))  # Eq. 9
            contexts.append(u)
            recalled.append(r)
            # Eq. 10
            fused.append(
                normalised(consolidation.fuse[-1], mlp(consolidation.fuse[:3], torch.cat([u, r])))
            )
        working = recurrence(consolidation.fast, torch.stack(fused))  # Eq. 10
        following = torch.empty_like(bound)
        for t, i in itertools.product(range(time), range(tokens)):  # Eq. 11
            sources = torch.cat([traces[t, i], working[t]])
            following[t, i] = bound[t, i] + mlp(consolidation.update, sources)
        for name, expected in {
            "bound": bound,
            "traces": traces,
            "control_context": torch.stack(contexts),
            "recalled": torch.stack(recalled),
            "working": working,
            "tokens": following,
        }.items():
            torch.testing.assert_close(
                getattr(output, name)[episode], expected, rtol=1e-9, atol=1e-9, msg=name
            )


class Flow(ActionFlow):
    """The head, with a list of the inputs of F_theta."""

    inputs: list[tuple[Tensor, Tensor]]

    def endpoint(self, noised: Tensor, flow_time: Tensor, context: list[Tensor]) -> Tensor:
        self.inputs.append((noised, flow_time))
        return super().endpoint(noised, flow_time, context)


@torch.no_grad()
@pytest.mark.parametrize("power", [1.0, 2.0])
def test_interpolant_in_training(power: float) -> None:
    """Eq. 15: A_tau = (1 - tau) A_0 + tau A.

    tau = u^power with u uniform, and A_0 normal, independent of everything else.
    """
    chunks, horizon, action = 4096, 4, 3
    head = Flow(CONFIG, action, horizon).double()
    head.inputs = []
    clean = 5 + 2 * torch.randn(chunks, horizon, action, dtype=torch.float64)
    head(torch.zeros(chunks, CONFIG.width, dtype=torch.float64), clean, power)
    ((noised, flow_time),) = head.inputs
    assert flow_time.shape == (chunks,)
    uniform = (flow_time ** (1 / power)).sort().values
    assert (uniform - (torch.arange(chunks) + 0.5) / chunks).abs().max() < 1.95 / math.sqrt(
        chunks
    ), "Kolmogorov-Smirnov"
    some = flow_time < 0.9  # the others have hardly any noise
    tau = flow_time[some, None, None]
    noise = ((noised[some] - tau * clean[some]) / (1 - tau)).flatten(1)
    numbers = torch.cat([noise, clean[some].flatten(1), flow_time[some, None]], dim=1)
    count, size = noise.shape
    assert (noise.mean(0).abs() < 5 / math.sqrt(count)).all()
    related = torch.corrcoef(numbers.T)[:size] - torch.eye(numbers.shape[1])[:size]
    assert (related.abs() < 5 / math.sqrt(count)).all(), (
        "no number of the noise is correlated with another one, the action or the time"
    )
    assert ((noise.var(0) - 1).abs() < 5 * math.sqrt(2 / count)).all()
    assert abs((noise**4).mean().item() - 3) < 0.3, "a normal distribution's fourth moment"


def test_action_loss_compares_endpoints_with_clean_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eq. 16: a head that returns the clean chunk has loss 0, one that is off by 0.5 has 0.25."""
    policy, batch = make_policy(dtype=torch.float64).eval(), make_batch(STATE_FEATURES, 2, 6)
    batch = dataclasses.replace(
        batch, actions=batch.actions.double(), observation=batch.observation.map(Tensor.double)
    )
    for off in (0.0, 0.5):
        monkeypatch.setattr(
            policy.action_flow, "forward", lambda working, chunk, power, off=off: chunk + off
        )
        assert policy.loss(batch).parts["action"].item() == pytest.approx(off**2, abs=1e-12)


@torch.no_grad()
def test_crop_is_drawn_once_per_episode_and_view() -> None:
    """A constant scene has constant patches, with a crop per episode and view."""
    height, width = 64, 96
    features = Features(
        views=tuple(View(name=name, height=height, width=width) for name in ("third", "wrist")),
        proprioception=2,
        action=1,
        horizon=2,
    )
    tokens = with_random_weights(
        EventTokens(nano(proprioception_noise=0.0), features, Statistics())
    )
    episodes, time = 3, 4
    picture = torch.randint(256, (height, width, 3), dtype=torch.uint8)
    observation = make_observation(features, episodes, time, dtype=torch.float64)
    still = dataclasses.replace(
        observation,
        images={view.name: picture.expand(episodes, time, -1, -1, -1) for view in features.views},
        proprioception=observation.proprioception[:, :1].expand(-1, time, -1),
    )
    drawn = tokens.draw_augmentation(episodes)
    written = tokens(still, drawn)
    patches = features.views[0].tokens
    torch.testing.assert_close(written, written[:, :1].expand_as(written), rtol=0, atol=0)
    offsets = []
    for episode in range(episodes):
        for index, (view, encoder, slots) in enumerate(
            zip(features.views, tokens.encoders, tokens.slots, strict=True)
        ):
            (rows, columns), (up, along) = view.crop, drawn.crop[episode, index].tolist()
            top, left = int(up * (height - rows + 1)), int(along * (width - columns + 1))
            offsets.append((top, left))
            seen = picture[top : top + rows, left : left + columns].double() * (2 / 255) - 1
            encoded = encoder.stem(seen.movedim(-1, 0)[None])
            for block in encoder.blocks:
                encoded = block(encoded)
            expected = encoder.projection(encoded.flatten(2).transpose(1, 2))[0] + slots()
            own = slice(index * patches, (index + 1) * patches)
            torch.testing.assert_close(written[episode, 0, own], expected, rtol=1e-9, atol=1e-9)
    assert len(set(offsets)) > episodes, "not one crop for all"


@torch.no_grad()
def test_recall_reads_traces() -> None:
    """Eq. 9: recall changes with the traces and does not depend on the bound tokens."""
    recall = with_random_weights(MemoryLayer(CONFIG).recall)
    bound, traces, others = torch.randn(3, 1, 2, 4, CONFIG.width, dtype=torch.float64)
    context = recall.control_context(bound)
    recalled = recall(context, traces)
    expected = [
        normalised(recall.norm, attended(recall.attention, context[0, t], traces[0, t]))
        for t in range(2)
    ]
    torch.testing.assert_close(recalled[0], torch.stack(expected), rtol=1e-9, atol=1e-9)
    assert not torch.allclose(recall(context, others), recalled)


@torch.no_grad()
def test_patch_encoder() -> None:
    """Eq. 2: a textbook ResNet-18 with GroupNorm for BatchNorm and without pooling."""
    # the crop is 64 x 96: its middle begins at row 6 of 0 to 11
    view = View(name="camera", height=75, width=112)
    encoder = with_random_weights(PatchEncoder(CONFIG, view))
    images = torch.rand(2, 1, view.height, view.width, 3, dtype=torch.float64)

    def convolved(
        x: Tensor, convolution: torch.nn.Conv2d, norm: torch.nn.GroupNorm, stride: int = 1
    ) -> Tensor:
        x = F.conv2d(x, convolution.weight, stride=stride, padding=convolution.kernel_size[0] // 2)
        return F.group_norm(x, norm.num_groups, norm.weight, norm.bias)

    # the first block of every stage but the first
    halving = torch.tensor(CONFIG.encoder_blocks).cumsum(0)[:-1].tolist()
    x = 2 * images[:, 0, 6:70, 8:104].permute(0, 3, 1, 2) - 1
    x = F.max_pool2d(
        F.relu(convolved(x, encoder.stem[0], encoder.stem[1], stride=2)), 3, stride=2, padding=1
    )
    for number, block in enumerate(encoder.blocks):
        stride = 2 if number in halving else 1
        hidden = F.relu(convolved(x, block.first, block.first_norm, stride))
        skipped = x if stride == 1 else convolved(x, *block.shortcut, stride=2)
        x = F.relu(convolved(hidden, block.second, block.second_norm) + skipped)
    expected = affine(encoder.projection, x.flatten(2).transpose(1, 2))[:, None]
    torch.testing.assert_close(encoder(images), expected, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_time_token() -> None:
    """F_theta encodes tau as sines and cosines of 1000 tau, then an MLP.

    Their periods grow from 2 pi to 20,000 pi.
    """
    head = with_random_weights(ActionFlow(CONFIG, 3, 4))
    half = CONFIG.width // 2
    for tau in (0.0, 0.25, 0.7):
        angles = torch.tensor(
            [1000 * tau / 10_000 ** (index / half) for index in range(half)], dtype=torch.float64
        )
        expected = mlp(head.flow_time, torch.cat([angles.sin(), angles.cos()]))
        token = head.time_token(torch.tensor([tau], dtype=torch.float64), torch.float64)[0]
        torch.testing.assert_close(token, expected, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_initial_rates() -> None:
    """At its bias a head's Delta is sqrt(1 - a^2).

    a = 2^(-1/H) is its decay per step at a half-life of H.
    """
    layer = SelectiveSSM(64, dataclasses.replace(CONFIG.slow, half_life=(2.0, 200.0))).double()
    layer.initialise_half_lives()
    for head, bias in enumerate(layer.rate_bias.tolist()):
        half_life = 2 * 100 ** (head / (layer.heads - 1))
        assert math.log1p(math.exp(bias)) == pytest.approx(
            math.sqrt(1 - 2 ** (-2 / half_life)), rel=1e-9
        )
