"""The Gymnasium environment of every Camo task.

An episode has four phases: evidence (a hand shows z), retention (nothing happens), decision (t_d:
hands gone, arm at the decision pose), execution. The arm obeys from the first step on, but until
t_d it stays within three centimetres of the decision pose with its gripper open. At a decision, arm
and objects are reset to exact poses: for one seed, frames and proprioception are then the same for
every z and every policy, to the last bit. The policy cannot use the arm as a notepad.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from chameleon_policy.camo.cameras import VIEWS, Cameras, Frame
from chameleon_policy.camo.controller import (
    WORKSPACE_HIGH,
    WORKSPACE_LOW,
    keep_waiting,
    pose_to_action,
    read_action,
)
from chameleon_policy.camo.events import Event
from chameleon_policy.camo.geometry import Array, Pose
from chameleon_policy.camo.hand import AWAY, VISIBLE_X, Script
from chameleon_policy.camo.nuisance import LEVELS, Level, Nuisance
from chameleon_policy.camo.robot import add_robot
from chameleon_policy.camo.scene import LARGEST_IMAGE, new_scene
from chameleon_policy.camo.scoring import Score, score
from chameleon_policy.camo.tasks import Span, Task, make_task
from chameleon_policy.camo.tasks.task import SLOT_NAMES, check_span
from chameleon_policy.camo.world import CONTROL_HZ, World
from chameleon_policy.seeds import TRAINING_SEEDS, stream
from chameleon_policy.suite import Answer, EpisodeResult, Mode

Phase = Literal["evidence", "retention", "decision", "execution"]
REACH = 1.5


class CamoEnv(gym.Env[dict[str, Any], npt.NDArray[np.float32]]):
    """Environment of one task; difficulty (`swaps`, `cups`, `length` ...) goes to the task."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": CONTROL_HZ}  # noqa: RUF012 (Gymnasium's convention)

    def __init__(
        self,
        task: str,
        *,
        observation: Mode = "rgb",
        image_size: int = 224,
        retention_steps: Span = (3, 10),
        nuisance: Level = "none",
        render_mode: str | None = None,
        object_slots: int | None = None,
        **difficulty: Any,
    ) -> None:
        """Build the scene.

        `object_slots` is the number of rows of object slots, for a policy that has more than the
        task has objects: the rest stays zero, after the candidates.
        """
        _check(observation, nuisance, render_mode, image_size)
        self._retention_range = check_span("retention_steps", retention_steps, 0, 100_000)
        self.task = make_task(task, difficulty)
        self.mode, self.image_size, self.nuisance, self.render_mode = (
            observation,
            image_size,
            nuisance,
            render_mode,
        )

        self._slot_count = _check_slots(self.task, object_slots)
        spec = new_scene(self.task.name)
        add_robot(spec)
        self.task.build(spec)
        self.world = World(spec, self.task.objects)
        self._appearance = Nuisance(self.world.model)
        self._cameras: dict[int, Cameras] = {}
        if self.mode == "rgb":
            # a missing OpenGL library is better found now than in the first reset
            self._cameras_of(image_size)
        self._over = True
        self.action_space = gym.spaces.Box(
            np.array([*WORKSPACE_LOW, *[-1] * 6, 0], np.float32),
            np.array([*WORKSPACE_HIGH, *[1] * 7], np.float32),
        )
        self.observation_space = self._make_observation_space()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode.

        The seed decides all of it; `options={"z": ...}` sets the answer and changes nothing else.
        """
        if seed is not None and (not isinstance(seed, (int, np.integer)) or seed < 0):
            raise ValueError(f"seed must be a whole number of at least 0, got {seed!r}")
        super().reset(seed=seed)
        # Without a seed, episodes come from the training range, never from evaluation seeds.
        self.seed = (
            TRAINING_SEEDS[int(self.np_random.integers(len(TRAINING_SEEDS)))]
            if seed is None
            else int(seed)
        )
        self.task.drawn = self.task.draw(self.seed)
        self.z = self._answer((options or {}).get("z"))
        self._appearance.apply(self.nuisance, stream(self.seed, "nuisance"))
        self.world.free()
        self.world.reset({**self.task.layout(stream(self.seed, "layout")), **self.task.parked()})
        homes = self.world.settle()
        self.world.reset(homes)
        # the scene to which every decision of this episode returns
        self._start = self.world.state()

        rng = stream(self.seed, "script")
        retention = int(rng.integers(self._retention_range[0], self._retention_range[1] + 1))
        self.script: Script = self.task.choreograph(self.z, homes, rng)
        self.evidence_steps = self.script.steps
        self.decision_step = self.evidence_steps + retention
        """t_d, known in advance; the first one of several."""
        self.difficulty = {**self.task.varied, **self.task.difficulty, "retention_steps": retention}
        self.task.begin({name: poses[-1] for name, poses in self.script.objects.items()})
        self.step_index, self._over = 0, False
        self.decisions: list[int] = []
        self.task.furnish(self.world, 0)
        self.world.pin()
        self._follow_script()
        return self._observation(), self._info(clamped=False)

    def step(
        self, action: npt.ArrayLike
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Take one control step (1/7.5 s) towards an absolute tool pose.

        `controller.py` has the ten numbers and their limits.
        """
        if self._over:
            raise gym.error.ResetNeeded(
                "the episode is over, or has not begun: call reset() before step()"
            )
        command = read_action(action)
        if not self.decisions:
            command = keep_waiting(command)
        self.world.step(command)
        self.step_index += 1
        if self.decisions:
            self._watch()
        else:
            self._follow_script()
        terminated = bool(self.decisions) and self.task.finished(self.step_index)
        truncated = (
            not terminated and self.step_index >= self.decision_step + self.task.execution_steps
        )
        if self.world.diverged:
            self.task.note("diverged")
            terminated, truncated = True, False
        elif truncated:
            self.task.note("timeout")
        self._over = terminated or truncated
        info = self._info(clamped=command.clamped or self.world.kinematics.falls_short)
        return self._observation(), float(info["is_success"]), terminated, truncated, info

    def frames(self, size: int | None = None) -> dict[str, Frame]:
        """Return the current image of each camera, in either observation mode.

        A `size` other than the environment's costs another renderer.
        """
        hands = any(self.world.hand(name).position[0] < AWAY[0] for name in self.task.hands)
        return self._cameras_of(size or self.image_size).draw(self.world.data, hands=hands)

    def _cameras_of(self, size: int) -> Cameras:
        if size not in self._cameras:
            self._cameras[size] = Cameras(self.world.model, size)
        return self._cameras[size]

    def render(self) -> Frame:
        """Return both views side by side."""
        frames = self.frames()
        return np.concatenate([frames[view] for view in VIEWS], axis=1)

    def close(self) -> None:
        """Free the renderers."""
        for cameras in self._cameras.values():
            cameras.close()
        self._cameras = {}

    @property
    def phase(self) -> Phase:
        """Phase of the current observation."""
        if self.decisions:
            return "decision" if self.decisions[-1] == self.step_index else "execution"
        return "evidence" if self.step_index < self.evidence_steps else "retention"

    @property
    def events(self) -> tuple[Event, ...]:
        """Events so far."""
        return self.task.events

    def score(self) -> Score:
        """Return M, D and the reason so far."""
        return score(self.task, self.events, self.z)

    def result(self) -> EpisodeResult:
        """Return the result of the episode so far."""
        return EpisodeResult(
            seed=self.seed,
            z=self.z,
            score=self.score(),
            difficulty=dict(self.difficulty),
            length=self.step_index,
            choices=self.task.choices(self.events),
            chance=1 / len(self.task.possible),
        )

    def proprioception(self) -> npt.NDArray[np.float32]:
        """Return the measured tool pose and gripper, in the numbers of an action (10,)."""
        return pose_to_action(self.world.tool(), self.world.gripper()).astype(np.float32)

    def _follow_script(self) -> None:
        """Put hands and objects at their poses of the script; begin the decision when it is due."""
        deciding = self.step_index >= self.decision_step
        if deciding:
            self.world.restore(self._start)
            self.world.free()
        now = min(self.step_index, self.script.steps - 1)
        for name, track in self.script.hands.items():
            self.world.place_scenery(name, track[now])
        for name, poses in self.script.objects.items():
            self.world.place(name, poses[now])
        if deciding:
            self.task.furnish(self.world, 1)
        self.world.refresh()
        if deciding:
            self.decisions.append(self.step_index)
            self.task.observe(self.world, self.step_index)
            self.task.append("decision")

    def _watch(self) -> None:
        before = len(self.events)
        self.task.observe(self.world, self.step_index)
        if any(event.kind == "decision" for event in self.events[before:]):
            # from nearly to exactly the same scene: only memory can distinguish the decisions
            self.world.restore(self._start)
            self.decisions.append(self.step_index)
            self.task.furnish(self.world, len(self.decisions))

    def _answer(self, z: Any) -> Answer:
        answers = self.task.possible
        if z is None:
            return answers[int(stream(self.seed, "answer").integers(len(answers)))]
        plain = z.tolist() if isinstance(z, (np.ndarray, np.generic)) else z
        plain = tuple(plain) if isinstance(plain, list) else plain
        if plain not in answers:
            raise ValueError(
                f"{self.task.name} has no answer z = {z!r}; it has {describe_answers(answers)}"
            )
        return answers[answers.index(plain)]

    def _observation(self) -> dict[str, Any]:
        if self.mode == "rgb":
            return {"images": self.frames(), "proprioception": self.proprioception()}
        return {"objects": self._slots(), "proprioception": self.proprioception()}

    def _slots(self) -> npt.NDArray[np.float32]:
        """Return one row per object: candidates from left to right, other objects, hands.

        Rows of hidden objects are zero; so are those after the candidates of this episode that
        make up the number of slots.
        """
        task, world = self.task, self.world
        hidden, slots = task.hidden(world), []
        for group in (task.present, task.others):
            rows = [
                self._slot(None if name in hidden else world.pose(name), task.mark(world, name))
                for name in group
            ]
            slots += sorted(rows, key=lambda row: row[2])
        slots += [self._slot(task.sign(name), task.mark(world, name)) for name in task.signs]
        hands = [world.hand(name) for name in task.hands]
        seen = [pose if pose.position[0] < VISIBLE_X else None for pose in hands]
        unmarked = np.zeros(len(task.marks))
        slots += sorted((self._slot(pose, unmarked, 0) for pose in seen), key=lambda row: row[2])
        after = len(task.present)
        slots[after:after] = [self._slot(None, unmarked)] * (self._slot_count - len(slots))
        return np.asarray(slots, np.float32)

    def _slot(self, pose: Pose | None, mark: Array, axis: int = 2) -> Array:
        """Return the row of an object with this axis of its own, or zeros for a hidden one."""
        if pose is None:
            return np.zeros(len(SLOT_NAMES) + len(mark))
        position = np.clip(pose.position, -REACH, REACH)
        return np.array([1.0, *position, *pose.rotation[:, axis], *mark])

    def _make_observation_space(self) -> gym.spaces.Dict:
        proprioception = gym.spaces.Box(
            np.array([*[-REACH] * 3, *[-1.001] * 6, 0], np.float32),
            np.array([*[REACH] * 3, *[1.001] * 6, 1], np.float32),
        )
        if self.mode == "rgb":
            image = gym.spaces.Box(0, 255, (self.image_size, self.image_size, 3), np.uint8)
            images = gym.spaces.Dict(dict.fromkeys(VIEWS, image))
            return gym.spaces.Dict({"images": images, "proprioception": proprioception})
        rows = (self._slot_count, 1)
        marks = len(self.task.marks)
        low = np.tile(np.array([0, *[-REACH] * 3, *[-1.001] * 3, *[0] * marks], np.float32), rows)
        high = np.tile(np.array([1, *[REACH] * 3, *[1.001] * 3, *[1] * marks], np.float32), rows)
        return gym.spaces.Dict(
            {"objects": gym.spaces.Box(low, high), "proprioception": proprioception}
        )

    def _info(self, *, clamped: bool) -> dict[str, Any]:
        """Return privileged facts: no policy may see them."""
        result = self.score() if self._over else None
        return {
            "phase": self.phase,
            "decision": self.phase == "decision",
            "decisions": tuple(self.decisions),
            "step": self.step_index,
            "z": self.z,
            "seed": self.seed,
            "difficulty": dict(self.difficulty),
            "instruction": self.task.instruction,
            "clamped": clamped,
            "is_success": bool(result and result.success),
            "score": result,
        }


def _check(observation: str, nuisance: str, render_mode: str | None, image_size: object) -> None:
    """Raise a ValueError for an unknown choice or size."""
    if observation not in get_args(Mode):
        raise ValueError(
            f"observation must be one of {', '.join(get_args(Mode))}, got {observation!r}"
        )
    if nuisance not in LEVELS:
        raise ValueError(f"nuisance must be one of {', '.join(LEVELS)}, got {nuisance!r}")
    if render_mode not in (None, *CamoEnv.metadata["render_modes"]):
        raise ValueError(f"render_mode must be rgb_array or None, got {render_mode!r}")
    if (
        not isinstance(image_size, int)
        or isinstance(image_size, bool)
        or not 16 <= image_size <= LARGEST_IMAGE
    ):
        raise ValueError(
            f"image_size must be a whole number between 16 and {LARGEST_IMAGE}, got {image_size!r}"
        )


def _check_slots(task: Task, asked: int | None) -> int:
    """Return the number of object slots; ValueError if the task needs more."""
    if asked is None:
        return task.slots
    if not isinstance(asked, int) or isinstance(asked, bool) or asked < task.slots:
        raise ValueError(
            f"object_slots must be a whole number of at least {task.slots}, which {task.name} "
            f"needs with these dials, got {asked!r}; give None for exactly as many"
        )
    return asked


def describe_answers(answers: tuple[Answer, ...]) -> str:
    """Return the answers of a task as a short text."""
    shown = ", ".join(map(str, answers[:3]))
    return f"{shown}{f' ... {answers[-1]} ({len(answers)} in all)' if len(answers) > 3 else ''}"
