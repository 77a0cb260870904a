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


@given(st.lists(st.integers(1, 40), min_size=2, max_size=12), st.integers(1, 2), st.integers(20, 200))
def test_a_wide_table_is_split_and_no_column_is_lost(widths: list[int], n_keys: int, width: int) -> None:
    parts = output.fitting_parts(widths, n_keys=n_keys, width=width)
    assert [c for part in parts for c in part[n_keys:]] == list(range(n_keys, len(widths)))
    for part in parts:
        assert part[:n_keys] == list(range(n_keys))
        fits = sum(widths[c] + 2 for c in part) - 2 <= width
        assert fits or len(part) <= n_keys + 1


def test_a_narrow_terminal_shows_the_key_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    output.table(["name", "first", "second"], [["x", "1" * 12, "2" * 12]])
    shown = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
    assert [line.rstrip() for line in shown.splitlines()] == [
        "name  first",
        "x     111111111111",
        "",
        "name  second",
        "x     222222222222",
    ]


@pytest.mark.parametrize("width", [3, 30, 52])
def test_a_list_too_wide_for_a_terminal_breaks_between_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    rows = [
        ["ps", "exact", "all variables on one task", "sync=true staleness=0"],
        ["a", "exact", "x" * 20, ""],
    ]
    output.sentence_table(["name", "class", "summary", "parameters"], rows, n_keys=2)
    assert capsys.readouterr().out.splitlines()[1] == "ps    exact  " + "  ".join(rows[0][2:])
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    output.sentence_table(["name", "class", "summary", "parameters"], rows, n_keys=2)
    shown = capsys.readouterr().out
    assert shown.split() == [word for row in rows for cell in row for word in cell.split()]
    lines = shown.splitlines()
    keys = [line for line in lines if not line.startswith(" ")]
    assert keys == ["ps    exact", "a     exact"]
    assert all(len(line) <= width or len(line.split()) == 1 for line in lines if line not in keys)


def test_sentences_stand_beside_their_keys_where_there_is_room(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "57")
    rows = [
        ["docker", "missing", "nothing answers at the usual place for it", "start it"],
        ["x", "ok", "", ""],
    ]
    output.sentence_table(["check", "", "found", "way out"], rows, n_keys=2)
    assert capsys.readouterr().out.splitlines() == [
        "docker  missing  nothing answers at the usual place for",
        "                 it",
        "                 start it",
        "x       ok",
    ]


def test_a_list_that_fits_is_a_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "19")
    output.sentence_table(["name", "summary"], [["ps", "one server"]])
    shown = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
    assert [line.split() for line in shown.splitlines()] == [["name", "summary"], ["ps", "one", "server"]]


def test_a_long_line_breaks_between_words_and_never_in_a_path(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    output.say("report: /a/path-that-is/longer/than-the-line.html")
    assert capsys.readouterr().out == "report:\n/a/path-that-is/longer/than-the-line.html\n"


def test_a_line_keeps_its_indent(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    output.say("  a note of  it")
    assert capsys.readouterr().out == "  a note of it\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "9")
    output.say("  a note of it")
    assert capsys.readouterr().out == "  a note\n  of it\n"
    output.say("  ")
    assert capsys.readouterr().out == "\n"


def test_json_has_no_bare_nan() -> None:
    stream = io.StringIO()
    output.emit_json({"a": float("nan"), "b": "ü"}, stream=stream)
    assert json.loads(stream.getvalue(), parse_constant=pytest.fail) == {"a": None, "b": "ü"}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (17_600_000, "17.6 MB"), (2e9, "2 GB"), (None, "-")],
)
def test_bytes_are_written_for_a_person(value: object, text: str) -> None:
    assert output.n_bytes(value) == text


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
    with pytest.raises(UsageError, match=rf"x: must have a unit, got .*; give {number}s or {number}m$"):
        duration_s(text, field="x")
