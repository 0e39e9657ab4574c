"""Fused twins of the policy's modules: subclasses with the same parameters and faster computation.

| plain module (policy/)    | what its twin does in fewer passes over memory                      |
|---------------------------|---------------------------------------------------------------------|
| Attention                 | one query: no keys and values; short sequences: a head in registers |
| TransformerBlock          | residual sum + LayerNorm, bias + GELU, attention over few tokens    |
| PatchEncoder              | crop + first convolution over cells; GroupNorm + residual + ReLU    |
| EventTokens               | one stream of work for each view                                    |
| SelectiveSSM              | everything between the two projections, in time-major memory        |
| WorkingStateConsolidation | bias + GELU of the write-back                                       |
| MemoryLayer, ControlJEPA  | weights of all their linear layers converted at once                |
| ActionFlow                | the same; a block's last sum together with the next block's norm    |

Every forward pass first checks whether the kernels support its input; if not, it runs the plain
module's code. `tests/test_fused.py` compares values and gradients of each twin with its plain
module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chameleon_policy import kernels
from chameleon_policy.kernels import attention as short_attention
from chameleon_policy.kernels import group_norm as group_norm_kernels
from chameleon_policy.kernels import one_query, stem
from chameleon_policy.kernels.bias import WithBias
from chameleon_policy.kernels.frozen import FrozenAttention, adopt
from chameleon_policy.kernels.gelu import BiasGelu
from chameleon_policy.kernels.layer_norm import StreamNorm
from chameleon_policy.kernels.selective_layer import TAPS, LayerShape, SelectiveLayer, longest_chunk
from chameleon_policy.kernels.streams import side_by_side
from chameleon_policy.kernels.weights import converted
from chameleon_policy.policy.action_flow import ActionFlow
from chameleon_policy.policy.attention import Attention, TransformerBlock, attend
from chameleon_policy.policy.checkpointing import run_layer
from chameleon_policy.policy.control_jepa import ControlJEPA
from chameleon_policy.policy.crop import corners
from chameleon_policy.policy.event_tokens import Augmentation, EventTokens
from chameleon_policy.policy.memory import (
    LayerOutput,
    LayerState,
    MemoryLayer,
    WorkingStateConsolidation,
)
from chameleon_policy.policy.observation import Observation
from chameleon_policy.policy.ssm import NORM_EPSILON, SelectiveSSM, SSMState
from chameleon_policy.policy.visual import PatchEncoder, ResidualBlock


def put_twins(module: nn.Module, shared_memory: int | None = None) -> None:
    """Replace all descendants that have a twin; subclasses of plain modules have none."""
    for name, child in module.named_children():
        put_twins(child, shared_memory)
        if type(child) in TWINS and _fused_inside(child):
            setattr(module, name, twin_of(child, shared_memory))
        elif isinstance(child, CARD_AWARE):
            child.shared_memory = shared_memory


def _fused_inside(module: nn.Module) -> bool:
    """Return whether a module's children are the twins that the module's own twin calls."""
    if isinstance(module, TransformerBlock):
        return isinstance(module.attention, FusedAttention)
    if isinstance(module, ActionFlow):
        return all(isinstance(block, FusedTransformerBlock) for block in module.blocks)
    return True


def twin_of(plain: nn.Module, shared_memory: int | None = None) -> nn.Module:
    """Make a fused module that shares the plain one's parameters, buffers and children."""
    fused = adopt(TWINS[type(plain)], plain)
    if isinstance(fused, CARD_AWARE):
        fused.shared_memory = shared_memory
    return fused


def put_plain(module: nn.Module) -> None:
    """Replace all descendants that are twins by the plain modules they stand for."""
    plain = {twin: kind for kind, twin in TWINS.items()}
    for name, child in module.named_children():
        put_plain(child)
        if type(child) in plain:
            setattr(module, name, adopt(plain[type(child)], child))


@contextmanager
def half_weights(module: nn.Module, inputs: Tensor) -> Iterator[None]:
    """Give all linear layers weights of autocast's type, inside a `with` block.

    It applies only under autocast and where kernels compute.
    """
    active = torch.is_autocast_enabled(inputs.device.type) and kernels.enabled(inputs)
    with converted([module] if active else [], kernels.compute_dtype(inputs)):
        yield


# Single-pass versions of lines of the plain modules


def add_and_norm(
    stream: Tensor, norm: nn.LayerNorm, layer: nn.Linear | None = None, inputs: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute stream + layer(inputs), and the LayerNorm of the sum.

    Without a layer, compute the LayerNorm of the stream itself.
    """
    added, bias = None, None
    if layer is not None and inputs is not None:
        added, bias = F.linear(inputs, layer.weight), layer.bias
    kind = kernels.compute_dtype(stream)
    result: tuple[Tensor, Tensor] = StreamNorm.apply(
        stream, added, bias, norm.weight, norm.bias, norm.eps, kind
    )
    return result


def linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute F.linear for many rows; the gradient of the bias takes one pass."""
    output: Tensor = WithBias.apply(F.linear(inputs, weight, bias.detach()), bias)
    return output


def gelu_layer(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute gelu(inputs weight^T + bias), (... N D).

    The bias is shared by all rows (D), or by every N rows (... 1 D).
    """
    hidden: Tensor = BiasGelu.apply(F.linear(inputs, weight), bias)
    return hidden


def normalise(
    image: Tensor, norm: nn.GroupNorm, residual: Tensor | None = None, *, relu: bool = True
) -> tuple[Tensor, Tensor]:
    """Compute relu(norm(image) + residual) and return it twice.

    The fused backward kernel then sums the gradients of the two consumers.
    """
    if group_norm_kernels.fits(norm.num_channels, norm.num_groups):
        return group_norm_kernels.group_norm(
            image, norm.weight, norm.bias, residual, norm.num_groups, relu=relu, epsilon=norm.eps
        )
    normed = norm(image) if residual is None else norm(image) + residual
    normed = F.relu(normed) if relu else normed
    return normed, normed


def convolve(image: Tensor, layer: nn.Conv2d) -> Tensor:
    """Convolve channels-last images, with the weight in the same memory order."""
    weight = layer.weight.to(kernels.compute_dtype(image), memory_format=torch.channels_last)
    return F.conv2d(image, weight, stride=layer.stride, padding=layer.padding)


# The twins


class FusedAttention(FrozenAttention):
    """Attention of one query without keys and values, or of short sequences in registers."""

    shared_memory: int | None = None
    """Bytes that a block of threads may have; None: as many as the device has."""

    def forward(self, queries: Tensor, sources: Tensor) -> Tensor:
        """Compute Attn(queries, sources, sources): (... M D) and (... N D) to (... M D)."""
        if not kernels.enabled(sources):
            return super().forward(queries, sources)
        if queries.shape[-2] == 1:
            query = queries.flatten(0, -2)
            if one_query.fits(len(query), self.heads, sources.shape[-2]):
                return self.output(self._one_query(query, sources.flatten(0, -3)).view_as(queries))
        query, key_value = self.query(queries), self.key_value(sources)
        if query.dtype != key_value.dtype or not self._short(query, key_value):
            return self.output(attend(query, key_value, self.heads))
        mixed, _ = short_attention.ShortAttention.apply(
            query.flatten(0, -3), key_value.flatten(0, -3), None, self.heads
        )
        return self.output(mixed.view_as(query))

    def among(self, tokens: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor]:
        """Let normalised tokens (... M D) attend to one another and to a context (... C 2D).

        Returns (... M D) before `output`, and the tokens' own keys and values (... M 2D). Requires
        enabled kernels.
        """
        projected = linear(tokens, *self.join())
        width = self.output.in_features
        if not self._short(projected, projected, *([] if context is None else [context])):
            query, own = projected.split([width, 2 * width], dim=-1)
            sources = own if context is None else torch.cat([context, own], dim=-2)
            return attend(query, sources, self.heads), own
        flat = None if context is None else context.flatten(0, -3)
        mixed, own = short_attention.ShortAttention.apply(
            projected.flatten(0, -3), None, flat, self.heads
        )
        return mixed.view(*tokens.shape[:-1], width), own.unflatten(0, tokens.shape[:-2])

    def _short(self, *tokens: Tensor) -> bool:
        """Return whether sequences of tokens are short enough for `ShortAttention`."""
        size = self.output.in_features // self.heads
        counts = (sequence.shape[-2] for sequence in tokens)
        return short_attention.fits(self._memory(tokens[0]), size, *counts)

    def _memory(self, tokens: Tensor) -> int:
        return self.shared_memory or kernels.shared_memory_of(tokens.device)

    def _one_query(self, query: Tensor, sources: Tensor) -> Tensor:
        """Let each of B queries (B D) attend to its sources (B N D): (B D), before `output`."""
        to_keys, to_values = self.key_value.weight.unflatten(0, (2, self.heads, -1))  # each H C D
        scaled = self.query(query) * to_keys.shape[1] ** -0.5
        asked = torch.bmm(scaled.unflatten(-1, (self.heads, -1)).transpose(0, 1), to_keys)  # H B D
        seen = one_query.OneQuery.apply(asked, sources.to(asked.dtype), self._memory(sources))
        values = torch.bmm(seen, to_values.transpose(1, 2)).transpose(0, 1).flatten(1)
        return values + self.key_value.bias.chunk(2)[1].to(values.dtype)


class FusedTransformerBlock(TransformerBlock):
    """A transformer block in fewer passes.

    An action head can fuse each block's last sum with the next block's norm (`unfinished`).
    """

    attention: FusedAttention

    def forward_and_cache(
        self, tokens: Tensor, context: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the tokens (... M D) after the block, and their own key-values (... M 2D)."""
        if not kernels.enabled(tokens):
            return super().forward_and_cache(tokens, context)
        tokens, hidden, own = self.unfinished(tokens, context)
        return tokens + linear(hidden, self.last.weight, self.last.bias), own

    def unfinished(
        self,
        tokens: Tensor,
        context: Tensor | None = None,
        before: FusedTransformerBlock | None = None,
        hidden: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run the block up to (not including) its final linear layer and residual sum.

        The next block fuses both with its own LayerNorm. Returns the residual stream, the inputs of
        the final layer, and this block's keys and values. `before` and `hidden` are the previous
        block and its pending inputs.
        """
        norm, first, _, _ = self.feedforward
        tokens, normed = add_and_norm(tokens, self.attention_norm, _last_of(before), hidden)
        mixed, own = self.attention.among(normed, context)
        tokens, normed = add_and_norm(tokens, norm, self.attention.output, mixed)
        return tokens, gelu_layer(normed, first.weight, first.bias), own

    @property
    def last(self) -> nn.Linear:
        """The final layer of the feed-forward network."""
        layer: nn.Linear = self.feedforward[-1]  # type: ignore[assignment]
        return layer

    def keys_and_values(self, tokens: Tensor) -> Tensor:
        """Compute keys and values (... M 2D) of tokens, as a context for other tokens."""
        if not kernels.enabled(tokens):
            return super().keys_and_values(tokens)
        return self.context_after(tokens, None, None)

    def context_after(
        self, tokens: Tensor, before: FusedTransformerBlock | None, hidden: Tensor | None
    ) -> Tensor:
        """Compute only the keys and values (... M 2D) that `unfinished` returns."""
        _, normed = add_and_norm(tokens, self.attention_norm, _last_of(before), hidden)
        return linear(normed, self.attention.key_value.weight, self.attention.key_value.bias)


def _last_of(block: FusedTransformerBlock | None) -> nn.Linear | None:
    return None if block is None else block.last


class FusedPatchEncoder(PatchEncoder):
    """The encoder over cells of pixels, with GroupNorm, residual and ReLU in one pass."""

    over_cells: Tensor | None = None
    """The cached `cell_weight` of frozen weights; None: rearrange the weight at every call."""

    def forward(self, images: Tensor, position: Tensor | None = None) -> Tensor:
        """Encode images (B T H W 3) as patch tokens (B T N_v D), row by row."""
        norm: nn.GroupNorm = self.stem[1]  # type: ignore[assignment]
        fits = group_norm_kernels.fits(norm.num_channels, norm.num_groups)
        if not (fits and kernels.enabled(self.projection.weight)):
            return super().forward(images, position)
        patches = same_patches = self._pooled(images, position, norm)
        for block in self.blocks:
            patches, same_patches = _residual_block(block, patches, same_patches)  # type: ignore[arg-type]
        tokens = patches.flatten(2).transpose(1, 2)
        return linear(tokens, self.projection.weight, self.projection.bias).unflatten(
            0, images.shape[:2]
        )

    def _pooled(self, images: Tensor, position: Tensor | None, norm: nn.GroupNorm) -> Tensor:
        """Crop, convolve, normalise and pool: (B T H W 3) to (B*T C h/4 w/4)."""
        if position is None:
            position = torch.full((len(images), 2), 0.5, device=images.device)
        kind = kernels.compute_dtype(self.projection.weight)
        cells = stem.space_to_depth(images, *corners(self.view, position), self.view.crop, kind)
        weight = self.cell_weight(kind) if self.over_cells is None else self.over_cells
        height, width = ((side + 1) // 2 for side in self.view.crop)
        convolved = F.conv2d(cells, weight)
        return stem.norm_pool(
            convolved, norm.weight, norm.bias, norm.num_groups, norm.eps, (height, width)
        )

    def rearrange_weights(self) -> None:
        """Cache the first convolution's weight over cells, for frozen weights."""
        if kernels.enabled(self.projection.weight):
            self.over_cells = self.cell_weight(kernels.compute_dtype(self.projection.weight))

    def cell_weight(self, kind: torch.dtype) -> Tensor:
        """Rearrange the first convolution's weight for cells of pixels."""
        convolution: nn.Conv2d = self.stem[0]  # type: ignore[assignment]
        return stem.depth_weight(convolution.weight).to(kind, memory_format=torch.channels_last)


def _residual_block(
    block: ResidualBlock, image: Tensor, same_image: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute a residual block. Input and output are given twice; see `normalise`.

    One copy of the input goes to the convolutions and one to the shortcut.
    """
    hidden, _ = normalise(convolve(image, block.first), block.first_norm)
    skipped = same_image
    if block.shortcut is not None:
        convolution, norm = block.shortcut
        skipped, _ = normalise(convolve(same_image, convolution), norm, relu=False)  # type: ignore[arg-type]
    return normalise(convolve(hidden, block.second), block.second_norm, skipped)


class FusedEventTokens(EventTokens):
    """Event tokens whose views are encoded in parallel, in half precision."""

    def _patches(self, observation: Observation, augmentation: Augmentation | None) -> list[Tensor]:
        """Encode every view as X_t^v (B T N_v D), each patch with its slot embedding."""
        if not (kernels.enabled(self.proprioception.weight) and self.features.views):
            return super()._patches(observation, augmentation)
        jobs: list[Callable[[], Tensor]] = []
        inputs: list[list[Tensor]] = []
        forget = self.forget_activations
        for index, view in enumerate(self.features.views):
            image = observation.images[view.name]
            position = None if augmentation is None else augmentation.crop[:, index]
            jobs.append(partial(run_layer, self.encoders[index], image, position, forget=forget))
            inputs.append([image] if position is None else [image, position])
        patches = side_by_side(jobs, inputs)
        return [
            tokens + slots().to(tokens.dtype)
            for tokens, slots in zip(patches, self.slots, strict=True)
        ]


class FusedSSM(SelectiveSSM):
    """The scan with everything between the two projections in one autograd function."""

    shared_memory: int | None = None
    """Bytes that a block of threads may have; None: as many as the device has."""

    def forward(
        self, sequence: Tensor, state: SSMState | None, *, keep_state: bool = True
    ) -> tuple[Tensor, SSMState | None]:
        """Run over a sequence (... T width): outputs of the same shape and the state after it."""
        memory = self.shared_memory or kernels.shared_memory_of(sequence.device)
        shape = LayerShape(
            self.inner, self.config.state, self.heads, self.config.chunk, NORM_EPSILON, memory
        )
        fits = (
            self.config.convolution == TAPS
            and sequence.shape[-2] >= TAPS - 1
            and longest_chunk(shape) is not None
        )
        if not (fits and kernels.enabled(sequence)):
            return super().forward(sequence, state, keep_state=keep_state)
        streams = sequence.shape[:-2]
        if len(streams) != 2:  # every sequence becomes a batch of its own
            sequence = sequence.flatten(0, -3).unsqueeze(1)
        flat = sequence.shape[:2]
        # Time-major, as the tokens are: B T streams ...
        projected = self.in_projection(sequence.transpose(1, 2))
        least = self.least_rates()
        before, ssm = None, None
        if state is not None:
            before = state.convolution.reshape(*flat, *state.convolution.shape[-2:])
            ssm = state.ssm.reshape(*flat, *state.ssm.shape[-3:])
        gated, ssm = SelectiveLayer.apply(
            projected,
            self.convolution_weight,
            self.convolution_bias,
            self.rate_bias,
            -self.log_decay.exp(),
            torch.zeros_like(self.rate_bias) if least is None else least,
            self.skip,
            self.norm_weight,
            before,
            ssm,
            shape,
            keep_state,
        )
        output = self.out_projection(gated).transpose(1, 2)
        output = output.reshape(*streams, *output.shape[2:])
        if not keep_state:
            return output, None
        history = projected[:, 1 - TAPS :, :, self.inner : self.inner + self.channels]
        history = history.transpose(1, 2).to(self.skip.dtype, copy=True)
        return output, SSMState(
            history.reshape(*streams, *history.shape[2:]), ssm.reshape(*streams, *ssm.shape[2:])
        )


class FusedConsolidation(WorkingStateConsolidation):
    """The write-back with bias and GELU in one pass."""

    def write_back(self, bound: Tensor, traces: Tensor, working: Tensor) -> Tensor:
        """Compute Z_i <- Z-bar_i + f_upd([e_i, h]) for every token i, Eq. 11."""
        if not kernels.enabled(traces):
            return super().write_back(bound, traces, working)
        first, _, last = self.update
        from_traces, from_working = first.weight.chunk(2, dim=1)
        shared = F.linear(working, from_working, first.bias).unsqueeze(-2)
        return bound + linear(gelu_layer(traces, from_traces, shared), last.weight, last.bias)


class FusedMemoryLayer(MemoryLayer):
    """The layer with the weights of its linear layers converted at once."""

    def forward(self, tokens: Tensor, state: LayerState | None, **options: Any) -> LayerOutput:
        """Run the four operations on event tokens (B T N D)."""
        with half_weights(self, tokens):
            return super().forward(tokens, state, **options)


class FusedControlJEPA(ControlJEPA):
    """The objective with the weights of its linear layers converted at once."""

    def forward(self, working: Tensor, bound: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the alignment and variance terms of Eq. 13."""
        with half_weights(self, working):
            return super().forward(working, bound, valid)


class FusedActionFlow(ActionFlow):
    """The head with residual sums fused into the next norms, and weights converted at once."""

    def forward(self, working: Tensor, chunk: Tensor, flow_time_power: float) -> Tensor:
        """Predict the clean chunk from a randomly noised one, Eqs. 15-16."""
        with half_weights(self, working):
            return super().forward(working, chunk, flow_time_power)

    def condition(self, working: Tensor) -> list[Tensor]:
        """Compute C_t = W_h h_t, Eq. 14, as key-values of every block: (B D) to (B n_c 2D)."""
        if not kernels.enabled(working):
            return super().condition(working)
        tokens = self.policy_tokens(working).unflatten(-1, (-1, self.width))
        *blocks, last = self._twins
        context, before, hidden = [], None, None
        for block in blocks:
            tokens, hidden, own = block.unfinished(tokens, None, before, hidden)
            context.append(own)
            before = block
        return [*context, last.context_after(tokens, before, hidden)]

    def endpoint(self, noised: Tensor, flow_time: Tensor, context: list[Tensor]) -> Tensor:
        """Compute A-hat = F_theta(A_tau, tau, C_t), Eq. 16: (B H A) and (B) to (B H A)."""
        if not kernels.enabled(noised):
            return super().endpoint(noised, flow_time, context)
        time_token = self.time_token(flow_time, noised.dtype).unsqueeze(-2)
        placed = linear(noised, self.action_in.weight, self.action_in.bias)
        tokens = placed + self.positions(flow_time).to(kernels.compute_dtype(noised)) + time_token
        before, hidden = None, None
        for block, cached in zip(self._twins, context, strict=True):
            tokens, hidden, _ = block.unfinished(tokens, cached, before, hidden)
            before = block
        return self.action_out(add_and_norm(tokens, self.norm, self._twins[-1].last, hidden)[1])

    @property
    def _twins(self) -> list[FusedTransformerBlock]:
        return list(self.blocks)  # type: ignore[arg-type]


TWINS: dict[type[nn.Module], type[nn.Module]] = {
    FrozenAttention: FusedAttention,
    # After FrozenAttention: `unfuse` restores the last class with this twin.
    Attention: FusedAttention,
    TransformerBlock: FusedTransformerBlock,
    PatchEncoder: FusedPatchEncoder,
    EventTokens: FusedEventTokens,
    SelectiveSSM: FusedSSM,
    WorkingStateConsolidation: FusedConsolidation,
    MemoryLayer: FusedMemoryLayer,
    ControlJEPA: FusedControlJEPA,
    ActionFlow: FusedActionFlow,
}
CARD_AWARE = (FusedAttention, FusedSSM)
"""Twins whose block sizes follow the card's shared memory."""
