"""Shared state of the contract tests: models captured once, and references run once per topology."""

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
from access_rule import verify_shared_variables
from matrix import CORE_ROWS
from model import Model
from models import MODELS

from harness.verification.captures import CAPTURE_CHECK_STEPS
from harness.verification.reference import Outcome
from harness.verification.verdict import Verdict
from harness.verification.verification import CaptureVerdict
from harness.verification.worker.check import Reference, check, make_reference
from harness.verification.worker.in_process import InProcessCluster
from harness.verification.worker.plain_step import PythonDraws
from harness.verification.worker.users_step import UsersStep, check_capture
from harness.worker.session.capture_store import InitialValues, in_float64, save
from strategies.capture.capture import capture
from strategies.compile import Compiled, compile_tasks
from strategies.ir.train_graph import TrainGraph
from strategies.plan.schema import Plan, StepSummary
from strategies.planner import topology_of
from strategies.program import Program
from strategies.registry import make_plan
from strategies.summary import summarise
from strategies.tf_bridge.float64 import step_in_float64
from strategies.topology import Topology


@dataclass(frozen=True, kw_only=True)
class Case:
    """A captured step, in float64 if not asked otherwise, with all that a check needs; keeps references.

    Attributes:
        capture_verdict: comparison of the capture with its author's own step, in the captured types.
    """

    step: TrainGraph
    summary: StepSummary
    initial: InitialValues
    batches: Sequence[Sequence[Any]]
    capture_verdict: Callable[[], CaptureVerdict] | None = None
    _references: dict[Topology, Reference] = field(default_factory=dict)
    _verdicts: dict[Hashable, Verdict] = field(default_factory=dict)
    _shorter: dict[int, "Case"] = field(default_factory=dict)

    def with_examples(self, n: int) -> "Case":
        """The case whose batches have only so many examples."""
        if n == len(self.batches[0][0]):
            return self
        if n not in self._shorter:
            batches = [[part[:n] for part in batch] for batch in self.batches]
            self._shorter[n] = replace(self, batches=batches, _references={}, _verdicts={}, _shorter={})
        return self._shorter[n]

    def for_row(self, row: str, replicas_per_task: tuple[int, ...]) -> "Case":
        """The case that a strategy can train: where replicas are cores, they get equal shares."""
        n, n_replicas = len(self.batches[0][0]), sum(replicas_per_task)
        return self.with_examples(n - n % n_replicas) if row in CORE_ROWS else self

    def topology(self, replicas_per_task: tuple[int, ...]) -> Topology:
        return Topology(replicas_per_task=replicas_per_task, batch_size=len(self.batches[0][0]))

    def reference(
        self,
        replicas_per_task: tuple[int, ...],
        *,
        micro_batches: int = 1,
        global_statistics: bool = False,
        merges_rows: bool = False,
    ) -> Reference:
        topology = replace(
            self.topology(replicas_per_task),
            micro_batches=micro_batches,
            global_statistics=global_statistics,
            merges_rows=merges_rows,
        )
        if topology not in self._references:
            self._references[topology] = make_reference(self.step, self.initial, topology, self.batches)
        return self._references[topology]

    def plan(self, strategy: str, replicas_per_task: tuple[int, ...], **params: Any) -> Plan:
        return make_plan(strategy, params, self.summary, self.topology(replicas_per_task))

    def check(self, plan: Plan, compiled: Sequence[Compiled] | None = None) -> Verdict:
        """The verdict on a plan, as commands find it."""
        refer = partial(self.reference_of, plan)
        return check(self.step, self.initial, plan, self.batches, refer, compiled).verdict

    def check_once(self, plan: Plan) -> Verdict:
        """The verdict on a plan; plans that have the same programs share one."""
        compiled = compile_tasks(self.step, plan, range(topology_of(plan).n_tasks))
        known = (topology_of(plan), digests_of([rewritten.program for rewritten in compiled]))
        if known not in self._verdicts:
            verify_shared_variables(compiled, plan)
            self._verdicts[known] = self.check(plan, compiled)
        return self._verdicts[known]

    def run(self, plan: Plan, programs: Sequence[Program]) -> Verdict:
        """The verdict on programs, which may be other ones than the plan's."""
        with InProcessCluster(programs, self.initial) as cluster:
            return self.judge(cluster, plan)

    def judge(self, cluster: InProcessCluster, plan: Plan) -> Verdict:
        """The verdict on a cluster that steps from this case's initial values."""
        losses = cluster.steps(self.batches)
        return self.reference_of(plan).judge(Outcome(values=cluster.read(), losses=losses))

    def reference_of(self, plan: Plan) -> Reference:
        topology = topology_of(plan)
        return self.reference(
            plan.replicas_per_task,
            micro_batches=topology.micro_batches,
            global_statistics=topology.global_statistics,
            merges_rows=topology.merges_rows,
        )


def digests_of(programs: Sequence[Program]) -> Hashable:
    """Identity of programs that does not need their graphs."""
    return tuple(repr(replace(p, graph_def=hashlib.sha256(p.graph_def).digest())) for p in programs)


@dataclass(frozen=True)
class Cases:
    """Makes cases, each once; captures lie below `folder`."""

    folder: Path
    _made: dict[str, Case] = field(default_factory=dict)

    def of(self, workload: str, optimizer: str) -> Case:
        return self.model(f"{workload}+{optimizer}")

    def model(self, name: str) -> Case:
        if name not in self._made:
            keras.backend.clear_session()
            keras.utils.set_random_seed(1)
            self._made[name] = case_of_model(MODELS[name](), self.folder / name)
        return self._made[name]


def one_at_a_time(make: Callable[[str], Model], folder: Path) -> Callable[[str], Case]:
    """Cases by name, of which one is kept: a model of millions of parameters goes when the next one comes."""
    cases: dict[str, Case] = {}

    def of(name: str) -> Case:
        if name not in cases:
            cases.clear()
            keras.backend.clear_session()
            keras.utils.set_random_seed(1)
            cases[name] = case_of_model(make(name), folder / name)
        return cases[name]

    return of


def case_of_model(model: Model, folder: Path, *, float64: bool = True) -> Case:
    """A case of a model that was just made."""
    draws = PythonDraws.now()
    captured = capture(model.step, model.spec)
    users = UsersStep(
        step=model.own or model.step,
        element_spec=model.spec,
        variables=captured.variables,
        returns_loss=captured.returns_loss,
        draws=draws,
        build=lambda: model.own or model.step,
    )
    case = case_of(captured, model.batches, folder, float64=float64)
    own_types = InitialValues(folder)
    check = partial(check_capture, users, captured.step, own_types, model.batches[:CAPTURE_CHECK_STEPS])
    return replace(case, capture_verdict=check)


def case_of(captured: Any, fed: Sequence[Sequence[Any]], folder: Path, *, float64: bool = True) -> Case:
    """A case of a capture and its global batches, in float64 or in the model's own types."""
    summary = summarise(captured.step, folder.name, {})
    save(folder, captured.step, captured.initial)
    return Case(
        step=step_in_float64(captured.step) if float64 else captured.step,
        summary=summary,
        initial=InitialValues(folder, float64=float64),
        batches=[[in_float64(part) for part in batch] for batch in fed] if float64 else fed,
    )
