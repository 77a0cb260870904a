"""Repeats that the workers of a cluster get, and their end."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from open_folders import made_record

from harness.cluster import ClusterShape
from harness.experiment.cases import expand
from harness.experiment.load import resolve
from harness.experiment.schedule import Slot, schedule
from harness.measure.timeouts import USUAL, Timeouts
from harness.provision import protocols
from harness.provision.protocols import USUAL_START, StartOptions
from harness.records.conditions import Method
from harness.records.outcome import Failure, Rounds
from harness.records.record import KILLED_BY_FAULT, Record
from harness.requests import RunOptions
from harness.run import clusters
from harness.run.clusters import run_slots, users_folders
from harness.run.further_repeats import NarrowRatios
from harness.run.progress import Progress
from harness.run.repeats import EndedRepeat

REPEAT_S = 10.0


@dataclass
class Folder:
    """Stands in for a run's folder: keeps what is appended."""

    path: Path = Path("run")
    run: str = "r"
    cases: Path = Path("run/cases")
    records: tuple[Record, ...] = ()

    def append(self, record: Record) -> None:
        self.records = (*self.records, record)


@dataclass
class Workers:
    """Workers and runner whose repeats differ by so much, and take `REPEAT_S` together."""

    factor: float
    clock_s: float = 0.0
    started: list[int] = field(default_factory=list)
    n_workers: list[int] = field(default_factory=list)
    preload_s: set[float] = field(default_factory=set)

    def start(
        self, shape: ClusterShape, run: str, log_dir: Path, options: StartOptions, **_: object
    ) -> contextlib.AbstractContextManager[Any]:
        del run, log_dir
        self.preload_s.add(options.preload_s)
        self.n_workers.append(shape.workers)
        cluster = SimpleNamespace(
            facts=protocols.ClusterFacts,
            wait_ready=lambda n: (),
            scratch=Path("scratch"),
            worker_path=lambda p: p,
        )
        return contextlib.nullcontext(cluster)

    def require(self, shape: object) -> None:
        del shape

    def prepare(self, slots: Sequence[Slot], *, deadline_s: float) -> None:
        del slots, deadline_s

    def run(self, slots: Sequence[Slot]) -> Iterator[tuple[Slot, EndedRepeat]]:
        self.clock_s += REPEAT_S
        self.started.append(slots[0].repeat)
        for slot in slots:
            is_slow = slot.case.strategy.name == "ps" and slot.repeat % 2
            step_s = (self.factor if is_slow else 1.0,) * 10
            record = replace(
                made_record(),
                case=slot.case.id,
                repeat=slot.repeat,
                order=slot.order,
                batch_size=64,
                wall_s=REPEAT_S / len(slots),
                rounds=Rounds(block=f"{slot.block}", n_steps=5, n_lead=2, n_made=70, step_s=step_s),
            )
            yield slot, EndedRepeat(record=record)


def run(
    fake: Workers,
    monkeypatch: pytest.MonkeyPatch,
    *,
    at_most: str,
    budget_s: float | None = None,
    limits: Timeouts = USUAL,
    fail_fast: bool = False,
    before: Folder | None = None,
    **cluster: Any,
) -> Folder:
    monkeypatch.setattr(clusters, "provider_of", {"local": fake}.get)
    monkeypatch.setattr(clusters, "SlotRunner", lambda **_: fake)
    monkeypatch.setattr(clusters, "Captures", lambda *_, **__: None)
    monkeypatch.setattr(clusters, "time", SimpleNamespace(monotonic=lambda: fake.clock_s))
    until = {"ratio_ci": "5%", "at_most": at_most}
    document = {"name": "x", "workloads": ["digits-mlp"], "strategies": ["single", "ps"], "cluster": cluster}
    spec = resolve({**document, "measure": {"repeats": 4, "until": until}})
    cases = expand(spec)
    slots = schedule(cases, repeats=4, seed=0, interleave=True, is_control=lambda _: False)
    folder = Folder() if before is None else before
    requested = {(slot.case.id, slot.repeat) for slot in slots}
    done = {(record.case, record.repeat) for record in folder.records}
    left = [slot for slot in slots if (slot.case.id, slot.repeat) not in done]
    progress = Progress(len(slots), n_left=len(left), live=False, quiet=True)
    assert spec.measure.until is not None
    run_slots(
        left,
        cases,
        spec,
        RunOptions(time_budget_s=budget_s, timeouts=limits, fail_fast=fail_fast),
        cast("Any", folder),
        progress,
        None,
        NarrowRatios(spec=spec, until=spec.measure.until),
    )
    now_done = {(record.case, record.repeat) for record in folder.records}
    assert progress.left().n_repeats == len(requested - now_done)
    return folder


def repeats_by_case(folder: Folder) -> dict[str, list[int]]:
    results: dict[str, list[int]] = {}
    for record in folder.records:
        results.setdefault(record.case, []).append(record.repeat)
    return results


def test_repeats_go_on_until_ratios_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = Workers(factor=1.0)
    run(quiet, monkeypatch, at_most="10m")
    assert quiet.started == [0, 1, 2, 3]
    noisy = Workers(factor=1.08)
    folder = run(noisy, monkeypatch, at_most="10m")
    assert noisy.started == [0, 1, 2, 3, 4, 5, 6]
    assert set(map(tuple, repeats_by_case(folder).values())) == {tuple(range(7))}


def test_nothing_is_begun_that_would_end_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Workers(factor=3.0)
    run(fake, monkeypatch, at_most="65s")
    assert fake.started == [0, 1, 2, 3, 4, 5]
    assert fake.clock_s <= 65.0


def test_a_worker_that_its_fault_kills_is_no_failure_to_stop_at(monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(Workers):
        def run(self, slots: Sequence[Slot]) -> Iterator[tuple[Slot, EndedRepeat]]:
            for slot, ended in super().run(slots):
                method = Method(
                    seed=0,
                    steps=50,
                    warmup_rule="auto",
                    interleave=True,
                    batch_rule="global",
                    faults=("worker 1: dead",),
                )
                error = Failure(type=KILLED_BY_FAULT, message="its fault killed it", stage="run")
                record = replace(ended.record, status="failed", error=error, method=method)
                yield slot, EndedRepeat(record=record)

    fake = Killed(factor=1.0)
    run(fake, monkeypatch, at_most="1s", fail_fast=True)
    assert fake.started == [0, 1, 2, 3]


def test_whoever_waits_longer_waits_longer_for_workers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Workers(factor=1.0)
    run(fake, monkeypatch, at_most="10m", limits=Timeouts(factor=4.0))
    assert fake.preload_s == {4 * USUAL_START.preload_s}


def test_a_time_budget_ends_further_repeats_and_none_of_them_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = Workers(factor=3.0)
    folder = run(fake, monkeypatch, at_most="10m", budget_s=50.0)
    assert fake.started == [0, 1, 2, 3, 4]
    assert {record.status for record in folder.records} == {"ok"}


def test_a_resumed_run_has_workers_for_all_that_may_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    before = run(Workers(factor=3.0), monkeypatch, at_most="1s", workers=4)
    alone = {r.case for r in before.records if r.case.startswith("digits-mlp-single")}
    before.records = tuple(r for r in before.records if not (r.case in alone and r.repeat == 1))
    resumed = Workers(factor=3.0)
    folder = run(resumed, monkeypatch, at_most="35s", before=before, workers=4)
    assert resumed.n_workers == [4]
    assert resumed.started == [1, 4, 5]
    assert set(map(tuple, map(sorted, repeats_by_case(folder).values()))) == {tuple(range(6))}


def test_a_run_of_several_clusters_goes_on_cluster_by_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    before = run(Workers(factor=3.0), monkeypatch, at_most="1s", cores_per_worker=[1, 2])
    resumed = Workers(factor=3.0)
    folder = run(resumed, monkeypatch, at_most="80s", before=before, cores_per_worker=[1, 2])
    assert len(resumed.n_workers) == 2, "each cluster comes up once"
    assert len(repeats_by_case(folder)) == 4
    assert all(len(set(result)) == len(result) for result in repeats_by_case(folder).values())
    assert resumed.started == [4, 5, 6, 7, 4, 5, 6, 7]


def read_folders(workload: str, **sections: object) -> tuple[Path, ...]:
    spec = resolve({"name": "x", "workloads": [workload], "strategies": ["single"], **sections})
    return users_folders(expand(spec), spec)


@pytest.fixture
def current(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, beside one that holds a user's file."""
    folder = tmp_path / "project"
    folder.mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.py").write_text("FACTOR = 1\n")
    monkeypatch.chdir(folder)
    return folder


def test_a_file_behind_a_link_is_where_it_is_named_and_where_it_lies(current: Path) -> None:
    (current / "models").symlink_to(current.parent / "data")
    assert read_folders("models/mine.py:Model") == (current.parent / "data", current / "models")


def test_folders_above_the_current_one_are_named_from_the_root_on(current: Path) -> None:
    (current.parent / "checkpoint").mkdir()
    named = read_folders("../data/mine.py:Model", checkpoint={"restore": "../checkpoint"})
    assert named == (current.parent / "checkpoint", current.parent / "data")
