"""The page of a night for Prometheus: whatever names are, it reads back as what went in."""

import re
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_programs import program

from harness.measure.prometheus import (
    METRICS,
    NIGHT_METRICS,
    PREFIX,
    SERIES_LABELS,
    NightFigures,
    SeriesFigure,
    night_page,
)

HOSTILE = 'a "b" \\n c\\\nd {e="f"} \N{SNOWMAN}'
LABELS = dict.fromkeys(SERIES_LABELS[1:], HOSTILE)
NIGHT = NightFigures(
    experiment=HOSTILE,
    began_s=1.7e9,
    n_by_state={"ok": 1, "regressed": 1, "missed": 0},
    n_lost=2,
    series=(
        SeriesFigure(labels=LABELS, value=321.5),
        SeriesFigure(labels={**LABELS, "metric": "rate"}, value=7.0, regression=0.8),
    ),
)


def samples(night: NightFigures) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Name and labels → value, as Prometheus reads the page."""
    families = text_string_to_metric_families(night_page(night).decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def test_a_page_reads_back_as_the_night_that_went_in() -> None:
    experiment = ("experiment", HOSTILE)
    plain, worse = (frozenset([*each.labels.items(), experiment]) for each in NIGHT.series)
    assert samples(NIGHT) == {
        ("stratbench_nightly_timestamp_seconds", frozenset([experiment])): 1.7e9,
        ("stratbench_nightly_regressed", frozenset([experiment])): 1.0,
        ("stratbench_nightly_cases_without_figure", frozenset([experiment])): 2.0,
        ("stratbench_nightly_series", frozenset([experiment, ("state", "ok")])): 1.0,
        ("stratbench_nightly_series", frozenset([experiment, ("state", "regressed")])): 1.0,
        ("stratbench_nightly_series", frozenset([experiment, ("state", "missed")])): 0.0,
        ("stratbench_nightly_figure", plain): 321.5,
        ("stratbench_nightly_figure", worse): 7.0,
        ("stratbench_nightly_regression_ratio", worse): 0.8,
    }


@pytest.mark.parametrize("item", NIGHT_METRICS, ids=lambda item: item.name)
def test_metrics_of_a_night_have_names_of_their_own(item) -> None:
    assert re.fullmatch(rf"{PREFIX}nightly_[a-z_]*[a-z]", item.name)
    assert item.name not in {other.name for other in METRICS}
    assert "run" not in item.labels


@pytest.mark.prometheus
def test_promtool_has_nothing_to_say_of_a_page() -> None:
    promtool = program("promtool")
    assert promtool is not None
    done = subprocess.run(
        [promtool, "check", "metrics"], input=night_page(NIGHT), capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
