"""Predictions of a run's own cases, stored beside its results."""

import os
from pathlib import Path

from harness.errors import HarnessError, first_line
from harness.experiment.cases import expand
from harness.experiment.load import laid_over
from harness.prediction.measured_cases import measured_case_predictions
from harness.records.predictions import PROBES, stored_predictions, write_predictions
from harness.records.run_documents import EXPERIMENT
from harness.records.run_folder import lock_folder, recorded_in
from harness.records.stored_run import load_run


def predict_measured(run_dir: Path) -> str:
    """Predict the measured cases of a run that have no stored prediction, and store them beside its results.

    Without any stored probe, nothing is predicted, and there is no reason to state: nobody asked for it.

    Returns:
        The reasons why cases could not be predicted; empty if there are none.
    """
    if not PROBES.is_dir():
        return ""
    try:
        stored = load_run(run_dir)
        predictions, reasons = measured_case_predictions(stored)
        if predictions:
            documents = [prediction.to_document() for prediction in predictions.values()]
            own = dict(zip(predictions, stored_predictions(documents), strict=True))
            write_predictions(run_dir, {**stored.predictions, **own})
    except Exception as error:  # noqa: BLE001  a run's results are worth more than their predictions
        return _reason(error)
    return "; ".join(reasons)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, HarnessError) else first_line(str(error), type(error).__name__)


def predict_ended(run_dir: Path) -> str:
    """Predict the measured cases of a run that has ended with all its repeats, see `predict_measured`.

    Returns:
        The reasons why cases could not be predicted; empty if there are none.
    """
    if not PROBES.is_dir():
        return ""
    try:
        lock = lock_folder(run_dir)
    except HarnessError as error:
        return str(error)
    try:
        stored = load_run(run_dir)
        spec = laid_over(stored.experiment, runs=False)
        slots = {(case.id, repeat) for case in expand(spec) for repeat in range(spec.measure.repeats)}
        if not slots <= recorded_in(stored.records):
            return (
                "repeats are missing; run them by "
                f"`stratbench run {run_dir / EXPERIMENT} --out {run_dir} --resume`"
            )
        return predict_measured(run_dir)
    except Exception as error:  # noqa: BLE001  a report is worth more than its predictions
        return _reason(error)
    finally:
        os.close(lock)
