"""Control at the speed of the hardware: one policy for a fixed number of robots.

    control = FastControl(policy)                  once; on a GPU it captures the calls below
    control.reset()                                when an episode begins
    control.observe(observation)                   every control step
    chunk = control.act(steps=8)                   when a chunk of actions is due

On a GPU the weights are bfloat16, modules are fused, and `observe` and `act` are CUDA graphs over
fixed buffers: a tick is one launch. Observations pass through page-locked memory, so they should
come from the CPU, as cameras deliver them. On a CPU the weights stay float32, with convolutions in
channels-last order. Results equal those of `ChameleonPolicy.observe` and `act` up to rounding.

Decisions
- A step of `ChameleonPolicy` returns a new memory; here the memory is overwritten. `state` reads
  and sets a copy of it.
- The policy is copied, so later changes to its weights have no effect.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from chameleon_policy import kernels
from chameleon_policy.kernels.frozen import freeze
from chameleon_policy.policy.action_flow import ActionFlow
from chameleon_policy.policy.chameleon import ChameleonPolicy
from chameleon_policy.policy.checks import check_observation, check_rank
from chameleon_policy.policy.features import Features
from chameleon_policy.policy.observation import Observation
from chameleon_policy.policy.sampling import Source
from chameleon_policy.policy.state import MemoryState

WARM_UP = 2
"""Runs before a graph is captured: libraries choose their algorithms, and kernels are compiled."""


class FastControl:
    """A frozen copy of a policy that controls `batch_size` robots.

    `fused=False` disables our own GPU kernels; `shared_memory` is that of `kernels.fuse`.
    """

    def __init__(
        self,
        policy: ChameleonPolicy,
        *,
        batch_size: int = 1,
        fused: bool = True,
        shared_memory: int | None = None,
    ) -> None:
        if not isinstance(policy, ChameleonPolicy):
            raise ValueError(
                f"FastControl: expected a ChameleonPolicy, got {type(policy).__name__}"
            )
        with torch.cuda.device(policy.device) if policy.device.type == "cuda" else nullcontext():
            self.policy = _frozen(policy, fused=fused, shared_memory=shared_memory)
        self.features, self.device = policy.features, policy.device
        self._state = self.policy.initial_state(batch_size)
        self._observed = [False] * batch_size
        self._gpu: _Graphs | None = None
        if self.device.type == "cuda":
            with torch.cuda.device(self.device):
                memory = (shared_memory or kernels.shared_memory_of(self.device)) if fused else None
                self._gpu = _Graphs(self.policy, self._state, memory)

    def __len__(self) -> int:
        return len(self._state)

    def reset(self, robots: Sequence[int] | None = None) -> None:
        """Reset the memory of all robots, or of these robots, to the start of an episode."""
        chosen = list(range(len(self))) if robots is None else sorted(set(robots))
        wrong = [robot for robot in chosen if not 0 <= robot < len(self)]
        if wrong:
            raise IndexError(f"reset: there is no robot {wrong[0]} among {len(self)}")
        fresh = self.policy.initial_state(max(1, len(chosen)))
        if chosen:
            self._overwrite(fresh if len(chosen) == len(self) else self._state.put(chosen, fresh))
        for robot in chosen:
            self._observed[robot] = False

    @property
    def state(self) -> MemoryState:
        """A copy of the memory; assign one to continue from it."""
        return self._state.clone()

    @state.setter
    def state(self, state: MemoryState) -> None:
        self.policy.check_state(state, len(self))
        self._overwrite(state)
        self._observed = (state.steps > 0).tolist()

    @torch.no_grad()
    def observe(self, observation: Observation) -> None:
        """Observe one control step (no time axis). Call it on EVERY control step."""
        if not isinstance(observation, Observation):
            raise ValueError(f"observe: expected an Observation, got {type(observation).__name__}")
        check_rank("proprioception", observation.proprioception, 2)
        check_observation(observation, self.features, (len(self),))
        if self._gpu is None:
            self._state = self.policy.observe(observation, self._state)
        else:
            with torch.cuda.device(self.device):
                self._gpu.observe(observation)
        self._observed = [True] * len(self)

    @torch.no_grad()
    def act(
        self,
        *,
        steps: int | None = None,
        source: Source | Tensor = "gaussian",
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Return the next H actions (B H A) in the robot's units, as `ChameleonPolicy.act` does.

        The first call with a new number of `steps` captures its graph; call it once before the
        robot moves. On a GPU the chunk is still being computed when this returns, so that, other
        than there, nobody has checked that its numbers are finite: check them where they arrive.
        """
        if not all(self._observed):
            raise ValueError(
                "act: a robot has not observed anything since its reset; call "
                "observe(observation) first"
            )
        steps = self.policy.config.sampling_steps if steps is None else steps
        flow = self.policy.action_flow
        if self._gpu is None:
            return self.policy.act(self._state, steps=steps, source=source, generator=generator)
        with torch.cuda.device(self.device):
            return self._gpu.act(
                steps, flow.source(self._state.working.float(), steps, source, generator)
            )

    def _overwrite(self, state: MemoryState) -> None:
        _copy_into(self._state, state)


def _frozen(policy: ChameleonPolicy, *, fused: bool, shared_memory: int | None) -> ChameleonPolicy:
    """Copy a policy for control, in the precision and memory order that its device prefers."""
    # Control does not need the training branch.
    branch, policy.control_jepa = policy.control_jepa, None
    try:
        frozen = copy.deepcopy(policy)
    finally:
        policy.control_jepa = branch
    if policy.device.type == "cuda":
        for name, parameter in frozen.named_parameters():
            # Time constants stay in float32: decays are products of many factors close to one.
            if not name.endswith(("rate_bias", "log_decay")):
                parameter.data = parameter.data.bfloat16()
        if fused:
            kernels.fuse(frozen, shared_memory=shared_memory)
        else:
            kernels.unfuse(frozen)
    for module in frozen.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)
    return freeze(frozen)


@dataclass(frozen=True, eq=False)
class _Acting:
    """The graph of `act` for one number of Euler steps."""

    graph: torch.cuda.CUDAGraph
    chunk: Tensor
    actions: Tensor
    sample: Callable[[Tensor, Tensor], Tensor]
    """Kept because the graph works in its buffers, and a graph keeps nothing alive."""


class _Graphs:
    """`observe` and `act` over fixed buffers on a CUDA device.

    `shared_memory=None` disables our own kernels.
    """

    def __init__(
        self, policy: ChameleonPolicy, state: MemoryState, shared_memory: int | None
    ) -> None:
        self.policy, self.state, self.shared_memory = policy, state, shared_memory
        self.waiting, self.seen = (
            _buffers(policy.features, len(state), device)
            for device in (torch.device("cpu"), policy.device)
        )
        """Page-locked buffers for a new observation, and buffers on the GPU for its copy."""
        self.writable = [tensor.numpy() for tensor in _tensors(self.waiting)]
        self.taken = torch.cuda.Event()
        self.taken.record()
        kept = state.clone()
        self.observing = _capture(self._observe)
        _copy_into(state, kept)  # the warm-up has changed it
        self.acting: dict[int, _Acting] = {}

    def _observe(self) -> None:
        for target, source in zip(_tensors(self.seen), _tensors(self.waiting), strict=True):
            target.copy_(source, non_blocking=True)
        observation = self.seen.map(lambda tensor: tensor.unsqueeze(1))
        after = self.policy.remember(self.policy.event_tokens(observation), self.state)[1]
        _copy_into(self.state, after)

    def observe(self, observation: Observation) -> None:
        """Run one control step."""
        for name, image in observation.images.items():
            if image.dtype != torch.uint8:
                raise ValueError(
                    f"images[{name!r}]: FastControl takes uint8 on a GPU, got {image.dtype}; "
                    "use (255 * image).byte()"
                )
        self.taken.synchronize()  # usually done already
        for array, tensor in zip(self.writable, _tensors(observation), strict=True):
            # NumPy copies in this thread; PyTorch would wake other threads, which may cost a tick.
            np.copyto(array, tensor.detach().cpu().numpy())
        self.observing.replay()
        self.taken.record()

    def act(self, steps: int, noise: Tensor) -> Tensor:
        """Sample chunks of actions from this noise."""
        if steps not in self.acting:
            self.acting[steps] = self._prepare(steps, noise)
        acting = self.acting[steps]
        acting.chunk.copy_(noise)
        acting.graph.replay()
        return acting.actions.clone()

    def _prepare(self, steps: int, noise: Tensor) -> _Acting:
        chunk, actions = noise.clone(), torch.empty_like(noise)
        sample = _sampler(self.policy.action_flow, len(noise), steps, self.shared_memory)
        units = self.policy.normalize_action

        def run() -> None:
            torch.addcmul(
                units.middle, sample(self.state.working, chunk), units.half_range, out=actions
            )

        return _Acting(_capture(run), chunk, actions, sample)


def _sampler(
    flow: ActionFlow, robots: int, steps: int, shared_memory: int | None
) -> Callable[[Tensor, Tensor], Tensor]:
    """Make the function from working states and noise to normalised chunks."""
    if shared_memory is not None and kernels.AVAILABLE and kernels.enabled(flow.action_out.weight):
        from chameleon_policy.kernels import euler  # imports Triton

        if euler.fits(flow):
            return euler.EulerSampler(flow, robots, steps, torch.bfloat16, shared_memory)
    return lambda working, noise: flow.sample(working, steps, noise, None).float()


def _buffers(features: Features, robots: int, device: torch.device) -> Observation:
    """Make an observation of zeros; on the CPU in page-locked memory."""
    pinned = device.type == "cpu"

    def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros((robots, *shape), dtype=dtype, device=device, pin_memory=pinned)

    objects, language = features.objects, features.language
    return Observation(
        proprioception=zeros(features.proprioception),
        images={
            view.name: zeros(view.height, view.width, 3, dtype=torch.uint8)
            for view in features.views
        },
        objects=None if objects is None else zeros(objects.count, objects.size),
        instruction=None if language is None else zeros(language.width),
    )


def _copy_into(state: MemoryState, source: MemoryState) -> None:
    """Overwrite the tensors of a state, whose memory is fixed, with those of another one."""
    new = source.tensors()
    for name, tensor in state.tensors().items():
        tensor.copy_(new[name])


def _tensors(observation: Observation) -> list[Tensor]:
    """Return the tensors of an observation in a fixed order."""
    images = [observation.images[name] for name in sorted(observation.images)]
    optional = (observation.objects, observation.instruction)
    return [
        observation.proprioception,
        *images,
        *(tensor for tensor in optional if tensor is not None),
    ]


def _capture(function: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Capture the GPU work of a function as a graph, after some warm-up runs."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(WARM_UP):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.no_grad():
        function()
    return graph
