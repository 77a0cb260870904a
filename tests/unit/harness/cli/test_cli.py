"""The command line as a whole: help, lists, reports and the doctor."""

import re
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import pytest
from called import call, document

import reports
from harness.cli.app import _COMMANDS
from harness.cli.commands.nightly import COMMANDS as NIGHTLY
from harness.provision import doctor
from harness.records.run_documents import default_name
from harness.records.run_folder import open_run


@pytest.mark.parametrize("name", [name for _, name, _, _ in _COMMANDS])
def test_every_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str], name: str) -> None:
    status, captured = call(capsys, name, "--help")
    assert status == 0
    assert f"Example: stratbench {name}" in captured.out
    assert "--json" in captured.out
    assert "--debug" in captured.out


@pytest.mark.parametrize("name", [name for name, _, _ in NIGHTLY])
def test_every_sub_command_of_nightly_has_help_with_an_example(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    status, captured = call(capsys, "nightly", name, "--help")
    assert status == 0
    assert f"Example: stratbench nightly {name} quickstart" in " ".join(captured.out.split())


def test_help_names_what_is_there_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    status, captured = call(capsys)
    commands = captured.out.partition("Measure:")[2].partition("Example:")[0]
    names = re.findall(r"^  (\S+)  ", commands, re.MULTILINE)
    assert status == 0
    assert set(names) == {*(name for _, name, _, _ in _COMMANDS), "nightly"}


def test_help_shows_each_summary_in_one_line_of_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, captured = call(capsys, "--help")
    lines = captured.out.partition("Measure:")[2].partition("Example:")[0].splitlines()
    assert all(line.endswith((".", ":")) and len(line) <= 80 for line in lines if line.strip())


def test_options_stand_in_groups_with_their_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    _, captured = call(capsys, "run", "--help")
    text = " ".join(captured.out.split())
    groups = ["Experiment:", "Workers:", "Measurement:", "Checkpoints:", "Options:", "Every command:"]
    assert sorted(groups, key=text.index) == groups
    assert "--repeats N Repeats per case, each in new processes. [default: from the file, else 4]" in text


def test_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    status, captured = call(capsys, "--version")
    assert (status, captured.out) == (0, f"stratbench {metadata.version('stratbench')}\n")


def test_one_entry_of_a_list_shows_its_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    status, captured = call(capsys, "list", "compressors", "topk")
    assert status == 0
    assert re.search(
        r"^compressor_ratio +0.01 +Share of the values that is sent\.$", captured.out, re.MULTILINE
    )
    status, captured = call(capsys, "list", "compressors", "topk", "--json")
    assert [row["name"] for row in document(captured)] == ["topk"]
    status, captured = call(capsys, "list", "compressors", "topq")
    assert status == 2
    assert captured.err.startswith(
        "stratbench: name: must be one of the compressors, got 'topq'; did you mean"
    )


def test_every_shipped_experiment_has_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    _, captured = call(capsys, "list", "experiments", "--json")
    assert all(20 < len(row["summary"]) <= 83 for row in document(captured))


@pytest.mark.parametrize("kind", ["strategies", "workloads", "providers", "compressors", "experiments"])
def test_lists_are_arrays_of_what_the_contract_says(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    status, captured = call(capsys, "list", kind, "--json")
    rows = document(captured)
    assert status == 0
    assert rows
    for row in rows:
        assert (
            {"name", "summary", "params"}
            <= set(row)
            <= {*("name", "usual_name", "summary", "params", "class", "sizes", "workloads", "strategies")}
        )
        assert all({"name", "type", "default"} <= set(item) for item in row["params"])
    status, captured = call(capsys, "list", kind)
    assert status == 0
    assert all(row["name"] in captured.out for row in rows)


def test_report_goes_where_it_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def render(run_dirs: list[Path], kind: str, **_: object) -> str:
        return f"{kind} of {len(run_dirs)}\n"

    monkeypatch.setattr(reports, "render", render, raising=False)
    status, captured = call(capsys, "report", "a", "b", "--format", "csv")
    assert (status, captured.out) == (0, "csv of 2\n")
    out = tmp_path / "all.html"
    status, captured = call(capsys, "report", "a", "b", "--out", str(out))
    assert (status, captured.out, out.read_text()) == (0, f"report: {out}\n", "html of 2\n")
    monkeypatch.setattr(reports, "text_with_notes", lambda run_dirs, **_: f"notes of {len(run_dirs)}")
    status, captured = call(capsys, "report", "a", "--notes")
    assert (status, captured.out) == (0, "notes of 1\n")
    status, captured = call(capsys, "report", "a", "--notes", "--format", "csv")
    assert (status, captured.out) == (2, "")
    status, captured = call(capsys, "report", "a", "--out", "/proc/x/y.html")
    assert status == 2
    assert captured.err.startswith("stratbench: out: /proc/x/y.html cannot be written: ")


def test_a_dry_run_of_clean_lists_runs_that_nobody_named_and_removes_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    unnamed = default_name("quick", datetime.now(UTC))
    for out in (f"runs/{unnamed}", "runs/mine"):
        open_run(Path(out), experiment={"name": "quick"}, environment={}).close()
    status, captured = call(capsys, "clean", "--keep", "0", "--dry-run")
    assert status == 0
    assert f"would remove the run folder runs/{unnamed}\n" in captured.out
    assert "mine" not in captured.out
    assert {path.name for path in Path("runs").iterdir()} == {unnamed, "mine"}


def test_doctor_is_status_3_when_something_required_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = doctor.Check(name="ray", ok=False, detail="not installed", way_out="run `make setup`")
    limited = doctor.Check(name="cores", ok=False, detail="1 usable", way_out="allow 2", required=False)
    monkeypatch.setattr(doctor, "checks", lambda: [limited])
    status, captured = call(capsys, "doctor", "--json")
    assert (status, document(captured)["ok"]) == (0, True)
    monkeypatch.setattr(doctor, "checks", lambda: [limited, missing])
    status, captured = call(capsys, "doctor")
    assert status == 3
    assert "run `make setup`" in captured.out
