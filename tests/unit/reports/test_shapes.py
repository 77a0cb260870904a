"""Cases that are compared with each other, by workers, links and batches, and their names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic_run import NO_GPU, SINGLE, Case, write_run

from reports.changes.changes import changes_between
from reports.compare import build
from reports.load import load
from reports.rows.report import Comparison
from reports.rows.row import Row

ALONE = Case(workload="w", p50_s=0.020, **SINGLE)
REDUCE = Case(workload="w", strategy="all-reduce", p50_s=0.010)
PS = Case(workload="w", strategy="ps", p50_s=0.016)
SKIPPED = dict.fromkeys(range(3), ("skipped", NO_GPU))

Compared = Callable[[list[Case]], tuple[Comparison, ...]]


@pytest.fixture
def compared(tmp_path: Path) -> Compared:
    return lambda cases: build([load(write_run(tmp_path / "run", cases))]).comparisons


def row(comparison: Comparison, strategy: str) -> Row:
    (only,) = [row for row in comparison.rows if row.strategy == strategy]
    return only


@pytest.mark.parametrize(
    ("field", "values", "words"),
    [
        ("cores", (1, 2.5), ("1 core a worker", "2.50 cores a worker")),
        ("memory_bytes", (2 * 10**9, 4 * 10**9), ("2.00 GB of memory", "4.00 GB of memory")),
        ("image_digest", ("sha256:0123456789abc", "sha256:fedcba98765"), ("image 0123456789ab", "image fed")),
    ],
)
def test_what_workers_have_tells_comparisons_apart(
    compared: Compared, field: str, values: tuple[Any, Any], words: tuple[str, str]
) -> None:
    slow, fast = (
        [replace(case, p50_s=case.p50_s * factor, **{field: value}) for case in (ALONE, REDUCE, PS)]
        for factor, value in zip((1.0, 0.1), values, strict=True)
    )
    comparisons = compared([*slow, *fast])
    assert len(comparisons) == 2
    by_words = {text: comparison for comparison in comparisons for text in words if text in comparison.shape}
    assert sorted(by_words) == sorted(words)
    for text, p50_s in zip(words, (0.020, 0.0020), strict=True):
        comparison = by_words[text]
        assert {row.strategy: row.n for row in comparison.rows} == {"single": 3, "all-reduce": 3, "ps": 3}
        # It is the `single` of the same workers.
        rate = row(comparison, "single").rate
        assert rate is not None
        assert rate.value == pytest.approx(64 / p50_s, rel=0.1)


def test_what_all_workers_have_is_no_part_of_the_text(compared: Compared) -> None:
    alike = {"cores": 4, "memory_bytes": 10**9, "image_digest": "sha256:0"}
    (comparison,) = compared([replace(case, **alike) for case in (ALONE, REDUCE)])
    assert comparison.shape == "2 workers, 1 replica each, CPU, local provider, batch 64"


def test_two_cases_under_one_name_stay_two(compared: Compared) -> None:
    (comparison,) = compared([ALONE, PS, replace(PS, case_number=1, p50_s=0.004)])
    names = sorted(row.strategy for row in comparison.rows)
    assert names[:1] + names[2:] == ["ps", "single"]
    assert names[1].startswith("ps (")
    assert [row.n for row in comparison.rows] == [3, 3, 3]


def test_which_of_two_cases_has_the_bare_name_is_the_same_in_every_run(tmp_path: Path) -> None:
    cases = [PS, replace(PS, case_number=1, p50_s=0.004)]
    rates = []
    for seed in range(4):
        run = load(write_run(tmp_path / str(seed), cases, seed=seed))
        rate = row(build([run]).comparisons[0], "ps").rate
        assert rate is not None
        rates.append(rate.value)
    assert max(rates) / min(rates) < 1.2


@pytest.mark.parametrize("mbit", [100.0, 1000.0])
def test_a_case_that_was_never_planned_stays_with_its_own_link(compared: Compared, mbit: float) -> None:
    planned = [replace(REDUCE, link_mbit=(rate, rate)) for rate in (100.0, 1000.0)]
    skipped = replace(PS, link_mbit=(mbit, mbit), batch_size=None, problems=SKIPPED)
    comparisons = compared([ALONE, *planned, skipped])
    with_ps = [
        comparison for comparison in comparisons if any(row.strategy == "ps" for row in comparison.rows)
    ]
    assert [with_p.link_requested_mbit for with_p in with_ps] == [mbit]
    assert len(comparisons) == 2


@pytest.mark.parametrize("batch_size", [32, 128])
def test_a_case_that_was_never_planned_stays_with_the_batch_it_was_asked_for(
    compared: Compared, batch_size: int
) -> None:
    both = (replace(REDUCE, batch_size=size, workload_params={"batch_size": size}) for size in (32, 128))
    values = {"batch_size": batch_size}
    skipped = replace(PS, workload_params=values, batch_size=None, problems=SKIPPED)
    comparisons = compared([*both, skipped])
    with_ps = [
        comparison for comparison in comparisons if any(row.strategy == "ps" for row in comparison.rows)
    ]
    assert [with_p.batch_size for with_p in with_ps] == [batch_size]
    assert len(comparisons) == 2


def test_single_is_set_against_single_whatever_it_stands_beside(tmp_path: Path) -> None:
    four = replace(PS, workers=4)
    before = load(write_run(tmp_path / "before", [ALONE, PS, four], seed=1))
    after = load(write_run(tmp_path / "after", [ALONE, four], seed=2))
    changes = changes_between(before, after)
    verdicts = {(case.strategy, case.shape.partition(",")[0]): case.verdict for case in changes.cases}
    (single,) = [verdict for (name, _), verdict in verdicts.items() if name == "single"]
    assert single != "not-comparable"
    assert verdicts["ps", "4 workers"] != "not-comparable"
    assert verdicts["ps", "2 workers"] == "not-comparable"


def test_runs_on_other_cores_are_paired_and_not_comparable(tmp_path: Path) -> None:
    cases = [ALONE, REDUCE]
    before = load(write_run(tmp_path / "before", cases, seed=1))
    after = load(write_run(tmp_path / "after", [replace(case, cores=2) for case in cases], seed=2))
    changes = changes_between(before, after)
    assert [case.verdict for case in changes.cases] == ["not-comparable"] * 2
    assert all(case.why.startswith("method.cores_per_worker") for case in changes.cases)
