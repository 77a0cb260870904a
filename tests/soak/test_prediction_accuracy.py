"""Predicted steps of workloads that no cost was fitted to, beside measured ones: errors, order, and the best.

It prints a table like that of `docs/prediction.md`. Costs come from a probe of each provider, without a limit
of links. With STRATBENCH_ACCURACY=FOLDER, runs are kept there, and the next call continues them.
"""

import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import pytest

WORKLOADS = ("dlrm", "vgg16", "bert-base", "word-lm")
STRATEGIES = (
    "none",
    "ps",
    "ps-load-balancing",
    "partitioned-ps",
    "sharded-ps",
    "parallax",
    "all-reduce",
    "all-reduce:transport=ring",
    "all-reduce:compressor=bf16",
    "all-reduce:compressor=powersgd",
    "partitioned-all-reduce",
    "sharded-update",
    "fully-sharded",
    "local-sgd",
)
N_WORKERS = [2, 3, 4]
"""Numbers of workers; where the machine has fewer cores, they share them."""
LINKS = "[100, 300, 1000, null]"
MOST_MEDIAN, MOST_P90, LEAST_TAU, LEAST_BEST, NEAR = 0.08, 0.2, 0.9, 0.9, 1.05


@dataclass(frozen=True)
class Step:
    """A step that was measured and predicted, in seconds."""

    measured_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


def stratbench(*args: str, cwd: Path) -> str:
    command = [sys.executable, "-m", "harness.cli", *args]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=6 * 3600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def measured_steps(settings: list[str], cwd: Path) -> dict[tuple[object, ...], dict[str, Step]]:
    """Conditions (workload, workers, link) → strategy → step."""
    options = [part for setting in settings for part in ("--set", setting)]
    if not list(cwd.glob("runs/probes/*.json")):
        stratbench("probe", *options, cwd=cwd)
    workers = f"cluster.workers={N_WORKERS}"
    links = [f"cluster.link.rate_mbit={LINKS}"] if "cluster.provider=docker" in settings else []
    fixed = [
        *("--workloads", ",".join(WORKLOADS), "--strategies", ",".join(STRATEGIES), "--out", "held"),
        *("--repeats", "1", "--set", "compare.baseline=none"),
        *("--set", "measure.rounds=4", "--set", "measure.steps=8", "--set", "measure.window_s=0.5"),
        *["--resume"] * (cwd / "held").exists(),
    ]
    varied = [part for setting in (workers, *links) for part in ("--set", setting)]
    stratbench("run", "quickstart", *fixed, *options, *varied, cwd=cwd)
    report = json.loads(stratbench("report", "held", "--format", "json", cwd=cwd))
    steps: dict[tuple[object, ...], dict[str, Step]] = {}
    for comparison in report["comparisons"]:
        for row in comparison["rows"]:
            if row["predicted_step_s"] is not None and row["p50_s"] is not None:
                place = comparison["workload"], comparison["workers"], comparison["link_requested_mbit"]
                step = Step(row["p50_s"]["value"], row["predicted_step_s"]["value"])
                steps.setdefault(place, {})[row["strategy"]] = step
    return steps


def tau(steps: list[Step]) -> float:
    """Kendall's rank correlation of predicted and measured steps."""
    signs = [
        1 if (a.measured_s - b.measured_s) * (a.predicted_s - b.predicted_s) > 0 else -1
        for a, b in combinations(steps, 2)
    ]
    return statistics.fmean(signs)


@pytest.mark.timeout(8 * 3600)
@pytest.mark.parametrize("provider", ["local", pytest.param("docker", marks=pytest.mark.docker)])
def test_steps_of_other_workloads_are_predicted(provider: str, tmp_path: Path, capsys) -> None:
    folder = Path(os.environ.get("STRATBENCH_ACCURACY", tmp_path)).absolute() / provider
    folder.mkdir(parents=True, exist_ok=True)
    by_place = measured_steps([f"cluster.provider={provider}"], folder)
    errors = sorted(abs(step.error) for steps in by_place.values() for step in steps.values())
    lines, n_near = [], 0
    for (workload, workers, link), by_strategy in by_place.items():
        steps = list(by_strategy.values())
        best = min(steps, key=lambda step: step.predicted_s)
        excess = best.measured_s / min(step.measured_s for step in steps)
        n_near += excess <= NEAR
        wrong = sorted(abs(step.error) for step in steps)
        lines.append(
            f"| {workload} | {workers} | {link or 'unlimited'} | {statistics.median(wrong):.1%} "
            f"| {statistics.quantiles(wrong, n=10)[-1]:.1%} | {tau(steps):.2f} | {excess - 1:.1%} |"
        )
    median, p90 = statistics.median(errors), statistics.quantiles(errors, n=10)[-1]
    with capsys.disabled():
        sys.stdout.write(f"\n{len(errors)} steps: median {median:.1%}, 90th percentile {p90:.1%}\n")
        sys.stdout.write("\n".join(lines) + "\n")
    assert median <= MOST_MEDIAN
    assert p90 <= MOST_P90
    assert min(tau(list(steps.values())) for steps in by_place.values()) >= LEAST_TAU
    assert n_near >= LEAST_BEST * len(by_place)
