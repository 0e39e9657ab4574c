"""`observe` and `act` as programs: modules with flat tensors in and out, traced by `torch.export`.

    observe   tensors of an observation, then tensors of the memory, by the names of
              `MemoryState.tensors` -> the memory after the step
    act       the tensors of the memory that the method's head reads, then noise B H A
              -> actions B H A in the robot's units

Decisions
- Normalisation statistics are inside: inputs and outputs are in the robot's units.
- Sampling steps are unrolled: fewer runtimes support a loop with a network inside.
- A program contains only the weights that it reads. Running it once shows which these are, and
  which tensors of the memory `act` reads.
- The policy's checks of its arguments are not in the programs; `runtime.ExportedPolicy` makes them.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from chameleon_policy.export.manifest import BATCH, NEXT, NOISE, Signature, TensorSpec
from chameleon_policy.kernels import unfuse
from chameleon_policy.kernels.frozen import freeze
from chameleon_policy.policy import Features, MemoryState, Observation, VisuomotorPolicy

EXAMPLE_BATCH = 2
"""Robots to trace a free batch dimension with; torch.export takes a size of 1 for a constant."""


class ObserveProgram(nn.Module):
    """Module of one control step: observation and memory in, memory out."""

    def __init__(self, policy: VisuomotorPolicy) -> None:
        super().__init__()
        self.policy = policy
        self.blank = policy.initial_state(1)
        self.observed = observation_names(policy.features)
        self.inputs = (*self.observed, *self.blank.tensors())
        self.outputs = tuple(f"{NEXT}{name}" for name in self.blank.tensors())

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the `outputs`; `tensors` are the `inputs` in order."""
        given = dict(zip(self.inputs, tensors, strict=True))
        # `advance` takes a time axis, which an instruction does not have.
        observation = observation_from(
            {
                name: given[name] if name == "instruction" else given[name].unsqueeze(1)
                for name in self.observed
            }
        )
        after = self.policy.advance(observation, self.blank.with_tensors(given))
        return tuple(after.tensors().values())


class ActProgram(nn.Module):
    """Module of a chunk of actions: tensors of the memory and noise in, actions out."""

    def __init__(
        self, policy: VisuomotorPolicy, steps: int, inputs: Sequence[str] | None = None
    ) -> None:
        super().__init__()
        self.policy, self.steps = policy, steps
        self.blank = policy.initial_state(1)
        self.inputs = tuple(inputs) if inputs is not None else (*self.blank.tensors(), NOISE)
        self.outputs = ("actions",)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the actions, a tuple of one; `tensors` are the `inputs` in order."""
        given = dict(zip(self.inputs, tensors, strict=True))
        # A method that draws no noise has no input for it.
        source = given.pop(NOISE, "zero")
        chunk = self.policy._sample(self.blank.with_tensors(given), self.steps, source, None)  # type: ignore[arg-type]
        return (self.policy.normalize_action.inverse(chunk),)


@dataclass(frozen=True, kw_only=True, eq=False)
class Traced:
    """A traced program and its signature."""

    program: ExportedProgram
    signature: Signature


@torch.no_grad()
def trace_observe(policy: VisuomotorPolicy, batch_size: int | None) -> Traced:
    """Trace `observe` of a policy for a number of robots; None: any number."""
    frozen = _frozen(policy)
    state, observation = _example(frozen, batch_size)
    tensors = {**observation_tensors(observation), **state.tensors()}
    return _traced(ObserveProgram(frozen), tensors, batch_size)


@torch.no_grad()
def trace_act(policy: VisuomotorPolicy, steps: int, batch_size: int | None) -> Traced:
    """Trace `act` of a policy with a number of sampling steps."""
    frozen = _frozen(policy)
    state, observation = _example(frozen, batch_size)
    # Some methods refuse to act before the first observation.
    state = frozen.observe(observation, state)
    noise = torch.zeros(
        len(state), policy.features.horizon, policy.features.action, device=policy.device
    )
    tensors = {**state.tensors(), NOISE: noise}
    storages = _storages_read(ActProgram(frozen, steps), tensors)
    read = [name for name, tensor in tensors.items() if _storage(tensor) in storages]
    return _traced(
        ActProgram(frozen, steps, read), {name: tensors[name] for name in read}, batch_size
    )


def observation_names(features: Features) -> tuple[str, ...]:
    """Return the names of an observation's tensors.

    These are images.<view> for every view, proprioception, and, where the features have them,
    objects and instruction.
    """
    optional = {"objects": features.objects, "instruction": features.language}
    present = [name for name, feature in optional.items() if feature is not None]
    return (*(f"images.{view.name}" for view in features.views), "proprioception", *present)


def observation_tensors(observation: Observation) -> dict[str, Tensor]:
    """Return an observation's tensors by the names of `observation_names`, in their order."""
    views = {f"images.{name}": image for name, image in observation.images.items()}
    others = {
        name: getattr(observation, name) for name in ("proprioception", "objects", "instruction")
    }
    return views | {name: tensor for name, tensor in others.items() if tensor is not None}


def observation_from(tensors: dict[str, Tensor]) -> Observation:
    """Build an observation from tensors by the names of `observation_names`."""
    images = {
        name.removeprefix("images."): tensor
        for name, tensor in tensors.items()
        if name.startswith("images.")
    }
    return Observation(
        images=images,
        **{name: value for name, value in tensors.items() if not name.startswith("images.")},
    )


def _frozen(policy: VisuomotorPolicy) -> VisuomotorPolicy:
    """Copy a policy for control alone, with what follows from weights alone computed once."""
    return freeze(unfuse(copy.deepcopy(policy)))


def _example(policy: VisuomotorPolicy, batch_size: int | None) -> tuple[MemoryState, Observation]:
    robots = EXAMPLE_BATCH if batch_size is None else batch_size
    features, device = policy.features, policy.device

    def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(robots, *shape, dtype=dtype, device=device)

    objects, language = features.objects, features.language
    observation = Observation(
        images={
            view.name: zeros(view.height, view.width, 3, dtype=torch.uint8)
            for view in features.views
        },
        proprioception=zeros(features.proprioception),
        objects=None if objects is None else zeros(objects.count, objects.size),
        instruction=None if language is None else zeros(language.width),
    )
    return policy.initial_state(robots), observation


def _traced(
    program: ObserveProgram | ActProgram, tensors: dict[str, Tensor], batch_size: int | None
) -> Traced:
    """Trace a program; `tensors` are its example inputs by name."""
    example = tuple(tensors[name].clone() for name in program.inputs)
    _drop_unread_weights(program, _storages_read(program, tensors))
    dynamic = None if batch_size is not None else (tuple({0: Dim(BATCH, min=1)} for _ in example),)
    try:
        with warnings.catch_warnings():
            # An LSTM assigns its list of weights at every call, to the same value.
            warnings.filterwarnings("ignore", message="The tensor attributes .*_flat_weights")
            exported = torch.export.export(program, example, dynamic_shapes=dynamic, strict=False)
    except Exception as error:  # the tracer raises many kinds; all mean that it cannot trace this
        remedy = (
            "" if batch_size is not None else "; a fixed number of robots may work: --batch-size 1"
        )
        raise ValueError(
            f"{program.policy.method}: torch.export cannot trace "
            f"{type(program).__name__}{remedy}. It says: {error}"
        ) from error
    results = program(*example)
    signature = Signature(
        inputs=_specs(program.inputs, example, batch_size),
        outputs=_specs(program.outputs, results, batch_size),
    )
    return Traced(program=exported, signature=signature)


def _specs(
    names: Iterable[str], tensors: Iterable[Tensor], batch_size: int | None
) -> tuple[TensorSpec, ...]:
    batch = BATCH if batch_size is None else batch_size
    return tuple(
        TensorSpec(
            name=name,
            shape=(batch, *tensor.shape[1:]),
            dtype=str(tensor.dtype).removeprefix("torch."),
        )
        for name, tensor in zip(names, tensors, strict=True)
    )


class _StorageRecorder(TorchDispatchMode):
    """Recorder of the addresses of all tensors that operations read."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.storages |= {
            _storage(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)
        }
        return function(*args, **(kwargs or {}))


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _storages_read(program: ObserveProgram | ActProgram, tensors: dict[str, Tensor]) -> set[int]:
    """Run the program once and return the addresses of the tensors that it reads.

    The run also fills caches (Diffusion Policy's schedules), which must not happen while tracing.
    """
    recorder = _StorageRecorder()
    with recorder:
        program(*(tensors[name] for name in program.inputs))
    return recorder.storages


def _drop_unread_weights(program: nn.Module, read: set[int]) -> None:
    """Empty the weights that the program does not read, keeping their type and device."""
    for module in program.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and _storage(parameter) not in read:
                module._parameters[name] = nn.Parameter(parameter.new_empty(0), requires_grad=False)
