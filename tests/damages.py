"""Kinds of damage to a run folder and to a nightly store, the commands that read or write these, and a judge.

Of every pair either the damage is named, in lines that nobody has without it, or nothing is changed by it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import numpy as np
import yaml
from open_folders import made_record

from harness import pipeline
from harness.cli import main
from harness.experiment.cases import expand
from harness.experiment.load import load_experiment
from harness.pipeline import RunOutcome
from harness.provision import registry
from harness.records.checksums import with_checksum, without_checksum
from harness.records.outcome import StepSeconds
from harness.records.run_folder import open_run
from harness.records.steps_file import Steps
from harness.requests import RunOptions
from reports.history import database
from reports.history.figures import Figure, NewNight, Subject
from reports.history.store import writing

EXPERIMENT = {
    "name": "m",
    "workloads": ["wide-mlp"],
    "strategies": ["single", "ps"],
    "measure": {"repeats": 2},
}
PLAN = {
    "workload": "wide-mlp",
    "strategy": "ps",
    "strategy_params": {},
    "replicas_per_task": [1, 1],
    "batch_size": 16,
    "device": "cpu",
    "nodes": [],
}
FIRST_NIGHT = datetime(2026, 1, 5, 2, tzinfo=UTC)
N_NIGHTS, SLOWER_SINCE = 18, 14
PATIENCE_S = 60
_CHANGING = re.compile(r"m-\d{8}t\d{6}z-[0-9a-f]{8}|20\d\d-\d\d-\d\d[T ]\d\d:\d\d[^\s<\"]*|\b[0-9a-f]{64}\b")
"""Names and moments that differ from one try to the next."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A folder with all that a command may read, and one outside of it that nobody may touch."""

    root: Path

    @property
    def run(self) -> Path:
        return self.root / "runs" / "m-20260101t000000z-0badcafe"

    @property
    def other(self) -> Path:
        return self.root / "other"

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def outside(self) -> Path:
        return self.root / "outside"

    @property
    def experiment(self) -> Path:
        return self.root / "m.yaml"

    @property
    def repeat(self) -> Path:
        """The folder of the first repeat of `ps`."""
        return next(path for path in sorted((self.run / "cases").iterdir()) if "ps" in path.name) / "0"


@dataclass(frozen=True, kw_only=True)
class Damage:
    """Something that has happened to a folder.

    Attributes:
        words: words; the line that names the damage must have one of them.
        during: context that lasts as long as the command runs.
    """

    name: str
    apply: Callable[[Place], object]
    words: tuple[str, ...]
    during: Callable[[Place], contextlib.AbstractContextManager[object]] = contextlib.nullcontext


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command on a place, and the files that it writes."""

    name: str
    arguments: Callable[[Place], Sequence[str]]
    writes: Callable[[Place], Sequence[Path]] = lambda _place: ()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """All that a command came to, without what differs each time."""

    status: int
    out: str
    err: str
    files: Mapping[str, str]
    n_measured: int

    @property
    def lines(self) -> frozenset[str]:
        return frozenset((*self.out.splitlines(), *self.err.splitlines()))


def write_place(place: Place) -> None:
    """Write two runs, a store of nights, and a folder that is none of their business."""
    place.root.mkdir(parents=True)
    place.outside.mkdir()
    (place.outside / "kept.txt").write_text("nobody may write here\n")
    place.experiment.write_text(yaml.safe_dump(EXPERIMENT))
    _write_run(place.run, place.experiment, slower=1.0)
    _write_run(place.other, place.experiment, slower=1.01)
    _write_nights(place.store)
    status = _called(["nightly", "replay", "m", "--store", str(place.store), _name(N_NIGHTS - 1)])[0]
    assert status in (0, 4), status
    (place.store / "last-night").touch()


def _write_run(path: Path, experiment: Path, *, slower: float) -> None:
    spec = load_experiment(str(experiment))
    rng = np.random.default_rng(3)
    with open_run(path, experiment=spec.to_document(), environment={"machine": {}}) as folder:
        for repeat in range(2):
            for order, case in enumerate(expand(spec)):
                folder.begin_repeat(case.id, repeat)
                strategy = case.strategy.name
                folder.write_plan(case.id, repeat, {**PLAN, "strategy": strategy})
                ends = np.cumsum(rng.uniform(0.01, 0.011, 20)) * slower
                folder.write_steps(case.id, repeat, _steps(ends))
                folder.write_trace(case.id, repeat, {"traceEvents": []})
                folder.worker_log(case.id, repeat, 0).write_text("a line\n")
                record = made_record(
                    case.id,
                    repeat,
                    run=folder.run,
                    order=order,
                    workload="wide-mlp",
                    strategy=strategy,
                    batch_size=16,
                    workers=case.shape.workers,
                    replicas=1,
                    examples_per_s=1500.0 / slower + repeat,
                    step_s=StepSeconds(n=20, mean=0.0105, p50=0.0105, p90=0.011, p99=0.011),
                    payload_bytes_per_step=0.0 if strategy == "single" else 1e6,
                )
                folder.append(record)
        (path / "logs").mkdir()
        (path / "logs" / "fork-server-0.log").write_text("a line\n")
        folder.write_report("<html></html>")


def _steps(ends: np.ndarray) -> Steps:
    n = len(ends)
    return Steps(
        worker=np.zeros(n, np.int32),
        step=np.arange(n, dtype=np.int32),
        start_s=np.concatenate([[0.0], ends[:-1]]),
        end_s=ends,
        loss=np.full(n, np.nan),
        warmup=np.zeros(n, np.bool_),
        window=np.zeros(n, np.int32),
    )


def _write_nights(store: Path) -> None:
    rng = np.random.default_rng(5)
    with writing(store) as history:
        for number in range(N_NIGHTS):
            figures = [
                Figure(subject=_subject(f"s{k}"), value=_rate(k, number, rng), error=0.01, n=3)
                for k in range(12)
            ]
            history.add(
                NewNight(
                    figures=figures,
                    lost=(),
                    started_utc=(FIRST_NIGHT + timedelta(days=number)).isoformat(),
                    experiment="m",
                    run=f"run-{number}",
                    run_dir="",
                    git_sha="0" * 40,
                )
            )


def _rate(strategy: int, number: int, rng: np.random.Generator) -> float:
    slower = 1.6 if strategy == 1 and number >= SLOWER_SINCE else 1.0
    return float(1000 / slower * np.exp(0.005 * rng.standard_normal()))


def _subject(strategy: str) -> Subject:
    return Subject(
        case=f"wide-mlp-{strategy}",
        workload="wide-mlp",
        shape="2 workers",
        strategy=strategy,
        comparison_key="k",
        lock_hash="l",
        metric="rate",
    )


def _name(number: int) -> str:
    return (FIRST_NIGHT + timedelta(days=number)).date().isoformat()


# --- commands ---


def _report(format_: str) -> Command:
    return Command(
        name=f"report {format_}",
        arguments=lambda place: ("report", str(place.run), "--format", format_),
        writes=lambda place: (place.run / "report.html",) if format_ == "html" else (),
    )


RUN_COMMANDS = (
    *map(_report, ("html", "md", "csv", "json", "junit")),
    Command(name="report of two", arguments=lambda p: ("report", str(p.other), str(p.run), "--format", "md")),
    Command(name="compare", arguments=lambda p: ("compare", str(p.other), str(p.run), "--rates")),
    Command(
        name="compare md",
        arguments=lambda p: ("compare", str(p.run), str(p.other), "--rates", "--format", "md"),
    ),
    Command(
        name="run --resume",
        arguments=lambda p: ("run", str(p.experiment), "--out", str(p.run), "--resume", "--no-isolation"),
    ),
    Command(
        name="nightly import of it",
        arguments=lambda p: ("nightly", "import", str(p.experiment), "--store", str(p.store), str(p.run)),
    ),
    Command(name="clean --keep", arguments=lambda _p: ("clean", "--keep", "0")),
)


def _nightly(way: str, *arguments: str, name: str = "", page: str | None = "trend.html") -> Command:
    return Command(
        name=f"nightly {name or way}",
        arguments=lambda p: (
            "nightly",
            way,
            str(p.experiment),
            "--store",
            str(p.store),
            *(argument.format(root=p.root) for argument in arguments),
        ),
        writes=lambda p: () if page is None else (p.store / page, p.root / "m.prom"),
    )


STORE_COMMANDS = (
    _nightly("run", "--no-isolation"),
    _nightly("import", "{root}/other"),
    _nightly("replay", _name(N_NIGHTS - 1)),
    _nightly(
        "replay", _name(N_NIGHTS - 3), name="replay of before", page=f"night-{_name(N_NIGHTS - 3)}.html"
    ),
    _nightly("replay", _name(N_NIGHTS - 1), "--prometheus", "{root}/m.prom", name="replay --prometheus"),
    _nightly("ack", "s1", "--reason", "known"),
    _nightly("bisect", "s1", "--no-isolation", page=None),
)


# --- damage ---


def _emptied(path: Path) -> None:
    os.truncate(path, 0)


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _garbage(path: Path) -> None:
    path.write_bytes(np.random.default_rng(1).bytes(max(64, path.stat().st_size)))


def _zeros(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _as_link(path: Path) -> None:
    """Its own content, which lies outside now."""
    target = _outside(path) / path.name
    shutil.move(path, target)
    path.symlink_to(target)


def _as_link_to_other(path: Path) -> None:
    _removed(path)
    path.symlink_to(_outside(path) / "kept.txt")


def _as_dangling_link(path: Path) -> None:
    _removed(path)
    path.symlink_to(_outside(path) / "made")


def _as_hard_link(path: Path) -> None:
    os.link(path, _outside(path) / f"{path.name}.twin")


def _as_fifo(path: Path) -> None:
    _removed(path)
    os.mkfifo(path)


def _as_folder(path: Path) -> None:
    _removed(path)
    path.mkdir()


def _as_file(path: Path) -> None:
    _removed(path)
    path.write_text("a file\n")


def _as_socket(path: Path) -> None:
    _removed(path)
    here = Path.cwd()
    # Its name may have no more than a hundred letters.
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path.name)
    os.chdir(here)


def _unreadable(path: Path) -> None:
    path.chmod(0)


def _removed(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _outside(path: Path) -> Path:
    return next(parent / "outside" for parent in path.parents if (parent / "outside").is_dir())


_OF_FILES: Mapping[str, Callable[[Path], None]] = {
    "removed": _removed,
    "emptied": _emptied,
    "cut": _cut,
    "garbage": _garbage,
    "zeros": _zeros,
    "a link to itself outside": _as_link,
    "a link to another file": _as_link_to_other,
    "a link to nothing": _as_dangling_link,
    "a hard link": _as_hard_link,
    "a fifo": _as_fifo,
    "a folder": _as_folder,
    "a socket": _as_socket,
    "unreadable": _unreadable,
}
_OF_FOLDERS: Mapping[str, Callable[[Path], None]] = {
    "removed": _removed,
    "a link to itself outside": _as_link,
    "a link to nothing": _as_dangling_link,
    "a file": _as_file,
    "a fifo": _as_fifo,
}
_RUN_FILES: Mapping[str, Callable[[Place], Path]] = {
    **{
        name: lambda place, name=name: place.run / name
        for name in (
            "run.json",
            "experiment.yaml",
            "environment.json",
            "results.jsonl",
            "results.index",
            "report.html",
            ".lock",
        )
    },
    **{
        name: lambda place, name=name: place.repeat / name
        for name in ("plan.json", "steps.parquet", "trace.json", "worker-0.log")
    },
}
_RUN_FOLDERS: Mapping[str, Callable[[Place], Path]] = {
    "cases": lambda place: place.run / "cases",
    "case": lambda place: place.repeat.parent,
    "repeat": lambda place: place.repeat,
    "logs": lambda place: place.run / "logs",
    "checkpoint": lambda place: _made(place.repeat / "checkpoint"),
}
_STORE_FILES: Mapping[str, Callable[[Place], Path]] = {
    name: lambda place, name=name: _there(place.store / name)
    for name in (
        "history.sqlite",
        "history.lock",
        "last-night",
        "trend.html",
        "history.sqlite-wal",
        "history.sqlite-shm",
        "history.sqlite-journal",
    )
}


def _made(path: Path) -> Path:
    path.mkdir()
    return path


def _there(path: Path) -> Path:
    path.touch()
    return path


def _generic(
    files: Mapping[str, Callable[[Place], Path]], kinds: Mapping[str, Callable[[Path], None]]
) -> Iterator[Damage]:
    for name, path_of in files.items():
        for kind, damage in kinds.items():
            yield Damage(
                name=f"{name}: {kind}",
                apply=lambda place, path_of=path_of, damage=damage: damage(path_of(place)),
                words=(name, "ps-", "run folder", *(("history.sqlite",) if "sqlite" in name else ())),
            )


def _results(name: str, change: Callable[[list[bytes]], list[bytes]]) -> Damage:
    def apply(place: Place) -> None:
        path = place.run / "results.jsonl"
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))

    return Damage(name=f"results.jsonl: {name}", apply=apply, words=("results.jsonl", "ps-", "single-"))


def _in_record(name: str, **fields: Any) -> Damage:
    """Fields of the last record, with a checksum that is right."""

    def change(lines: list[bytes]) -> list[bytes]:
        return [*lines[:-1], _line({**without_checksum(json.loads(lines[-1])), **fields})]

    return _results(name, change)


def _line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(with_checksum(document)).encode() + b"\n"


def _unsealed_change(lines: list[bytes], old: bytes, new: bytes) -> list[bytes]:
    assert old in lines[-1]
    return [*lines[:-1], lines[-1].replace(old, new)]


def _document(name: str, kind: str, change: Callable[[dict[str, Any]], object]) -> Damage:
    def apply(place: Place) -> None:
        path = place.run / name
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return Damage(name=f"{name}: {kind}", apply=apply, words=(name, "needs the same experiment"))


def _sealed_with(**fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: with_checksum({**without_checksum(document), **fields})


def _nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def _text(path_of: Callable[[Place], Path], kind: str, text: str) -> Damage:
    return Damage(
        name=f"{kind} in a document",
        apply=lambda place: path_of(place).write_text(text),
        words=("experiment.yaml", "environment.json", "run.json"),
    )


def _swapped(first: str, second: str) -> Damage:
    def apply(place: Place) -> None:
        one, other = (place.repeat / name for name in (first, second))
        content = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(content)

    return Damage(name=f"{first} and {second} swapped", apply=apply, words=(first, second))


def _of_other_repeat(name: str) -> Damage:
    def apply(place: Place) -> None:
        shutil.copy(place.repeat.parent / "1" / name, place.repeat / name)

    return Damage(name=f"{name} of another repeat", apply=apply, words=(name,))


def _from_other(name: str) -> Damage:
    return Damage(
        name=f"{name} of another run",
        apply=lambda place: shutil.copy(place.other / name, place.run / name),
        words=(name, "results.jsonl"),
    )


RUN_DAMAGE = (
    *_generic(_RUN_FILES, _OF_FILES),
    *_generic(_RUN_FOLDERS, _OF_FOLDERS),
    _results("a line removed", lambda lines: [lines[0], *lines[2:]]),
    _results("its last line removed", lambda lines: lines[:-1]),
    _results("all lines of a case removed", lambda lines: lines[::2]),
    _results("a line twice", lambda lines: [*lines, lines[0]]),
    _results("lines in another order", lambda lines: lines[::-1]),
    _results("two lines as one", lambda lines: [lines[0][:-1], *lines[1:]]),
    _results("blank lines", lambda lines: [b"\n", *lines, b"\n"]),
    _results("ends of lines of Windows", lambda lines: [line[:-1] + b"\r\n" for line in lines]),
    _results("a byte order mark", lambda lines: [b"\xef\xbb\xbf" + lines[0], *lines[1:]]),
    _results("its last line cut", lambda lines: [*lines[:-1], lines[-1][:40]]),
    _results("its last newline removed", lambda lines: [*lines[:-1], lines[-1][:-1]]),
    _results("a line of 20 MB", lambda lines: [*lines, b'"' + b"x" * 20_000_000 + b'"\n']),
    _results("a line of brackets", lambda lines: [*lines, _nested(100_000).encode() + b"\n"]),
    _results("a line that is a list", lambda lines: [*lines, b"[1, 2]\n"]),
    _results("a figure edited", lambda lines: _unsealed_change(lines, b'"workers":2', b'"workers":3')),
    _results(
        "a figure not a number", lambda lines: _unsealed_change(lines, b'"workers":2', b'"workers":NaN')
    ),
    _results(
        "a figure without end", lambda lines: _unsealed_change(lines, b'"workers":2', b'"workers":1e999')
    ),
    _in_record("a later schema", schema=99),
    _in_record("a schema of 0", schema=0),
    _in_record("a rate as text", examples_per_s="fast"),
    _in_record("a rate below zero", examples_per_s=-5.0),
    _in_record("a repeat below zero", repeat=-1),
    _in_record("a record of another run", run="another"),
    _in_record("a case that leads out", case="../../outside"),
    _document("run.json", "a later schema", _sealed_with(schema=99)),
    _document("run.json", "no checksum", without_checksum),
    _document("run.json", "a list", lambda document: [document]),
    _document("run.json", "no run", _sealed_with(run=None)),
    _document("run.json", "another spec", _sealed_with(spec_hash="0" * 64)),
    _document("run.json", "an impossible date", _sealed_with(created_utc="2026-02-30T00:00:00+00:00")),
    _document("run.json", "no date", _sealed_with(created_utc="yesterday")),
    _document("run.json", "the first year", _sealed_with(created_utc="0001-01-01T00:00:00+14:00")),
    _document("environment.json", "edited", lambda document: {**document, "machine": {"x": 1}}),
    _text(lambda place: place.run / "experiment.yaml", "an edited name", "name: other\n"),
    _text(lambda place: place.run / "experiment.yaml", "brackets", _nested(5000)),
    _text(
        lambda place: place.run / "experiment.yaml",
        "aliases",
        "a: &a [x, x, x, x, x, x, x, x, x]\n"
        + "".join(
            f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
        ),
    ),
    _text(lambda place: place.run / "environment.json", "many brackets", _nested(50_000)),
    _swapped("plan.json", "trace.json"),
    _swapped("steps.parquet", "trace.json"),
    _of_other_repeat("plan.json"),
    _of_other_repeat("steps.parquet"),
    _from_other("results.jsonl"),
    _from_other("run.json"),
    _from_other("environment.json"),
)


def _page(share: float, kind: str, content: Callable[[bytes], bytes]) -> Damage:
    def apply(place: Place) -> None:
        path = place.store / "history.sqlite"
        data = bytearray(path.read_bytes())
        start = int(len(data) * share)
        stop = min(len(data), start + 64)
        data[start:stop] = content(bytes(data[start:stop]))
        path.write_bytes(data)

    return Damage(name=f"history.sqlite: {kind} at {share:.3f}", apply=apply, words=("history.sqlite",))


def _sql(kind: str, *statements: str) -> Damage:
    def apply(place: Place) -> None:
        connection = sqlite3.connect(place.store / "history.sqlite", isolation_level=None)
        for statement in statements:
            connection.execute(statement)
        connection.close()

    return Damage(name=f"history.sqlite: {kind}", apply=apply, words=("history.sqlite",))


@contextlib.contextmanager
def _locked(place: Place) -> Iterator[None]:
    connection = sqlite3.connect(place.store / "history.sqlite", isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("BEGIN EXCLUSIVE")
        yield
    finally:
        connection.close()


STORE_DAMAGE = (
    *_generic(_STORE_FILES, _OF_FILES),
    *_generic({"runs": lambda place: _made(place.store / "runs")}, _OF_FOLDERS),
    *(_page(k / 40, "garbage", lambda old: np.random.default_rng(2).bytes(len(old))) for k in range(40)),
    *(_page(k / 17, "zeros", lambda old: bytes(len(old))) for k in range(17)),
    *(_page(k / 17, "a flipped bit", lambda old: bytes([old[0] ^ 4]) + old[1:]) for k in range(17)),
    _sql("a later version", "PRAGMA user_version = 99"),
    _sql("of another application", "PRAGMA application_id = 7"),
    _sql("a table dropped", "DROP TABLE figure"),
    _sql("a column renamed", "ALTER TABLE night RENAME COLUMN day TO d"),
    _sql("a figure edited", "UPDATE figure SET value = value * 2 WHERE night = 3 AND series = 2"),
    _sql("a figure as text", "UPDATE figure SET value = 'fast' WHERE night = 3 AND series = 2"),
    _sql("a figure without end", "UPDATE figure SET value = 9e999 WHERE night = 3 AND series = 2"),
    _sql("a figure below zero", "UPDATE figure SET value = -1 WHERE night = 3 AND series = 2"),
    _sql("an error as text", "UPDATE figure SET error = 'x' WHERE night = 3 AND series = 2"),
    _sql("a figure removed", "DELETE FROM figure WHERE night = 3 AND series = 2"),
    _sql("a night removed", "PRAGMA foreign_keys = OFF", "DELETE FROM night WHERE id = 3"),
    _sql("an impossible date", "UPDATE night SET started_utc = '2026-02-30' WHERE id = 3"),
    _sql("another date", "UPDATE night SET started_utc = '2026-02-20T00:00:00+00:00' WHERE id = 3"),
    _sql("a day as text", "UPDATE night SET day = 'Monday' WHERE id = 3"),
    _sql("a name as bytes", "UPDATE night SET name = x'ff00' WHERE id = 3"),
    _sql("a strategy edited", "UPDATE series SET strategy = 'x' WHERE id = 2"),
    _sql("what is known as bytes", f"INSERT INTO known VALUES ('s1', {N_NIGHTS}, x'ff')"),
    Damage(
        name="history.sqlite: locked", apply=lambda _place: None, words=("history.sqlite",), during=_locked
    ),
)


# --- trying it ---


def tried(place: Place, template: Path, command: Command, damage: Damage | None = None) -> Outcome:
    """Run a command on a fresh copy, damaged or not.

    Raises:
        AssertionError: something outside of the run and the store was touched.
    """
    shutil.rmtree(place.root, ignore_errors=True)
    shutil.copytree(template, place.root)
    if damage is not None:
        damage.apply(place)
    outside = _content(place.outside)
    measured: list[int] = []
    with (damage or _NONE).during(place), _stand_ins(place, measured, is_night=command.name == "nightly run"):
        status, out, err = _called(command.arguments(place))
    assert _content(place.outside) == outside, "a file outside was touched"
    return Outcome(
        status=status,
        out=_without_chance(out),
        err=_without_chance(err),
        files={str(path): _without_chance(_read(path)) for path in command.writes(place)},
        n_measured=sum(measured),
    )


def judged(damage: Damage, before: Outcome, after: Outcome) -> str:
    """Reaction of a command to a damage: `named` or `unchanged`.

    Raises:
        AssertionError: neither.
    """
    output = after.lines - before.lines
    wrong = [line for line in output if "Traceback" in line or "unexpected " in line]
    assert not wrong, wrong
    if after == before:
        return "unchanged"
    naming = [line for line in output if any(word in line for word in damage.words)]
    assert naming, (after.status, before.status, sorted(output)[:5], after.files != before.files)
    if after.status not in (0, 4):
        # One line, or notes beside what could be done.
        assert after.err.strip()
    return "named"


_NONE = Damage(name="none", apply=lambda _place: None, words=())


@contextlib.contextmanager
def _stand_ins(place: Place, measured: list[int], *, is_night: bool) -> Iterator[None]:
    """No worker is started, nothing of others is cleaned, and a locked history is not waited for."""

    def night(_spec: object, options: RunOptions) -> RunOutcome:
        assert options.out is not None
        shutil.copytree(place.other, options.out)
        return RunOutcome(run_dir=options.out)

    with (
        patch.object(pipeline, "run_slots", lambda slots, *_rest: measured.append(len(slots))),
        patch.object(registry, "clean", lambda: registry.Cleaned(folders=(), containers=())),
        patch.object(database, "_BUSY_S", 0.05),
        patch.object(pipeline, "run", night) if is_night else contextlib.nullcontext(),
        contextlib.chdir(place.root),
    ):
        yield


def _called(arguments: Sequence[str]) -> tuple[int, str, str]:
    def too_long(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError("the command waits for something")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(PATIENCE_S)
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()) as out,
            contextlib.redirect_stderr(io.StringIO()) as err,
        ):
            status = main(list(arguments))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return status, out.getvalue(), err.getvalue()


def _content(folder: Path) -> Mapping[str, bytes | str]:
    return {
        str(path): path.read_bytes() if path.is_file() else "a folder"
        for path in sorted(folder.rglob("*"))
        if not path.is_fifo() and not path.is_socket()
    }


def _read(path: Path) -> str:
    if not path.is_file():
        return "" if not os.path.lexists(path) else "no file"
    return path.read_text(errors="replace")


def _without_chance(text: str) -> str:
    return _CHANGING.sub("…", text)
