"""`stratbench nightly serve`: when nights begin, that they go on whatever becomes of one, and how it ends."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from time import tzset
from zoneinfo import ZoneInfo

import pytest
from waiting import eventually

from harness.cli import main
from harness.cli.commands import nightly
from harness.cli.nightly import schedule
from harness.cli.nightly.schedule import every_day, next_begin
from harness.errors import Interrupted

HOUR = time(2, 30)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.fixture
def machine_zone() -> Iterator[Callable[[str], None]]:
    """Sets this machine's zone, for as long as a test lasts."""
    with pytest.MonkeyPatch.context() as patch:

        def set_zone(name: str) -> None:
            patch.setenv("TZ", name)
            tzset()

        yield set_zone
    tzset()


@pytest.mark.parametrize(
    ("now", "begin"),
    [
        ("2026-03-01 02:29:59", "2026-03-01 02:30"),
        ("2026-03-01 02:30:00", "2026-03-02 02:30"),
        ("2026-02-28 23:00:00", "2026-03-01 02:30"),
        ("2026-12-31 02:31:00", "2027-01-01 02:30"),
    ],
)
def test_a_night_begins_when_the_clock_next_says_so(now: str, begin: str) -> None:
    assert next_begin(utc(now), HOUR, zone=UTC) == utc(begin)


def test_a_day_has_no_second_night_when_its_clock_is_set_back() -> None:
    now = utc("2026-03-01 02:29:59")
    assert next_begin(now, HOUR, zone=UTC, last=now.date()) == utc("2026-03-02 02:30")
    assert next_begin(utc("2026-02-28 23:59"), time(0), zone=UTC, last=now.date()) == utc("2026-03-02 00:00")


@pytest.mark.parametrize(
    ("since", "begins"),
    [
        # At 02:00 it becomes 03:00.
        ("2026-03-28 00:00", ["28 02:30 +0100", "29 03:30 +0200", "30 02:30 +0200"]),
        # At 03:00 it becomes 02:00.
        ("2026-10-24 00:00", ["24 02:30 +0200", "25 02:30 +0200", "26 02:30 +0100"]),
        # Asked for when it is 02:15 for the second time: 02:30 of this day is over.
        ("2026-10-25 01:15", ["26 02:30 +0100", "27 02:30 +0100"]),
    ],
)
@pytest.mark.parametrize("is_of_the_machine", [True, False])
def test_every_day_has_one_night_through_the_changes_of_the_clock(
    since: str, begins: list[str], is_of_the_machine: bool, machine_zone: Callable[[str], None]
) -> None:
    clock, seen = [utc(since)], list[str]()

    def wait_until(begin: datetime) -> None:
        if len(seen) == len(begins):
            raise KeyboardInterrupt
        seen.append(f"{begin:%d %H:%M %z}")
        clock[0] = datetime.fromtimestamp(begin.timestamp(), UTC)

    def night() -> int:
        clock[0] += timedelta(minutes=2)
        return 0

    machine_zone("Europe/Berlin" if is_of_the_machine else "America/New_York")
    zone = None if is_of_the_machine else ZoneInfo("Europe/Berlin")
    with pytest.raises(KeyboardInterrupt):
        every_day(HOUR, night, wait_until=wait_until, now=lambda: clock[0], zone=zone)
    assert seen == begins


def test_nights_go_on_whatever_becomes_of_one_until_it_is_interrupted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = [utc("2026-03-01 12:00")]
    statuses = iter([0, 4, OSError("no memory"), -9, 1])
    begins: list[datetime] = []

    def wait_until(begin: datetime) -> None:
        if len(begins) == 5:
            raise KeyboardInterrupt
        begins.append(begin)
        clock[0] = begin.replace(minute=50)

    def night() -> int:
        status = next(statuses)
        if isinstance(status, OSError):
            raise status
        return status

    with pytest.raises(KeyboardInterrupt):
        every_day(HOUR, night, wait_until=wait_until, now=lambda: clock[0], zone=UTC)
    assert [f"{begin:%m-%d %H:%M}" for begin in begins] == [f"03-0{day} 02:30" for day in range(2, 7)]
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["next night: 2026-03-02 02:30", "the night ended with status 0"]
    assert "the night could not start: no memory" in lines
    assert [line[-1] for line in lines if "ended with status" in line] == ["0", "4", "9", "1"]


def test_an_interrupted_night_alone_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    def night() -> int:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match=r"^no further nights$"):
        every_day(HOUR, night, wait_until=lambda _: None, now=lambda: utc("2026-03-01 12:00"), zone=UTC)
    assert capsys.readouterr().err == "next night: 2026-03-02 02:30\n"


@pytest.mark.parametrize("text", ["2:60", "24:00", "soon", "", "02:30:00"])
def test_what_is_no_time_of_day_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["nightly", "serve", "quickstart", "--store", str(tmp_path / "s"), "--at", text]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("stratbench: at: must be a time of day such as 02:30, got")
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("former", [["serve"], []])
def test_a_night_is_asked_for_with_the_same_options(
    former: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []

    def once(hour: time, night, **_: object) -> None:
        assert hour == HOUR
        commands.append(night.args[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(schedule, "every_day", once)
    options = ["quickstart", "--store", "s p", "--time-budget", "30m", "--confirm", "4", "--keep", "7"]
    options += ["--prometheus", "x.prom", "--set", "measure.repeats=4", "--set", "cluster.workers=1"]
    options += ["--timeout-factor", "2.0", "--no-isolation"]
    assert main(["nightly", *former, *options, "--at", "02:30"]) == 130
    capsys.readouterr()
    (arguments,) = commands
    assert arguments[:3] == ["nightly", "run", "quickstart"]
    assert sorted(arguments[2:]) == sorted(options)


def test_it_has_no_answer_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nightly", "serve", "quickstart", "--store", str(tmp_path), "--at", "02:30", "--json"]) == 2
    captured = capsys.readouterr()
    assert "No such option: --json" in json.loads(captured.out)["error"]["message"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_while_it_waits_a_signal_ends_it(number: signal.Signals, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "harness.cli",
                "nightly",
                "serve",
                "quickstart",
                "--store",
                "s",
                "--at",
                "02:30",
            ],
            cwd=Path(nightly.__file__).parents[3],
            stdout=stream,
            stderr=stream,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        try:
            eventually(lambda: b"02:30\n" in log.read_bytes(), 60.0, "it says when the next night is")
            process.send_signal(number)
            assert process.wait(60.0) == 130
        finally:
            process.kill()
            process.wait()
    assert log.read_text().splitlines()[-1] == "stratbench: interrupted"
