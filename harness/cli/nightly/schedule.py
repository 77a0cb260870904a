"""Nights at one hour of every day, until the process ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, tzinfo
from datetime import time as time_of_day
from typing import NoReturn

import typer

from harness.cli import output
from harness.errors import Interrupted, UsageError

_MOST_SLEEP_S = 30.0
"""Longest sleep at a time: the clock may be set meanwhile, or the machine may have been asleep."""


def hour_of(text: str) -> time_of_day:
    """Read `02:30`.

    Raises:
        UsageError: it is no such time.
    """
    try:
        return datetime.strptime(text, "%H:%M").time()  # noqa: DTZ007 - a time of day has no zone
    except ValueError:
        raise UsageError(f"must be a time of day such as 02:30, got {text[:80]!r}", field="at") from None


def next_begin(
    now: datetime, hour: time_of_day, *, zone: tzinfo | None = None, last: date | None = None
) -> datetime:
    """The next moment after now that is the hour of a day: the first such, where clocks repeat the hour.

    Where clocks leave the hour out, it is as long after midnight as the hour of other days.

    Args:
        now: with a zone, of whatever kind.
        zone: of the hour; None for this machine's.
        last: day of the last night, which has no other even if its clock was set back meanwhile.
    Returns:
        a moment with a zone, by the clock of `zone`.
    """
    today = now.astimezone(zone).date()
    days = (today + timedelta(days=n_later) for n_later in range(3))
    # As seconds: moments of one zone are compared by what its clock says, which it may say twice; and
    # `astimezone` is an hour early for an hour that is left out, where there is no zone.
    moments_s = (datetime.combine(day, hour, tzinfo=zone).timestamp() for day in days if day != last)
    begin_s = next(moment_s for moment_s in moments_s if moment_s > now.timestamp())
    return datetime.fromtimestamp(begin_s, UTC).astimezone(zone)


def _utc_now() -> datetime:
    return datetime.now(UTC)


def every_day(
    hour: time_of_day,
    night: Callable[[], int],
    *,
    wait_until: Callable[[datetime], None],
    now: Callable[[], datetime] = _utc_now,
    zone: tzinfo | None = None,
) -> NoReturn:
    """Run a night every day until interrupted, also after a night that failed.

    Args:
        night: function that runs a night and returns its exit status.
        zone: of the hour; None for this machine's.
    """
    last: date | None = None
    while True:
        begin = next_begin(now(), hour, zone=zone, last=last)
        output.warn(f"next night: {begin:%Y-%m-%d %H:%M}")
        wait_until(begin)
        last = begin.date()
        try:
            output.warn(f"the night ended with status {night()}")
        except KeyboardInterrupt:
            # The night's own process has printed how to continue it.
            raise Interrupted("no further nights") from None
        except OSError as error:
            output.warn(f"the night could not start: {error}")


def sleep_until(begin: datetime) -> None:
    """Wait until this machine's clock says so."""
    while (left_s := begin.timestamp() - time.time()) > 0:
        time.sleep(min(left_s, _MOST_SLEEP_S))


def arguments_of(context: typer.Context, *, without: str) -> list[str]:
    """Arguments of a command without one of its options."""
    arguments: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(str(parameter.name))
        if parameter.param_type_name == "argument":
            arguments.append(str(value))
        elif value is True:
            arguments.append(parameter.opts[0])
        elif value not in (None, False, parameter.default) and parameter.name != without:
            for item in value if isinstance(value, list | tuple) else [value]:
                arguments += [parameter.opts[0], str(item)]
    return arguments
