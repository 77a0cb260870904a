"""Options that several commands share, and the values they are read into."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from harness.errors import UsageError
from harness.options import Target
from harness.refs import parse_strategy, parse_workload, split_list

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout, all else on stderr.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
WorkloadArgument = Annotated[
    str, typer.Argument(metavar="WORKLOAD", help="A registered name, or path/to/file.py:factory.")
]
StrategyOption = Annotated[
    str, typer.Option("--strategy", "-s", metavar="S", help="A name, or name:key=value,key=value.")
]
Workers = Annotated[int, typer.Option("--workers", metavar="N", min=1, help="Worker processes.")]
Replicas = Annotated[int, typer.Option("--replicas", metavar="R", min=1, help="Replicas in each worker.")]

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def target(workload: str, strategy: str, workers: int, replicas: int) -> Target:
    """Read the workload and strategy of one command and check that both are known.

    Raises:
        UsageError: when one is not, or a list is given.
    """
    if len(split_list(strategy, field="strategy")) != 1:
        raise UsageError(
            f"must be one strategy, got {strategy!r}; to compare several use `stratbench run`",
            field="strategy",
        )
    found = Target(
        workload=parse_workload(workload, field="workload"),
        strategy=parse_strategy(strategy, field="strategy"),
        workers=workers,
        replicas=replicas,
    )
    # The registries are not needed for --help.
    from harness.names import check_target

    check_target(found)
    return found


def duration_s(text: str, *, field: str) -> float:
    """Read `90s`, `30m`, `1h30m` or a plain number of seconds.

    Raises:
        UsageError: none of these, or nothing.
    """
    text = text.strip().lower()
    match = _DURATION.fullmatch(text)
    if text.isdecimal():
        seconds = int(text)
    elif text and match:
        hours, minutes, rest = (int(part or 0) for part in match.groups())
        seconds = hours * 3600 + minutes * 60 + rest
    else:
        seconds = 0
    if seconds <= 0:
        raise UsageError(f"must be a time such as 90s, 30m or 1h30m, got {text!r}", field=field)
    return float(seconds)
