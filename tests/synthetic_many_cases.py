"""A run folder of thousands of cases, each repeat with a record, steps and a plan, written at once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from synthetic_run import Case, write_run

from harness.records.checksums import file_checksum
from harness.records.outcome import Rounds
from harness.records.record import Record, to_json
from harness.records.run_folder import open_run
from harness.records.stored_run import StoredRun, load_run

N_ROUNDS = 10
N_WORKLOADS = 5


def write_many_cases(path: Path, *, n_shapes: int, n_strategies: int, n_repeats: int) -> Path:
    """Write a run folder of `n_shapes` × `n_strategies` cases.

    Args:
        path: the run folder, absent; a folder of one case is made beside it.
    """
    pattern = _pattern(path.with_name(f"{path.name}-pattern"))
    steps = pattern.repeat_dir(pattern.records[0]).joinpath("steps.parquet").read_bytes()
    plan = json.dumps(_plan()).encode()
    checksums = {"steps.parquet": file_checksum(steps), "plan.json": file_checksum(plan)}
    rng = np.random.default_rng(0)
    experiment = {"name": "many-cases", "compare": {"baseline": "strategy-0"}}
    lines = []
    with open_run(path, experiment=experiment, environment={"python": "3.11.7"}) as folder:
        for repeat in range(n_repeats):
            for shape in range(n_shapes):
                slow = rng.uniform(1.0, 1.2, size=N_ROUNDS)
                for strategy in range(n_strategies):
                    record = _record(pattern.records[0], shape, strategy, repeat, slow, rng)
                    record = replace(record, run=folder.run, file_checksums=checksums)
                    lines.append(to_json(record) + "\n")
                    beside = folder.repeat_dir(record.case, repeat)
                    (beside / "steps.parquet").write_bytes(steps)
                    (beside / "plan.json").write_bytes(plan)
    # Not one by one: each would wait for the disk.
    (path / "results.jsonl").write_text("".join(lines))
    return path


def _plan() -> dict[str, object]:
    """A plan of layers that are all of other sizes."""
    fields = {"dtype": "float", "sparse": False, "synchronizer": "ps", "destination": 0}
    names = "abcdefghijklmnopqrstuvwxyz"
    nodes = [
        {"variable": f"{name}/kernel", "shape": [i, 64], "bytes": i * 256, **fields}
        for i, name in enumerate(names, start=1)
    ]
    return {"replicas_per_task": [1, 1], "nodes": nodes, "server_bytes": [89856, 0], "worker_bytes": 0}


def _pattern(path: Path) -> StoredRun:
    case = Case(workload="w", strategy="ps", package_j=0.4, price_per_hour=1.0)
    return load_run(write_run(path, [case], n_repeats=1, minutes=(1.0, 1.2)))


def _record(
    pattern: Record, shape: int, strategy: int, repeat: int, slow: np.ndarray, rng: np.random.Generator
) -> Record:
    workers = 2 + shape // N_WORKLOADS
    steps_s = 0.01 * (1 + 0.03 * strategy) * slow * np.exp(0.01 * rng.standard_normal(N_ROUNDS))
    assert pattern.step_s is not None
    rounds = Rounds(
        block=f"block-{shape}-{repeat}",
        n_steps=5,
        n_lead=1,
        n_made=60,
        step_s=tuple(steps_s.tolist()),
    )
    p50_s = float(np.median(steps_s))
    return replace(
        pattern,
        case=f"case-{shape}-{strategy}",
        repeat=repeat,
        order=repeat,
        workload=f"workload-{shape % N_WORKLOADS}",
        strategy=f"strategy-{strategy}",
        workers=workers,
        step_s=replace(pattern.step_s, p50=p50_s),
        examples_per_s=64 / p50_s,
        rounds=rounds,
        tcp_matrix=tuple(tuple(0.0 if i == j else 1e6 for j in range(workers)) for i in range(workers)),
        peak_rss_bytes=(610_000_000,) * workers,
        cpu_s_per_step=(0.01,) * workers,
    )
