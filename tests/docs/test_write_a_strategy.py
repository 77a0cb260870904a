"""The guide's strategy works, and its commands do what the guide says."""

from pathlib import Path

import pytest
from pages import ROOT, blocks, commands, run

GUIDE = (ROOT / "docs" / "write-a-strategy.md").read_text()


def command_line(beginning: str) -> str:
    (command,) = [c for c in commands(GUIDE) if c.startswith(beginning)]
    return command


@pytest.mark.tensorflow
def test_the_strategy_is_equivalent(tmp_path: Path) -> None:
    (example,) = blocks(GUIDE, "python")
    assert len(example.splitlines()) <= 32
    (tmp_path / "my_strategy.py").write_text(example)
    answer = run(command_line("stratbench verify word-lm --strategy my_strategy.py"), tmp_path)
    assert answer.startswith("EQUIVALENT: tables-apart:min_rows=100 (exact) on word-lm, 3 workers")


@pytest.mark.tensorflow
def test_a_plan_that_was_printed_runs(tmp_path: Path) -> None:
    run(command_line("stratbench plan word-lm --strategy ps"), tmp_path)
    assert '"strategy": "ps"' in (tmp_path / "edited.json").read_text()
    answer = run(command_line("stratbench verify word-lm --plan"), tmp_path)
    assert answer.startswith("EQUIVALENT: plan-edited (exact) on word-lm")
