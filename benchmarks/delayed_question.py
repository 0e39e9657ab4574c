"""Train methods on two toys whose question comes after the evidence is gone.

    python -m benchmarks.delayed_question --device cuda --side-by-side 15 \\
        --out docs/results/delayed-question.json
    python -m benchmarks.delayed_question --methods chameleon --tasks question-4 --seeds 0

question-N   N slots light up one after another in random order, each in another of N colours.
             Twenty steps later one colour is shown; the action must go to the slot that had it.
             In training 1 to N slots light up, in evaluation all do. A guess is right in 1/N.
tracking     One of three slots holds a cue. Pairs of slots are marked and thereby swapped, 0 to 4
             times in training, 4 and 6 times in evaluation. Ten steps later the action must go to
             the present slot of the cue. A guess is right in 1/3.

Every method has the nano size, the same optimizer and the same number of steps. On a GPU it trains
as `chameleon train` does: fused, under bfloat16 autocast, a step as one recorded graph. Scores are
of float32.

Where a method has both traces and a working state, each is also emptied just before the question
(or before the last still step): what is still answered was in the other one.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from torch import Tensor, nn

from benchmarks import with_arguments
from chameleon_policy import (
    EpisodeBatch,
    Features,
    ObjectSlots,
    Observation,
    fuse,
    preset,
)
from chameleon_policy.baselines import METHODS
from chameleon_policy.policy import VisuomotorPolicy
from chameleon_policy.probes.surgery import MemoryKind, mask
from chameleon_policy.provenance import git_revision, write_result
from chameleon_policy.rates import Rate
from chameleon_policy.train.config import TrainingConfig
from chameleon_policy.train.graphs import GraphedLoss
from chameleon_policy.train.optimizers import make_optimizers

COMMAND = "python -m benchmarks.delayed_question"
ACTION_STEPS = 8
"""Draws of each episode's answer for the action loss, each with its own noise."""
SCORED = 512
"""Episodes of one evaluation."""
EVALUATE_EVERY = 250
"""Optimizer steps between two evaluations."""
HELD_OUT_SEEDS = 1_000_000
"""Added to the seed of a training for its held-out episodes."""
HORIZON = 4
NOISE = 0.05
MARK = 3.0
"""Value of a mark, the largest that object slots of a dataset have after normalisation."""


# The toys


@dataclass(frozen=True)
class Toy:
    """A task on object slots whose answer is one of them."""

    name: str
    answers: int
    marks: int
    """Names of the marks of a slot, one number each, next to its position."""
    time: int
    decision: int
    """First step at which the answer is due."""
    training: range
    """Numbers of lights or swaps in training."""
    scored: tuple[int, ...]
    """Numbers of lights or swaps in evaluation."""
    draw: Callable[[Toy, Tensor, torch.Generator], tuple[Tensor, Tensor]]
    """Function from numbers of lights or swaps (B) to marks (B T K F) and answers (B)."""

    @property
    def features(self) -> Features:
        """Return the features of a policy for this task; an action goes to a place on a circle."""
        slots = ObjectSlots(count=self.answers + 1, size=2 + self.marks)
        return Features(objects=slots, proprioception=1, action=2, horizon=HORIZON)

    @property
    def places(self) -> Tensor:
        """Return the positions of the slots (K 2)."""
        angle = 2 * math.pi * torch.arange(self.answers) / self.answers
        return torch.stack([angle.cos(), angle.sin()], dim=-1)

    def episodes(self, counts: Tensor, generator: torch.Generator) -> tuple[EpisodeBatch, Tensor]:
        """Draw episodes with the given numbers of lights or swaps (B), and their answers (B)."""
        marks, answer = self.draw(self, counts, generator)
        middle = torch.zeros(1, 2)  # place of the slot after the last, which holds the question
        places = torch.cat([self.places, middle]).expand(*marks.shape[:3], 2)
        objects = torch.cat([places, MARK * marks], dim=-1)
        objects = objects + NOISE * torch.randn(objects.shape, generator=generator)
        batch, due = len(counts), torch.arange(self.time) >= self.decision
        actions = torch.where(due[:, None], self.places[answer][:, None], torch.zeros(1))
        return EpisodeBatch(
            observation=Observation(
                proprioception=due.float().expand(batch, -1).unsqueeze(-1), objects=objects
            ),
            actions=actions,
            valid=torch.ones(batch, self.time, dtype=torch.bool),
            emphasis=due.float().expand(batch, -1),
        ), answer


LIT, WAIT, ANSWER_STEPS = 2, 20, HORIZON
CUE, SWAP, MOST_SWAPS, STILL = 2, 3, 6, 10


def draw_question(toy: Toy, counts: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Light up some slots in colours, then ask for one of the colours in the slot after them."""
    batch, slots = len(counts), toy.answers
    everyone = torch.arange(batch)
    order, colour = (torch.rand(batch, slots, generator=generator).argsort(1) for _ in range(2))
    marks = torch.zeros(batch, toy.time, slots + 1, toy.marks)
    for place in range(slots):  # those that do not light up would have been the first
        slot, lit = order[:, place], place >= slots - counts
        for step in range(LIT * place, LIT * (place + 1)):
            marks[everyone[lit], step, slot[lit], colour[everyone, slot][lit]] = 1
    asked = slots - 1 - (torch.rand(batch, generator=generator) * counts).long()
    answer = order[everyone, asked]
    marks[everyone, toy.decision :, slots, colour[everyone, answer]] = 1
    return marks, answer


def draw_tracking(toy: Toy, counts: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Show a cue at a slot, and swap it away by marking pairs."""
    batch, slots = len(counts), toy.answers
    everyone = torch.arange(batch)
    marks = torch.zeros(batch, toy.time, slots + 1, toy.marks)
    answer = torch.randint(slots, (batch,), generator=generator)
    marks[everyone, : CUE + SWAP * MOST_SWAPS, answer, 0] = _until(
        CUE + SWAP * (MOST_SWAPS - counts), CUE, marks
    )
    for number in range(MOST_SWAPS):
        happens = number >= MOST_SWAPS - counts
        left_out = torch.randint(slots, (batch,), generator=generator)
        pair = torch.stack([(left_out + 1) % slots, (left_out + 2) % slots])
        begin = CUE + SWAP * number
        for slot in pair:
            marks[everyone[happens], begin, slot[happens], 1] = 1
            marks[everyone[happens], begin + 1, slot[happens], 1] = 1
        moved = torch.where(
            answer == pair[0], pair[1], torch.where(answer == pair[1], pair[0], answer)
        )
        answer = torch.where(happens, moved, answer)
    return marks, answer


def _until(end: Tensor, length: int, like: Tensor) -> Tensor:
    """Mark `length` steps up to `end` (B) with ones: B x steps."""
    steps = torch.arange(CUE + SWAP * MOST_SWAPS)
    return ((steps >= end[:, None] - length) & (steps < end[:, None])).to(like.dtype)


def question(slots: int) -> Toy:
    """Return the delayed question with this number of slots."""
    decision = LIT * slots + WAIT
    return Toy(
        f"question-{slots}",
        slots,
        slots,
        decision + ANSWER_STEPS,
        decision,
        range(1, slots + 1),
        tuple(sorted({1, slots // 2, slots})),
        draw_question,
    )


def tracking() -> Toy:
    """Return the task in which a cue is swapped away."""
    decision = CUE + SWAP * MOST_SWAPS + STILL
    return Toy(
        "tracking",
        3,
        2,
        decision + ANSWER_STEPS,
        decision,
        range(0, 5),
        (4, MOST_SWAPS),
        draw_tracking,
    )


REPORTED = ("question-4", "question-6", "tracking")
TOYS = {toy.name: toy for toy in (question(2), question(3), question(4), question(6), tracking())}


# The methods


KINDS: dict[str, tuple[type[VisuomotorPolicy], bool]] = {
    "lstm": (METHODS["lstm"], True),
    "vanilla-mamba": (METHODS["vanilla-mamba"], True),
    "similarity": (METHODS["similarity"], True),
    "transformer-64": (METHODS["transformer-64"], True),
    "undirected": (METHODS["undirected"], True),
    "no-jepa": (METHODS["no-jepa"], True),
    "constant-index": (METHODS["constant-index"], True),
    "brief": (METHODS["brief"], True),
    "chameleon-without-limit": (METHODS["chameleon"], False),
    "chameleon": (METHODS["chameleon"], True),
}
"""Name -> class, and whether its fast layer has the limit of the preset."""
TWO_MEMORIES = ("undirected", "no-jepa", "constant-index", "chameleon-without-limit", "chameleon")
"""Methods with traces and a working state that lasts."""
EMPTIED: tuple[MemoryKind, ...] = ("traces", "working")


def make_policy(method: str, toy: Toy, seed: int) -> VisuomotorPolicy:
    """Build a method at the nano size; all of the action loss falls on the answer."""
    kind, limited = KINDS[method]
    nano = preset("nano")
    fast = nano.fast if limited else nano.fast.limited(math.inf)
    objective = dataclasses.replace(nano.objective, action_steps=ACTION_STEPS)
    torch.manual_seed(seed)
    return kind(dataclasses.replace(nano, fast=fast, objective=objective), toy.features)


# Training and scoring


def train(
    policy: VisuomotorPolicy, toy: Toy, config: TrainingConfig
) -> Iterator[tuple[int, list[Rate]]]:
    """Train on fresh episodes; yield scores every `EVALUATE_EVERY` steps and at the end."""
    generator = torch.Generator().manual_seed(config.seed)
    optimizers = make_optimizers(policy, config)
    graphed = None
    if policy.device.type == "cuda":
        graphed = GraphedLoss(fuse(policy), partial(torch.autocast, "cuda", torch.bfloat16))
    assert config.steps is not None
    for step in range(1, config.steps + 1):
        counts = (
            toy.training[0]
            + (torch.rand(config.batch, generator=generator) * len(toy.training)).long()
        )
        batch = toy.episodes(counts, generator)[0].to(policy.device)
        policy.zero_grad()
        if graphed is None:
            policy.loss(batch, check_values=False, keep_state=False).total.backward()
        else:
            graphed(batch)
        nn.utils.clip_grad_norm_(policy.parameters(), config.gradient_clip)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate * min(1.0, step / config.warmup_steps)
            optimizer.step()
        policy.update_target()
        if step % EVALUATE_EVERY == 0 or step == config.steps:
            yield (
                step,
                [score(policy, toy, count, held_out_episodes(config)) for count in toy.scored],
            )


def held_out_episodes(config: TrainingConfig) -> torch.Generator:
    """Return a generator of the held-out episodes, the same for every score of a training."""
    return torch.Generator().manual_seed(HELD_OUT_SEEDS + config.seed)


@torch.no_grad()
def score(
    policy: VisuomotorPolicy,
    toy: Toy,
    count: int,
    generator: torch.Generator,
    emptied: MemoryKind | None = None,
) -> Rate:
    """Return the rate of fresh episodes whose first action is nearest to the right slot.

    With `emptied`, this part of the memory is lost just before the step at which the answer is due.
    """
    policy.eval()
    batch, answer = toy.episodes(torch.full((SCORED,), count), generator)
    before, now = (
        batch.observation.map(lambda tensor, steps=steps: tensor[:, steps]).to(policy.device)
        for steps in (slice(toy.decision), slice(toy.decision, toy.decision + 1))
    )
    state = policy.advance(before, policy.initial_state(SCORED))
    state = policy.advance(now, state if emptied is None else mask(state, kind=emptied))
    action = policy.act(state, steps=8, source="zero")[:, 0].cpu()
    policy.train()
    chosen = torch.cdist(action.float(), toy.places).argmin(1)
    return Rate.of(int((chosen == answer).sum()), SCORED)


def run(
    method: str, task: str, config: TrainingConfig, device: str, deadline: float
) -> dict[str, Any] | None:
    """Train a method on a toy and return its row of results; None if the deadline came first."""
    torch.set_num_threads(1)
    start, toy = time.time(), TOYS[task]
    git_revision()  # read now: rows that are written meanwhile change the checkout
    policy = make_policy(method, toy, config.seed).to(device)
    looks = []
    for step, rates in train(policy, toy, config):
        looks.append(
            {
                "step": step,
                **{str(n): rate.as_dict() for n, rate in zip(toy.scored, rates, strict=True)},
            }
        )
        report = ", ".join(
            f"{n}: {100 * rate.value:.0f} %" for n, rate in zip(toy.scored, rates, strict=True)
        )
        seconds = f"{time.time() - start:.0f} s"
        print(f"{task} {method} seed {config.seed} step {step}: {report} ({seconds})", flush=True)
        if time.time() > deadline and step < config.steps:
            return None
    emptied = {
        part: {
            str(n): score(policy, toy, n, held_out_episodes(config), part).as_dict()
            for n in toy.scored
        }
        for part in (EMPTIED if method in TWO_MEMORIES else ())
    }
    return {
        **identity(method, task, config, device),
        "parameters": policy.parameter_count,
        "scores": {key: value for key, value in looks[-1].items() if key != "step"},
        "emptied": emptied,
        "looks": looks,
        "duration_s": round(time.time() - start, 1),
        "git_revision": git_revision(),
    }


def identity(method: str, task: str, config: TrainingConfig, device: str) -> dict[str, Any]:
    """Return the fields that identify a row."""
    training = {
        name: getattr(config, name)
        for name in ("seed", "steps", "batch", "optimizer", "learning_rate")
    }
    precision = "bf16" if torch.device(device).type == "cuda" else "float32"
    return {"method": method, "task": task, **training, "precision": precision}


def main(
    out: Path = Path("runs/delayed-question.json"),
    methods: tuple[str, ...] = tuple(KINDS),
    tasks: tuple[str, ...] = REPORTED,
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int = 2500,
    batch: int = 64,
    optimizer: Literal["adamw", "muon"] = "adamw",
    learning_rate: float = 7e-4,
    device: str = "cpu",
    side_by_side: int = 2,
    minutes: float = math.inf,
) -> None:
    """Train every method on every toy with every seed, print as results come, and write them.

    Rows that the file has already are kept.

    Args:
        out: JSON file to write.
        methods: Methods to compare.
        tasks: Toys to train on.
        seeds: Training seeds.
        steps: Optimizer steps of each training.
        batch: Episodes of a step.
        optimizer: As in `chameleon train`.
        learning_rate: Constant after the warm-up.
        device: Where to train.
        side_by_side: Trainings at the same time; on a GPU they share it best under NVIDIA's MPS.
        minutes: Trainings that take longer are given up; the same command trains what is missing.
    """
    for name, known in (*((name, KINDS) for name in methods), *((name, TOYS) for name in tasks)):
        if name not in known:
            raise SystemExit(f"there is no {name!r}; choose from {', '.join(known)}")
    rows = json.loads(out.read_text())["result"]["rows"] if out.is_file() else []
    failed, given_up, deadline = 0, 0, time.time() + 60 * minutes
    training = TrainingConfig(
        steps=steps, batch=batch, optimizer=optimizer, learning_rate=learning_rate
    )
    wanted = [
        (method, task, dataclasses.replace(training, seed=seed))
        for seed, task, method in itertools.product(seeds, tasks, methods)
    ]
    missing = [
        each
        for each in wanted
        if not any(identity(*each, device).items() <= row.items() for row in rows)
    ]
    with ProcessPoolExecutor(side_by_side, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(run, *each, device, deadline) for each in missing]):
            try:
                row = future.result()
            except RuntimeError as error:  # out of memory, say: the others go on
                failed += 1
                print(f"a training failed: {error}", flush=True)
                continue
            if row is None:
                given_up += 1
                continue
            rows.append(row)
            write_result(out, {"rows": rows}, command=with_arguments(COMMAND), seeds=seeds)
    print(f"{len(rows)} rows. Written to {out}")
    if failed or given_up:
        raise SystemExit(
            f"{failed} trainings failed, {given_up} had no time left; "
            "the same command tries them again"
        )


if __name__ == "__main__":
    tyro.cli(main, prog=COMMAND)
