"""Plans, logs and traces that rows name for their repeats."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_run import SINGLE, Case, write_run

import reports
from harness.records.costs import PassCost
from harness.records.outcome import Failure
from harness.records.record import to_json
from harness.records.stored_run import load_run
from reports.compare import build
from reports.load import load
from reports.rows.parts import PlacementLine, Problem, TraceFile
from reports.rows.report import LeftOut
from reports.rows.row import Row
from reports.tables.placements import pass_table, placement_table, server_table

DIED = Failure(type="worker-error", message="worker 1: run_steps raised ValueError", stage="run")
HERE = Failure(type="unreachable", message="no answer within 60.0 s", stage="run")


def rows_of(path: Path) -> tuple[dict[str, Row], tuple[LeftOut, ...]]:
    report = build([load(path)], with_files=True)
    return {row.strategy: row for c in report.comparisons for row in c.rows}, report.left_out


def failed_run(path: Path, failure: Failure = DIED) -> tuple[Path, Path]:
    """A run folder and the folder of a failed repeat in it."""
    cases = [
        Case(workload="w", **SINGLE),
        Case(workload="w", strategy="ps", problems={1: ("failed", failure)}),
    ]
    write_run(path, cases)
    stored = load_run(path)
    (record,) = (record for record in stored.records if record.status == "failed")
    beside = stored.repeat_dir(record)
    beside.mkdir(parents=True, exist_ok=True)
    return path, beside


def problem_of(path: Path) -> Problem:
    (problem,) = rows_of(path)[0]["ps"].problems
    return problem


def test_a_failure_shows_the_end_of_the_log_of_the_worker_that_it_names(tmp_path: Path) -> None:
    path, beside = failed_run(tmp_path / "run")
    (beside / "worker-1.log").write_text("".join(f"line {i}\n\n" for i in range(40)))
    (beside / "worker-0.log").write_text("of another\n")
    problem = problem_of(path)
    assert problem.log == tuple(f"line {i}" for i in range(28, 40))
    assert problem.log_path == str((beside / "worker-1.log").relative_to(path))


def test_where_none_is_named_it_is_the_log_written_last(tmp_path: Path) -> None:
    path, beside = failed_run(tmp_path / "run", HERE)
    for i, name in enumerate(("worker-2.log", "worker-0.log", "worker-1.log", "fork-server.log")):
        (beside / name).write_text(f"{name}\n" if name != "worker-1.log" else "")
        os.utime(beside / name, (1_000 + i, 1_000 + i))
    assert problem_of(path).log == ("worker-0.log",)


def test_log_lines_are_spelt_out_cut_and_without_secrets(tmp_path: Path) -> None:
    path, beside = failed_run(tmp_path / "run")
    lines = [
        "\x1b[31mred\x1b[0m\tand \u202eturned\u202c",
        "GET https://bob:hunter2@example.org/x?token=s3cret&page=2",
        "x" * 5_000 + " end",
        b"\xff\xfe".decode(errors="replace"),
    ]
    (beside / "worker-1.log").write_bytes("\n".join(lines).encode(errors="replace"))
    log = problem_of(path).log
    assert log[0] == "\\x1b[31mred\\x1b[0m    and \\u202eturned\\u202c"
    assert log[1] == "GET https://[redacted]@example.org/x?token=[redacted]&page=2"
    assert len(log[2]) < 400
    assert log[2].endswith("xxx end")
    assert "4,704 characters more" in log[2]
    text = "".join(reports.render([path], name) for name in ("html", "json"))
    assert "hunter2" not in text
    assert "s3cret" not in text


def test_a_secret_that_is_cut_by_where_reading_begins_is_not_shown(tmp_path: Path) -> None:
    path, beside = failed_run(tmp_path / "run")
    (beside / "worker-1.log").write_text("password=" + "s3cret" * 20_000 + "\nlast\n")
    assert problem_of(path).log == ("last",)


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_log_from_elsewhere_is_refused_and_named(tmp_path: Path, kind: str) -> None:
    path, beside = failed_run(tmp_path / "run")
    (tmp_path / "passwd").write_text("root:x:0:0\n")
    log = beside / "worker-1.log"
    os.mkfifo(log) if kind == "pipe" else log.symlink_to(tmp_path / "passwd")
    rows, left_out = rows_of(path)
    assert rows["ps"].problems[0].log == ()
    (item,) = left_out
    assert item.where.endswith("/1/worker-1.log")
    assert "not followed" in item.why


def test_traces_are_named_by_their_place_in_the_run_folder(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [Case(workload="w", **SINGLE)])
    stored = load_run(path)
    for record in stored.records:
        trace = stored.repeat_dir(record) / "trace.json"
        if record.repeat == 0:
            trace.write_text("{}")
        elif record.repeat == 1:
            trace.symlink_to(tmp_path / "elsewhere")
    case = stored.records[0].case
    assert rows_of(path)[0]["single"].traces == (TraceFile(repeat=0, path=f"cases/{case}/0/trace.json"),)


def node(variable: str, **fields: object) -> dict[str, object]:
    defaults = {"shape": [4, 8], "dtype": "float", "bytes": 128, "sparse": False, "synchronizer": "ps"}
    return {"variable": variable, **defaults, **fields}


def planned_run(path: Path, nodes: list[dict[str, object]], **fields: object) -> Path:
    write_run(path, [Case(workload="w", **SINGLE), Case(workload="w", strategy="ps")])
    stored = load_run(path)
    plan = {
        "nodes": nodes,
        "replicas_per_task": [2, 1],
        "server_bytes": [300, 100],
        "worker_bytes": 7,
        **fields,
    }
    for record in stored.records:
        if record.strategy == "ps":
            (stored.repeat_dir(record) / "plan.json").write_text(json.dumps(plan))
    return path


def lines_of(path: Path) -> tuple[PlacementLine, ...]:
    placement = rows_of(path)[0]["ps"].placement
    assert placement is not None
    return placement.lines


def test_alike_variables_are_one_line(tmp_path: Path) -> None:
    sums = [
        node(f"block_{i}/mlp_1/kernel", synchronizer="all-reduce", group=i, transport="tcp") for i in range(5)
    ]
    odd = node("block_5/mlp_1/kernel", shape=[4, 9], synchronizer="all-reduce", group=5, transport="tcp")
    path = planned_run(tmp_path / "run", [*sums, odd])
    several, one = lines_of(path)
    assert (several.name, several.n, several.bytes) == ("block_#/mlp_1/kernel", 5, 128)
    assert several.synchronized == "all-reduce over the workers' own ring, buckets 0 to 4"
    assert (one.name, one.n, one.shape) == ("block_5/mlp_1/kernel", 1, (4, 9))
    table = placement_table(rows_of(path)[0]["ps"])
    assert table is not None
    assert [cell.text for cell in table.rows[0]][:4] == ["block_#/mlp_1/kernel", "4×8", "float", "128 B"]


@pytest.mark.parametrize(
    ("fields", "where", "synchronized", "why"),
    [
        (
            {"destination": 1},
            "server 1",
            "pushed to the server",
            "receives its gradients, and sends its value",
        ),
        ({"destination": 1, "sparse": True}, "server 1", "rows pushed", "rows that a step uses are sent"),
        ({"destination": 0, "proxy": True}, "copy on each worker's host", "pushed", "one copy on their host"),
        (
            {"destination": 0, "synchronizer": "none"},
            "server 0",
            "not at all",
            "stored with the variables that servers update",
        ),
        ({"synchronizer": "none"}, "all replicas", "not at all", "each replica has its own copy"),
        (
            {"partition": {"axis": 0, "sizes": [2, 2], "destinations": [0, 1]}},
            "2 parts along axis 0, on servers 0, 1",
            "pushed to their servers",
            "servers store its parts",
        ),
        (
            {"synchronizer": "all-reduce", "owner": 2, "whole_gradient": True},
            "all replicas, updated by replica 2",
            "summed for every replica",
            "read its gradient, so every replica needs it",
        ),
        (
            {"synchronizer": "all-reduce", "owner": 2, "gathered": True},
            "replica 2 alone",
            "summed for its owner",
            "gather its value before they read it",
        ),
        (
            {"synchronizer": "none", "owner": 2},
            "replica 2 alone",
            "not at all",
            "only its owner stores and updates it",
        ),
        (
            {"synchronizer": "all-reduce", "sparse": True},
            "all replicas",
            "rows gathered",
            "all replicas gather its rows",
        ),
        (
            {"synchronizer": "hierarchical-all-reduce"},
            "all replicas",
            "then between",
            "one leader per worker",
        ),
        ({"synchronizer": "average"}, "all replicas", "average of copies", "averaged every 8 steps"),
        ({"synchronizer": "cross-replica-sum"}, "all replicas", "between cores", "run one computation"),
        ({"synchronizer": "robust-gather"}, "all replicas", "on every worker", "rule median"),
        (
            {"destination": 0, "compressor": {"name": "topk", "ratio": 0.01}},
            "server 0",
            "compressed: topk, ratio 0.01",
            "gradient is compressed",
        ),
    ],
)
def test_each_field_of_a_plan_is_said(
    tmp_path: Path, fields: dict[str, object], where: str, synchronized: str, why: str
) -> None:
    params = {"period": 8, "rule": "median"}
    (line,) = lines_of(planned_run(tmp_path / "run", [node("v", **fields)], strategy_params=params))
    assert where in line.where
    assert synchronized in line.synchronized
    assert why in line.why[:1].lower() + line.why[1:]


def test_of_many_lines_the_largest_are_kept_in_order_and_the_rest_counted(tmp_path: Path) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    nodes = [node(f"{a}{b}", bytes=10 * i + j) for i, a in enumerate(letters) for j, b in enumerate("pqrs")]
    path = planned_run(tmp_path / "run", nodes)
    lines = lines_of(path)
    assert [line.name for line in lines] == [str(item["variable"]) for item in nodes[-60:]]
    row = rows_of(path)[0]["ps"]
    assert row.placement is not None
    assert row.placement.n_more == len(nodes) - 60
    table = placement_table(row)
    assert table is not None
    assert "44 smaller ones are not shown" in table.caption


def test_memory_of_servers(tmp_path: Path) -> None:
    report = build([load(planned_run(tmp_path / "run", [node("v")]))], with_files=True)
    table = server_table(report.comparisons[0])
    assert table is not None
    assert [[cell.text for cell in cells] for cells in table.rows] == [["ps", "300 B", "100 B", "1.50"]]


def test_memory_of_many_servers_is_summed_up(tmp_path: Path) -> None:
    counts = [*range(1, 17), *[1_000] * 9_984]
    path = planned_run(tmp_path / "run", [node("v")], server_bytes=counts)
    table = server_table(build([load(path)], with_files=True).comparisons[0])
    assert table is not None
    names = [column.name for column in table.columns]
    assert names[:1] + names[16:] == [
        "strategy",
        "server 15",
        "further servers",
        "least of all",
        "mean",
        "largest",
        "largest over mean",
    ]
    (cells,) = table.rows
    outputs = [(cell.text, cell.note) for cell in cells[16:]]
    assert outputs == [
        ("16.0 B", ""),
        ("9.98 MB", "9984 servers"),
        ("1.00 B", ""),
        ("998 B", ""),
        ("1.00 kB", ""),
        ("1.00", ""),
    ]


def test_lists_of_many_servers_are_read_as_a_plan_states_them(tmp_path: Path) -> None:
    cut = {
        "axis": 0,
        "sizes": [2, {"repeat": [2, 1], "times": 500}],
        "destinations": [0, {"repeat": 1, "times": 1000, "step": 1}],
    }
    path = planned_run(
        tmp_path / "run",
        [node("v", partition=cut)],
        replicas_per_task=[{"repeat": 1, "times": 1001}],
        server_bytes=[600, {"repeat": [100, 200], "times": 500}],
    )
    (line,) = lines_of(path)
    assert line.where == "1001 parts along axis 0, on servers 0 to 1000"
    placement = rows_of(path)[0]["ps"].placement
    assert placement is not None
    assert placement.server_bytes == (600, *(100, 200) * 500)


HUGE = 10**400
BEYOND = [
    ([node("v", bytes=HUGE)], {}, "nodes.0.bytes"),
    ([node("v", bytes=-1)], {}, "nodes.0.bytes"),
    ([node("v", shape=[HUGE])], {}, "nodes.0.shape.0"),
    ([node("v", shape=[1] * 255)], {}, "nodes.0.shape"),
    ([node("v", destination=HUGE)], {}, "nodes.0.destination"),
    ([node("v", compressor={"name": "topk", "rank": HUGE})], {}, "nodes.0.compressor.rank"),
    ([node("v", compressor={"name": "topk", "ratio": float("inf")})], {}, "nodes.0.compressor.ratio"),
    ([node("v", compressor={"name": "t" * 201})], {}, "nodes.0.compressor.name"),
    ([node("v", dtype="y" * 201)], {}, "nodes.0.dtype"),
    ([node("v", synchronizer="y" * 201)], {}, "nodes.0.synchronizer"),
    ([], {"server_bytes": [1, -1]}, "server_bytes.1"),
    ([], {"server_bytes": [1] * 10_001}, "server_bytes"),
    ([], {"server_bytes": [{"repeat": 1, "times": 10_000}, 1]}, "server_bytes"),
    ([], {"server_bytes": [{"repeat": 1, "times": 3, "step": -1}]}, "server_bytes"),
    ([], {"server_bytes": [{"repeat": [], "times": 3}]}, "server_bytes.0"),
    ([], {"server_bytes": [{"repeat": 1, "times": 10**9}]}, "server_bytes.0"),
    ([], {"replicas_per_task": [1] * 10_001}, "replicas_per_task"),
    ([], {"worker_bytes": HUGE}, "worker_bytes"),
    ([], {"notes": ["x" * 10_001]}, "notes.0"),
    ([], {"notes": ["x"] * 1_001}, "notes"),
    ([], {"strategy_params": {"rule": "x" * 10_001}}, "strategy_params.rule"),
    ([], {"strategy_params": {f"p{i}": 1 for i in range(201)}}, "strategy_params"),
]


@pytest.mark.parametrize(
    ("nodes", "fields", "where"), BEYOND, ids=[f"{w} {i}" for i, (*_, w) in enumerate(BEYOND)]
)
def test_a_plan_with_more_than_any_plan_has_is_left_out(
    tmp_path: Path, nodes: list[dict[str, object]], fields: dict[str, object], where: str
) -> None:
    path = planned_run(tmp_path / "run", nodes, **fields)
    messages: list[str] = []
    page = reports.render([path], "html", notify=messages.append)
    assert len(messages) == 3
    assert all(f"must hold a plan: {where}" in line and len(line) < 400 for line in messages)
    assert len(page) < len(reports.render([planned_run(tmp_path / "other", [])], "html")) + 3_000


def test_notes_and_options_of_a_plan_are_cut(tmp_path: Path) -> None:
    nodes = [node("v", synchronizer="robust-gather"), node("x" * 900)]
    notes = [f"{i} " + "n" * 9_000 for i in range(1_000)]
    params = {"rule": "r" * 9_000}
    path = planned_run(tmp_path / "run", nodes, notes=notes, strategy_params=params)
    placement = rows_of(path)[0]["ps"].placement
    assert placement is not None
    assert [len(note) for note in placement.notes[:20]] == [1_002] * 20
    assert placement.notes[20:] == ("980 more notes are in the plan's file",)
    assert "r" * 200 in placement.lines[0].why
    assert "r" * 201 not in placement.lines[0].why


@pytest.mark.parametrize(
    "plan", ["", "[]", '{"nodes": 3}', '{"nodes": [{"variable": 7}]}', '{"nodes": [', "[" * 10_000, "\x00"]
)
def test_what_is_no_plan_is_left_out(tmp_path: Path, plan: str) -> None:
    path = planned_run(tmp_path / "run", [])
    stored = load_run(path)
    for record in stored.records:
        (stored.repeat_dir(record) / "plan.json").write_text(plan)
    rows, left_out = rows_of(path)
    assert rows["ps"].placement is None
    assert len(left_out) == 6
    assert all(item.where.endswith("/plan.json") and "must hold a plan" in item.why for item in left_out)


def test_a_plan_that_was_edited_is_not_believed(tmp_path: Path) -> None:
    path = planned_run(tmp_path / "run", [node("v")])
    stored = load_run(path)
    lines = []
    for record in stored.records:
        document = json.loads(to_json(record)) | {"file_checksums": {"plan.json": "0" * 64}}
        del document["checksum"]
        lines.append(json.dumps(document | {"schema": 1}))
    (path / "results.jsonl").write_text("\n".join(lines) + "\n")
    rows, left_out = rows_of(path)
    assert rows["ps"].placement is None
    assert all("must have the checksum" in item.why for item in left_out)


def test_passes_are_timed_over_repeats_and_say_what_they_add(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [Case(workload="w", **SINGLE)])
    stored = load_run(path)
    records = [
        replace(
            record,
            nodes_before=100,
            passes=(
                PassCost(name="replicate", seconds=0.1 * (1 + record.repeat), nodes=180),
                PassCost(name="fuse-updates", seconds=0.5, nodes=170),
            ),
        )
        for record in stored.records[:2]
    ]
    lines = [to_json(record) for record in (*records, *stored.records[2:])]
    (path / "results.jsonl").write_text("\n".join(lines) + "\n")
    report = build([load(path)])
    (row,) = report.comparisons[0].rows
    first, second = row.passes
    assert (first.name, first.nodes, first.added) == ("replicate", 180, 80)
    assert (first.seconds.n, first.seconds.value) == (2, pytest.approx(0.15))
    assert (second.name, second.added, second.seconds.low) == ("fuse-updates", -10, 0.5)
    table = pass_table(report.comparisons[0])
    assert table is not None
    assert [cell.text for cell in table.rows[1]][1:] == ["fuse-updates", "170", "-10", "500 ms"]
    assert "fuse-updates" in reports.render([path], "md")


def test_records_from_before_passes_were_kept_have_no_table_of_them(tmp_path: Path) -> None:
    report = build([load(write_run(tmp_path / "run", [Case(workload="w", **SINGLE)]))])
    assert report.comparisons[0].rows[0].passes == ()
    assert pass_table(report.comparisons[0]) is None
