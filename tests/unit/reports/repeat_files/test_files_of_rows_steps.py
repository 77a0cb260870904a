"""Steps of a report stay within its share, whatever the run holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_many_cases import write_many_cases

from reports.compare import build
from reports.load import MAX_SHOWN_REPEATS, MAX_SHOWN_STEPS, load, read_steps
from reports.repeat_files import files_of_rows
from reports.repeat_files.files_of_rows import LEAST_STEPS, MOST_STEPS, StepShares


@given(st.lists(st.integers(0, 500), max_size=1600))
def test_shares_fit_a_report_while_each_row_can_have_one_repeat(n_usable: list[int]) -> None:
    shares = StepShares.of(n_usable)
    assert 1 <= shares.repeats <= MAX_SHOWN_REPEATS
    assert LEAST_STEPS <= shares.steps <= MAX_SHOWN_STEPS
    assert shares.steps * sum(min(shares.repeats, n) for n in n_usable) <= MOST_STEPS


def test_a_small_report_shows_as_much_as_it_may() -> None:
    assert StepShares.of([3] * 10) == StepShares(repeats=MAX_SHOWN_REPEATS, steps=MAX_SHOWN_STEPS)
    # Repeats come before steps.
    assert StepShares.of([3] * 200) == StepShares(repeats=MAX_SHOWN_REPEATS, steps=26)
    assert StepShares.of([3] * 1000).repeats == 1


@pytest.mark.parametrize(("most", "n_shown"), [(24 * 12, 12), (24 * 5, 5)])
def test_steps_of_all_rows_stay_within_the_share_and_the_rest_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, n_shown: int
) -> None:
    monkeypatch.setattr(files_of_rows, "MOST_STEPS", most)
    path = write_many_cases(tmp_path / "run", n_shapes=3, n_strategies=3, n_repeats=3)
    report = build([load(path)], read_steps=read_steps)
    series = [steps for c in report.comparisons for row in c.rows for steps in row.steps]
    assert {len(steps.seconds) for steps in series} == {max(24, most // 9)}
    assert all(steps.seconds[0] > 3 * steps.seconds[-1] for steps in series)  # from the first to the last
    assert len(series) == min(9, n_shown)
    assert all(steps.thinned_from == 58 for steps in series)
    (item,) = report.left_out
    assert f"those of {27 - len(series)} repeats are not shown" in item.why
