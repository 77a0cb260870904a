"""A run folder that is open, and records to put into it."""

import dataclasses
from pathlib import Path
from typing import Any

from harness.records.record import Record
from harness.records.run_folder import RunFolder, open_run

EXPERIMENT = {"name": "Quick start!", "measure": {"steps": 3}}


def made_record(case: str = "c-1", repeat: int = 0, **changes: Any) -> Record:
    record = Record(
        run="r",
        case=case,
        repeat=repeat,
        order=0,
        workload="w",
        strategy="ps",
        strategy_class="exact",
        provider="local",
        device="cpu",
        workers=2,
        replicas=1,
        status="ok",
    )
    return dataclasses.replace(record, **changes)


def opened(path: Path | None, *, resume: bool = False, **kwargs: Any) -> RunFolder:
    """A run folder of `EXPERIMENT`."""
    return open_run(path, experiment=EXPERIMENT, environment={"machine": {}}, resume=resume, **kwargs)
