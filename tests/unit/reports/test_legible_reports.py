"""Names and messages of others in every medium: no character of them acts on the text around it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from synthetic_run import SINGLE, Case, write_run

import reports
from harness.records.outcome import Failure

ODD = "\x1b[2Ja\u202eb\u2066c\x9bd\ne\u2028f\x00g\u200bh"
SPELT = "\\x1b[2Ja\\u202eb\\u2066c\\x9bd e f\\x00g\\u200bh"
UNSEEN = "\x1b\u202e\u2066\x9b\u2028\x00\u200b"
SCIENTIST = "\N{WOMAN}\u200d\N{MICROSCOPE}"


def cases(name: str) -> list[Case]:
    failed = {1: ("failed", Failure(type=name, message=name, stage=name))}
    params = {name: name}
    return [
        Case(workload=name, **SINGLE, notes=(name,), warnings=(name,)),
        Case(workload=name, strategy=name, params=params, scenario=name, faults=(name,), files=(name,)),
        Case(workload=name, strategy="ps", p50_s=0.01, problems=failed),
    ]


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("odd") / "run"
    path = write_run(path, cases(ODD), baseline=ODD)
    with (path / "results.jsonl").open("a") as stream:
        stream.write('{"schema": "\x7f\u202e"}\n')
    return path


@pytest.mark.parametrize("medium", ["html", "md", "csv", "json", "junit"])
def test_no_medium_has_characters_that_act_on_it(odd: Path, medium: str) -> None:
    told: list[str] = []
    text = reports.render([odd], medium, tell=told.append)
    assert not set(UNSEEN) & set("".join([text, *told]))
    plainly = text.replace("\\\\", "\\") if medium in ("md", "json", "html") else text
    assert "u202eb" in plainly
    assert "x1b" in plainly


def test_the_terminal_neither(odd: Path) -> None:
    made = reports.report_of(odd)
    shown = [text for table in made.tables for row in table.rows for text in row]
    assert any(SPELT in text for text in shown)


def test_what_a_strategy_is_called_in_the_experiment_is_found(odd: Path) -> None:
    comparisons = json.loads(reports.render([odd], "json"))["comparisons"]
    assert f"{SPELT}:{SPELT}={SPELT}" in [comparison["baseline"] for comparison in comparisons]


@pytest.mark.parametrize("medium", ["html", "md", "csv", "json", "junit"])
def test_joined_letters_stay(tmp_path: Path, medium: str) -> None:
    path = write_run(tmp_path / "run", cases(f"قياس {SCIENTIST}"))
    assert f"قياس {SCIENTIST}" in reports.render([path], medium)


@pytest.mark.parametrize("medium", ["html", "md", "csv", "json", "junit"])
def test_an_endless_name_is_cut(tmp_path: Path, medium: str) -> None:
    long = write_run(tmp_path / "long", cases("n" * 100_000))
    middling = write_run(tmp_path / "middling", cases("n" * 2_000))
    text = reports.render([long], medium)
    assert "characters more" in text
    assert len(text) < 1.5 * len(reports.render([middling], medium))


def test_a_secret_in_a_long_text_is_left_out_before_that_is_cut(tmp_path: Path) -> None:
    name = "n" * 990 + " token=" + "hunter2" * 10_000
    text = reports.render([write_run(tmp_path / "run", cases(name))], "json")
    assert "hunter2" not in text
    assert "token=[redacted]" in text
