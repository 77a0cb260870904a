"""The options by which a command keeps what it starts out of reach, or leaves it on the host's network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from harness.errors import MissingError, UsageError
from harness.provision import network_namespace
from harness.records.redaction import redacted_command

RequireIsolation = Annotated[
    bool, typer.Option("--require-isolation", help="Stop where servers cannot have a network of their own.")
]
NoIsolation = Annotated[
    bool,
    typer.Option("--no-isolation", help="Stay on the host's network, as a workload that downloads must."),
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Who called the command line.

    Args:
        owns_process: whether the process is the command's alone, so that it may move to another network.
        settled: told once the process is where it stays, and may start threads.
        arguments: of the command line, without the program's name.
    """

    owns_process: bool
    settled: Callable[[], None]
    arguments: tuple[str, ...] = ()


def command_of(context: typer.Context) -> str | None:
    """The command line as it may be kept, without what looks like a secret; None where a program called."""
    if not (isinstance(context.obj, Caller) and context.obj.arguments):
        return None
    return redacted_command(("stratbench", *context.obj.arguments))


def isolate(
    context: typer.Context, *, no_isolation: bool, require_isolation: bool, obstacle: str | None = None
) -> str | None:
    """Move this process, and all that it will start, to a network of its own.

    Nothing that starts threads may have been imported by then.

    Args:
        obstacle: why it must stay.
    Returns:
        why servers can be reached from outside; None where they cannot.
    Raises:
        UsageError: the options contradict each other. MissingError: isolation is required and not to be had.
    """
    if no_isolation and require_isolation:
        raise UsageError("must not be given with --require-isolation; drop one", field="no-isolation")
    exposure = "--no-isolation was given" if no_isolation else obstacle or _stayed(context)
    if exposure is not None and require_isolation:
        raise MissingError(
            f"a network namespace must be had, got none: {exposure}; {network_namespace.WAY_OUT}",
            field="require-isolation",
        )
    if isinstance(context.obj, Caller):
        context.obj.settled()
    return exposure


def isolate_workers(
    context: typer.Context, providers: Sequence[str], *, no_isolation: bool, require_isolation: bool
) -> str | None:
    """Move this process to a network of its own where its workers are to share that; as `isolate`.

    Args:
        providers: of the workers.
    """
    others = [name for name in providers if name != "local"]
    if "local" not in providers and not (require_isolation and "cluster" in providers):
        return None
    return isolate(
        context,
        no_isolation=no_isolation,
        require_isolation=require_isolation,
        obstacle=f"provider {others[0]} needs the host's network" if others else None,
    )


def _stayed(context: typer.Context) -> str | None:
    """Move; why not, if it does not."""
    if not (isinstance(context.obj, Caller) and context.obj.owns_process):
        return "the process is another program's"
    from harness.provision.temporary.reaper import reap

    # From inside, nobody but root can tell which processes outside are those of dead runs.
    reap()
    return network_namespace.isolate()
