"""The command line that a run folder keeps."""

from __future__ import annotations

from called import Pipeline

from harness.cli import main
from harness.host_facts import environment


def test_a_run_keeps_the_command_that_makes_it_again_without_secrets(pipeline: Pipeline) -> None:
    arguments = ["run", "quickstart", "--out", "my runs", "--restore", "https://bob:hunter2@example.org/"]
    assert main(arguments) == 0
    ((_, options),) = pipeline.asked
    command = "stratbench run quickstart --out 'my runs' --restore 'https://[redacted]@example.org/'"
    assert options.command == command
    assert environment({}, command=command)["command"] == command
    assert "command" not in environment({})
