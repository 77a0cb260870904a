"""Damaged run folders: what is usable is used, the rest is said."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from open_folders import made_record
from synthetic_run import SINGLE, Case, write_run

import reports
from harness.errors import StoreError
from harness.records.checksums import with_checksum, without_checksum
from harness.records.comparison import paired_ratios
from harness.records.costs import ObserverEffect
from harness.records.outcome import Failure, Rounds
from harness.records.record import Record
from harness.records.run_folder import open_run
from reports.compare import build
from reports.load import Run, load, read_steps
from reports.recommendation.notes import observer_notes
from reports.rows.parts import StepSeries
from reports.rows.report import LeftOut

CASES = [Case(workload="w", p50_s=0.02, **SINGLE), Case(workload="w", strategy="ps", p50_s=0.01)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", CASES)


def edit(folder: Path, change: Callable[[list[str]], list[str]]) -> Run:
    path = folder / "results.jsonl"
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")
    return load(folder)


def written(line: str, change: dict[str, object]) -> str:
    """The line of another version, which would have written some fields otherwise."""
    return json.dumps(with_checksum(without_checksum(json.loads(line)) | change))  # type: ignore[arg-type, operator]


def test_a_sound_folder_leaves_nothing_out(folder: Path) -> None:
    run = load(folder)
    assert (len(run.records), run.left_out) == (6, ())


def test_a_torn_last_line_is_said(folder: Path) -> None:
    with (folder / "results.jsonl").open("a") as stream:
        stream.write('{"schema":1,')
    run = load(folder)
    assert len(run.records) == 6
    assert "incomplete" in run.left_out[0].why


@pytest.mark.parametrize("line", ["not json", "[]", "{}", '{"schema":1}', '{"schema":99}', "\x00\x00"])
def test_a_damaged_line_costs_that_line_only(folder: Path, line: str) -> None:
    run = edit(folder, lambda lines: [line, *lines])
    assert len(run.records) == 6
    assert [item.where for item in run.left_out] == ["results.jsonl line 1"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("examples_per_s", "fast"),
        ("step_s", 3),
        ("tcp_matrix", [[1], "x"]),
        ("loss", {}),
        ("batch_size", 1.5),
    ],
)
def test_a_damaged_field_costs_that_field_only(folder: Path, field: str, value: object) -> None:
    run = edit(folder, lambda lines: [written(lines[0], {field: value}), *lines[1:]])
    assert len(run.records) == 6
    assert getattr(run.records[0], field) is None
    assert len(run.left_out) == 1
    assert run.left_out[0].why.startswith(field)
    assert "shown as missing" in run.left_out[0].why


def test_two_damaged_fields_of_a_line_are_both_said(folder: Path) -> None:
    broken = {"loss": "x", "transform_s": "y"}
    run = edit(folder, lambda lines: [written(lines[0], broken), *lines[1:]])
    assert len(run.records) == 6
    assert len(run.left_out) == 2


def test_a_line_that_names_no_case_is_left_out(folder: Path) -> None:
    run = edit(folder, lambda lines: [written(lines[0], {"workload": 7}), *lines[1:]])
    assert len(run.records) == 5
    assert "the line is left out" in run.left_out[0].why


@pytest.mark.parametrize("name", ["environment.json", "experiment.yaml"])
@pytest.mark.parametrize("text", ["{", "- 1\n- 2\n", ""])
def test_a_damaged_side_file_does_not_cost_the_results(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    run = load(folder)
    assert len(run.records) == 6
    assert [item.where for item in run.left_out] == [name]


def test_absent_results_make_an_empty_report(folder: Path) -> None:
    (folder / "results.jsonl").unlink()
    assert build([load(folder)]).comparisons == ()


def test_what_is_no_run_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="run folder"):
        load(tmp_path)
    with pytest.raises(StoreError, match="no such folder"):
        load(tmp_path / "absent")


def test_a_repeat_run_again_counts_once_and_is_said(folder: Path) -> None:
    run = edit(folder, lambda lines: [*lines, lines[0]])
    assert len(run.records) == 6
    assert "run again" in run.left_out[0].why


def test_missing_and_damaged_steps_are_said(folder: Path) -> None:
    run = load(folder)
    first, second = run.records[:2]
    assert isinstance(read_steps(run, first), StepSeries)
    run.stored.repeat_dir(first).joinpath("steps.parquet").write_bytes(b"PAR1")
    run.stored.repeat_dir(second).joinpath("steps.parquet").unlink()
    for record in (first, second):
        steps = read_steps(run, record)
        assert isinstance(steps, LeftOut)
        assert "step times are not shown" in steps.why
    assert len(build([run], read_steps=read_steps).left_out) == 2


@pytest.mark.parametrize("case", ["../../etc", "..", "a/b", "/etc"])
def test_a_case_id_cannot_point_out_of_the_folder(folder: Path, case: str) -> None:
    run = edit(folder, lambda lines: [written(lines[0], {"case": case}), *lines[1:]])
    steps = read_steps(run, run.records[0])
    assert isinstance(steps, LeftOut)
    assert "must be in the run folder" in steps.why


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A run folder with one file of every kind."""
    with open_run(
        tmp_path / "run",
        experiment={"name": "é", "workloads": ["w"], "seed": 17, "rate": 0.5},
        environment={"python": "3.11.7", "env": {"OMP_NUM_THREADS": "1"}, "n": 2},
    ) as folder:
        for case in ("a", "b"):
            folder.write_plan(case, 0, {"nodes": [{"variable": case}]})
            folder.write_trace(case, 0, {"events": [1, 2]})
            folder.append(a_record(folder.run, case))
    return tmp_path / "run"


def a_record(run: str, case: str) -> Record:
    return Record(
        run=run,
        case=case,
        repeat=0,
        order=0,
        workload="w",
        strategy="ps",
        strategy_class="exact",
        provider="local",
        device="cpu",
        workers=2,
        replicas=1,
        status="ok",
        examples_per_s=640.25,
        notes=("é",),
    )


def figures(run: Run) -> set[str]:
    """Everything that a report could show of a run folder's documents and records."""
    head = {"created": run.stored.created_utc, "spec": run.stored.spec_hash}
    documents = {"experiment": run.experiment, "environment": run.stored.environment}
    records = {str(record) for record in run.records}
    return records | {f"{name} {value}" for name, value in (head | documents).items() if value}


@pytest.mark.parametrize(
    ("name", "n_bits"),
    [
        ("run.json", 400),
        ("environment.json", 300),
        ("experiment.yaml", 300),
        ("results.jsonl", 500),
        ("cases/a/0/plan.json", 100),
        ("cases/a/0/trace.json", 100),
    ],
)
def test_no_flipped_bit_changes_what_is_shown_without_a_word(small: Path, name: str, n_bits: int) -> None:
    sound = figures(load(small, with_files=True))
    file = small / name
    data = file.read_bytes()
    rng = random.Random(name)
    n_noticed = 0
    for _ in range(n_bits):
        place, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
        file.write_bytes(data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :])
        run = load(small, with_files=True)
        assert figures(run) <= sound
        if figures(run) != sound or name.startswith("cases"):
            assert any(item.where.startswith(name.removeprefix("cases/")) for item in run.left_out)
            n_noticed += 1
    # What else there is are spaces, and letters that a number or an escape may be written with.
    assert n_noticed > 0.8 * n_bits


def test_flipped_bits_of_steps_are_said(folder: Path) -> None:
    run = load(folder)
    record = run.records[0]
    file = run.stored.repeat_dir(record) / "steps.parquet"
    data = file.read_bytes()
    rng = random.Random(0)
    for _ in range(200):
        place, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
        file.write_bytes(data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :])
        assert isinstance(read_steps(run, record), LeftOut)
    report = build([load(folder, with_files=True)], read_steps=read_steps)
    assert [item.where for item in report.left_out] == [f"{run.name}: {record.case}/0/steps.parquet"]
    assert f"{record.case}/0/steps.parquet" in reports.render([folder], "html")


def test_what_a_csv_leaves_out_is_told(folder: Path) -> None:
    file = folder / "results.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"w"', b'"v"', 1))
    messages: list[str] = []
    text = reports.render([folder], "csv", notify=messages.append)
    assert ",v," not in text
    (line,) = messages
    assert line.startswith("left out: ")
    assert "results.jsonl line 1: checksum: must be " in line


@pytest.mark.parametrize("column", ["worker", "step", "start_s", "window"])
@pytest.mark.parametrize("value", ["x", [1, 2]], ids=["words", "lists"])
def test_steps_of_other_types_are_left_out(folder: Path, column: str, value: str | list[int]) -> None:
    run = load(folder)
    file = run.stored.repeat_dir(run.records[0]) / "steps.parquet"
    table = pq.read_table(file)
    odd = pa.array([value] * table.num_rows)
    table = table.set_column(table.column_names.index(column), column, odd)
    pq.write_table(table, file)
    refused = read_steps(run, dataclasses.replace(run.records[0], file_checksums={}))
    assert isinstance(refused, LeftOut)
    assert "must hold steps written by stratbench" in refused.why


def mistake(*_: object, **__: object) -> None:
    raise ZeroDivisionError("a mistake of our own")


@pytest.mark.parametrize(
    "place",
    [
        "reports.load.load_run",
        "harness.records.stored_run.read_steps",
        "reports.repeat_files.plans._placement",
        "reports.repeat_files.files_of_rows._relevant_log",
    ],
)
def test_a_mistake_of_our_own_is_not_taken_for_damage(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = {1: ("failed", Failure(type="worker-died", message="worker 1", stage="run"))}
    path = write_run(tmp_path / "run", [*CASES, Case(workload="w", strategy="all-reduce", problems=failed)])
    for record in load(path).records:
        beside = load(path).stored.repeat_dir(record)
        beside.mkdir(parents=True, exist_ok=True)
        (beside / "plan.json").write_text('{"nodes": []}')
    reports.render([path], "html")
    monkeypatch.setattr(place, mistake)
    with pytest.raises(ZeroDivisionError):
        reports.render([path], "html")


def test_a_mistake_in_reading_a_line_is_none_of_the_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(folder, lambda lines: ["not json", *lines])
    monkeypatch.setattr("harness.records.results_file.from_json", mistake)
    with pytest.raises(ZeroDivisionError):
        load(folder)


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
    messages: list[str] = []
    text = reports.render([odd], medium, notify=messages.append)
    assert not set(UNSEEN) & set("".join([text, *messages]))
    plainly = text.replace("\\\\", "\\") if medium in ("md", "json", "html") else text
    assert "u202eb" in plainly
    assert "x1b" in plainly


def test_the_terminal_neither(odd: Path) -> None:
    text = reports.report_of(odd).text
    assert SPELT in text
    assert not set(UNSEEN) & set(text)


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


FORMATS = ("html", "md", "csv", "json", "junit")


@pytest.fixture
def odd_folder(tmp_path: Path) -> Path:
    cases = [Case(workload="w", p50_s=0.02, **SINGLE), Case(workload="w", strategy="ps", hosts=(0, 1))]
    return write_run(tmp_path / "run", cases, minutes=(1.0, 1.2))


def edit_records(folder: Path, change: Callable[[dict[str, Any]], None], *, strategy: str = "ps") -> None:
    """Change the records of a strategy, and seal them anew."""
    path = folder / "results.jsonl"
    lines: list[Any] = [without_checksum(json.loads(line)) for line in path.read_text().splitlines()]
    for line in lines:
        if line["strategy"] == strategy:
            change(line)
    path.write_text("".join(json.dumps(with_checksum(line)) + "\n" for line in lines))


def no_time(line: dict[str, Any]) -> None:
    line["rounds"]["step_s"][0] = 0.0
    line["rounds"]["step_s"][1] = -1.0


def ragged(line: dict[str, Any]) -> None:
    line["tcp_matrix"] = [[0.0, 5.0], [5.0]]


def wide(line: dict[str, Any]) -> None:
    line["tcp_matrix"] = [[0.0, 5.0, 1.0], [5.0, 0.0, 1.0]]


def no_rate(line: dict[str, Any]) -> None:
    line["examples_per_s"] = -5.0


def unpaired(line: dict[str, Any]) -> None:
    line["observer"] = {"with_s": [0.01, 0.01], "without_s": [0.01]}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (no_rate, "examples_per_s: must be above 0, got -5.0; shown as missing"),
        (
            ragged,
            (
                "tcp_matrix: must have as many cells in each line as lines, got 2 lines of 1, 2; "
                "shown as missing"
            ),
        ),
        (
            wide,
            "tcp_matrix: must have as many cells in each line as lines, got 2 lines of 3; shown as missing",
        ),
        (unpaired, "observer: must have windows in pairs, got 2 with and 1 without; shown as missing"),
    ],
)
def test_a_figure_that_nothing_can_be_made_of_is_left_out_with_a_line(
    odd_folder: Path, change: Callable[[dict[str, Any]], None], why: str
) -> None:
    edit_records(odd_folder, change)
    run = load(odd_folder)
    assert [item.why for item in run.left_out] == [why] * 3
    assert all(item.where.startswith("results.jsonl line ") for item in run.left_out)
    for name in FORMATS:
        assert "ps" in reports.render([odd_folder], name)


def test_rounds_without_a_time_are_left_out_one_by_one(odd_folder: Path) -> None:
    edit_records(odd_folder, no_time)
    run = load(odd_folder)
    why = "rounds.step_s: must be above 0, got 0.0; 2 such rounds are left out"
    assert [item.why for item in run.left_out] == [why] * 3
    assert {item.where for item in run.left_out} == {f"{r.case}/{r.repeat}" for r in run.records if r.hosts}
    for name in FORMATS:
        assert "ps" in reports.render([odd_folder], name)


def test_a_step_of_next_to_no_time_is_a_failure_of_its_repeat(odd_folder: Path) -> None:
    def endless(line: dict[str, Any]) -> None:
        line["step_s"]["p50"] = 1e-320

    edit_records(odd_folder, endless)
    for name in FORMATS:
        assert "ps" in reports.render([odd_folder], name)
    (problem,) = json.loads(reports.render([odd_folder], "json"))["problems"]
    assert (problem["strategy"], problem["type"], problem["repeats"]) == ("ps", "no-figure", [0, 1, 2])


@pytest.mark.parametrize(("of_ps", "of_single"), [(1e-250, 1e250), (1e250, 1e-250)])
def test_rates_further_apart_than_a_number_can_say_are_shown(
    odd_folder: Path, of_ps: float, of_single: float
) -> None:
    for strategy, p50_s in (("ps", of_ps), ("single", of_single)):

        def take(line: dict[str, Any], p50_s: float = p50_s) -> None:
            line["rounds"], line["step_s"]["p50"] = None, p50_s

        edit_records(odd_folder, take, strategy=strategy)
    assert load(odd_folder).left_out == ()
    for name in ("md", "csv", "json", "junit"):
        assert "ps" in reports.render([odd_folder], name)


def timed(case: str, steps_s: tuple[float, ...]) -> Record:
    rounds = Rounds(block="b", n_steps=5, n_lead=2, n_made=70, step_s=steps_s)
    return made_record(case=case, batch_size=64, rounds=rounds)


@pytest.mark.parametrize("odd_s", [0.0, -1.0, float("inf"), float("nan")])
def test_ratios_are_formed_in_rounds_in_which_both_took_time(odd_s: float) -> None:
    whole, odd = timed("a", (0.01,) * 5), timed("b", (odd_s, 0.02, 0.02, 0.02, 0.02))
    for one, other in ((whole, odd), (odd, whole)):
        assert len(paired_ratios([one], [other]).logs) == 1
    assert paired_ratios([whole], [timed("b", (odd_s,) * 5)]).logs == ()


@pytest.mark.parametrize(
    "odd",
    [
        ObserverEffect(with_s=(0.0,), without_s=(0.01,)),
        ObserverEffect(with_s=(0.01,), without_s=(0.0,)),
    ],
)
def test_what_measuring_takes_is_told_of_windows_in_pairs(odd: ObserverEffect) -> None:
    sound = made_record(observer=ObserverEffect(with_s=(0.0102,), without_s=(0.01,)))
    assert observer_notes({"ps": [made_record(observer=odd)]}) == []
    (note,) = observer_notes({"ps": [made_record(observer=odd), sound]})
    assert note.text == "instrumentation changes the mean step: ps +2.0 %"
