"""The per-view patch encoder: ResNet-18 with GroupNorm, without pooling, projected to the token width."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chameleon_policy import kernels
from chameleon_policy.policy.attention import linear
from chameleon_policy.policy.config import PolicyConfig
from chameleon_policy.policy.features import View

CHANNELS_PER_GROUP = 16


def group_norm(channels: int) -> nn.GroupNorm:
    """GroupNorm in place of BatchNorm: its statistics do not depend on the batch, so EMA weights stay consistent."""
    return nn.GroupNorm(max(1, channels // CHANNELS_PER_GROUP), channels)


def convolve(image: Tensor, layer: nn.Conv2d) -> Tensor:
    """The layer on channels-last pictures; where our kernels run, its weight is brought into the same order."""
    if not kernels.enabled(image):
        return layer(image)
    weight = layer.weight.to(kernels.compute_dtype(image), memory_format=torch.channels_last)
    return F.conv2d(image, weight, stride=layer.stride, padding=layer.padding)


def normalise(
    image: Tensor, norm: nn.GroupNorm, residual: Tensor | None = None, *, relu: bool = True
) -> tuple[Tensor, Tensor]:
    """relu(norm(image) + residual), once for each of two readers: their gradients then meet inside the kernel."""
    if kernels.enabled(image):
        from chameleon_policy.kernels.group_norm import fits, group_norm

        if fits(norm.num_channels, norm.num_groups):
            return group_norm(image, norm.weight, norm.bias, residual, norm.num_groups, relu=relu, epsilon=norm.eps)
    normed: Tensor = norm(image)
    normed = normed if residual is None else normed + residual
    normed = F.relu(normed) if relu else normed
    return normed, normed


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions around a skip connection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.first_norm = group_norm(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = group_norm(outputs)
        self.shortcut = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), group_norm(outputs))
            if stride != 1 or inputs != outputs
            else None
        )

    def forward(self, image: Tensor, same_image: Tensor) -> tuple[Tensor, Tensor]:
        """(F inputs h w) to (F outputs h/stride w/stride), both of them twice: for the convolutions and for the shortcut."""
        hidden, _ = normalise(convolve(image, self.first), self.first_norm)
        beside = same_image
        if self.shortcut is not None:
            convolution, norm = self.shortcut
            beside, _ = normalise(convolve(same_image, convolution), norm, relu=False)  # type: ignore[arg-type]
        return normalise(convolve(hidden, self.second), self.second_norm, beside)


class PatchEncoder(nn.Module):
    """E_vis of one view, Eq. 2: every 32 x 32 pixels of the crop become one token."""

    def __init__(self, config: PolicyConfig, view: View) -> None:
        super().__init__()
        self.view = view
        channels = config.encoder_channels
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels[0], 7, stride=2, padding=3, bias=False),
            group_norm(channels[0]),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        blocks: list[nn.Module] = []
        for stage, (inputs, outputs) in enumerate(itertools.pairwise((channels[0], *channels))):
            stride = 1 if stage == 0 else 2
            blocks.append(ResidualBlock(inputs, outputs, stride))
            blocks.extend(ResidualBlock(outputs, outputs, 1) for _ in range(config.encoder_blocks[stage] - 1))
        self.blocks = nn.ModuleList(blocks)
        self.projection = nn.Linear(channels[-1], config.width)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

        self.over_cells: Tensor | None = None
        """The first convolution's weight as the kernels want it, after `prepare`."""

    @torch.no_grad()
    def prepare(self) -> None:
        """Rearrange the first convolution's weight once and not every time; for weights that no longer change."""
        if kernels.enabled(self.projection.weight):
            self.over_cells = self._over_cells(kernels.compute_dtype(self.projection.weight))

    def _over_cells(self, kind: torch.dtype) -> Tensor:
        from chameleon_policy.kernels.stem import depth_weight

        convolution: nn.Conv2d = self.stem[0]  # type: ignore[assignment]
        return depth_weight(convolution.weight).to(kind, memory_format=torch.channels_last)

    def forward(self, images: Tensor, position: Tensor | None = None) -> Tensor:
        """Images (B T H W 3), uint8 or float in [0, 1], to patch tokens (B T N_v D), row by row.

        `position` (B 2) in [0, 1) says where in the free rows and columns each episode's crop lies; centred without it.
        """
        patches = same_patches = self._stem(images, position)
        for block in self.blocks:
            patches, same_patches = block(patches, same_patches)
        tokens = patches.flatten(2).transpose(1, 2)
        return linear(tokens, self.projection.weight, self.projection.bias).unflatten(0, images.shape[:2])

    def _stem(self, images: Tensor, position: Tensor | None) -> Tensor:
        """Crop, convolution, norm, ReLU and pooling: (B T H W 3) to (B*T C h/4 w/4)."""
        convolution: nn.Conv2d = self.stem[0]  # type: ignore[assignment]
        norm: nn.GroupNorm = self.stem[1]  # type: ignore[assignment]
        if kernels.enabled(convolution.weight):
            from chameleon_policy.kernels import group_norm, stem

            if group_norm.fits(norm.num_channels, norm.num_groups):
                kind = kernels.compute_dtype(convolution.weight)
                cells = stem.space_to_depth(images, *corners(self.view, position, images), self.view.crop, kind)
                weight = self._over_cells(kind) if self.over_cells is None else self.over_cells
                height, width = ((side + 1) // 2 for side in self.view.crop)
                return stem.norm_pool(
                    F.conv2d(cells, weight), norm.weight, norm.bias, norm.num_groups, norm.eps, (height, width)
                )
        # A slice where every episode's crop is the same: nothing to gather, and what can be exported as it is.
        cut = centred(images, self.view)
        if position is not None:
            cut = crop(images, *corners(self.view, position, images), self.view.crop)
        return self.stem(to_unit_range(cut, convolution.weight.dtype).flatten(0, 1))


def corners(view: View, position: Tensor | None, images: Tensor) -> tuple[Tensor, Tensor]:
    """First row and column of every episode's crop (B), where the images are, without waiting for them.

    0.5 is the centre, and a uniform draw makes every offset equally likely.
    """
    if position is None:
        position = torch.full((len(images), 2), 0.5, device=images.device)
    height, width = view.crop
    return (position[:, 0] * (view.height - height + 1)).long(), (position[:, 1] * (view.width - width + 1)).long()


def centred(images: Tensor, view: View) -> Tensor:
    """The crop at the centre of (B T H W 3), where `corners` has it without a position: (B T h w 3)."""
    height, width = view.crop
    top, left = (view.height - height + 1) // 2, (view.width - width + 1) // 2
    return images[:, :, top : top + height, left : left + width]


def crop(images: Tensor, top: Tensor, left: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut `size` out of (B T H W 3) at every episode's own corner: (B T h w 3)."""
    (height, width), (episodes, steps) = size, images.shape[:2]
    episode, step = (torch.arange(count, device=images.device) for count in (episodes, steps))
    rows = top[:, None] + torch.arange(height, device=images.device)
    columns = left[:, None] + torch.arange(width, device=images.device)
    return images[episode[:, None, None, None], step[:, None, None], rows[:, None, :, None], columns[:, None, None, :]]


def to_unit_range(images: Tensor, dtype: torch.dtype) -> Tensor:
    """(... h w 3), uint8 or float in [0, 1], to (... 3 h w) in [-1, 1]; the memory stays channels last."""
    scale = 2 / 255 if images.dtype == torch.uint8 else 2.0
    return (images.to(dtype) * scale - 1).movedim(-1, -3)
