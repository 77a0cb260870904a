"""Nights at one hour of every day, for as long as this process lasts."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from datetime import time as time_of_day
from typing import NoReturn

import typer

from harness.cli import output
from harness.errors import UsageError

_LOOK_S = 30.0
"""How long is slept at a time: the clock may be set meanwhile, or the machine have been asleep."""


def hour_of(text: str) -> time_of_day:
    """Read `02:30`.

    Raises:
        UsageError: it is no such time.
    """
    try:
        return datetime.strptime(text, "%H:%M").time()  # noqa: DTZ007 - a time of day has no zone
    except ValueError:
        raise UsageError(f"must be a time of day such as 02:30, got {text[:80]!r}", field="at") from None


def next_begin(now: datetime, hour: time_of_day) -> datetime:
    """The next moment at which the clock says so, after now; both without a zone, as this machine's clock."""
    today = datetime.combine(now.date(), hour)
    return today if today > now else today + timedelta(days=1)


def every_day(
    hour: time_of_day,
    night: Callable[[], int],
    *,
    wait_until: Callable[[datetime], None],
    now: Callable[[], datetime] = datetime.now,
) -> NoReturn:
    """Have nights one after the other, whatever becomes of them, until this is interrupted.

    Args:
        night: runs one, and gives its exit status.
    """
    while True:
        begin = next_begin(now(), hour)
        output.warn(f"next night: {begin:%Y-%m-%d %H:%M}")
        wait_until(begin)
        try:
            output.warn(f"the night ended with status {night()}")
        except OSError as error:
            output.warn(f"the night could not be begun: {error}")


def sleep_until(begin: datetime) -> None:
    """Wait until this machine's clock says so."""
    while (left_s := begin.timestamp() - time.time()) > 0:
        time.sleep(min(left_s, _LOOK_S))


def arguments_of(context: typer.Context, *, without: str) -> list[str]:
    """The command line that means the same as this one, but for one option."""
    arguments = [str(context.command.name)]
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if parameter.param_type_name == "argument":
            arguments.append(str(value))
        elif value is True:
            arguments.append(parameter.opts[0])
        elif value not in (None, False, parameter.default) and parameter.name != without:
            for each in value if isinstance(value, list | tuple) else [value]:
                arguments += [parameter.opts[0], str(each)]
    return arguments
