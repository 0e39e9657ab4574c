"""An exported policy does what the policy does, says what it takes, and is refused where it does
not.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from chameleon_policy import (
    Features,
    Language,
    MemoryState,
    ObjectSlots,
    PolicyConfig,
    Statistics,
    View,
    VisuomotorPolicy,
)
from chameleon_policy.baselines import METHODS, load_policy
from chameleon_policy.export import check, exporting
from chameleon_policy.export.check import as_arrays, check_export
from chameleon_policy.export.exporting import ExportReport, export_policy, export_table
from chameleon_policy.export.manifest import MANIFEST, Manifest, read_manifest
from chameleon_policy.export.runtime import ExportedPolicy
from chameleon_policy.policy.config import from_json
from chameleon_policy.policy.normalizer import Range
from documents import ROOT
from examples import STATE_FEATURES, make_observation, nano

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

EVERYTHING = Features(
    views=(View(name="third", height=48, width=64), View(name="wrist", height=32, width=32)),
    objects=ObjectSlots(count=2, size=3),
    proprioception=5,
    action=2,
    horizon=4,
    language=Language(width=6, encoder="none"),
)
STATISTICS = Statistics(
    proprioception=Range(low=(-2.0,) * 5, high=(1.0, 2.0, 3.0, 4.0, 5.0)),
    action=Range(low=(-0.3, 10.0), high=(0.2, 20.0)),
    objects=Range(low=(-1.0,) * 6, high=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0)),
)
STEPS = 2


def tiny() -> PolicyConfig:
    """Two memory layers, so that one writes back; of everything else as little as there can be."""
    return dataclasses.replace(nano(), head_layers=1, encoder_blocks=(1, 1, 1, 1))


def assert_close(found: np.ndarray, expected: np.ndarray, what: str = "") -> None:
    """But for the order in which numbers are added up, which small ones among large ones notice."""
    np.testing.assert_allclose(
        found, expected, rtol=0, atol=1e-4 * np.abs(expected).max(), err_msg=what
    )


def saved(
    method: str,
    folder: Path,
    features: Features = STATE_FEATURES,
    statistics: Statistics | None = None,
) -> Path:
    torch.manual_seed(0)
    METHODS[method](tiny(), features, statistics).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Chameleon with everything that an observation can have."""
    return saved("chameleon", tmp_path_factory.mktemp("policy"), EVERYTHING, STATISTICS)


@pytest.fixture(scope="module")
def report(source: Path, tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    return export_policy(source, tmp_path_factory.mktemp("export") / "exported", steps=STEPS)


@pytest.fixture(scope="module")
def exported(report: ExportReport) -> dict[str, ExportedPolicy]:
    """Loaded once: torch takes seconds for it."""
    return {
        "torch": ExportedPolicy(report.directory, "torch"),
        "onnx": ExportedPolicy(report.directory, "onnx"),
    }


def rolled(
    policy: VisuomotorPolicy, exported: ExportedPolicy, robots: int, ticks: int = 6
) -> tuple[MemoryState, dict[str, np.ndarray]]:
    """Both through the same observations and noise; memories and actions must agree all the way."""
    state, memory = policy.initial_state(robots), exported.initial_state(robots)
    rng = np.random.default_rng(robots)
    for tick in range(ticks):
        seen = make_observation(policy.features, robots, seed=tick)
        state, memory = policy.observe(seen, state), exported.observe(as_arrays(seen), memory)
        for name, tensor in state.tensors().items():
            assert_close(memory[name], tensor.numpy(), f"{name} at {tick}")
            assert memory[name].dtype == tensor.numpy().dtype
        noise = rng.standard_normal(
            (robots, policy.features.horizon, policy.features.action)
        ).astype(np.float32)
        expected = policy.act(
            state, steps=exported.manifest.sampling_steps, source=torch.from_numpy(noise)
        )
        assert_close(exported.act(memory, noise=noise), expected.numpy())
    return state, memory


@pytest.mark.parametrize("runtime", ["torch", "onnx"])
@pytest.mark.parametrize("robots", [1, 3])
def test_it_does_what_the_policy_does(source: Path, exported, runtime: str, robots: int) -> None:
    state, memory = rolled(load_policy(source), exported[runtime], robots)
    assert memory["steps"].tolist() == state.steps.tolist() == [6] * robots
    assert not np.allclose(memory["working"], 0)


# Tracing takes seconds: by default those that differ most from Chameleon, which the other tests
# trace.
QUICK = ("act", "lstm", "diffusion-unet")


@pytest.mark.parametrize(
    "method", [pytest.param(m, marks=[] if m in QUICK else pytest.mark.slow) for m in METHODS]
)
def test_every_method_becomes_torch_programs(method: str, tmp_path: Path) -> None:
    folder = saved(method, tmp_path / "policy")
    report = export_policy(folder, tmp_path / "out", steps=1, onnx=False)
    assert {(errors.runtime, errors.batch_size) for errors in report.errors} == {
        ("torch", 1),
        ("torch", 3),
    }
    exported = ExportedPolicy(report.directory, "torch")
    _, memory = rolled(load_policy(folder), exported, robots=4, ticks=3)
    if method == "act":  # its plans are all that it acts from
        assert [spec.name for spec in exported.manifest.act.inputs] == [
            "layers.0.plans",
            "layers.0.made",
        ]
        assert exported.executed == 1
        with pytest.raises(ValueError, match="not finite"):
            exported.act({**memory, "layers.0.made": np.zeros_like(memory["layers.0.made"])})


@pytest.mark.slow
@pytest.mark.parametrize("features", [STATE_FEATURES, EVERYTHING], ids=["state", "images"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_becomes_onnx_programs(
    method: str, features: Features, tmp_path: Path
) -> None:
    folder = saved(method, tmp_path / "policy", features)
    report = export_policy(folder, tmp_path / "out", steps=STEPS)
    assert report.no_onnx is None
    rolled(load_policy(folder), ExportedPolicy(report.directory, "onnx"), robots=4, ticks=3)


@pytest.mark.slow
def test_the_shipped_policy(tmp_path: Path) -> None:
    report = export_policy("camo-small", tmp_path / "out")
    assert report.steps == 8 and report.no_onnx is None
    rolled(load_policy("camo-small").float(), ExportedPolicy(report.directory), robots=1)


def test_the_manifest_says_what_the_programs_take(source: Path, report: ExportReport) -> None:
    policy, manifest = load_policy(source), read_manifest(report.directory)
    blank = policy.initial_state(7).tensors()
    assert [spec.name for spec in manifest.memory] == list(blank)
    assert [spec.sizes(7) for spec in manifest.memory] == [
        tuple(tensor.shape) for tensor in blank.values()
    ]
    assert not any(tensor.any() for tensor in blank.values()), (
        "a memory begins with zeros, as the manifest says"
    )
    seen = [spec.name for spec in manifest.seen]
    assert seen == ["images.third", "images.wrist", "proprioception", "objects", "instruction"]
    assert [spec.name for spec in manifest.act.inputs] == ["working", "noise"]
    assert (
        manifest.executed == policy.executed
        and manifest.sampling_steps == STEPS
        and manifest.batch_size is None
    )
    document = json.loads((report.directory / MANIFEST).read_text())
    assert from_json(Features, document["features"], "features") == EVERYTHING
    assert (
        from_json(Statistics, document["statistics_inside_the_programs"], "statistics")
        == STATISTICS
    )
    assert set(document["files"]) == {"observe.pt2", "act.pt2", "observe.onnx", "act.onnx"}
    assert document["versions"]["torch"] == torch.__version__
    tried = {(errors["runtime"], errors["batch_size"]) for errors in document["check"]["errors"]}
    assert tried == {("torch", 1), ("torch", 3), ("onnx", 1), ("onnx", 3)}


def test_programs_hold_the_weights_that_they_read_and_no_others(
    source: Path, report: ExportReport
) -> None:
    policy = load_policy(source)
    head = sum(parameter.numel() for parameter in policy.action_flow.parameters())
    ranges = 100  # of normalisation, which both have
    for name, read in (("act", head), ("observe", policy.parameter_count - head)):
        weights = torch.export.load(report.directory / f"{name}.pt2").state_dict.values()
        assert read / 2 < sum(tensor.numel() for tensor in weights) <= read + ranges


def test_a_fixed_number_of_robots(tmp_path: Path) -> None:
    folder = saved("flow-matching", tmp_path / "policy")
    report = export_policy(folder, tmp_path / "out", steps=1, batch_size=2, onnx=False)
    assert {errors.batch_size for errors in report.errors} == {2}
    exported = ExportedPolicy(report.directory, "torch")
    assert exported.manifest.act.inputs[0].shape[0] == 2
    rolled(load_policy(folder), exported, robots=2, ticks=2)
    with pytest.raises(ValueError, match="expected 2, which it was exported for, got 1"):
        exported.initial_state()
    with pytest.raises(ValueError, match="batch_size: expected at least 1"):
        export_policy(folder, tmp_path / "other", batch_size=0)


# What is refused


@pytest.mark.parametrize(
    "part", ["event_tokens.proprioception.weight", "action_flow.action_out.weight"]
)
def test_the_check_finds_a_weight_that_is_off_by_a_hundredth(
    source: Path, report: ExportReport, part: str
) -> None:
    policy = load_policy(source)
    with torch.no_grad():
        policy.get_parameter(part).mul_(1.01)
    for runtime in ("torch", "onnx"):
        with pytest.raises(
            ValueError, match=f"the {runtime} programs do not do what the policy does"
        ):
            check_export(report.directory, policy, (runtime,), STEPS, None)


def test_numbers_that_are_none_do_not_pass() -> None:
    errors = check.Errors(
        runtime="torch", batch_size=1, memory=0.0, working=float("nan"), actions=0.0
    )
    assert not errors.largest <= check.TOLERANCE


@pytest.mark.parametrize("runtime", ["torch", "onnx"])
def test_a_file_that_was_changed_is_refused(report: ExportReport, tmp_path: Path, runtime) -> None:
    copied = Path(shutil.copytree(report.directory, tmp_path / "copied"))
    path = copied / ("act.pt2" if runtime == "torch" else "act.onnx")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="its SHA-256 differs"):
        ExportedPolicy(copied, runtime)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="is missing; copy the whole directory"):
        ExportedPolicy(copied, runtime)


@pytest.fixture
def not_traced_again(report: ExportReport, monkeypatch) -> None:
    """What is traced and written is what was there before."""

    def copied(policy: VisuomotorPolicy, folder: Path, **_: object) -> Manifest:
        shutil.copytree(report.directory, folder, dirs_exist_ok=True)
        return read_manifest(folder)

    monkeypatch.setattr(exporting, "write_programs", copied)


@pytest.mark.usefixtures("not_traced_again")
def test_what_fails_the_check_is_not_written(source: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(check, "TOLERANCE", -1.0)
    with pytest.raises(ValueError, match="Nothing was written"):
        export_policy(source, tmp_path / "out", steps=STEPS)
    assert list(tmp_path.iterdir()) == []


def test_nothing_but_an_export_is_replaced(
    source: Path, report: ExportReport, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(
        exporting,
        "load_trained",
        lambda *_, **__: pytest.fail("it should have been refused before"),
    )
    foreign = tmp_path / "thesis"
    foreign.mkdir()
    (foreign / "chapter.tex").write_text("two years of work")
    with pytest.raises(ValueError, match=r"is not empty and holds no exported policy.*--out"):
        export_policy(source, foreign)
    with pytest.raises(ValueError, match="is a file"):
        export_policy(source, foreign / "chapter.tex")
    mixed = Path(shutil.copytree(report.directory, tmp_path / "mixed"))
    (mixed / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"also notes\.txt"):
        export_policy(source, mixed)
    assert (foreign / "chapter.tex").read_text() == "two years of work"


@pytest.mark.usefixtures("not_traced_again")
def test_an_export_is_replaced_by_another(
    source: Path, report: ExportReport, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(report.directory, tmp_path / "out"))
    (out / "act.pt2").write_bytes(b"an older program")
    export_policy(source, out, steps=STEPS)
    assert (out / "act.pt2").read_bytes() == (report.directory / "act.pt2").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_onnx_cannot_say_is_told(tmp_path: Path, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise torch.onnx.OnnxExporterError("No ONNX function found for aten::remember")

    monkeypatch.setattr(torch.onnx, "export", refuse)
    report = export_policy(saved("flow-matching", tmp_path / "policy"), tmp_path / "out", steps=1)
    assert report.no_onnx is not None and "aten::remember" in report.no_onnx
    assert read_manifest(report.directory).no_onnx == report.no_onnx
    assert not list(report.directory.glob("*.onnx"))
    with pytest.raises(ValueError, match=r"holds no ONNX programs.*aten::remember.*\"torch\""):
        ExportedPolicy(report.directory)
    console = Console(record=True, width=200)
    console.print(export_table(report))
    assert "aten::remember" in console.export_text()


def test_a_method_that_cannot_be_traced_is_named(tmp_path: Path, monkeypatch) -> None:
    def advance(self, observation, state):
        if bool(observation.proprioception.sum() > 0):
            raise RuntimeError
        return state

    monkeypatch.setattr(METHODS["lstm"], "advance", advance)
    with pytest.raises(
        ValueError, match=r"lstm: torch\.export cannot trace ObserveProgram.*--batch-size 1"
    ):
        export_policy(saved("lstm", tmp_path / "policy"), tmp_path / "out", onnx=False)
    assert not (tmp_path / "out").exists()


def test_wrong_input_is_answered(report: ExportReport) -> None:
    exported = ExportedPolicy(report.directory)
    state, seen = exported.initial_state(), as_arrays(make_observation(EVERYTHING, 1))
    with pytest.raises(ValueError, match="has not observed anything yet"):
        exported.act(state)
    wrong = [
        ({**seen, "objects": None}, "observation: expected images.third"),
        (
            {**seen, "proprioception": np.zeros((2, 5))},
            r"proprioception: expected the shape \(1, 5\), got \(2, 5\)",
        ),
        (
            {**seen, "proprioception": np.full((1, 5), np.nan)},
            "proprioception: expected finite numbers",
        ),
        (
            {**seen, "images": {name: image / 255 for name, image in seen["images"].items()}},
            "expected uint8",
        ),
    ]
    for observation, message in wrong:
        with pytest.raises(ValueError, match=message):
            exported.observe(observation, state)
    with pytest.raises(
        ValueError, match=r"state: expected arrays named working, steps.*begin with initial_state"
    ):
        exported.observe(seen, {"working": state["working"]})
    state = exported.observe(seen, state)
    with pytest.raises(ValueError, match=r"noise: expected the shape \(1, 4, 2\)"):
        exported.act(state, noise=np.zeros((4, 2)))
    same = [exported.act(state, rng=np.random.default_rng(0)) for _ in range(2)]
    np.testing.assert_array_equal(*same)
    with pytest.raises(ValueError, match="runtime: expected one of torch, onnx, got 'tensorrt'"):
        ExportedPolicy(report.directory, "tensorrt")
    with pytest.raises(FileNotFoundError, match="chameleon export RUN"):
        ExportedPolicy(report.directory.parent)


# Without torch, and as the page says


def test_onnx_programs_run_without_torch(report: ExportReport) -> None:
    code = f"""
import sys
import numpy as np
from chameleon_policy.export.runtime import ExportedPolicy
policy = ExportedPolicy({str(report.directory)!r}, "onnx", threads=1)
state = policy.initial_state(2)
seen = {{spec.name: np.zeros(spec.sizes(2), spec.dtype) for spec in policy.manifest.seen}}
images = {{name.removeprefix("images."): seen.pop(name) for name in list(seen) if name.startswith("images.")}}
state = policy.observe({{"images": images, **seen}}, state)
print(policy.act(state).shape, sorted({{"torch", "onnx", "chameleon_policy.policy"}} & sys.modules.keys()))
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "(2, 4, 2) []"


def test_code_in_the_page_runs(
    report: ExportReport, source: Path, tmp_path: Path, monkeypatch
) -> None:
    """And gives the policy's actions, from the same zeros."""
    shutil.copytree(report.directory, tmp_path / "exported")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/export.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        namespace: dict = {}
        exec(compile(block, "docs/export.md", "exec"), namespace)
        assert namespace["actions"].shape == (1, 4, 2)
        policy = load_policy(source)
        zeros = make_observation(EVERYTHING, 1).map(torch.zeros_like)
        zeros = dataclasses.replace(zeros, instruction=torch.zeros_like(zeros.instruction))
        state = policy.initial_state()
        for _ in range(namespace["tick"] + 1):
            state = policy.observe(zeros, state)
        assert_close(namespace["memory"]["working"], state.working.numpy())


def test_the_table_tells_what_was_measured(report: ExportReport) -> None:
    console = Console(record=True, width=160)
    console.print(export_table(report))
    text = console.export_text()
    assert "chameleon, any number of robots, 2 sampling steps" in text
    assert "observe.onnx" in text and text.count("onnx ") >= 2 and "No ONNX" not in text
