"""Run an exported policy on NumPy arrays, through ONNX Runtime or through torch.

    policy = ExportedPolicy("exported")                   # runtime="torch" for the .pt2 programs
    state = policy.initial_state(batch_size=1)            # when an episode begins
    state = policy.observe(observation, state)            # every control step
    actions = policy.act(state)                           # when a chunk of actions is due

A state is a dictionary of arrays: keep it, copy it, save it with `numpy.savez`. None of the model's
code is used, and with ONNX Runtime torch is not imported. Read this file and `manifest.py` to write
a runtime in another language.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from chameleon_policy.export.manifest import (
    FILES,
    NOISE,
    Runtime,
    Signature,
    TensorSpec,
    check_file,
    read_manifest,
)

Array = NDArray[Any]
State = dict[str, Array]
"""Memory of a batch of robots: arrays by the names in `policy.json`, the batch first."""
Program = Callable[[Sequence[Array]], list[Array]]
"""Function from inputs to outputs, both in the manifest's order."""


class ExportedPolicy:
    """Exported policy for as many robots as it was exported for."""

    def __init__(
        self,
        directory: Path | str,
        runtime: Runtime = "onnx",
        *,
        threads: int | None = None,
        providers: Sequence[str] = ("CPUExecutionProvider",),
    ) -> None:
        """Load both programs.

        Args:
            directory: Folder that `chameleon export` wrote.
            runtime: onnx, which needs the package onnxruntime, or torch.
            threads: Threads of ONNX Runtime (default: it decides); for torch call
                torch.set_num_threads.
            providers: ONNX Runtime's execution providers.
        """
        if runtime not in get_args(Runtime):
            raise ValueError(
                f"runtime: expected one of {', '.join(get_args(Runtime))}, got {runtime!r}"
            )
        self.manifest = read_manifest(directory)
        if runtime == "onnx" and self.manifest.no_onnx is not None:
            raise ValueError(
                f"{directory} holds no ONNX programs: {self.manifest.no_onnx}. "
                f'Use ExportedPolicy({str(directory)!r}, "torch")'
            )
        if runtime == "torch" and threads is not None:
            raise ValueError(
                "threads: only for the runtime onnx; for torch call torch.set_num_threads"
            )
        paths = {
            name: check_file(Path(directory), file, self.manifest)
            for name, file in FILES[runtime].items()
        }
        signatures = {"observe": self.manifest.observe, "act": self.manifest.act}
        if runtime == "torch":
            programs = {
                name: _torch_program(path, self.manifest.device) for name, path in paths.items()
            }
        else:
            programs = {
                name: _onnx_program(path, signatures[name], threads, providers)
                for name, path in paths.items()
            }
        self._observe, self._act = programs["observe"], programs["act"]

    @property
    def executed(self) -> int:
        """Actions of a chunk to execute before the next one is due."""
        return self.manifest.executed

    def initial_state(self, batch_size: int = 1) -> State:
        """Return the memory before the first observation: zeros."""
        fixed = self.manifest.batch_size
        if not isinstance(batch_size, int) or batch_size < 1 or fixed not in (None, batch_size):
            wanted = (
                "a whole number of at least 1"
                if fixed is None
                else f"{fixed}, which it was exported for"
            )
            raise ValueError(f"batch_size: expected {wanted}, got {batch_size!r}")
        return {
            spec.name: np.zeros(spec.sizes(batch_size), spec.dtype) for spec in self.manifest.memory
        }

    def observe(self, observation: Mapping[str, Any], state: State) -> State:
        """Observe one control step and return the memory after it. Call it on EVERY control step.

        `observation` has the entries of Camo's observations with a batch dimension in front:
        {"images": {view: B H W 3 uint8}, "proprioception": B P}, and "objects" (B K F) and
        "instruction" (B W) where the policy was trained with them.
        """
        batch = self._batch(state)
        values, specs = _flattened(observation), self.manifest.observation
        expected, given = [spec.name for spec in specs], list(values)
        if set(expected) != set(given):
            raise ValueError(
                f"observation: expected {', '.join(expected)}, got {', '.join(given) or 'nothing'}"
            )
        inputs = [_checked(spec, values[spec.name], batch) for spec in specs]
        outputs = self._observe([*inputs, *(state[spec.name] for spec in self.manifest.memory)])
        return {spec.name: array for spec, array in zip(self.manifest.memory, outputs, strict=True)}

    def act(
        self, state: State, *, noise: Any = None, rng: np.random.Generator | None = None
    ) -> Array:
        """Return the next H actions (B H A) in the robot's units, from the last observation on.

        Sampling begins at `noise` (B H A), by default drawn from a standard normal, with `rng` if
        given; zeros make it deterministic. A method that draws no noise ignores it.
        """
        batch = self._batch(state)
        if (state["steps"] == 0).any():
            raise ValueError(
                "act: this state has not observed anything yet; "
                "call observe(observation, state) first"
            )
        inputs = []
        for spec in self.manifest.act.inputs:
            if spec.name != NOISE:
                inputs.append(state[spec.name])
            elif noise is None:
                drawn = (rng or np.random.default_rng()).standard_normal(spec.sizes(batch))
                inputs.append(drawn.astype(spec.dtype))
            else:
                inputs.append(_checked(spec, noise, batch))
        (actions,) = self._act(inputs)
        if not np.isfinite(actions).all():
            raise ValueError(
                "act: the actions are not finite; an edited memory may no longer be a valid one"
            )
        return actions

    def _batch(self, state: State) -> int:
        """Check a state and return its number of robots."""
        expected = [spec.name for spec in self.manifest.memory]
        if not isinstance(state, dict) or list(state) != expected:
            got = ", ".join(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise ValueError(
                f"state: expected arrays named {', '.join(expected)}, got {got}; "
                "begin with initial_state()"
            )
        batch = len(state["steps"])
        fixed = self.manifest.batch_size
        if fixed not in (None, batch):
            raise ValueError(
                f"state: this policy was exported for {fixed} robots at a time, "
                f"got the memory of {batch}"
            )
        for spec in self.manifest.memory:
            array = state[spec.name]
            if array.shape != spec.sizes(batch) or array.dtype != spec.dtype:
                raise ValueError(
                    f"state: {spec.name} should be {spec.dtype} of the shape "
                    f"{spec.sizes(batch)}, got {array.dtype} of {array.shape}"
                )
        return batch


def _flattened(observation: Mapping[str, Any]) -> dict[str, Any]:
    """Return an observation's values by the programs' names, which are images.<view> for images."""
    values = {
        name: value for name, value in observation.items() if name != "images" and value is not None
    }
    return values | {
        f"images.{name}": image for name, image in observation.get("images", {}).items()
    }


def _checked(spec: TensorSpec, value: Any, batch: int) -> Array:
    """Check a value and return it as the array that a program takes, uint8 images or float32."""
    array = np.asarray(value)
    if spec.dtype == "uint8" and array.dtype != np.uint8:
        raise ValueError(
            f"{spec.name}: expected uint8 in 0..255, got {array.dtype}; "
            "an exported policy takes no other images"
        )
    if array.shape != spec.sizes(batch):
        raise ValueError(f"{spec.name}: expected the shape {spec.sizes(batch)}, got {array.shape}")
    if spec.dtype != "uint8" and not np.isfinite(array).all():
        raise ValueError(
            f"{spec.name}: expected finite numbers; check the sensor before it reaches the policy"
        )
    return np.ascontiguousarray(array, dtype=spec.dtype)


def _onnx_program(
    path: Path, signature: Signature, threads: int | None, providers: Sequence[str]
) -> Program:
    try:
        import onnxruntime
    except ImportError as error:
        raise ImportError("running ONNX programs needs: pip install onnxruntime") from error
    options = onnxruntime.SessionOptions()
    if threads is not None:
        options.intra_op_num_threads = threads
    options.log_severity_level = 3  # its warnings are about folding constants
    session = onnxruntime.InferenceSession(str(path), options, providers=list(providers))
    names = [spec.name for spec in signature.inputs]
    outputs = [spec.name for spec in signature.outputs]

    def run(inputs: Sequence[Array]) -> list[Array]:
        return list(session.run(outputs, dict(zip(names, inputs, strict=True))))

    return run


def _torch_program(path: Path, device: str) -> Program:
    import torch

    module = torch.export.load(path).module()

    def run(inputs: Sequence[Array]) -> list[Array]:
        with torch.no_grad():
            return [
                output.cpu().numpy()
                for output in module(*(torch.from_numpy(array).to(device) for array in inputs))
            ]

    return run
