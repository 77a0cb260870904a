import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cli import output
from harness.cli.options import duration_s
from harness.errors import UsageError


@given(st.text())
def test_text_for_a_terminal_is_one_printable_line(text: str) -> None:
    assert output.plain(text).translate({0x200C: None, 0x200D: None}).isprintable()


def test_a_name_cannot_move_the_cursor() -> None:
    assert output.plain("a\x1b[2J\r\n\tb\u202ec") == "a\\x1b[2J b\\u202ec"


def test_a_table_off_a_terminal_is_aligned_text(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(["name", "n"], [["[bold]x", "1"], ["y", "22"]])
    assert capsys.readouterr().out == "name     n\n[bold]x  1\ny        22\n"


def test_a_table_on_a_terminal_takes_names_as_they_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    output.table(["name"], [["[bold]x[/bold]"]])
    assert "[bold]x[/bold]" in capsys.readouterr().out


def test_cells_wrap_between_words_on_a_narrow_terminal_but_names_stay_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [["all-reduce", "exact", "all variables on one task"], ["ps", "exact", "x" * 20]]
    output.table(["name", "class", "summary"], rows)
    assert capsys.readouterr().out.splitlines()[1] == "all-reduce  exact  all variables on one task"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "32")
    output.table(["name", "class", "summary"], rows)
    text = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
    assert [line.rstrip() for line in text.splitlines()] == [
        "name        class  summary",
        "all-reduce  exact  all variables",
        "                   on one task",
        "ps          exact  xxxxxxxxxxxxx",
        "                   xxxxxxx",
    ]


def test_a_long_line_breaks_between_words_and_never_in_a_path(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    output.print_line("report: /a/path-that-is/longer/than-the-line.html")
    assert capsys.readouterr().out == "report:\n/a/path-that-is/longer/than-the-line.html\n"


def test_a_line_keeps_its_indent(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    output.print_line("  a note of  it")
    assert capsys.readouterr().out == "  a note of it\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "9")
    output.print_line("  a note of it")
    assert capsys.readouterr().out == "  a note\n  of it\n"
    output.print_line("  ")
    assert capsys.readouterr().out == "\n"


def test_json_has_no_bare_nan() -> None:
    stream = io.StringIO()
    output.emit_json({"a": float("nan"), "b": "ü"}, stream=stream)
    assert json.loads(stream.getvalue(), parse_constant=pytest.fail) == {"a": None, "b": "ü"}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("2h", 7200), ("1h30m", 5400), (" 1H1M1S ", 3661)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text, field="x") == seconds


@pytest.mark.parametrize(
    "text", ["", "m", "-3", "1.5h", "30 m", "1m1h", "0s", "0m", "9" * 10 + "h", "m" * 5000]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="x: must be a time such as 90s"):
        duration_s(text, field="x")


@pytest.mark.parametrize("text", ["30", " 30 ", "0"])
def test_a_duration_has_a_unit(text: str) -> None:
    number = text.strip()
    with pytest.raises(UsageError, match=f"x: needs a unit, such as {number}m or {number}s, got "):
        duration_s(text, field="x")
