"""Nights at the same time of every day, until the process ends."""

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
"""Longest single sleep, because the clock may be set or the machine suspended in the meantime."""


def hour_of(text: str) -> time_of_day:
    """Read `02:30`.

    Raises:
        UsageError: it is not a time of day.
    """
    try:
        return datetime.strptime(text, "%H:%M").time()  # noqa: DTZ007 - a time of day has no zone
    except ValueError:
        raise UsageError(f"must be a time of day such as 02:30, got {text[:80]!r}", field="at") from None


def next_begin(
    now: datetime, hour: time_of_day, *, zone: tzinfo | None = None, last: date | None = None
) -> datetime:
    """Next moment after now with this time of day; the first one if clocks repeat it.

    If clocks skip it, the moment is as long after midnight as on other days.

    Args:
        now: current time, with any time zone.
        zone: time zone of the hour; None for this machine's.
        last: day of the last night, which gets no second one even if the clock is set back.
    Returns:
        Moment in the time zone `zone`.
    """
    today = now.astimezone(zone).date()
    days = (today + timedelta(days=n_later) for n_later in range(3))
    # As seconds, because moments of one zone are compared by local time, which may occur twice; and without
    # a zone, `astimezone` is an hour early for a skipped time.
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
        zone: time zone of the hour; None for this machine's.
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
    """Wait until a moment of this machine's clock."""
    while (left_s := begin.timestamp() - time.time()) > 0:
        time.sleep(min(left_s, _MOST_SLEEP_S))


def arguments_of(context: typer.Context, *, without: str) -> list[str]:
    """Arguments of a command, without one of its options."""
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
