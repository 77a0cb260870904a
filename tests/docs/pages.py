"""Pages of the documentation: their code, commands and links; running a command."""

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import typer
from typer.core import TyperCommand, TyperGroup

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
STRATBENCH = Path(sys.executable).parent / "stratbench"


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[str]:
    """The commands of a page, in console blocks and at the beginning of table rows."""
    lines = [line for block in blocks(page, "console") for line in block.splitlines()]
    return [*lines, *re.findall(r"^\| `(stratbench [^`]*)`", page, re.MULTILINE)]


@cache
def command_tree() -> TyperGroup:
    """The command line with all options of `run`."""
    from harness.cli.app import _app

    tree = typer.main.get_command(_app("run"))
    assert isinstance(tree, TyperGroup)
    return tree


def refuse_unknown_options(command: str) -> None:
    """Check that a command and its options exist."""
    words = [word for word in shlex.split(command)[1:] if word not in ("--help", "-h", "--version")]
    node: TyperCommand | TyperGroup = command_tree()
    while words and isinstance(node, TyperGroup):
        assert words[0] in node.commands, f"no command {words[0]!r} in: {command}"
        node = node.commands[words.pop(0)]
    known = {name for parameter in node.params for name in parameter.opts}
    unknown = [word for word in words if word.startswith("--") and word not in known]
    assert not unknown, f"no options {unknown} in: {command}"


def run(command: str, folder: Path) -> str:
    """Run a command that must succeed, with `> FILE` at its end, and return its output."""
    output, _, file = command.partition(" > ")
    done = subprocess.run(
        [STRATBENCH, *shlex.split(output)[1:]],
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
