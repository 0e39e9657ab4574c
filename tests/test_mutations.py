"""The bugs of the mutation run still fit the code."""

from __future__ import annotations

from benchmarks.mutations import MUTATIONS, ROOT


def test_every_bug_has_exactly_one_place() -> None:
    for bug in MUTATIONS:
        text = (ROOT / "src/chameleon_policy" / bug.file).read_text()
        assert text.count(bug.old) == 1, f"{bug.file}: {bug.old!r}"
        for name in bug.tests[:1]:
            assert (ROOT / name).is_file()
