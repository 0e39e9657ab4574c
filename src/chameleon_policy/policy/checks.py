"""Checks of the inputs of a policy. Errors say what was expected, what came, and what to do."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from chameleon_policy.policy.features import Features, Language, View
from chameleon_policy.policy.observation import EpisodeBatch, Observation
from chameleon_policy.policy.state import MemoryState


def check_batch(batch: EpisodeBatch, features: Features, *, values: bool = True) -> None:
    """Raise a ValueError if the batch does not fit `features`.

    Checks of `values` synchronise with the device; a trainer that has checked its data once may
    skip them.
    """
    check_rank("proprioception", batch.observation.proprioception, 3)
    episodes, time = batch.observation.proprioception.shape[:2]
    if time < 1:
        raise ValueError("proprioception: the batch has no time step")
    check_observation(batch.observation, features, (episodes, time), values=values)
    _check_tensor("actions", batch.actions)
    shape = tuple(batch.actions.shape)
    if len(shape) != 3 or shape[0] != episodes or shape[1] < time or shape[2] != features.action:
        raise ValueError(
            f"actions: expected ({episodes}, at least {time}, {features.action}) - batch, time, "
            f"action - got {shape}"
        )
    _check_mask_shape("valid", batch.valid, (episodes, time))
    if batch.actions_valid is not None:
        _check_mask_shape("actions_valid", batch.actions_valid, shape[:2])
    elif shape[1] != time:
        raise ValueError(
            f"actions: {shape[1]} steps of actions for {time} steps of observations; "
            "give `actions_valid` to mark the real ones"
        )
    if batch.emphasis is not None:
        _check_shape("emphasis", batch.emphasis, (episodes, time))
    if batch.deciding is not None:
        _check_mask_shape("deciding", batch.deciding, (episodes, time))
    if values:
        _check_finite("actions", batch.actions)
        _check_mask("valid", batch.valid)
        if batch.actions_valid is not None:
            _check_mask("actions_valid", batch.actions_valid)
        if batch.emphasis is not None:
            _check_emphasis(batch.emphasis, batch.valid)


def check_observation(
    observation: Observation, features: Features, leading: tuple[int, ...], *, values: bool = True
) -> None:
    """Raise a ValueError if the observation does not fit `features`.

    `leading` is (batch,) in control and (batch, time) in training.
    """
    _check_shape("proprioception", observation.proprioception, (*leading, features.proprioception))
    if not isinstance(observation.images, Mapping):
        raise ValueError(
            "images: expected a dictionary from view to image, got "
            f"{type(observation.images).__name__}"
        )
    expected, given = [view.name for view in features.views], list(observation.images)
    if set(expected) != set(given):
        raise ValueError(
            f"images: this policy expects {_named(expected)}, got {_named(given)}"
            f"{_difference('missing', expected, given)}{_difference('unknown', given, expected)}. "
            "Rename the keys of `images` to the names in the policy's features.views"
        )
    for view in features.views:
        _check_image(view, observation.images[view.name], leading, values)
    _check_presence("objects", observation.objects, features.objects is not None)
    if features.objects is not None and observation.objects is not None:
        _check_shape(
            "objects",
            observation.objects,
            (*leading, features.objects.count, features.objects.size),
        )
    _check_instruction(observation.instruction, features.language, leading[0])
    if values:
        _check_finite("proprioception", observation.proprioception)
        if observation.objects is not None:
            _check_finite("objects", observation.objects)
        if observation.instruction is not None:
            _check_finite("instruction", observation.instruction)


def check_state(
    state: MemoryState, signature: str, device: torch.device, batch_size: int | None = None
) -> None:
    """Raise a ValueError if a memory state does not fit a policy.

    `signature` and `device` are those of the policy; without a `batch_size` any is accepted.
    """
    if not isinstance(state, MemoryState):
        raise ValueError(
            f"state: expected a MemoryState, got {type(state).__name__}; begin with "
            "policy.initial_state()"
        )
    batch_size = len(state) if batch_size is None else batch_size
    if state.signature != signature:
        raise ValueError(
            "state: it belongs to a policy of another architecture, other features or other "
            f"statistics (signature {state.signature}, this policy has {signature}); "
            f"make one with policy.initial_state({batch_size})"
        )
    if state.working.device != device:
        raise ValueError(
            f"state: it is on {state.working.device}, the policy on {device}; "
            f'move it with state.to("{device}")'
        )
    if len(state) != batch_size:
        raise ValueError(
            f"state: it holds the memory of {len(state)} episodes, the observation has "
            f"{batch_size}; slice it (state[i:j]), join several (MemoryState.cat), or make one "
            f"with policy.initial_state({batch_size})"
        )


class NotFiniteError(ValueError):
    """Actions that no robot may carry out."""


def check_actions(actions: Tensor) -> None:
    """Raise a NotFiniteError that names the robots whose actions (B H A) are not finite."""
    finite = torch.isfinite(actions)
    if not bool(finite.all()):
        robots = (~finite.flatten(1).all(dim=1)).nonzero().flatten().tolist()
        raise NotFiniteError(
            f"act: the actions of robot{'' if len(robots) == 1 else 's'} "
            f"{', '.join(map(str, robots))} are not finite numbers; the memory took in numbers far "
            "from those of the training, or the weights are damaged. Stop the robot, check its "
            "sensors, and begin again with policy.initial_state()"
        )


def _named(names: list[str]) -> str:
    return f"{len(names)} view{'' if len(names) == 1 else 's'} ({', '.join(names) or 'none'})"


def _difference(word: str, names: list[str], others: list[str]) -> str:
    rest = [name for name in names if name not in others]
    return f"; {word}: {', '.join(rest)}" if rest else ""


def _check_instruction(value: Tensor | None, language: Language | None, episodes: int) -> None:
    if language is None:
        if value is not None:
            raise ValueError(
                "instruction: this policy was built without language (features.language is None) "
                "and uses a learned null token; leave `instruction` out, or build a policy whose "
                "features have a Language"
            )
        return
    if value is None:
        raise ValueError(
            "instruction: this policy expects an embedding for every episode; for a missing "
            "instruction pass the embedding of the empty string, "
            f'InstructionEncoder("{language.encoder}").embed([""])'
        )
    if isinstance(value, str):
        raise ValueError(
            f"instruction: expected an embedding, got the text {value!r}; "
            f'use InstructionEncoder("{language.encoder}").embed([text])'
        )
    _check_shape("instruction", value, (episodes, language.width))


def _check_presence(name: str, value: Tensor | None, expected: bool) -> None:
    if expected and value is None:
        raise ValueError(f"{name}: this policy expects them, and the observation has none")
    if not expected and value is not None:
        raise ValueError(
            f"{name}: this policy was built without them (features.{name} is None); leave them out"
        )


def check_rank(name: str, tensor: Tensor, dimensions: int) -> None:
    """Raise a ValueError if a tensor does not have this number of dimensions."""
    _check_tensor(name, tensor)
    if tensor.dim() != dimensions:
        expected = {2: "(batch, size)", 3: "(batch, time, size)"}[dimensions]
        hint = (
            "; add the batch dimension with unsqueeze(0), or use Observation.single"
            if tensor.dim() == 1
            else ""
        )
        raise ValueError(f"{name}: expected the shape {expected}, got {tuple(tensor.shape)}{hint}")


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise ValueError(
            f"{name}: expected a torch.Tensor, got {type(value).__name__}; for one robot's arrays "
            "use Observation.single(...), otherwise torch.as_tensor"
        )


def _check_shape(name: str, tensor: Tensor, expected: tuple[int, ...]) -> None:
    _check_tensor(name, tensor)
    if tuple(tensor.shape) != expected:
        raise ValueError(f"{name}: expected the shape {expected}, got {tuple(tensor.shape)}")


def _check_finite(name: str, tensor: Tensor) -> None:
    bad = ~torch.isfinite(tensor)
    if bool(bad.any()):
        first = tuple(bad.nonzero()[0].tolist())
        raise ValueError(
            f"{name}: expected finite numbers, got {tensor[first].item()} at index {first}; "
            "check the sensor or the recording before it reaches the policy"
        )


def _check_mask_shape(name: str, mask: Tensor, expected: tuple[int, ...]) -> None:
    _check_shape(name, mask, expected)
    if mask.dtype != torch.bool:
        raise ValueError(
            f"{name}: expected a mask of torch.bool, got {mask.dtype}; pass mask.bool()"
        )


def _check_emphasis(emphasis: Tensor, valid: Tensor) -> None:
    usable = (
        torch.isfinite(emphasis).all(dim=1)
        & (emphasis >= 0).all(dim=1)
        & ((emphasis * valid).sum(dim=1) > 0)
    )
    if not bool(usable.all()):
        bad = (~usable).nonzero().flatten().tolist()
        raise ValueError(
            "emphasis: expected finite numbers, none negative, and some above zero on valid time "
            f"steps; got others in episodes {bad} of the batch"
        )


def _check_mask(name: str, mask: Tensor) -> None:
    empty = (~mask[:, 0]).nonzero().flatten().tolist()
    if empty:
        raise ValueError(
            f"{name}: episodes {empty} of the batch do not begin with a valid time step; leave "
            "them out"
        )
    gaps = (mask[:, 1:] & ~mask[:, :-1]).any(dim=1).nonzero().flatten().tolist()
    if gaps:
        raise ValueError(
            f"{name}: episodes {gaps} of the batch have padding in the middle; pad episodes at "
            "the end only"
        )


def _check_image(view: View, image: Tensor, leading: tuple[int, ...], values: bool) -> None:
    name, expected = f"images[{view.name!r}]", (*leading, view.height, view.width, 3)
    _check_tensor(name, image)
    if tuple(image.shape) != expected:
        hint = ""
        if tuple(image.shape) == (*leading, 3, view.height, view.width):
            hint = "; this is channels first: pass image.movedim(-3, -1)"
        elif image.dim() == len(expected) - 1 and tuple(image.shape) == expected[1:]:
            hint = (
                "; the batch dimension is missing: pass image.unsqueeze(0), or use "
                "Observation.single"
            )
        elif image.dim() == len(expected) and image.shape[-1] == 3:
            size = f"{view.height} x {view.width}"
            hint = f"; resize the frames to {size}, or build the policy for their size"
        raise ValueError(
            f"{name}: expected the shape {expected} (channels last), got {tuple(image.shape)}{hint}"
        )
    if image.dtype == torch.uint8:
        return
    if not image.is_floating_point():
        raise ValueError(f"{name}: expected uint8 in 0..255 or float in [0, 1], got {image.dtype}")
    if values:
        low, high = image.min().item(), image.max().item()
        if not (low >= 0 and high <= 1):  # NaN fails this test, too
            raise ValueError(
                f"{name}: float images must lie in [0, 1], got values from {low:g} to {high:g}; "
                "divide by 255, or pass uint8"
            )
