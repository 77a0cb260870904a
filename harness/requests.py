"""Requests of the command line to the pipeline, and the pipeline's answers."""

from __future__ import annotations

from collections.abc import Mapping
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
    from strategies.tpu_slices import TpuSlice

Dtype = Literal["model", "float64"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """Options of carrying out a run; none changes what is measured.

    Args:
        out: the run folder itself; None for `runs/<experiment>-<utc>-<id>`.
        timeouts: how long to wait for workers.
        time_budget_s: no new case starts after so many seconds; the rest is recorded as skipped.
        records_mistakes: a mistake of the user's that is in the way of all cases is recorded as the failure
            of each, in place of refusing the run.
        quiet: no progress and no table on stdout (`--json`).
        live: redraw progress in place; False prints plain lines.
        metrics: listening socket to serve `/metrics` on while the run goes on; None serves nothing.
        exposure: why strangers on the network can reach what this process starts; None where they cannot.
        environ: the allow-listed part of the process environment, for `environment.json`.
        command: line that makes the run again, without secrets, for `environment.json`, too.
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
        last_batch: examples in the last of the batches; None for as many as in the others.
        dtype: numbers to compute in; None takes float64 where a graph is rewritten, else the model's.
        restore: checkpoint that both begin with.
        live: show on a terminal what is going on.
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
class TuneRequest:
    """Find the values of a strategy's knobs that are fastest for a workload.

    Args:
        spec: an experiment of one case.
        seconds: for all of it.
        out: the plan's file; None for one in the run folder.
    """

    spec: Experiment
    seconds: float
    out: Path | None
    options: RunOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanRequest:
    """Show where a strategy puts each variable and what it will send.

    Args:
        slice: TPU slice with a device for each replica, for what the plan's collectives cost there; or None.
        live: show on a terminal what is going on.
    """

    target: Target
    slice: TpuSlice | None = None
    live: bool = False
    timeouts: Timeouts = USUAL


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformRequest:
    """Apply a strategy's passes for one worker.

    Args:
        rank: the worker whose graph is made, from 0.
        graphdef: write the rewritten GraphDef here.
        text: put the rewritten graph's text form under `text` in the answer.
        stages: new folder for the graph as captured and after every pass, as text and for TensorBoard.
        live: show on a terminal what is going on.
    """

    target: Target
    rank: int = 0
    graphdef: Path | None = None
    text: bool = False
    stages: Path | None = None
    live: bool = False
    timeouts: Timeouts = USUAL
