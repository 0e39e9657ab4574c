"""Checkpoints: a policy is restored exactly; damaged, foreign and misspelt files are refused."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from chameleon_policy import ChameleonPolicy, Range, Statistics
from chameleon_policy.train.checkpoint import load_trained
from examples import IMAGE_FEATURES, make_observation, make_policy

STATISTICS = Statistics(action=Range(low=(0.1, -3.0), high=(1 / 3, 5.0)))


@pytest.fixture
def saved(tmp_path) -> Path:
    make_policy(IMAGE_FEATURES, statistics=STATISTICS).save_pretrained(tmp_path / "policy")
    return tmp_path / "policy"


def edit(path: Path, change) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def test_a_loaded_policy_acts_as_the_saved_one(saved) -> None:
    assert sorted(p.name for p in saved.iterdir()) == [
        "config.json",
        "model.safetensors",
        "normalizer.json",
    ]
    original = make_policy(IMAGE_FEATURES, statistics=STATISTICS)
    loaded = ChameleonPolicy.from_pretrained(str(saved))
    assert loaded.config == original.config
    assert loaded.features == original.features
    assert loaded.statistics == original.statistics
    assert not loaded.training
    observation = make_observation(IMAGE_FEATURES, 2)
    chunks = [
        policy.act(policy.observe(observation, policy.initial_state(2)), source="zero")
        for policy in (original, loaded)
    ]
    assert torch.equal(chunks[0], chunks[1])
    state = original.observe(observation, original.initial_state(2))
    loaded.observe(observation, state)  # a copy accepts the memory of its original


def test_an_older_policy_loads_without_a_limit_and_warns(saved, caplog) -> None:
    """Older policies have neither this option nor their provenance."""
    config = json.loads((saved / "config.json").read_text())
    for ssm in ("slow", "fast"):
        del config["config"][ssm]["half_life_limit"]
    del config["provenance"]
    text = (json.dumps(config, indent=2) + "\n").encode()
    weights = safetensors.torch.load_file(saved / "model.safetensors")
    digests = {"config.json": text, "normalizer.json": (saved / "normalizer.json").read_bytes()}
    metadata = {name: hashlib.sha256(content).hexdigest() for name, content in digests.items()}
    (saved / "config.json").write_bytes(text)
    safetensors.torch.save_file(weights, saved / "model.safetensors", metadata=metadata)
    loaded = ChameleonPolicy.from_pretrained(saved)
    assert loaded.config.fast.half_life_limit is None and loaded.provenance == {}
    assert "keeps its layer without one" in caplog.text
    caplog.clear()
    loaded.save_pretrained(saved / "again")
    assert ChameleonPolicy.from_pretrained(saved / "again").config == loaded.config
    assert not caplog.text, "saved anew, it says itself that it has no limit"


def test_a_policy_has_its_provenance(tmp_path) -> None:
    policy = make_policy()
    policy.provenance = {"seed": 3, "git_revision": "abc"}
    policy.save_pretrained(tmp_path)
    assert ChameleonPolicy.from_pretrained(tmp_path).provenance == {
        "seed": 3,
        "git_revision": "abc",
    }


def test_the_dtype_is_kept(tmp_path) -> None:
    make_policy(dtype=torch.bfloat16).save_pretrained(tmp_path)
    assert {p.dtype for p in ChameleonPolicy.from_pretrained(tmp_path).parameters()} == {
        torch.bfloat16
    }


def test_saving_again_replaces_all_files(saved) -> None:
    make_policy(IMAGE_FEATURES, seed=1).save_pretrained(saved)
    assert len(list(saved.iterdir())) == 3
    weight = ChameleonPolicy.from_pretrained(saved).action_flow.action_out.weight
    assert torch.equal(weight, make_policy(IMAGE_FEATURES, seed=1).action_flow.action_out.weight)


def test_no_pickle_anywhere(saved) -> None:
    for path in saved.iterdir():
        assert b"pickle" not in path.read_bytes()
        assert not path.read_bytes().startswith((b"PK", b"\x80"))
    source = Path(sys.modules["chameleon_policy"].__file__).parent
    for path in source.rglob("*.py"):
        text = path.read_text()
        assert not re.search(
            r"\b(pickle|dill|joblib|cloudpickle)\b", text.replace("No pickle is", "")
        ), path
        assert "torch.load(" not in text
        assert "torch.save(" not in text.replace("safetensors.torch.save(", "")


@pytest.mark.parametrize("name", ["config.json", "normalizer.json", "model.safetensors"])
def test_a_missing_file_is_named(saved, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"{name} is missing"):
        ChameleonPolicy.from_pretrained(saved)


@pytest.mark.parametrize("keep", [0, 5, 1000, -1])
def test_truncated_weights(saved, keep: int) -> None:
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"model\.safetensors cannot be read .* download it again"):
        ChameleonPolicy.from_pretrained(saved)


def test_truncated_config(saved) -> None:
    path = saved / "config.json"
    path.write_text(path.read_text()[:50])
    with pytest.raises(ValueError, match="not valid JSON"):
        ChameleonPolicy.from_pretrained(saved)


def test_a_foreign_checkpoint(saved) -> None:
    (saved / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="does not describe a Chameleon policy"):
        ChameleonPolicy.from_pretrained(saved)


def test_foreign_weights_and_missing_keys(saved) -> None:
    path = saved / "model.safetensors"
    weights = safetensors.torch.load_file(path)
    weights["intruder"] = weights.pop("action_flow.action_out.bias")
    safetensors.torch.save_file(weights, path)
    with pytest.raises(
        ValueError,
        match=r"1 missing keys \(action_flow.action_out.bias\); 1 unknown keys \(intruder\)",
    ):
        ChameleonPolicy.from_pretrained(saved)


def test_a_weight_of_another_shape(saved) -> None:
    path = saved / "model.safetensors"
    weights = safetensors.torch.load_file(path)
    weights["action_flow.action_out.bias"] = torch.zeros(7)
    safetensors.torch.save_file(weights, path)
    with pytest.raises(
        ValueError, match=r"action_out\.bias has the shape \(7,\), config\.json says \(2,\)"
    ):
        ChameleonPolicy.from_pretrained(saved)


def test_an_unknown_config_key_is_named_with_the_one_that_was_meant(saved) -> None:
    edit(saved / "config.json", lambda data: data["config"].update(widht=3))
    with pytest.raises(
        ValueError, match=r"unknown key 'widht'\. Did you mean 'width'\? Known keys: .*layers"
    ):
        ChameleonPolicy.from_pretrained(saved)


def test_config_values_of_wrong_kinds(saved) -> None:
    original = (saved / "config.json").read_text()
    for change, message in [
        (lambda d: d["config"].update(width="wide"), "width: expected int, got 'wide'"),
        (lambda d: d["config"].update(width=True), "width: expected int, got True"),
        (lambda d: d["config"].update(width=66), "must be a multiple of"),
        (
            lambda d: d["config"]["slow"].update(half_life=[1.0]),
            "half_life: expected 2 values, got 1",
        ),
        (lambda d: d["config"]["slow"].update(half_life=[9.0, 1.0]), "shortest <= longest"),
        (lambda d: d["config"]["objective"].update(horizons=[1]), "one weight per horizon"),
        (lambda d: d["config"].pop("slow"), "the key 'slow' is missing"),
        (lambda d: d["features"].update(action=0), "Features.action must be at least 1"),
        (lambda d: d["features"].update(views=[]), "sees nothing"),
        (lambda d: d.update(surprise=1), "surprise"),
        (lambda d: d.update(format_version=99), "format version 99"),
    ]:
        edit(saved / "config.json", change)
        with pytest.raises(ValueError, match=message):
            ChameleonPolicy.from_pretrained(saved)
        (saved / "config.json").write_text(original)


def test_statistics_that_do_not_fit(saved) -> None:
    edit(saved / "normalizer.json", lambda data: data["action"].update(low=[0.0], high=[1.0]))
    with pytest.raises(ValueError, match="statistics of action: expected 2 dimensions, got 1"):
        ChameleonPolicy.from_pretrained(saved)
    with pytest.raises(ValueError, match=r"low 2\.0 above high 1\.0"):
        Range(low=(2.0,), high=(1.0,))


def test_files_of_different_saves_do_not_pass_for_a_policy(saved, tmp_path) -> None:
    make_policy(IMAGE_FEATURES).save_pretrained(tmp_path / "other")
    (saved / "normalizer.json").write_bytes((tmp_path / "other" / "normalizer.json").read_bytes())
    with pytest.raises(
        ValueError, match=r"normalizer\.json next to it do not come from one save_pretrained"
    ):
        ChameleonPolicy.from_pretrained(saved)


def test_tensors_of_wrong_types(saved) -> None:
    path = saved / "model.safetensors"
    weights = safetensors.torch.load_file(path)
    for change, message in [
        (lambda w: torch.full_like(w, torch.nan), "not finite"),
        (lambda w: w.to(torch.int8), "one floating-point type"),
    ]:
        safetensors.torch.save_file({name: change(w) for name, w in weights.items()}, path)
        with pytest.raises(ValueError, match=message):
            ChameleonPolicy.from_pretrained(saved)
    (saved / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not valid JSON"):
        ChameleonPolicy.from_pretrained(saved)


def test_loading_leaves_the_random_numbers_alone(saved) -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    ChameleonPolicy.from_pretrained(saved)
    assert torch.equal(torch.rand(3), expected)


@pytest.fixture
def asked(saved, monkeypatch) -> dict[str, list[str]]:
    """Answer in place of the hub; return what it was asked for."""
    hub, asked = pytest.importorskip("huggingface_hub"), {}

    def snapshot_download(repo: str, allow_patterns: list[str]) -> str:
        asked[repo] = allow_patterns
        return str(saved)

    monkeypatch.setattr(hub, "snapshot_download", snapshot_download)
    return asked


@pytest.mark.parametrize("kind", [str, Path])
def test_the_hub_is_asked_for_the_three_files(asked, kind) -> None:
    load_trained(kind("hf:someone/policy"))
    assert asked == {"someone/policy": ["config.json", "normalizer.json", "model.safetensors"]}
    with pytest.raises(ValueError, match="a policy on the hub is named hf:OWNER/NAME"):
        ChameleonPolicy.from_pretrained("hf:policy")


def test_a_mistyped_name_asks_nobody_and_suggests_near_ones(asked, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/plate").mkdir(parents=True)
    for name, message in [
        ("runs/plaet", "there is no directory runs/plaet; did you mean runs/plate\\?"),
        ("camo-smal", "did you mean camo-small\\?"),
        ("someone/policy", "there is no directory someone/policy; A policy is .* hf:OWNER/NAME"),
        ("", "there is no directory ;"),
    ]:
        for load in (ChameleonPolicy.from_pretrained, load_trained):
            with pytest.raises(FileNotFoundError, match=message):
                load(name)
    assert not asked


def test_a_hub_that_cannot_be_reached() -> None:
    pytest.importorskip("huggingface_hub")
    with pytest.raises(FileNotFoundError, match="hf:nobody/none is not reachable on the hub"):
        ChameleonPolicy.from_pretrained("hf:nobody/none")


def test_links_out_of_the_folder_are_not_followed(saved, tmp_path) -> None:
    outside = tmp_path / "outside.json"
    (saved / "normalizer.json").rename(outside)
    (saved / "normalizer.json").symlink_to(outside)
    with pytest.raises(ValueError, match=r"normalizer\.json is a link that leads out"):
        ChameleonPolicy.from_pretrained(saved)
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text("{}")
    (run / "policy").symlink_to(saved)
    with pytest.raises(ValueError, match="policy is a link that leads out of its folder"):
        load_trained(run)


def test_links_of_the_hubs_cache_and_to_the_folder_itself_are_followed(saved, tmp_path) -> None:
    repository = tmp_path / "models--someone--policy"
    snapshot = repository / "snapshots" / "123abc"
    snapshot.mkdir(parents=True)
    saved.rename(repository / "blobs")
    for path in (repository / "blobs").iterdir():
        (snapshot / path.name).symlink_to(Path("../../blobs", path.name))
    (tmp_path / "link").symlink_to(snapshot)
    ChameleonPolicy.from_pretrained(tmp_path / "link")
