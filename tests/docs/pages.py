"""Code and commands that pages show, and a runner for a command as it stands."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
STRATBENCH = Path(sys.executable).parent / "stratbench"


def blocks(page: str, language: str) -> list[str]:
    """The code that a page shows in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[str]:
    """The commands that a page shows, in blocks and at the beginning of a table's lines."""
    shown = [line for block in blocks(page, "console") for line in block.splitlines()]
    return [*shown, *re.findall(r"^\| `(stratbench [^`]*)`", page, re.MULTILINE)]


def refuse_unknown_options(command: str) -> None:
    """Check that a command and its options exist."""
    words = shlex.split(command)[1:]
    command_words = words[: 2 if words[0] == "nightly" else 1]
    done = subprocess.run(
        [STRATBENCH, *command_words, "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    for option in (word for word in words if word.startswith("--")):
        assert option in done.stdout


def run(command: str, folder: Path) -> str:
    """Output of a command that must succeed; `> FILE` at its end is obeyed."""
    shown, _, file = command.partition(" > ")
    done = subprocess.run(
        [STRATBENCH, *shlex.split(shown)[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if file:
        (folder / file).write_text(done.stdout)
    return done.stdout
