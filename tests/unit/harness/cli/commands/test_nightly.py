"""Command lines of `nightly` from before it had sub-commands."""

import pytest

from harness.cli import main
from harness.cli.app import _command
from harness.cli.commands.nightly import current_arguments
from harness.errors import UsageError


@pytest.mark.parametrize(
    ("former", "current"),
    [
        (
            "quickstart --store s --time-budget 30m --keep 4",
            "run quickstart --store s --time-budget 30m --keep 4",
        ),
        ("quickstart --store s --import a --import=b", "import quickstart --store s -- a b"),
        ("quickstart --import r --store s --no-isolation", "import quickstart --store s -- r"),
        ("--store s quickstart --ack ps --reason known", "ack --store s quickstart --reason known -- ps"),
        (
            "quickstart --replay=2026-01-01 --store s --json",
            "replay quickstart --store s --json -- 2026-01-01",
        ),
        (
            "quickstart --bisect ps --no-isolation --store s",
            "bisect quickstart --no-isolation --store s -- ps",
        ),
        ("quickstart --at 02:30 --store s --confirm 4", "serve quickstart --store s --confirm 4 --at 02:30"),
        ("quickstart --store s --replay", "run quickstart --store s --replay"),
    ],
)
def test_options_of_before_are_sub_commands_now(former: str, current: str) -> None:
    assert current_arguments(former.split()) == current.split()


def test_options_of_before_that_ask_for_two_things_are_refused() -> None:
    with pytest.raises(UsageError, match="must not be given with --replay; drop one"):
        current_arguments(["quickstart", "--store", "s", "--ack", "ps", "--replay", "2026-01-01"])


@pytest.mark.parametrize("way", ["replay", "import", "ack", "bisect"])
def test_a_command_line_of_before_is_answered_and_names_its_successor(
    way: str, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    beside = ["--reason", "x"] if way == "ack" else []
    assert main(["nightly", "quickstart", "--store", str(tmp_path / "s"), f"--{way}", "x", *beside]) == 2
    notice, error = capsys.readouterr().err.splitlines()
    assert notice == f"deprecated; use `stratbench nightly {way} …`"
    assert "No such option" not in error


def test_a_mistyped_sub_command_is_not_taken_for_an_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nightly", "imprt", "quickstart", "run", "--store", "s"]) == 2
    assert "No such command 'imprt'. Did you mean 'import'?" in capsys.readouterr().err


def test_the_help_that_an_error_names_is_of_the_sub_command() -> None:
    assert _command(["nightly", "ack"]) == "stratbench nightly ack"
    assert _command(["nightly", "quickstart"]) == "stratbench nightly"
