"""Requests of the command line to the pipeline, and the pipeline's answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Literal

from harness.experiment.references import StrategyRef, WorkloadRef
from harness.measure.timeouts import USUAL, Timeouts
from harness.provision.network_namespace import NOT_ASKED

if TYPE_CHECKING:
    from harness.cluster import Hardware
    from harness.experiment.model import Experiment
    from harness.prediction.goals import Aim
    from strategies.tpu_slices import TpuSlice

Dtype = Literal["model", "float64"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """Options of a run that do not change what is measured.

    Args:
        out: run folder; None for `runs/<experiment>-<utc>-<id>`.
        timeouts: limits of requests to workers.
        time_budget_s: seconds after which no case starts; the remaining ones are recorded as skipped.
        records_mistakes: True records a user's mistake that affects all cases as a failure of each; False
            refuses the run.
        quiet: True prints no progress and no table on stdout (`--json`).
        live: True redraws progress in place; False prints plain lines.
        metrics: listening socket for `/metrics` during the run; None serves nothing.
        exposure: reason why the network can reach this process's ports; None if it cannot.
        environ: allow-listed environment variables, for `environment.json`.
        command: command line that repeats the run, without secrets, for `environment.json`.
    """

    out: Path | None = None
    resume: bool = False
    dry_run: bool = False
    fail_fast: bool = False
    records_mistakes: bool = False
    time_budget_s: float | None = None
    timeouts: Timeouts = USUAL
    quiet: bool = False
    live: bool = False
    metrics: socket | None = None
    exposure: str | None = NOT_ASKED
    environ: Mapping[str, str] = field(default_factory=dict)
    command: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One strategy for one workload on a shape of workers and replicas per worker."""

    workload: WorkloadRef
    strategy: StrategyRef
    workers: int = 2
    replicas: int = 1
    device: Hardware = "cpu"
    share_gpus: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyRequest:
    """Compare a strategy with the single-device reference over `steps` steps.

    Args:
        last_batch: examples in the last batch; None for as many as in the others.
        dtype: dtype of the computation; None takes float64 if a graph is rewritten, else the model's.
        restore: checkpoint with the initial values of both.
        live: True shows progress on a terminal.
    """

    target: Target
    steps: int = 4
    last_batch: int | None = None
    restore: Path | None = None
    dtype: Dtype | None = None
    shrink: bool = False
    live: bool = False
    timeouts: Timeouts = USUAL


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeRequest:
    """Measure the costs of exchanges.

    Args:
        spec: experiment whose steps are fitted.
        out: file for the costs; None for one named after the machine.
    """

    spec: Experiment
    out: Path | None
    options: RunOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictRequest:
    """Predict steps.

    Args:
        source: experiment that profiles workloads, or the folder of a run with profiles.
        spec: conditions of the predictions, see `harness.prediction.conditions`.
        changes: settings in them, `dotted.path=value` each.
        probe: file with the costs of exchanges; None for this machine's.
        probing: experiment that measures them. A run folder may be another machine's: it is not run for it.
        notes: lines to print.
        with_timelines: True to add simulated steps as spans of time.
    """

    source: Experiment | Path
    spec: Experiment
    changes: Sequence[str]
    probe: Path | None
    probing: Experiment
    options: RunOptions
    notes: Sequence[str] = ()
    with_timelines: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RecommendRequest:
    """Recommend a plan for a workload.

    Args:
        source: experiment that profiles the workload, or the folder of a run with its profile.
        workload: workload to choose from the run; None if there is one.
        probe, probing: see `PredictRequest`.
        measuring: experiment on as many workers that measures the plans which predictions do not distinguish;
            its strategies are replaced. None measures nothing.
        experiment: name of an experiment, for the command that measures the plan later.
        out: file for the plan; None for one in the folder of the run with the profile.
    """

    source: Experiment | Path
    workload: str | None
    aim: Aim
    probe: Path | None
    probing: Experiment
    measuring: Experiment | None
    experiment: str
    out: Path | None
    options: RunOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRequest:
    """Show the placement of variables by a strategy, and its predicted traffic.

    Args:
        slice: TPU slice with a device for each replica, to predict the cost of collectives; or None.
        matrix: True adds the bytes between each two workers to the answer.
        live: True shows progress on a terminal.
    """

    target: Target
    slice: TpuSlice | None = None
    matrix: bool = False
    live: bool = False
    timeouts: Timeouts = USUAL


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformRequest:
    """Apply a strategy's passes for one worker.

    Args:
        rank: worker whose graph is made, from 0.
        graphdef: file for the rewritten GraphDef.
        text: True adds the rewritten graph's text form to the answer, as `text`.
        stages: new folder for the graph as captured and after every pass, as text and for TensorBoard.
        live: True shows progress on a terminal.
    """

    target: Target
    rank: int = 0
    graphdef: Path | None = None
    text: bool = False
    stages: Path | None = None
    live: bool = False
    timeouts: Timeouts = USUAL
