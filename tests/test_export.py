"""Exported policies compute what the policy computes, and wrong exports are refused."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
import zipfile
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
from chameleon_policy.export.manifest import MANIFEST, Manifest, Runtime, read_manifest
from chameleon_policy.export.runtime import ExportedPolicy
from chameleon_policy.policy.config import from_json
from chameleon_policy.policy.normalizer import Range
from examples import STATE_FEATURES, make_observation, nano

PAGE = Path(__file__).parents[1] / "docs/export.md"

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
    """Return the smallest configuration with two memory layers, so that one writes back."""
    return dataclasses.replace(nano(), head_layers=1, encoder_blocks=(1, 1, 1, 1))


def assert_close(found: np.ndarray, expected: np.ndarray, name: str = "") -> None:
    """Compare up to the order of additions, which changes small numbers among large ones."""
    np.testing.assert_allclose(
        found, expected, rtol=0, atol=1e-4 * np.abs(expected).max(), err_msg=name
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
    """Save a Chameleon with everything that an observation can have."""
    return saved("chameleon", tmp_path_factory.mktemp("policy"), EVERYTHING, STATISTICS)


@pytest.fixture(scope="module")
def exported() -> dict[str, ExportedPolicy]:
    """Programs of `report` by runtime, loaded once by its check: torch needs seconds for that."""
    return {}


@pytest.fixture(scope="module")
def report(source: Path, exported, tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    def load(directory: Path, runtime: Runtime) -> ExportedPolicy:
        exported[runtime] = ExportedPolicy(directory, runtime)
        return exported[runtime]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check, "ExportedPolicy", load)
        return export_policy(source, tmp_path_factory.mktemp("export") / "exported", steps=STEPS)


def assert_same_rollout(
    policy: VisuomotorPolicy, exported: ExportedPolicy, robots: int, ticks: int = 6
) -> tuple[MemoryState, dict[str, np.ndarray]]:
    """Run both on the same observations and noise; compare memories and actions at every step."""
    state, memory = policy.initial_state(robots), exported.initial_state(robots)
    rng = np.random.default_rng(robots)
    for tick in range(ticks):
        observation = make_observation(policy.features, robots, seed=tick)
        state = policy.observe(observation, state)
        memory = exported.observe(as_arrays(observation), memory)
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


@pytest.mark.usefixtures("report")
@pytest.mark.parametrize("runtime", ["torch", "onnx"])
@pytest.mark.parametrize("robots", [1, 3])
def test_programs_compute_what_the_policy_computes(
    source: Path, exported, runtime: str, robots: int
) -> None:
    state, memory = assert_same_rollout(load_policy(source), exported[runtime], robots)
    assert memory["steps"].tolist() == state.steps.tolist() == [6] * robots
    assert not np.allclose(memory["working"], 0)


# Tracing takes seconds. By default only ACT, which differs most from Chameleon and flow matching;
# other tests trace these two.
@pytest.mark.parametrize(
    "method", [pytest.param(m, marks=[] if m == "act" else pytest.mark.slow) for m in METHODS]
)
def test_every_method_becomes_torch_programs(method: str, tmp_path: Path) -> None:
    folder = saved(method, tmp_path / "policy")
    report = export_policy(folder, tmp_path / "out", steps=1, onnx=False)
    assert {(row.runtime, row.batch_size) for row in report.deviations} == {
        ("torch", 1),
        ("torch", 3),
    }
    exported = ExportedPolicy(report.directory, "torch")
    _, memory = assert_same_rollout(load_policy(folder), exported, robots=4, ticks=3)
    if method == "act":  # it draws nothing
        assert [spec.name for spec in exported.manifest.act.inputs] == ["working"]
        assert exported.executed == 1
        with pytest.raises(ValueError, match="not finite"):
            exported.act({**memory, "working": np.full_like(memory["working"], np.nan)})


@pytest.mark.slow
@pytest.mark.parametrize("features", [STATE_FEATURES, EVERYTHING], ids=["state", "images"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_becomes_onnx_programs(
    method: str, features: Features, tmp_path: Path
) -> None:
    folder = saved(method, tmp_path / "policy", features)
    report = export_policy(folder, tmp_path / "out", steps=STEPS)
    assert report.no_onnx is None
    assert_same_rollout(
        load_policy(folder), ExportedPolicy(report.directory, "onnx"), robots=4, ticks=3
    )


@pytest.mark.slow
def test_the_shipped_policy(tmp_path: Path) -> None:
    report = export_policy("camo-small", tmp_path / "out")
    assert report.steps == 8 and report.no_onnx is None
    assert_same_rollout(
        load_policy("camo-small").float(), ExportedPolicy(report.directory), robots=1
    )


def test_manifest_describes_the_programs(source: Path, report: ExportReport) -> None:
    policy, manifest = load_policy(source), read_manifest(report.directory)
    blank = policy.initial_state(7).tensors()
    assert [spec.name for spec in manifest.memory] == list(blank)
    assert [spec.sizes(7) for spec in manifest.memory] == [
        tuple(tensor.shape) for tensor in blank.values()
    ]
    assert not any(tensor.any() for tensor in blank.values()), (
        "a memory begins with zeros, as the manifest says"
    )
    observed = [spec.name for spec in manifest.observation]
    assert observed == ["images.third", "images.wrist", "proprioception", "objects", "instruction"]
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
    compared = {(row["runtime"], row["batch_size"]) for row in document["check"]["errors"]}
    assert compared == {("torch", 1), ("torch", 3), ("onnx", 1), ("onnx", 3)}


def test_programs_contain_only_the_weights_that_they_read(
    source: Path, report: ExportReport
) -> None:
    policy = load_policy(source)
    head = sum(parameter.numel() for parameter in policy.action_flow.parameters())
    ranges = 100  # numbers of the normalisation, which both programs have
    for name, read in (("act", head), ("observe", policy.parameter_count - head)):
        with zipfile.ZipFile(report.directory / f"{name}.pt2") as archive:
            files = [file for file in archive.infolist() if "/weights/weight_" in file.filename]
        assert read / 2 < sum(file.file_size for file in files) / 4 <= read + ranges  # float32


def test_a_fixed_number_of_robots(tmp_path: Path) -> None:
    folder = saved("flow-matching", tmp_path / "policy")
    report = export_policy(folder, tmp_path / "out", steps=1, batch_size=2, onnx=False)
    assert {row.batch_size for row in report.deviations} == {2}
    exported = ExportedPolicy(report.directory, "torch")
    assert exported.manifest.act.inputs[0].shape[0] == 2
    assert_same_rollout(load_policy(folder), exported, robots=2, ticks=2)
    with pytest.raises(ValueError, match="expected 2, which it was exported for, got 1"):
        exported.initial_state()
    with pytest.raises(ValueError, match="batch_size: expected at least 1"):
        export_policy(folder, tmp_path / "other", batch_size=0)


# Refusals


@pytest.mark.parametrize(
    "part", ["event_tokens.proprioception.weight", "action_flow.action_out.weight"]
)
def test_check_finds_a_weight_that_is_off_by_one_percent(
    source: Path, report: ExportReport, exported, part: str, monkeypatch
) -> None:
    monkeypatch.setattr(check, "ExportedPolicy", lambda _, runtime: exported[runtime])
    policy = load_policy(source)
    with torch.no_grad():
        policy.get_parameter(part).mul_(1.01)
    for runtime in ("torch", "onnx"):
        with pytest.raises(ValueError, match=f"the {runtime} programs differ from the policy"):
            check_export(report.directory, policy, (runtime,), STEPS, None)


def test_nan_does_not_pass_the_check() -> None:
    deviations = check.Deviations(
        runtime="torch", batch_size=1, memory=0.0, working=float("nan"), actions=0.0
    )
    assert not deviations.largest <= check.TOLERANCE


@pytest.mark.parametrize("runtime", ["torch", "onnx"])
def test_changed_file_is_refused(report: ExportReport, tmp_path: Path, runtime) -> None:
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
def reuse_programs(report: ExportReport, monkeypatch) -> None:
    """Copy the programs of `report` where new ones would be traced."""

    def copied(policy: VisuomotorPolicy, folder: Path, **_: object) -> Manifest:
        shutil.copytree(report.directory, folder, dirs_exist_ok=True)
        return read_manifest(folder)

    monkeypatch.setattr(exporting, "write_programs", copied)


@pytest.mark.usefixtures("reuse_programs")
def test_failed_check_leaves_nothing_behind(
    source: Path, exported, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(check, "ExportedPolicy", lambda _, runtime: exported[runtime])
    monkeypatch.setattr(check, "TOLERANCE", -1.0)
    with pytest.raises(ValueError, match="Nothing was written"):
        export_policy(source, tmp_path / "out", steps=STEPS)
    assert list(tmp_path.iterdir()) == []


def test_only_an_export_is_replaced(
    source: Path, report: ExportReport, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(
        exporting,
        "load_trained",
        lambda *_, **__: pytest.fail("the policy was loaded before the refusal"),
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


@pytest.mark.usefixtures("reuse_programs")
def test_an_export_is_replaced_by_another(
    source: Path, report: ExportReport, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(exporting, "check_export", lambda *_: ())
    out = Path(shutil.copytree(report.directory, tmp_path / "out"))
    (out / "act.pt2").write_bytes(b"an older program")
    export_policy(source, out, steps=STEPS)
    assert (out / "act.pt2").read_bytes() == (report.directory / "act.pt2").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_missing_onnx_programs_are_reported(tmp_path: Path, monkeypatch) -> None:
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


def test_untraceable_method_is_named(tmp_path: Path, monkeypatch) -> None:
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


def test_wrong_input_is_refused(report: ExportReport) -> None:
    exported = ExportedPolicy(report.directory)
    state, good = exported.initial_state(), as_arrays(make_observation(EVERYTHING, 1))
    with pytest.raises(ValueError, match="has not observed anything yet"):
        exported.act(state)
    wrong = [
        ({**good, "objects": None}, "observation: expected images.third"),
        (
            {**good, "proprioception": np.zeros((2, 5))},
            r"proprioception: expected the shape \(1, 5\), got \(2, 5\)",
        ),
        (
            {**good, "proprioception": np.full((1, 5), np.nan)},
            "proprioception: expected finite numbers",
        ),
        (
            {**good, "images": {name: image / 255 for name, image in good["images"].items()}},
            "expected uint8",
        ),
    ]
    for observation, message in wrong:
        with pytest.raises(ValueError, match=message):
            exported.observe(observation, state)
    with pytest.raises(
        ValueError, match=r"state: expected arrays named working, steps.*begin with initial_state"
    ):
        exported.observe(good, {"working": state["working"]})
    state = exported.observe(good, state)
    with pytest.raises(ValueError, match=r"noise: expected the shape \(1, 4, 2\)"):
        exported.act(state, noise=np.zeros((4, 2)))
    repeated = [exported.act(state, rng=np.random.default_rng(0)) for _ in range(2)]
    np.testing.assert_array_equal(*repeated)
    with pytest.raises(ValueError, match="runtime: expected one of torch, onnx, got 'tensorrt'"):
        ExportedPolicy(report.directory, "tensorrt")
    with pytest.raises(FileNotFoundError, match="chameleon export RUN"):
        ExportedPolicy(report.directory.parent)


# Without torch, and as the documentation shows


def test_onnx_programs_run_without_torch(report: ExportReport) -> None:
    code = f"""
import sys
import numpy as np
from chameleon_policy.export.runtime import ExportedPolicy
policy = ExportedPolicy({str(report.directory)!r}, "onnx", threads=1)
state = policy.initial_state(2)
observation = {{"images": {{}}}}
for spec in policy.manifest.observation:
    view = spec.name.removeprefix("images.")
    group = observation if view == spec.name else observation["images"]
    group[view] = np.zeros(spec.sizes(2), spec.dtype)
state = policy.observe(observation, state)
unwanted = {{"torch", "onnx", "chameleon_policy.policy"}}
print(policy.act(state).shape, sorted(unwanted & sys.modules.keys()))
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "(2, 4, 2) []"


def test_code_in_the_documentation_runs(
    report: ExportReport, source: Path, tmp_path: Path, monkeypatch
) -> None:
    """The code also computes the policy's memory from the same zeros."""
    shutil.copytree(report.directory, tmp_path / "exported")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
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


def test_table_has_deviations_and_files(report: ExportReport) -> None:
    console = Console(record=True, width=160)
    console.print(export_table(report))
    text = console.export_text()
    assert "chameleon, any number of robots, 2 sampling steps" in text
    assert "observe.onnx" in text and text.count("onnx ") >= 2 and "No ONNX" not in text
