"""The command line in this process, and a pipeline that stands in for the real one."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from _pytest.capture import CaptureResult

from harness.cli import main
from harness.experiment.spec import ExperimentSpec
from harness.requests import PlanRequest, RunOptions, RunOutcome, TransformRequest, VerifyRequest


class Pipeline(ModuleType):
    """Stands in for `harness.pipeline`: notes what it is asked and answers in the contract's shapes."""

    def __init__(self) -> None:
        super().__init__("harness.pipeline")
        self.asked: list[Any] = []
        self.raises: BaseException | None = None
        self.equivalent: bool | None = True
        self.separable: bool | None = True
        self.undecidable: list[str] = []
        self.outcome = RunOutcome(run_dir=Path("runs/x"), report=Path("runs/x/report.html"), n_ok=3)

    def _note(self, *asked: Any) -> None:
        self.asked.append(asked[0] if len(asked) == 1 else asked)
        print("chatter of a user's workload")  # noqa: T201
        if self.raises is not None:
            raise self.raises

    def run(self, spec: ExperimentSpec, options: RunOptions) -> RunOutcome:
        self._note(spec, options)
        return self.outcome

    def verify(self, request: VerifyRequest) -> Mapping[str, object]:
        self._note(request)
        return {
            "workload": "wide-mlp",
            "strategy": "ps",
            "strategy_params": {},
            "class": "exact",
            "workers": 2,
            "replicas": 1,
            "steps": 4,
            "dtype": "float64",
            "undecidable": self.undecidable,
            "equivalent": self.equivalent,
            "reason": None if self.equivalent else "too little can be judged",
            "max_update_error": 3e-16,
            "noise_floor": float("nan"),
            "tolerance": 5.7e-14,
            "variables": [
                {
                    "name": f"v{index}",
                    "kind": "slot",
                    "update_error": 1e-16,
                    "noise_floor": 0.0,
                    "tolerance": 1e-13 / (index + 1),
                }
                for index in range(9)
            ],
            "separable": self.separable,
            "separability": {"explanation": "what shards make of it, and of the whole batch"},
            "loss": [2.0],
            "reference_loss": [2.0],
        }

    def plan(self, request: PlanRequest) -> Mapping[str, object]:
        self._note(request)
        node = {
            "variable": "dense/kernel",
            "shape": [64, 1200],
            "dtype": "float32",
            "bytes": 307200,
            "sparse": False,
            "partition": {
                "axis": 0,
                "sizes": [32, 32],
                "destinations": [0, 1],
                "groups": None,
                "owners": None,
            },
            "synchronizer": "ps",
            "destination": "worker:0",
            "group": None,
        }
        return {
            "workload": "wide-mlp",
            "strategy": "ps",
            "nodes": [node],
            "payload_bytes_per_step": 614400,
            "server_bytes": [307200, 0],
            "worker_bytes": {"worker:1": 614400},
            "statistics": [{"layer": "norm_0", "bytes": 256}, {"layer": "norm_1", "bytes": 512}],
            "notes": ["one variable stays whole"],
            "warnings": ["nothing is partitioned"],
        }

    def transform(self, request: TransformRequest) -> Mapping[str, object]:
        self._note(request)
        document = {
            "nodes_before": 10,
            "nodes_after": 24,
            "passes": [{"name": "replicate", "seconds": 0.01, "nodes": 20}],
            "seconds": 0.01,
        }
        return {**document, "text": "node a\nnode b\n"} if request.text else document


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, CaptureResult[str]]:
    status = main(arguments)
    return status, capsys.readouterr()


def document(captured: CaptureResult[str]) -> Any:
    return json.loads(captured.out, parse_constant=pytest.fail)
