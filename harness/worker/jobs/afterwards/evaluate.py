"""How good a trained model is, as its workload tells."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.experiment.cases import Case
from harness.worker.jobs.workload import users_mistakes, workload_of
from harness.worker.process.job import JobState

Array = npt.NDArray[np.generic]


def evaluate(
    state: JobState, case: Case, seed: int, capture: str, values: Mapping[str, Array]
) -> Mapping[str, float]:
    """Build a workload anew, give its variables what training came to, and ask it for its metrics.

    Args:
        seed: that the capture was made with.
        capture: folder of the capture. values: variable, by its captured name → value.
    Raises:
        UsageError: its `evaluate` fails.
    """
    del state
    import keras

    from harness.worker.session.capture_store import load_step
    from strategies.baselines.variables import matched, recorded
    from strategies.capture.capture import declared_variables
    from workloads.protocol import EvaluatedWorkload
    from workloads.steps.keras_step import step_of
    from workloads.steps.precision import forget_models, policy_of

    forget_models()
    workload = workload_of(case)
    assert isinstance(workload, EvaluatedWorkload)
    structure = workload.dataset(seed).element_spec
    keras.utils.set_random_seed(seed)
    with policy_of(case.computation.precision), recorded() as created:
        step = step_of(workload, structure).step
    captured = [v for v in load_step(Path(capture)).variables if v.name in values]
    for name, variable in matched(captured, created, declared_variables(step)).items():
        if name in values:
            variable.assign(values[name])
    with users_mistakes(workload, "evaluate() must return metrics by name"):
        metrics = workload.evaluate()
        return {str(name): float(value) for name, value in metrics.items()}
