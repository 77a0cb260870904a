"""A tuner whose repeats are made up: plans by a table, records by what each case's rate is said to be."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from open_folders import made_record

from harness.errors import CaseError
from harness.experiment.cases import Case
from harness.experiment.load import resolve
from harness.experiment.model import Experiment
from harness.experiment.schedule import Slot
from harness.records.outcome import Rounds
from harness.records.record import Record
from harness.records.run_folder import RunFolder
from harness.run.further_repeats import ClusterState
from harness.tuning import Tuned, Tuner, tuner_of
from strategies.plan.schema import Plan, PlanNode

REPEAT_S = 1.0


def experiment(strategy: str = "all-reduce:transport=ring", **cluster: Any) -> Experiment:
    document = {"name": "tune", "workloads": ["digits-mlp"], "strategies": [strategy], "cluster": cluster}
    return resolve({**document, "measure": {"repeats": 1, "rounds": 5}})


def plan_of(case: Case) -> Plan:
    """A plan for each size of buckets, two for chunk sizes; of one it is a mistake, of one unsupported."""
    params = case.chosen.params
    if case.strategy.params.get("bucket_bytes") == 1 << 26:
        raise CaseError("user-error", "mine.py:3: KeyError: 'w'", stage="plan")
    if case.strategy.params.get("bucket_bytes") == 1 << 24:
        raise CaseError("unsupported", "needs GPUs", stage="plan")
    group = int(case.strategy.params.get("bucket_bytes") or 0) + int(params["chunk_size"] == 1)
    node = PlanNode(
        variable="w", shape=(2,), dtype="float", bytes=8, sparse=False, synchronizer="all-reduce", group=group
    )
    return Plan(
        workload="digits-mlp",
        strategy="all-reduce",
        strategy_params=params,
        strategy_class="exact",
        replicas_per_task=(1, 1),
        batch_size=64,
        device="cpu",
        nodes=(node,),
        payload_bytes_per_step=16,
        server_bytes=(0, 0),
        worker_bytes=8,
    )


@dataclass
class MadeRepeats:
    """Runs the repeats that a tuner requests.

    Args:
        rates: parameters of a case → its rate ÷ the default's; 1 for others.
        failures: parameters of a case → unusual fields of its records.
    """

    tuner: Tuner
    rates: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)

    @property
    def folder(self) -> RunFolder:
        run_folder = RunFolder(Path("run"), lock=-1)
        run_folder.records = tuple(self.records)
        return run_folder

    def run(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            knobs = str(slot.case.strategy).partition(":")[2].replace(",transport=ring", "")
            step_s = 0.01 / self.rates.get(knobs, 1.0)
            # A repeat is a little off, one way and the other in turn.
            step_s *= math.exp((-0.001 if slot.repeat % 2 else 0.001) * (slot.case != self.tuner.default))
            record = made_record(
                case=slot.case.id,
                repeat=slot.repeat,
                order=slot.order,
                batch_size=64,
                wall_s=REPEAT_S,
                rounds=Rounds(block=f"{slot.block}", n_steps=5, n_lead=2, n_made=70, step_s=(step_s,) * 5),
            )
            self.records.append(replace(record, **self.failures.get(knobs, {})))

    def rung(self, left_s: float) -> Sequence[Slot]:
        """The next rung, made."""
        first = len(self.records)
        slots = self.tuner.slots(
            ClusterState(cases=(), records=self.records, first=first, left_s=left_s, plan_of=plan_of)
        )
        self.run(slots)
        return slots

    def to_the_end(self, seconds: float) -> Tuned:
        self.run(self.tuner.default_slots)
        while self.rung(seconds - REPEAT_S * len(self.records)):
            pass
        return self.tuner.tuned(self.folder, None)


def made_repeats(seconds: float = 100.0, spec: Experiment | None = None, **output: Any) -> MadeRepeats:
    return MadeRepeats(
        tuner=tuner_of(experiment() if spec is None else spec, seconds=seconds), **cast("Any", output)
    )
