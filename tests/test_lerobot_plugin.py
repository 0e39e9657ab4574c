"""The plugin in the real lerobot: training, resuming, evaluation, memory, saving.

These tests are marked slow, and skipped without a Python that has lerobot:

scripts/lerobot-venv
LEROBOT_PYTHON=.lerobot-venv/bin/python .venv/bin/pytest --slow tests/test_lerobot_plugin.py
"""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from pathlib import Path

import pytest
import torch

from chameleon_policy.baselines import load_policy
from chameleon_policy.camo.recording import Recording
from chameleon_policy.policy.saving import exported_weights
from chameleon_policy.provenance import git_revision
from chameleon_policy.recorder import record

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "LEROBOT_PYTHON" not in os.environ,
        reason="needs LeRobot: run scripts/lerobot-venv and set LEROBOT_PYTHON",
    ),
]

TRAIN = (
    "--policy.type=chameleon",
    "--policy.preset=nano",
    "--policy.horizon=8",
    "--policy.n_obs_steps=24",
    "--policy.action_steps=8",
    "--policy.rest_emphasis=0.1",
    "--policy.device=cpu",
    "--policy.push_to_hub=false",
    "--dataset.repo_id=local/camo",
    "--dataset.video_backend=pyav",
    "--batch_size=2",
    "--num_workers=0",
    "--save_freq=2",
    "--log_freq=1",
)
EVAL = ("--eval.n_episodes=2", "--eval.batch_size=2", "--seed=3")

# Code below runs in the Python that has lerobot; it gets the folder of a checkpoint.
IMPORT = """
    import sys
    from pathlib import Path
    import numpy as np
    import safetensors.torch
    import torch
    from lerobot.utils.import_utils import register_third_party_plugins

    register_third_party_plugins()
    from lerobot.policies.factory import get_policy_class, make_pre_post_processors

    folder = Path(sys.argv[1])
    policy = get_policy_class("chameleon").from_pretrained(folder)
"""

# A frame of state observations for some robots.
FRAME = """
    def frame(robots, seed):
        generator = torch.Generator().manual_seed(seed)
        pose = torch.tensor([0.4, 0.0, 0.3, 1, 0, 0, 0, -1, 0, 1]) + 0.01 * torch.randn(
            robots, 10, generator=generator
        )
        return {
            "observation.state": pose,
            "observation.environment_state": torch.rand(robots, 35, generator=generator),
        }
"""


def run(*command: object, home: Path) -> str:
    """Run a command without network; return its output."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(home), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, env=environment, timeout=900
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout + done.stderr


def tool(name: str) -> Path:
    """Return the path of one of LeRobot's commands."""
    return Path(os.environ["LEROBOT_PYTHON"]).absolute().parent / name


def python(code: str, *arguments: object, home: Path) -> str:
    """Run code in the Python that has lerobot, with the policy of a checkpoint."""
    return run(
        os.environ["LEROBOT_PYTHON"],
        "-c",
        textwrap.dedent(IMPORT + FRAME) + textwrap.dedent(code),
        *arguments,
        home=home,
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hf")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    """Return a run of two steps with an evaluation, and of two more with --resume."""
    place = tmp_path_factory.mktemp("lerobot")
    data = record(Recording(task="clean-plate", episodes=3, observation="state"), place / "data")
    environment = (
        "--env.type=camo",
        "--env.task=CleanPlate",
        "--env.observation=state",
        "--eval_freq=2",
    )
    options = (
        *TRAIN,
        *EVAL,
        *environment,
        f"--dataset.root={data}",
        f"--output_dir={place / 'run'}",
        "--steps=2",
    )
    assert "pc_success" in run(tool("lerobot-train"), *options, home=home)
    settings = place / "run/checkpoints/last/pretrained_model/train_config.json"
    run(
        tool("lerobot-train"),
        f"--config_path={settings}",
        "--resume=true",
        "--steps=4",
        "--eval_freq=0",
        home=home,
    )
    return place / "run"


def checkpoint(run: Path, step: int) -> Path:
    """Return the folder of a checkpoint's policy."""
    return run / f"checkpoints/{step:06d}/pretrained_model"


def test_a_resumed_run_continues_the_saved_one(trained: Path, home: Path) -> None:
    """The loaded weights, averages and counters are those saved; a resumed run continues them."""
    code = """
        first, second = (
            safetensors.torch.load_file(Path(each) / "model.safetensors") for each in sys.argv[1:3]
        )
        assert (
            int(first["updates"]) == 2 and int(second["updates"]) == 4 and int(policy.updates) == 2
        )
        loaded = policy.state_dict()
        assert loaded.keys() == first.keys()
        assert all(torch.equal(loaded[key], first[key]) for key in first)
        moved = [
            key
            for key in first
            if key.startswith("model.") and not torch.equal(first[key], second[key])
        ]
        assert len(moved) > 50 and any("control_jepa" in key and "target" in key for key in moved)
        assert any(
            not torch.equal(first[key], first[key.replace("model.", "averaged.", 1)])
            for key in moved
        )
        again = get_policy_class("chameleon").from_pretrained(sys.argv[2])
        assert again.config.statistics == policy.config.statistics and again.config.object_size == 7
        assert (
            again.averaged.provenance == policy.averaged.provenance
            and policy.averaged.provenance["seed"] == 3
        )
        print("as saved")
    """
    assert "as saved" in python(code, checkpoint(trained, 2), checkpoint(trained, 4), home=home)
    moments = [
        json.loads(
            (trained / f"checkpoints/{step:06d}/training_state/training_step.json").read_text()
        )
        for step in (2, 4)
    ]
    assert [each["step"] for each in moments] == [2, 4]


def test_the_averaged_policy_is_saved_in_our_format(trained: Path, home: Path) -> None:
    """`chameleon eval` loads the policy that acts in LeRobot from the folder `chameleon`."""
    code = """
        from chameleon_policy.baselines import load_policy

        other = load_policy(folder / "chameleon")
        theirs = other.initial_state(2)
        for tick in range(3):
            batch = frame(2, tick)
            policy.predict_action_chunk(batch)
            from lerobot_policy_chameleon.windows import observation_of

            theirs = other.observe(observation_of(batch, other.features, {}), theirs)
        torch.manual_seed(4)
        mine = policy.averaged.act(policy._state)
        torch.manual_seed(4)
        expected = other.act(theirs)
        torch.testing.assert_close(mine, expected)
        print("alike")
    """
    assert "alike" in python(code, checkpoint(trained, 4), home=home)
    own = load_policy(checkpoint(trained, 4) / "chameleon")
    assert own.features.objects is not None
    assert own.provenance == {"seed": 3, "git_revision": git_revision()}


def test_memory_advances_on_every_call(trained: Path, home: Path) -> None:
    code = """
        executed, model = policy.config.n_action_steps, policy.averaged
        assert executed == 4 and model.features.horizon == 8
        from lerobot_policy_chameleon.windows import observation_of

        policy.reset()
        state, planned = model.initial_state(3), []
        for tick in range(10):
            batch = frame(3, tick)
            torch.manual_seed(tick)
            action = policy.select_action(batch)
            state = model.observe(observation_of(batch, model.features, {}), state)
            if tick % executed == 0:
                torch.manual_seed(tick)
                planned = list(model.act(state)[:, :executed].unbind(1))
            torch.testing.assert_close(action, planned.pop(0))
            for name, tensor in policy._state.tensors().items():
                torch.testing.assert_close(tensor, state.tensors()[name])
        assert policy._state.steps.tolist() == [10, 10, 10]
        policy.select_action(frame(2, 0))  # other robots
        assert policy._state.steps.tolist() == [1, 1]
        policy.reset()
        policy.select_action(frame(2, 0))
        assert policy._state.steps.tolist() == [1, 1]
        policy.train()
        assert policy.model.training and not policy.averaged.training
        print("remembered")
    """
    assert "remembered" in python(code, checkpoint(trained, 4), home=home)


def test_act_averages_its_chunks(trained: Path, home: Path) -> None:
    code = """
        from dataclasses import replace
        from lerobot_policy_chameleon.windows import observation_of

        config = replace(policy.config, method="act", n_action_steps=None)
        act = type(policy)(config).eval()
        model, chunks = act.averaged, []
        for tick in range(12):
            batch = frame(2, tick)
            observation = observation_of(batch, model.features, {})
            chunks.append(model.act(model.observe(observation, model.initial_state(2))))
            ages = range(min(tick + 1, model.features.horizon))
            weights = [np.exp(0.01 * age) for age in ages]
            planned = [weights[age] * chunks[tick - age][:, age] for age in ages]
            torch.testing.assert_close(act.select_action(batch), sum(planned) / sum(weights))
        print("averaged")
    """
    assert "averaged" in python(code, checkpoint(trained, 4), home=home)


def test_an_update_is_that_of_our_own_training(trained: Path, home: Path) -> None:
    """Optimizer, Control-JEPA's target and average equal chameleon_policy's, also after moving."""
    code = """
        import copy
        from chameleon_policy.train.config import TrainingConfig
        from chameleon_policy.train.optimizers import WeightAverage
        from chameleon_policy.train.optimizers import make_optimizers
        from lerobot.optim.optimizers import load_optimizer_state, save_optimizer_state

        policy.double().float().train()  # other tensors than those that it was made with
        twin = copy.deepcopy(policy.model)
        average = WeightAverage(twin, policy.config.ema_decay)
        average.weights = {
            name: value.clone() for name, value in policy.averaged.state_dict().items()
        }
        config = policy.config
        training = TrainingConfig(
            steps=9, optimizer="muon", learning_rate=config.optimizer_lr, beta2=0.99
        )
        theirs = make_optimizers(twin, training)
        mine = config.get_optimizer_preset().build(policy.get_optim_params())
        assert sum(len(group["params"]) for group in mine.param_groups) == sum(
            p.requires_grad for p in twin.parameters()
        )
        done = int(policy.updates)
        for step in range(3):
            for index, (ours, other) in enumerate(
                zip(policy.model.parameters(), twin.parameters(), strict=True)
            ):
                if ours.requires_grad:
                    ours.grad = torch.randn(
                        ours.shape, generator=torch.Generator().manual_seed(100 * step + index)
                    )
                    other.grad = ours.grad.clone()
            for optimizer in theirs:
                optimizer.step()
            twin.update_target()
            average.update(twin, done + step)
            mine.step()
            policy.update()
            if step == 1:  # through LeRobot's files
                place = Path(sys.argv[2])
                place.mkdir()
                save_optimizer_state(mine, place)
                mine = load_optimizer_state(
                    config.get_optimizer_preset().build(policy.get_optim_params()), place
                )
        assert int(policy.updates) == done + 3
        for name, tensor in twin.state_dict().items():
            torch.testing.assert_close(
                policy.model.state_dict()[name], tensor, rtol=1e-5, atol=1e-6
            )
            torch.testing.assert_close(
                policy.averaged.state_dict()[name], average.weights[name], rtol=1e-5, atol=1e-6
            )
        print("the same step")
    """
    assert "the same step" in python(code, checkpoint(trained, 4), home / "optimizer", home=home)


def test_the_learning_rate_is_that_of_our_own_training(trained: Path, home: Path) -> None:
    code = """
        from chameleon_policy.train.config import TrainingConfig

        rate, warmup = policy.config.optimizer_lr, policy.config.scheduler_warmup_steps
        own = TrainingConfig(steps=50, learning_rate=rate, warmup_steps=warmup)
        optimizer = policy.config.get_optimizer_preset().build(policy.get_optim_params())
        schedule = policy.config.get_scheduler_preset().build(optimizer, 50)
        for step in range(50):
            for group in optimizer.param_groups:
                np.testing.assert_allclose(group["lr"], own.rate(step, step / 50))
            optimizer.step()
            schedule.step()
        print("the same rate")
    """
    assert "the same rate" in python(code, checkpoint(trained, 4), home=home)


def test_weights_must_be_complete(trained: Path, home: Path, tmp_path: Path) -> None:
    code = """
        import shutil

        broken = Path(sys.argv[2]) / "broken"
        shutil.copytree(folder, broken)
        weights = safetensors.torch.load_file(broken / "model.safetensors")
        del weights["averaged.event_tokens.proprioception.weight"]
        weights["model.stranger"] = torch.zeros(1)
        safetensors.torch.save_file(weights, broken / "model.safetensors")
        try:
            get_policy_class("chameleon").from_pretrained(broken)
        except ValueError as error:
            print(error)
    """
    said = python(code, checkpoint(trained, 4), tmp_path, home=home)
    assert (
        "missing: averaged.event_tokens.proprioception.weight (1); unknown: model.stranger (1)"
        in said
    )


def test_bad_options_are_refused(trained: Path, home: Path) -> None:
    code = """
        from dataclasses import replace

        for change in (
            {"preset": "tiny"},
            {"method": "lstn"},
            {"n_action_steps": 9},
            {"rest_emphasis": 0.5, "action_steps": None},
            {"optimizer": "adam"},
            {"object_size": 4},
            {"input_features": {}},
            {"n_obs_steps": 0},
        ):
            try:
                replace(policy.config, **change).validate_features()
                print("accepted", change)
            except ValueError as error:
                print(error)
    """
    said = python(code, checkpoint(trained, 4), home=home)
    assert "accepted" not in said
    for words in (
        "there is no preset 'tiny'",
        "there is no method 'lstn'",
        "give that, too",
        "35 numbers, which are no slots of 4",
        "--policy.n_action_steps must be at most the horizon, 8, got 9",
        "--policy.n_obs_steps must be at least 1",
        "--policy.optimizer must be one of adamw, muon",
        "observation.state: expected a vector, got nothing",
    ):
        assert words in said, (words, said)


def test_the_environment_plays_evaluation_episodes(trained: Path, home: Path) -> None:
    """Seed s of LeRobot is the evaluation episode with index s, in both modes."""
    code = """
        from chameleon_policy.camo import CamoEnv
        from chameleon_policy.seeds import evaluation_seed
        from lerobot.envs.factory import make_env
        from lerobot.envs.utils import add_envs_task, env_to_policy_features, preprocess_observation
        from lerobot_policy_chameleon.environment import CamoEnvConfig

        for mode in ("state", "rgb"):
            config = CamoEnvConfig(task="ShellGame", observation=mode, image_size=64, swaps=(1, 1))
            env = make_env(config, n_envs=2)["camo"][0]
            own = CamoEnv("shell-game", observation=mode, image_size=64, swaps=(1, 1))
            seen, _ = env.reset(seed=[7, 8])
            observation = add_envs_task(env, preprocess_observation(seen))
            features = env_to_policy_features(config)
            for key, feature in features.items():
                if key != "action":
                    assert tuple(observation[key].shape) == (2, *feature.shape), (
                        key,
                        observation[key].shape,
                    )
            for row, seed in enumerate((7, 8)):
                expected, info = own.reset(seed=evaluation_seed(seed))
                np.testing.assert_array_equal(seen["agent_pos"][row], expected["proprioception"])
                if mode == "rgb":
                    np.testing.assert_array_equal(
                        seen["pixels"]["wrist"][row], expected["images"]["wrist"]
                    )
                else:
                    np.testing.assert_array_equal(
                        seen["environment_state"][row], expected["objects"].ravel()
                    )
                assert observation["task"][row] == info["instruction"]
            assert env.call("_max_episode_steps")[0] > 200
            env.close()
        print("played")
    """
    assert "played" in python(code, checkpoint(trained, 4), home=home)


def test_lerobot_eval_plays_a_checkpoint(trained: Path, home: Path, tmp_path: Path) -> None:
    environment = ("--env.type=camo", "--env.task=clean-plate", "--env.observation=state")
    options = (
        f"--policy.path={checkpoint(trained, 4)}",
        *environment,
        *EVAL,
        f"--output_dir={tmp_path}",
    )
    run(tool("lerobot-eval"), *options, home=home)
    info = json.loads((tmp_path / "eval_info.json").read_text())
    assert (
        info["overall"]["n_episodes"] == 2 and len(info["per_task"][0]["metrics"]["successes"]) == 2
    )
    assert len(list(tmp_path.rglob("*.mp4"))) == 2


def test_a_shipped_policy_is_converted_for_lerobot(
    trained: Path, home: Path, tmp_path: Path
) -> None:
    """The averaged policy of the conversion has the same weights, features and statistics."""
    run(
        os.environ["LEROBOT_PYTHON"],
        "-m",
        "lerobot_policy_chameleon.convert",
        "camo-small",
        tmp_path / "out",
        home=home,
    )
    shipped, back = load_policy("camo-small").float(), load_policy(tmp_path / "out/chameleon")
    assert (back.config, back.features, back.statistics) == (
        shipped.config,
        shipped.features,
        shipped.statistics,
    )
    for name, tensor in exported_weights(shipped).items():
        assert torch.equal(tensor, back.state_dict()[name]), name
    code = """
        before, after = make_pre_post_processors(policy.config, folder)
        pose = torch.tensor([0.4, 0.0, 0.3, 1, 0, 0, 0, -1, 0, 1])
        picture = torch.rand(1, 3, 128, 128)
        batch = {
            "observation.state": pose[None],
            "observation.images.third": picture,
            "observation.images.wrist": picture,
        }
        action = after(policy.select_action(before(batch)))
        assert action.shape == (1, 10) and torch.isfinite(action).all()
        assert all(
            torch.equal(a, b)
            for a, b in zip(policy.model.parameters(), policy.averaged.parameters())
        )
        print("acted")
    """
    assert "acted" in python(code, tmp_path / "out", home=home)


def test_a_recording_with_images_trains(tmp_path: Path, home: Path) -> None:
    """Two steps on a recording with cameras: its videos are decoded."""
    data = record(Recording(task="shell-game", episodes=2, image_size=64), tmp_path / "data")
    options = (
        f"--dataset.root={data}",
        f"--output_dir={tmp_path / 'run'}",
        "--steps=2",
        "--policy.optimizer=adamw",
    )
    run(tool("lerobot-train"), *TRAIN, *options, home=home)
    policy = load_policy(tmp_path / "run/checkpoints/000002/pretrained_model/chameleon")
    assert {view.name for view in policy.features.views} == {"third", "wrist"}


def test_lerobots_windows_are_our_episodes(trained: Path, home: Path) -> None:
    """The real dataset, loader and pipeline give our episodes, and memory from window to window."""
    code = """
        from dataclasses import replace
        from torch.utils.data import DataLoader, Subset
        from chameleon_policy.data import load_episodes, open_episodes
        from lerobot.datasets.factory import resolve_delta_timestamps
        from lerobot.datasets.lerobot_dataset import LeRobotDataset, LeRobotDatasetMetadata
        from lerobot_policy_chameleon.windows import window_of

        root = Path(sys.argv[2])
        meta = LeRobotDatasetMetadata("local/camo", root=root)
        episodes = load_episodes(open_episodes(root))
        before, _ = make_pre_post_processors(policy.config, folder)


        def batches(size, future, frames, rows):
            config = replace(policy.config, n_obs_steps=size, n_future_steps=future)
            deltas = resolve_delta_timestamps(config, meta)
            dataset = LeRobotDataset(
                "local/camo", root=root, delta_timestamps=deltas, video_backend="pyav"
            )
            return map(before, DataLoader(Subset(dataset, frames), batch_size=rows))


        starts = np.cumsum([0, *(each.length for each in episodes)])
        frames = [int(starts[0]) + 9, int(starts[2]) - 1, int(starts[2])]
        (batch,) = batches(200, 199, frames, 3)
        window = window_of(batch, policy.model.features, {}, 199)
        for row, episode in enumerate((episodes[0], episodes[1], episodes[2])):
            length, seen = episode.length, window.batch.observation
            assert (
                int(window.batch.valid[row].sum())
                == int(window.batch.actions_valid[row].sum())
                == length
            )
            np.testing.assert_array_equal(seen.proprioception[row, :length], episode.state)
            np.testing.assert_array_equal(seen.objects[row, :length], episode.objects)
            np.testing.assert_array_equal(window.batch.actions[row, :length], episode.actions)
            assert window.spans[row] == (row, starts[row], starts[row + 1])

        policy.train()
        policy.config.n_obs_steps, begun, loss = 16, [], policy.model.loss
        policy.model.loss = lambda batch, state, *rest, **more: (
            begun.append(state),
            loss(batch, state, *rest, **more),
        )[1]
        frames = [15, int(starts[1]) + 15, 31, int(starts[1]) + 31, 40, int(starts[1]) + 47]
        for batch in batches(16, 0, frames, 2):
            total, parts = policy(batch)
            assert torch.isfinite(total) and {"action", "control_jepa"} <= parts.keys()
        assert [state and state.steps.tolist() for state in begun] == [None, [16, 16], [0, 32]], (
            begun
        )
        policy.eval()
        with torch.no_grad():
            policy(batch)  # of the averaged weights, without touching what training carries
        assert len(begun) == 3
        print("our episodes")
    """
    data = trained.parent / "data"
    assert "our episodes" in python(code, checkpoint(trained, 4), data, home=home)


def test_instructions_are_read(trained: Path, home: Path) -> None:
    """With a toy encoder: the text of the task reaches the policy that acts."""
    code = """
        from dataclasses import replace
        from chameleon_policy.policy import Language
        from lerobot_policy_chameleon import modeling_chameleon


        class Encoder:
            feature = Language(width=4, encoder="letters")

            def __init__(self, name):
                assert name == "letters"

            def embed(self, texts):
                return torch.tensor(
                    [[text.count(letter) for letter in "abcd"] for text in texts]
                ).float()


        modeling_chameleon.InstructionEncoder = Encoder
        reader = modeling_chameleon.ChameleonPolicy(
            replace(policy.config, language="letters")
        ).eval()
        actions = {}
        for task in ("abba", "dad"):
            reader.reset()
            torch.manual_seed(0)
            actions[task] = reader.select_action({**frame(1, 0), "task": [task]})
        assert not torch.allclose(actions["abba"], actions["dad"])
        try:
            reader.select_action(frame(1, 0))
        except ValueError as error:
            print(error)
    """
    assert "this policy reads instructions (letters), and the batch has none" in python(
        code, checkpoint(trained, 4), home=home
    )


def test_another_method_trains(trained: Path, home: Path, tmp_path: Path) -> None:
    options = (
        f"--dataset.root={trained.parent / 'data'}",
        f"--output_dir={tmp_path / 'run'}",
        "--steps=2",
    )
    run(tool("lerobot-train"), *TRAIN, *options, "--policy.method=lstm", home=home)
    assert (
        load_policy(tmp_path / "run/checkpoints/000002/pretrained_model/chameleon").method == "lstm"
    )


# A robot as in a package called lerobot_robot_toy.
ROBOT = """
    import json, sys
    from dataclasses import dataclass
    from pathlib import Path
    import numpy as np
    from lerobot.robots.config import RobotConfig
    from lerobot.robots.robot import Robot
    from chameleon_policy.robot.lerobot_robot import LeRobotRobot


    @RobotConfig.register_subclass("toy_arm")
    @dataclass
    class ToyArmConfig(RobotConfig):
        start: float = 1.0


    class ToyArm(Robot):
        config_class, name = ToyArmConfig, "toy_arm"
        is_connected = False
        is_calibrated = True
        observation_features = {"a.pos": float, "b.pos": float, "front": (16, 16, 3)}
        action_features = {"a.pos": float, "b.pos": float}

        def __init__(self, config):
            super().__init__(config)
            self.place = {"a.pos": config.start, "b.pos": 0.0}

        def connect(self, calibrate=True):
            self.is_connected = True

        def disconnect(self):
            self.is_connected = False

        def calibrate(self): ...
        def configure(self): ...

        def get_observation(self):
            return {**self.place, "front": np.zeros((16, 16, 3), np.uint8)}

        def send_action(self, action):
            self.place = action
            return action


    sys.modules["lerobot_robot_toy"] = sys.modules[__name__]
    ToyArmConfig.__module__ = "lerobot_robot_toy"
    for name, text in (
        ("arm.json", json.dumps({"type": "toy_arm", "start": 2.0})),
        ("arm.yaml", "type: toy_arm"),
    ):
        path = Path(sys.argv[1]) / name
        path.write_text(text)
        robot = LeRobotRobot.from_file(path, "move")
        robot.begin(0)
        start = 2.0 if name == "arm.json" else 1.0
        assert robot.observe().proprioception.tolist() == [start, 0] and robot.hold().tolist() == [
            start,
            0,
        ]
        robot.send(np.array([1.0, 3.0]))
        assert robot.observe().proprioception.tolist() == [1, 3]
        robot.stop()
        robot.close()
    wrong = (
        ('{"type": "nothing"}', "nothing"),
        ('{"type": "toy_arm", "wrong": 1}', "wrong"),
        ("{", "parsing"),
    )
    for text, message in wrong:
        path.write_text(text)
        try:
            LeRobotRobot.from_file(path, "move")
        except ValueError as error:
            assert str(path) in str(error) and message in str(error), error
        else:
            raise AssertionError(f"accepted {text}")
    print("moved")
"""


def test_a_robot_of_lerobot_is_made_from_a_file(home: Path, tmp_path: Path) -> None:
    """The real configuration classes and the real factory; the arm itself is a toy."""
    assert "moved" in run(
        os.environ["LEROBOT_PYTHON"], "-c", textwrap.dedent(ROBOT), tmp_path, home=home
    )
