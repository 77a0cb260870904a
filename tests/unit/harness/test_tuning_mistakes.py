"""`stratbench tune` refuses what it cannot do in one line, before it starts anything."""

from pathlib import Path

import pytest

from harness.cli import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-s", "none"], "stratbench: strategy: must have a tunable knob that is free to change, got none;"),
        (["-s", "nosuch"], "stratbench: strategy 'nosuch': unknown name; known are"),
        (["-s", "ps", "--seconds", "5"], "stratbench: seconds: must hold 4 repeats of the default and of a"),
        (
            ["-s", "ps", "--set", "measure.repeats=20"],
            "stratbench: set: must leave the number of repeats to the tuning, got measure.repeats 20 and",
        ),
        (
            ["-s", "ps", "--out", "file/x.json"],
            "stratbench: out: file/x.json cannot be written: ",
        ),
        (
            ["-s", "ps", "--out", "folder.json"],
            "stratbench: out: folder.json cannot be written: Is a directory; name another",
        ),
    ],
)
def test_a_mistake_costs_one_line_and_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("folder.json").mkdir()
    assert main(["tune", "digits-mlp", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.json"]
