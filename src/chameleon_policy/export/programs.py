"""`observe` and `act` as programs: modules with flat tensors in and out, traced by `torch.export`.

    observe   an observation, then the memory by the names of `MemoryState.tensors` -> the memory after the step
    act       what of the memory the method's head reads, then noise B H A -> actions B H A in the robot's units

Decisions
- Statistics are inside: programs take and give the robot's units.
- Sampling steps are unrolled. A loop with a network inside would be a graph within a graph, which
  fewer runtimes take.
- A program has the weights that it reads and no others: which those are is seen while it runs once,
  and so is what of the
  memory `act` reads.
- What the policy checks before it computes (`observe`, `act`) is not in a program;
  `runtime.ExportedPolicy` checks the same.
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
"""Robots of the example that a free batch dimension is traced with: one would be taken for a
constant.
"""


class ObserveProgram(nn.Module):
    """One control step: observation and memory in, memory out."""

    def __init__(self, policy: VisuomotorPolicy) -> None:
        super().__init__()
        self.policy = policy
        self.blank = policy.initial_state(1)
        self.seen = observed_names(policy.features)
        self.inputs = (*self.seen, *self.blank.tensors())
        self.outputs = tuple(f"{NEXT}{name}" for name in self.blank.tensors())

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Inputs and outputs in the order of their names."""
        given = dict(zip(self.inputs, tensors, strict=True))
        observation = observation_of(
            {name: given[name].unsqueeze(1) for name in self.seen if name != "instruction"}
        )
        if "instruction" in given:  # one for a whole episode: it has no time axis
            observation = _told(observation, given["instruction"])
        after = self.policy.advance(observation, self.blank.with_tensors(given))
        return tuple(after.tensors().values())


class ActProgram(nn.Module):
    """A chunk of actions out of the named parts of a memory."""

    def __init__(
        self, policy: VisuomotorPolicy, steps: int, inputs: Sequence[str] | None = None
    ) -> None:
        super().__init__()
        self.policy, self.steps = policy, steps
        self.blank = policy.initial_state(1)
        self.inputs = tuple(inputs) if inputs is not None else (*self.blank.tensors(), NOISE)
        self.outputs = ("actions",)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Inputs in the order of their names to the actions, a tuple of one."""
        given = dict(zip(self.inputs, tensors, strict=True))
        source = given.pop(NOISE, "zero")  # a method that draws nothing has no input for it
        chunk = self.policy._sample(self.blank.with_tensors(given), self.steps, source, None)  # type: ignore[arg-type]
        return (self.policy.normalize_action.inverse(chunk),)


@dataclass(frozen=True, kw_only=True, eq=False)
class Traced:
    """A program, and what it takes and gives."""

    program: ExportedProgram
    signature: Signature


@torch.no_grad()
def trace_observe(policy: VisuomotorPolicy, batch_size: int | None) -> Traced:
    """`observe` of a policy for so many robots; None: for any number."""
    frozen = _frozen(policy)
    state, observation = _example(frozen, batch_size)
    tensors = {**observed_tensors(observation), **state.tensors()}
    return _traced(ObserveProgram(frozen), tensors, batch_size)


@torch.no_grad()
def trace_act(policy: VisuomotorPolicy, steps: int, batch_size: int | None) -> Traced:
    """`act` of a policy with so many sampling steps."""
    frozen = _frozen(policy)
    state, observation = _example(frozen, batch_size)
    # some methods refuse to act before they have seen something
    state = frozen.observe(observation, state)
    noise = torch.zeros(
        len(state), policy.features.horizon, policy.features.action, device=policy.device
    )
    tensors = {**state.tensors(), NOISE: noise}
    every = ActProgram(frozen, steps)
    touched = _touched(every, tensors)
    read = [name for name, tensor in tensors.items() if _place(tensor) in touched]
    return _traced(
        ActProgram(frozen, steps, read), {name: tensors[name] for name in read}, batch_size
    )


def observed_names(features: Features) -> tuple[str, ...]:
    """Of an observation's tensors: images.<view> for every view, objects, proprioception,
    instruction.
    """
    optional = {"objects": features.objects, "instruction": features.language}
    there = [name for name, feature in optional.items() if feature is not None]
    return (*(f"images.{view.name}" for view in features.views), "proprioception", *there)


def observed_tensors(observation: Observation) -> dict[str, Tensor]:
    """An observation's tensors by these names, in their order."""
    views = {f"images.{name}": image for name, image in observation.images.items()}
    others = {
        name: getattr(observation, name) for name in ("proprioception", "objects", "instruction")
    }
    return views | {name: tensor for name, tensor in others.items() if tensor is not None}


def observation_of(tensors: dict[str, Tensor]) -> Observation:
    """An observation out of tensors by these names."""
    images = {
        name.removeprefix("images."): tensor
        for name, tensor in tensors.items()
        if name.startswith("images.")
    }
    return Observation(
        images=images,
        **{name: value for name, value in tensors.items() if not name.startswith("images.")},
    )


def _told(observation: Observation, instruction: Tensor) -> Observation:
    return Observation(
        proprioception=observation.proprioception,
        images=observation.images,
        objects=observation.objects,
        instruction=instruction,
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
    """The program as a graph; its example inputs are `tensors`, by the program's names."""
    example = tuple(tensors[name].clone() for name in program.inputs)
    _leave_out(program, _touched(program, tensors))
    dynamic = None if batch_size is not None else (tuple({0: Dim(BATCH, min=1)} for _ in example),)
    try:
        with warnings.catch_warnings():
            # An LSTM puts its weights in order whenever it is called; they are the same ones
            # afterwards.
            warnings.filterwarnings("ignore", message="The tensor attributes .*_flat_weights")
            exported = torch.export.export(program, example, dynamic_shapes=dynamic, strict=False)
    except (
        Exception
    ) as error:  # the tracer has many; all of them mean that this method cannot be traced as it is
        way_out = (
            "" if batch_size is not None else "; a fixed number of robots may work: --batch-size 1"
        )
        raise ValueError(
            f"{program.policy.method}: torch.export cannot trace {type(program).__name__}{way_out}. It says: {error}"
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


class _Watch(TorchDispatchMode):
    """Notes where in memory the tensors lie that operations read."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.places: set[int] = set()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.places |= {
            _place(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)
        }
        return function(*args, **(kwargs or {}))


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _touched(program: ObserveProgram | ActProgram, tensors: dict[str, Tensor]) -> set[int]:
    """Where the tensors lie that the program reads.

    This run also fills caches (Diffusion Policy's schedules) which must not be filled while a
    program is traced.
    """
    watch = _Watch()
    with watch:
        program(*(tensors[name] for name in program.inputs))
    return watch.places


def _leave_out(program: nn.Module, touched: set[int]) -> None:
    """Empty the weights that the program does not read; they keep their type and device, which may
    be asked for.
    """
    for module in program.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and _place(parameter) not in touched:
                module._parameters[name] = nn.Parameter(parameter.new_empty(0), requires_grad=False)
