"""Probes of synthetic material find exactly the information that was put into it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from chameleon_policy.probes.addressability import top_quarter, trace_accuracies
from chameleon_policy.probes.prospectiveness import lead, prospectiveness, ready
from chameleon_policy.probes.representations import WINDOW
from chameleon_policy.probes.separability import separability
from chameleon_policy.rates import Rate
from chameleon_policy.train.held_out import LinearProbe
from probe_material import TOKENS, material


def found(task: str, **options: int):
    return separability(material(task, **options), torch.Generator().manual_seed(0))


def test_shares_are_those_of_a_fitted_softmax() -> None:
    generator = torch.Generator().manual_seed(0)
    answers = torch.arange(3).repeat(30)
    rows = torch.randn(90, 5, generator=generator) + 3 * torch.nn.functional.one_hot(answers, 5)
    probe = LinearProbe.fit(rows, answers, 3)
    shares = probe.probabilities(rows)
    torch.testing.assert_close(shares.sum(-1), torch.ones(90))
    assert (
        torch.equal(shares.argmax(-1), probe.predict(rows))
        and (probe.predict(rows) == answers).float().mean() > 0.95
    )
    # At the optimum of cross-entropy with a bias, the mean share of every class is its frequency.
    torch.testing.assert_close(shares.mean(0), torch.full((3,), 1 / 3), rtol=0, atol=1e-3)


class TestSeparability:
    @pytest.mark.parametrize("task", ["clean-plate", "seasonings"])
    def test_the_memory_holds_the_answer_and_the_scene_does_not(self, task: str) -> None:
        result = found(task, fitted=120)
        decisions = 45 * (3 if task == "seasonings" else 1)
        assert result.memory.value > 0.95 and result.memory.count == decisions
        assert result.current.low < result.chance < result.current.high
        assert result.chance == (1 / 27 if task == "seasonings" else 1 / 3)

    def test_shuffled_labels_are_at_chance(self) -> None:
        rates = [
            separability(material(seed=seed), torch.Generator().manual_seed(seed)).shuffled
            for seed in range(6)
        ]
        right, asked = (
            sum(round(rate.value * rate.count) for rate in rates),
            sum(rate.count for rate in rates),
        )
        pooled = Rate.of(right, asked)
        assert pooled.low < 1 / 3 < pooled.high

    def test_an_empty_memory_is_at_chance(self) -> None:
        result = found("clean-plate", known_from=30)
        assert result.memory.low < result.chance < result.memory.high

    def test_over_time_the_answer_appears_when_it_is_known(self) -> None:
        line = dict(found("clean-plate", known_from=-21).over_time["answer"])
        assert all(rate.value > 0.9 for step, rate in line.items() if step >= -21)
        before = [rate.value for step, rate in line.items() if step < -21]
        assert before and sum(before) / len(before) < 0.55
        assert min(line) == -48  # the episodes have 50 steps before the decision

    def test_every_element_of_an_answer_has_a_curve(self) -> None:
        result = found("seasonings")
        assert list(result.over_time) == ["first", "second", "third"]
        assert result.place_by_place is not None and result.place_by_place.value > 0.95
        assert found("clean-plate").place_by_place is None


class TestProspectiveness:
    @pytest.mark.parametrize("known_from", [-20, -7])
    def test_ready_when_the_answer_is_there(self, known_from: int) -> None:
        result = prospectiveness(material(known_from=known_from, trace_from=-6, fitted=200))
        lines = result.as_dict()
        assert (ready(lines["working"]), ready(lines["traces"])) == (known_from, -6)
        assert result.chance == 1 / 3

    def test_each_decision_counts(self) -> None:
        result = prospectiveness(material("seasonings"))
        assert dict(result.working)[0].count == 3 * 45
        assert [step for step, _ in result.traces] == list(WINDOW)

    @pytest.mark.parametrize(
        ("values", "expected"),
        [("9599 5", -1), ("9995 9", 1), ("9995 5", None), ("9999 5", -3), ("5559 9", 0)],
    )
    def test_held_until_the_decision_or_else_later(self, values: str, expected: int | None) -> None:
        """Accuracies in tenths, from three steps before the decision to one after it."""
        steps = dict(zip(range(-3, 2), values.replace(" ", ""), strict=True))
        assert (
            ready([{"step": step, "value": int(tenths) / 10} for step, tenths in steps.items()])
            == expected
        )

    def test_lead_in_steps(self) -> None:
        assert lead(-20, -3) == 17 and lead(-3, -20) == -17 and lead(None, -3) is None


class TestRelevantTraces:
    def test_the_informative_trace_is_found(self) -> None:
        shares = trace_accuracies(material())
        assert shares.shape == (2, TOKENS)
        assert int(shares[-1].argmax()) == 3 and shares[-1, 3] > 0.95
        assert shares[0].max() < 0.65  # nothing in the first layer
        assert (
            bool(top_quarter(shares)[-1, 3])
            and top_quarter(shares).sum(-1).tolist() == [TOKENS // 4] * 2
        )

    def test_a_quarter_of_the_tokens_and_the_first_of_equals(self) -> None:
        assert top_quarter(torch.tensor([0.1, 0.5, 0.5, 0.5, 0.2, 0.3, 0.4, 0.0])).tolist() == [
            0,
            1,
            1,
            0,
            0,
            0,
            0,
            0,
        ]
        assert top_quarter(torch.tensor([0.1, 0.2, 0.3])).sum() == 1


def test_steps_that_few_episodes_have_are_left_out() -> None:
    """Steps that fewer than half of the episodes have are left out."""
    made = material()
    late = [replace(each, decisions=(10,)) for each in made.asked]
    steps = [step for step, _ in prospectiveness(replace(made, asked=late)).working]
    assert min(steps) == -10
