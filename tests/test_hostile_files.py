"""Damaged and hostile files of policies, runs, results and robots: one sentence, no traceback."""

from __future__ import annotations

import copy
import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from chameleon_policy import ChameleonPolicy, Range, Statistics
from chameleon_policy.baselines import METHODS, load_policy
from chameleon_policy.evaluate.loading import training_of
from chameleon_policy.experiments.bench.rows import Results
from chameleon_policy.experiments.reproduce import _scored_before
from chameleon_policy.export.manifest import Manifest, Signature, read_manifest
from chameleon_policy.policy import saving
from chameleon_policy.probes.study import read_finding, trained_on
from chameleon_policy.robot.limits import Limits
from chameleon_policy.train.checkpoint import Checkpoints, Progress
from examples import IMAGE_FEATURES, make_observation, make_policy, nano

STATISTICS = Statistics(action=Range(low=(0.1, -3.0), high=(1 / 3, 5.0)))
NESTED = "[" * 200_000


@pytest.fixture
def saved(tmp_path) -> Path:
    make_policy(IMAGE_FEATURES).save_pretrained(tmp_path / "policy")
    return tmp_path / "policy"


def edit(path: Path, *keys: Any, value: Any) -> None:
    """Set one value of a JSON file."""
    data = place = json.loads(path.read_text())
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    path.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("config", "width"), 2**31, r"PolicyConfig\.width must be at most 65536, got 2147483648"),
        (("config", "layers"), 5000, r"PolicyConfig\.layers must be at most 256"),
        (("config", "encoder_blocks"), [1, 1, 1, 9999], "encoder_blocks must be at most 256"),
        (("config", "sampling_steps"), 2**31, "sampling_steps must be at most 10000"),
        (("config", "slow", "chunk"), 2**31, r"SSMConfig\.chunk must be at most 4096"),
        (("features", "horizon"), 2**31, r"Features\.horizon must be at most 4096"),
        (("features", "objects"), {"count": 2**31, "size": 4}, r"ObjectSlots\.count must be at mo"),
        (("features", "views", 0, "height"), 2**31, r"height must be at most 16384"),
    ],
)
def test_absurd_sizes_are_refused(saved, keys, value, message: str) -> None:
    edit(saved / "config.json", *keys, value=value)
    with pytest.raises(ValueError, match=message):
        ChameleonPolicy.from_pretrained(saved)


@pytest.mark.parametrize("sizes", [{"width": 65_536}, {"feedforward_ratio": 65_536}])
def test_announced_sizes_are_compared_before_memory_is_asked_for(saved, sizes, monkeypatch) -> None:
    """Every size is allowed alone; together they ask for what the weights do not hold."""
    for name, value in sizes.items():
        edit(saved / "config.json", "config", name, value=value)
    made, linear = [], torch.nn.Linear.reset_parameters
    monkeypatch.setattr(
        *(torch.nn.Linear, "reset_parameters"),
        lambda layer: (made.append(layer.weight.numel()), linear(layer)),
    )
    with pytest.raises(ValueError, match=r"config\.json asks for a much larger policy"):
        ChameleonPolicy.from_pretrained(saved)
    assert sum(made) < 10**7


def test_a_memory_that_is_too_large_is_refused(saved) -> None:
    """The memory of a robot grows with products of sizes, the weights with their sums."""
    policy = ChameleonPolicy.from_pretrained(saved)
    numbers = sum(tensor.numel() for tensor in policy.initial_state(1).tensors().values())
    saving.check_memory(policy, saved, limit=numbers)
    with pytest.raises(ValueError, match="the memory of one robot would have more than"):
        saving.check_memory(policy, saved, limit=numbers - 1)
    assert numbers < saving.LARGEST_MEMORY / 100


@pytest.mark.parametrize("method", METHODS)
def test_the_limit_leaves_room_for_every_method(method: str, tmp_path, monkeypatch) -> None:
    if method.startswith("diffusion"):
        pytest.importorskip("diffusers")
    METHODS[method](nano(), IMAGE_FEATURES).save_pretrained(tmp_path)
    monkeypatch.setattr(saving, "SPARE", 0)
    assert load_policy(tmp_path).method == method


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_weights_of_eight_bits(saved, dtype: torch.dtype) -> None:
    path = saved / "model.safetensors"
    weights = safetensors.torch.load_file(path)
    safetensors.torch.save_file({name: w.to(dtype) for name, w in weights.items()}, path)
    with pytest.raises(ValueError, match=r"one floating-point type .*, got \['F8_E"):
        ChameleonPolicy.from_pretrained(saved)


@pytest.mark.parametrize("name", ["config.json", "normalizer.json"])
@pytest.mark.parametrize("text", [NESTED, "[" * 900 + "]" * 900, "9" * 5000, "\ud800", "[]", '"a"'])
def test_json_of_other_kinds(saved, name: str, text: str) -> None:
    (saved / name).write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(ValueError, match=name) as caught:
        ChameleonPolicy.from_pretrained(saved)
    assert len(str(caught.value)) < 500


def test_equal_policies_have_equal_files(tmp_path) -> None:
    files = []
    for number in range(8):  # the order of two entries would be equal by chance once in 128 times
        make_policy().save_pretrained(tmp_path / str(number))
        files.append((tmp_path / str(number) / "model.safetensors").read_bytes())
    assert len(set(files)) == 1
    assert safetensors.torch.load(files[0]).keys() == make_policy().state_dict().keys() - {
        name for name in make_policy().state_dict() if name.startswith("control_jepa")
    }


# Training checkpoints


def checkpoint(folder: Path, **progress: Any) -> Checkpoints:
    checkpoints = Checkpoints(folder, keep=3)
    policy = make_policy()
    optimizer = torch.optim.AdamW(policy.parameters())
    checkpoints.save(Progress(1, 1.0), policy, dict(policy.named_parameters()), [optimizer])
    rewrite(folder, lambda tensors, metadata: metadata.update(progress=json.dumps(progress)))
    return checkpoints


def rewrite(folder: Path, change: Callable[[dict[str, Any], dict[str, str]], object]) -> None:
    (path,) = (folder / "checkpoints").iterdir()
    tensors = safetensors.torch.load_file(path)
    with safetensors.safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
    change(tensors, metadata)
    path.write_bytes(safetensors.torch.save(tensors, metadata))


@pytest.mark.parametrize(
    "progress",
    [
        {"foo": 1},
        {"step": 1, "seconds": 1.0, "watched": 0, "foo": 1},
        {"step": "1", "seconds": 1.0},
        {"step": -1, "seconds": 1.0},
        {"step": 1, "seconds": float("nan")},
    ],
)
def test_a_checkpoint_with_another_progress_is_passed_over(tmp_path, progress) -> None:
    checkpoints = checkpoint(tmp_path, **progress)
    with (
        pytest.warns(UserWarning, match="cannot be read .*progress"),
        pytest.raises(ValueError, match="no checkpoint in"),
    ):
        checkpoints.restore(make_policy(), {}, [])


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors, metadata: tensors.update({"ema/foo": torch.zeros(1)}),
        lambda tensors, metadata: tensors.update(
            {"ema/action_flow.action_out.bias": torch.zeros(7)}
        ),
        lambda tensors, metadata: tensors.update(
            {"optimizer/exp_avg/action_flow.action_out.bias": torch.zeros(7)}
        ),
        lambda tensors, metadata: tensors.update({"optimizer/foo/bar": torch.zeros(7)}),
        lambda tensors, metadata: tensors.pop("weights/action_flow.action_out.bias"),
    ],
)
def test_a_checkpoint_of_another_policy_is_refused(tmp_path, change) -> None:
    checkpoints = checkpoint(tmp_path, step=1, seconds=1.0)
    rewrite(tmp_path, change)
    policy = make_policy()
    weights = {name: parameter.detach() for name, parameter in policy.named_parameters()}
    with pytest.raises(ValueError, match="belongs to another policy"):
        checkpoints.restore(policy, weights, [torch.optim.AdamW(policy.parameters())])


def test_a_full_disk_leaves_the_earlier_checkpoints(tmp_path, monkeypatch) -> None:
    policy = make_policy()
    checkpoints = Checkpoints(tmp_path, keep=3)
    checkpoints.save(Progress(1, 1.0), policy, {}, [])

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    message = r"cannot write .*step-00000002\.safetensors: No space left on device"
    with pytest.raises(OSError, match=message):
        checkpoints.save(Progress(2, 2.0), policy, {}, [])
    assert [path.name for path in checkpoints.folder.iterdir()] == ["step-00000001.safetensors"]
    assert checkpoints.restore(policy, {}, []) == Progress(1, 1.0)


# Fuzzing

ALIEN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(-3, 3), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(-3, 3), max_size=2),
    st.sampled_from(["../outside", "/etc/passwd", "\x1b[2J", "[/foo]", "x" * 3000]),
)


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value of a JSON document."""
    pairs = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in pairs:
        yield (*path, key)
        if isinstance(value, (dict, list)):
            yield from places(value, (*path, key))


def changed(document: Any, draw: st.DataObject) -> str:
    """Return the text of a document with one change, or cut short."""
    damaged = copy.deepcopy(document)
    *way, key = draw.draw(st.sampled_from(list(places(document))))
    place = damaged
    for step in way:
        place = place[step]
    kind = draw.draw(st.sampled_from(["replace", "remove", "add", "cut", "nest", "whole"]))
    if kind == "replace":
        place[key] = draw.draw(ALIEN)
    elif kind == "remove":
        del place[key]
    elif kind == "add" and isinstance(place, dict):
        place[draw.draw(st.text(max_size=3))] = draw.draw(ALIEN)
    elif kind == "whole":
        damaged = draw.draw(ALIEN)
    text = json.dumps(damaged)
    if kind == "cut":
        return text[: draw.draw(st.integers(0, len(text)))]
    return NESTED if kind == "nest" else text


def signed(folder: Path) -> None:
    """Write the hashes of a policy's texts into its weights, as its author would."""
    path, names = folder / "model.safetensors", ("config.json", "normalizer.json")
    digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    path.write_bytes(saving.serialized(safetensors.torch.load_file(path), digests))


def play(folder: Path) -> None:
    """Load a policy that somebody signed, and let it act."""
    signed(folder)
    policy = load_policy(folder)
    seen = make_observation(policy.features, 1)
    policy.act(policy.observe(seen, policy.initial_state(1)), steps=1)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, tuple[Path, Callable[[], object]]]:
    """Return files, each with what reads it."""
    folder = tmp_path_factory.mktemp("files")
    policy = make_policy(statistics=STATISTICS)
    policy.save_pretrained(folder / "run" / "policy")
    run = folder / "run" / "run.json"
    facts = {"path": "nowhere", "episodes": 3, "frames": 30}
    run.write_text(json.dumps({"method": "chameleon", "training": {"steps": 3}, "data": facts}))
    (folder / "run" / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
    limits = folder / "limits.json"
    limits.write_text(json.dumps({"x": {"low": 0.0, "high": 1.0, "per_second": 1.0}, "y": {}}))
    nothing = Signature(inputs=(), outputs=())
    manifest = folder / "policy.json"
    manifest.write_text(
        Manifest(
            method="chameleon",
            batch_size=None,
            sampling_steps=8,
            executed=2,
            device="cpu",
            no_onnx=None,
            files={"observe.pt2": "0" * 64},
            observe=nothing,
            act=nothing,
            details={"features": {"action": 2}},
        ).text()
    )
    bench = folder / "camo-table.json"
    row = {"method": "chameleon", "episodes": 2, "outcomes": "sw", "answers": "0 1"}
    bench.write_text(json.dumps({"rows": [row]}))
    finding = folder / "finding.json"
    provenance = {"command": "", "hardware": {}, "git_revision": "", "duration_s": 1.0}
    finding.write_text(json.dumps({**provenance, "result": {"task": "shell-game"}}))
    scores = folder / "scores.json"
    played = {"shell-game": {"episodes": 3, "euler_steps": 8}}
    scores.write_text(json.dumps({**provenance, "result": {"preset": "nano", "tasks": played}}))
    return {
        "config.json": (folder / "run/policy/config.json", partial(play, folder / "run/policy")),
        "normalizer.json": (
            folder / "run/policy/normalizer.json",
            partial(play, folder / "run/policy"),
        ),
        "run.json": (run, lambda: (training_of(run.parent), trained_on(run.parent))),
        "metrics.jsonl": (run.with_name("metrics.jsonl"), lambda: training_of(run.parent)),
        "limits.json": (limits, lambda: Limits.read(limits, ("x", "y"), Limits.none(2))),
        "policy.json": (manifest, lambda: read_manifest(folder)),
        "camo-table.json": (bench, lambda: Results(bench).rows),
        "finding.json": (finding, lambda: read_finding(finding)),
        "scores.json": (scores, lambda: _scored_before(scores, {"preset": "nano", "tasks": {}}, 3)),
    }


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "normalizer.json",
        "run.json",
        "metrics.jsonl",
        "limits.json",
        "policy.json",
        "camo-table.json",
        "finding.json",
        "scores.json",
    ],
)
@pytest.mark.parametrize("cases", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_damage_of_a_file_ends_in_a_traceback(files, name: str, cases: int) -> None:
    path, read = files[name]
    whole = path.read_text()
    document = json.loads(whole)

    @seed(0)
    @settings(
        max_examples=cases,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(draw=st.data())
    def damage(draw: st.DataObject) -> None:
        path.write_text(changed(document, draw))
        try:
            read()
        except (ValueError, OSError) as error:
            assert len(str(error)) < 4000, "a sentence"

    try:
        damage()
    finally:
        path.write_text(whole)
