"""No policy returns an action that is not finite, and no statistics make one."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from chameleon_policy import FastControl, Range, Statistics
from chameleon_policy.baselines import METHODS, load_policy
from chameleon_policy.policy import VisuomotorPolicy
from command_line import chameleon_here, plain
from examples import STATE_FEATURES, make_observation, make_policy
from training_data import make_episodes, write_demonstrations

REFUSED = r"act: the actions of robots? {} are not finite numbers; .*initial_state\(\)"


def after_one_step(policy: VisuomotorPolicy, proprioception: torch.Tensor):
    seen = make_observation(policy.features, len(proprioception))
    seen = dataclasses.replace(seen, proprioception=proprioception)
    return policy.observe(seen, policy.initial_state(len(proprioception)))


@pytest.mark.parametrize("method", METHODS)
def test_weights_that_overflow(method: str, tmp_path) -> None:
    """Such weights are finite numbers, so that they load."""
    if method.startswith("diffusion"):
        pytest.importorskip("diffusers")
    example = make_policy()
    policy = METHODS[method](example.config, STATE_FEATURES)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.fill_(3e38)
    policy.save_pretrained(tmp_path)
    loaded = load_policy(tmp_path)
    state = after_one_step(loaded, torch.ones(1, 5))
    with pytest.raises(ValueError, match=REFUSED.format("0")):
        loaded.act(state, steps=1)


def test_the_robot_with_a_glitch_is_named() -> None:
    policy = make_policy().eval()
    readings = torch.ones(3, 5)
    readings[1] = 1e30
    state = after_one_step(policy, readings)
    with pytest.raises(ValueError, match=REFUSED.format("1")):
        policy.act(state, source="zero")
    # each of the others alone
    for robot in (0, 2):
        assert policy.act(state[robot], source="zero").isfinite().all()
    state = after_one_step(policy, readings[[1, 0, 1]])
    with pytest.raises(ValueError, match=REFUSED.format("0, 2")):
        policy.act(state, source="zero")


def test_fast_control_on_a_cpu() -> None:
    control = FastControl(make_policy().eval())
    seen = make_observation(STATE_FEATURES, 1)
    control.observe(dataclasses.replace(seen, proprioception=torch.full((1, 5), 1e30)))
    with pytest.raises(ValueError, match=REFUSED.format("0")):
        control.act(steps=1)
    control.reset()
    control.observe(seen)
    assert control.act(steps=1).isfinite().all()


@pytest.mark.parametrize("value", [3.5e38, -1e300])
def test_statistics_beyond_the_numbers_of_a_policy(value: float) -> None:
    low, high = sorted((0.0, value))
    with pytest.raises(ValueError, match=r"dimension 0 goes from .*; expected finite numbers"):
        Range(low=(low,), high=(high,))


def test_dimensions_that_never_change_are_left_as_they_are() -> None:
    """A spread of zero would divide by zero: such a dimension keeps the robot's units."""
    constant = Range(low=(0.5, -1.0), high=(0.5, 1.0))
    assert constant.constant == (0,)
    policy = make_policy(statistics=Statistics(action=constant)).eval()
    plain = make_policy(statistics=Statistics()).eval()
    readings = torch.ones(1, 5)
    chunks = [
        each.act(after_one_step(each, readings), source="zero", steps=2) for each in (policy, plain)
    ]
    assert torch.equal(*chunks)  # the other dimension has the range of normalised units
    text = json.dumps(dataclasses.asdict(policy.statistics))
    assert "Infinity" not in text and "NaN" not in text


def test_training_says_which_numbers_never_change(tmp_path) -> None:
    pytest.importorskip("h5py")
    episodes = make_episodes([6, 6])
    for episode in episodes:
        episode.actions[:, 1] = 0.5
        episode.state[:, [0, 2]] = -1.0
    data = write_demonstrations(tmp_path / "data.hdf5", episodes)
    small = [
        "--preset",
        "nano",
        "--steps",
        "1",
        "--batch",
        "1",
        "--horizon",
        "2",
        "--device",
        "cpu",
    ]
    done = chameleon_here("train", data, "--out", tmp_path / "run", *small)
    assert done.returncode == 0, done.stderr
    said = (
        "Numbers that never change in these data keep their units: proprioception 0, 2; action 1 "
    )
    assert said in plain(done.stderr)
