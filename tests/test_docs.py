"""The documents say what is true: code in the README runs, and figures are those of the result
files.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import camo_scores, parameters
from chameleon_policy import Budget
from chameleon_policy.camo import TASKS
from chameleon_policy.policy.saving import SHIPPED
from chameleon_policy.rates import Rate, interval, percent
from documents import README, ROOT, result, table_below


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_code_in_the_readme_runs(code: str, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})


def test_code_in_the_benchmarks_page_runs() -> None:
    namespace: dict = {}
    for code in re.findall(r"```python\n(.*?)```", (ROOT / "docs/camo.md").read_text(), re.DOTALL):
        exec(compile(code, "docs/camo.md", "exec"), namespace)


def test_experts_table() -> None:
    expected = []
    for task, row in result("camo-experts.json").items():
        rate, steps = row["sr"], row["control_steps"]
        success = f"{rate['value']:.1%} [{rate['low']:.1%}, {rate['high']:.1%}]"
        expected.append(
            [task, str(rate["count"]), success, f"{steps['shortest']} to {steps['longest']}"]
        )
    assert table_below("experts") == expected
    shortest = min(row["control_steps"]["shortest"] for row in result("camo-experts.json").values())
    longest = max(row["control_steps"]["longest"] for row in result("camo-experts.json").values())
    assert (
        f"episodes of {shortest} to {longest} steps at 7.5 Hz"
        in (ROOT / "docs/camo.md").read_text()
    )


def test_camo_speed_table() -> None:
    speed = result("camo-speed.json")
    expected = [
        [
            task,
            f"{row['rgb_steps_per_second']:.0f}",
            f"{row['state_steps_per_second']:.0f}",
            f"{row['ratio']:.0f} x as long",
        ]
        for task, row in speed["tasks"].items()
    ]
    assert table_below("camo") == expected
    recorded = speed["recording"]
    assert (
        f"{recorded['episodes']} {recorded['task']} demonstrations were recorded in {recorded['seconds']:.0f} s"
        in README
    )


def scores(row: dict) -> list[str]:
    return [interval(Rate.from_dict(row[name])) for name in ("msr", "dsr", "sr")]


def test_demo_table() -> None:
    demo = result("demo.json")
    expected = []
    for method, name in (("chameleon", "Chameleon"), ("no-memory", "its memoryless twin")):
        training = demo[method]["training"]
        cell = f"{training['step']} steps, {training['seconds'] / 60:.1f} min"
        expected.append([name, cell, *scores(demo[method])])
        assert f"{demo[method]['episodes']} held-out episodes" in README
    assert table_below("demo") == expected
    assert f"in {demo['minutes']:.1f} minutes" in README


def test_images_table() -> None:
    images = result("clean-plate-images.json")
    expected = [
        [name, f"{images[name]['training']['last_logged_step']:,} steps", *scores(images[name])]
        for name in ("small", "paper")
    ]
    assert table_below("images") == expected
    assert {row["training"]["minutes"] for row in images.values()} == {11}
    assert {row["training"]["demonstrations"] for row in images.values()} == {200}
    assert {row["episodes"] for row in images.values()} == {100}
    assert "200 demonstrations, 11 minutes" in README


def test_training_table() -> None:
    rows = []
    for name, where in (("training-cpu.json", "2 CPU cores"), ("training-h200.json", "H200")):
        measured = result(name)
        reading, training = measured["reading"], measured["training"]
        assert reading["episodes"] == 120
        for place, row in training["data"].items():
            lying = {
                "resident": "on the GPU" if where == "H200" else "in memory",
                "travelling": "copied to the GPU",
            }[place]
            rows.append(
                [
                    f"{where}, `{training['preset']}`, {training['batch']} episodes, {lying}",
                    f"{reading['seconds']:.1f} s",
                    f"{reading['frame_by_frame_ratio']:.1f} x as long",
                    f"{row['step_ms']:.0f} ms",
                    f"{row['wait_share']:.2%}",
                ]
            )
    assert table_below("training") == rows


def test_parameter_counts_are_those_of_the_code() -> None:
    assert result("parameters.json") == parameters.sizes()
    architecture = (ROOT / "docs/architecture.md").read_text()
    paper = result("parameters.json")["paper"]
    tensor_bytes = paper.pop("state_tensor_bytes")
    for name, count in {**paper, **tensor_bytes}.items():
        assert f"{count:,}" in architecture, name
        if name in Budget.__dataclass_fields__:
            assert f"{count:,}" in README, name
    for preset in result("parameters.json").values():
        assert f"{preset['trainable']:,}" in architecture
        assert f"{preset['state_bytes']:,}" in architecture


@pytest.mark.parametrize("document", ["README.md", "LOG.md"])
def test_initialisation_table(document: str) -> None:
    text = (ROOT / document).read_text()
    for variant, seeds in result("initialisation.json")["first_step_at_97_percent"].items():
        learned = sorted(step for step in seeds.values() if step is not None)
        steps = ", ".join(map(str, learned)) or "-"
        assert f"| {variant} | {len(learned)} of {len(seeds)} | {steps} |" in text, variant


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", SHIPPED / "camo-small/README.md"], ids=["readme", "card"]
)
def test_scores_on_camo(page: Path) -> None:
    scored = result("camo-chameleon.json")
    assert camo_scores.with_table(page.read_text(), camo_scores.table(scored)) == page.read_text()
    for track in camo_scores.tracks(scored):
        assert {task["episodes"] for task in track["tasks"].values()} == {200} and list(
            track["tasks"]
        ) == list(TASKS)
    weights = (SHIPPED / "camo-small/model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == scored["policy_sha256"]
    steps = json.loads((SHIPPED / "camo-small/config.json").read_text())["config"]["sampling_steps"]
    assert {task["euler_steps"] for task in scored["tasks"].values()} == {steps}
    assert f"{steps} Euler steps" in page.read_text()
    card = (SHIPPED / "camo-small/README.md").read_text()
    assert (
        f"--minutes {scored['minutes']:.1f}" in card
        and f"{scored['demonstrations']} scripted demonstrations" in card
    )
    assert f"({scored['steps']:,} steps)" in card
    other, words = scored["tracks"]["120"], " ".join(README.split())
    both = (scored, other)
    assert (
        f"for {scored['minutes']:.1f} minutes on an H200" in words
        and f"for {other['minutes']:.1f} minutes beside" in words
    )
    assert "Our targets (MSR 95, DSR 95, SR 90 on average) are reached in both tracks" in words
    for rate, wanted in (("msr", 0.95), ("dsr", 0.95), ("sr", 0.9)):
        assert all(camo_scores.mean(track, rate) >= wanted for track in both)
    failed = [
        each
        for task in other["tasks"].values()
        for each in task["rollouts"]
        if each["reason"] != "success"
    ]
    second = [
        each for each in failed if each["reason"] == "wrong choice" and each.get("swaps") == 2
    ]
    assert f"second swap ({len(second)} of {len(failed)} failures)" in words
    for count, way in (
        ("1", "DSR is {} and {} after one swap (600 and 120"),
        ("2", "{} and {} after two."),
    ):
        rates = [
            track["tasks"]["shell-game"]["by_difficulty"]["swaps"][count]["dsr"]["value"]
            for track in both
        ]
        assert way.format(*map(percent, rates)) in words


def test_the_delay_study() -> None:
    points, words = result("delay-shell-game.json"), " ".join(README.split())
    after = {
        steps: percent(row["dsr"]["value"]) for steps, row in points["retention_steps"].items()
    }
    assert (
        f"After 300 steps, ten times the longest wait of its training, {after['300']} % of the choices are right"
        in words
    )
    assert f"after 3 steps {after['3']} %" in words and points["trained_on"]["retention_steps"] == [
        3,
        30,
    ]
    assert f"{points['episodes']} episodes a point" in words and points["euler_steps"] == 8
    longer = result("delay-shell-game-long.json")["retention_steps"]
    later = [percent(longer[steps]["dsr"]["value"]) for steps in ("600", "1000")]
    assert "after 600 steps {} % and after 1,000 {} %".format(*later) in words
    many = [
        percent(row["dsr"]["value"]) for swaps, row in points["swaps"].items() if swaps in "3456"
    ]
    assert (
        f"with three to six swaps, which it was not trained on, {min(many)} to {max(many)} %"
        in words
    )


@pytest.mark.parametrize("name", ["trials", "trials-pictures", "trials-mirror"])
def test_trials_table(name: str) -> None:
    rows = []
    for row in result(f"camo-{name}.json").values():
        probes = [
            f"{100 * look['held_out_probe']:.0f}"
            for look in row["looks"]
            if "held_out_probe" in look
        ]
        rates = [
            f"{100 * row[name]['value']:.0f}" if name in row else "-"
            for name in ("msr", "dsr", "sr")
        ]
        policy = f"{row['preset']}, {row['observations']}"
        rows.append(
            [
                policy,
                row["task"],
                row["what"],
                f"{row['steps']:,}",
                probes[-1] if probes else "-",
                *rates,
            ]
        )
    assert table_below(name, (ROOT / "LOG.md").read_text()) == rows


def test_no_page_says_the_same_twice() -> None:
    for document in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        headings = re.findall(r"^## .*", document.read_text(), re.MULTILINE)
        assert document.name == "CHANGELOG.md" or len(set(headings)) == len(headings), document.name


def test_links_lead_somewhere() -> None:
    for document in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "LOG.md",
        *(ROOT / "docs").glob("*.md"),
    ]:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            if not target.startswith("http"):
                assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_every_result_says_where_it_came_from() -> None:
    files = list((ROOT / "docs/results").glob("*.json"))
    assert files
    for path in files:
        document = json.loads(path.read_text())
        content = "rows" if path.name == "camo-table.json" else "result"
        assert set(document) == {
            "command",
            "seeds",
            "hardware",
            "software",
            "git_revision",
            "duration_s",
            content,
        }
        for each in (document, *document.get("rows", ())):
            assert re.fullmatch(r"[0-9a-f]{7,40}", each["git_revision"]), (
                f"{path.name}: {each['git_revision']}"
            )


def test_the_tutorial_runs_as_written(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    blocks = re.findall(
        r"```(bash|python)\n(.*?)```", (ROOT / "docs/tutorial.md").read_text(), re.DOTALL
    )
    assert len(blocks) >= 7
    for language, code in blocks:
        program = ["bash", "-ec", code] if language == "bash" else [sys.executable, "-c", code]
        result = subprocess.run(
            program, capture_output=True, text=True, env=environment, timeout=600
        )
        assert result.returncode == 0, f"{code}\n{result.stderr}"
    assert (tmp_path / "scores.json").exists()
    assert list((tmp_path / "failures").glob("*.mp4"))


def test_performance_page() -> None:
    page = (ROOT / "docs/performance.md").read_text()
    figures, floor, tuning = (
        result(name) for name in ("performance-h200.json", "floor.json", "kernel-tuning.json")
    )
    ours, curves = figures["training"]["ours"], figures["training"]["curves"]
    parts = [
        [
            name,
            f"{row['operations'] / 1e12:.1f} TFLOP",
            f"{row['operations_ms']:.0f} ms",
            f"{row['bytes_ms']:.0f} ms",
        ]
        for name, row in floor["parts"].items()
    ]
    assert table_below("floor", page) == parts
    assert tuning["euler_repeated"]["different_from_the_first"] == 0
    steps = [
        [
            number,
            f"{row['difference_to_50_steps']:.4f}",
            f"{row['msr']['value']:.0%}",
            f"{row['dsr']['value']:.0%}",
        ]
        for number, row in result("euler-steps.json")["steps"].items()
    ]
    assert table_below("euler", page) == steps
    together = floor["operations_ms"] + floor["bytes_ms"]
    text = " ".join(page.split())
    apart = curves["mean_absolute_difference"]
    second, first = tuning["kernels"]["second"], tuning["kernels"]["first"]
    eager, later = tuning["step_ms"], tuning["later"]["step_ms_first_run"]
    elsewhere = tuning["later"]["control_in_another_run_ms"]
    one = {
        name: values
        for name, values in tuning["euler"].items()
        if "columns 16, 16, 16 warps 4, 8, 8, 8" in name
    }
    precise, short = (
        next(v for k, v in one.items() if k.startswith(kind)) for kind in ("float32", "bfloat16")
    )
    cpu = result("performance-cpu.json")["control"]["fast"]
    observe, one_step, eight_steps = (cpu[name]["p50_ms"] for name in ("observe", "act_1", "act_8"))
    for said in (
        f"`observe` {observe:.0f} ms, `act` {eight_steps:.0f} ms with 8 steps and {one_step:.0f} ms with one",
        f"an `act` with 8 steps take {observe + eight_steps / 8:.0f} ms",
        f"asks for a chunk takes {observe + one_step:.0f} ms",
        f"a p99 of {cpu['observe']['p99_ms']:.0f} ms for `observe`",
        f"{floor['operations_ms']:.0f} ms of arithmetic and {floor['bytes_ms']:.0f} ms of memory traffic",
        f"takes {ours['step_ms'] / together:.1f} times as long",
        f"by {apart['ours_to_plain']:.4f} on average, the plain ones by {apart['plain_to_plain_rounded']:.4f}",
        f"{first['gn 784x64 whole 16384 per 16 fwd floor 0.191']:.2f} ms against "
        f"{second['gn 784x64 rows 16 per 16 fwd floor 0.191']:.2f} for 28 x 28 x 64",
        f"{second['scan T 64 S 2176 chunk 32 gradients 4 fwd+bwd']:.1f} instead of "
        f"{second['scan T 64 S 2176 chunk 64 gradients 4 fwd+bwd']:.1f} ms at 64 steps",
        f"{first['scan T 512 S 592 chunk 64 gradients 8 fwd+bwd']:.1f} ms instead of "
        f"{second['scan T 512 S 592 chunk 64 gradients 4 fwd+bwd']:.1f} at 512 steps",
        f"({eager['eager, head in halves']:.0f} instead of {eager['eager, head in one piece']:.0f} ms a step)",
        f"({eager['recorded, head in halves']:.0f} instead of {eager['recorded, head in one piece']:.0f} ms)",
        *(
            f"{row['recorded_ms']:.0f} ms instead of {row['not_recorded_ms']:.0f} for `{name}`"
            for name, row in figures["recording"].items()
        ),
        f"eager `observe` took {elsewhere['eager observe']:.1f} ms and ACT {elsewhere['lerobot ACT']:.1f} ms",
        f"ours took {elsewhere['observe']:.2f} and {elsewhere['act_8']:.2f} ms",
        f"was slower ({later['base']:.0f} instead of {later['head in one piece']:.0f} ms)",
        f"{tuning['euler_repeated']['runs']} runs agreed to the last bit",
        f"{precise['50_steps_ms']:.1f} instead of {short['50_steps_ms']:.1f} ms for 50 steps",
        f"({precise['largest_difference_to_float32']:.3f} instead of {short['largest_difference_to_float32']:.3f} largest",
    ):
        assert said in text, said


def test_speed_in_the_readme() -> None:
    figures = result("performance-h200.json")
    text = " ".join(README.split())
    for said in (
        f"{figures['train_speedup']:.1f} times the speed of the plain code",
        f"in {figures['train_memory_ratio']:.0%} of its memory",
        f"`observe` takes {figures['observe224_ms']:.1f} ms,",
        f"a chunk of actions {figures['act8_ms']:.1f} ms with 8 Euler steps",
        f"and {figures['act50_ms']:.1f} ms with 50",
    ):
        assert said in text, said
