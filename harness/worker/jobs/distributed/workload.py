"""TensorFlow's strategy object of a worker's process, and a user's workload built anew in its scope."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import NO_DEVICE, CaseError
from harness.experiment.cases import Case
from harness.worker.jobs.gpus import require_devices
from harness.worker.jobs.rendezvous import on_reserved_port
from harness.worker.process.job import JobState
from strategies.errors import StrategyError, UnsupportedError
from strategies.ir.train_graph import TrainGraph
from strategies.ir.variable import Variable
from strategies.plan.schema import Plan
from strategies.user_errors import described

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from strategies.baselines.distribution import Distribution
    from strategies.baselines.replicated_step import ReplicaBoundary
    from strategies.capture.boundary import BoundaryRecorder
    from strategies.capture.tracing import AnyVariable, Body


@dataclass(slots=True, frozen=True, kw_only=True)
class Built:
    """A workload in the scope of TensorFlow's strategy.

    Attributes:
        body: step of the workload.
        boundary: boundary of the step's gradients.
        structure: structure of one example of its dataset.
        declared: variables listed by the step itself.
        created: all variables of the model, in order of creation.
    """

    body: "Body"
    boundary: "ReplicaBoundary"
    structure: object
    declared: "Sequence[AnyVariable]"
    created: "Sequence[tf.Variable]"

    def variables(self, captured: Sequence[Variable]) -> Mapping[str, "tf.Variable"]:
        """Captured variable's name → TensorFlow's variable, after the step was traced.

        Raises:
            UnsupportedError: the model created other variables than at capture, or an optimizer sums
                gradients itself.
        """
        import keras

        from strategies.baselines.variables import matched

        recorder = self.boundary.recorder
        for optimizer in recorder.optimizers:
            if not isinstance(optimizer, keras.optimizers.Optimizer):
                raise UnsupportedError(
                    "train step: its optimizers must be Keras's, whose sums over replicas can be left out, "
                    f"got {type(optimizer).__name__} of tf.compat.v1; leave this strategy out for it"
                )
        owned = (v for optimizer in recorder.optimizers for v in optimizer.variables)
        return matched(captured, self.created, [*recorder.created, *self.declared, *owned])


def built(distribution: "tf.distribute.Strategy", case: Case, seed: int, captured: TrainGraph) -> Built:
    """Build a workload in the scope of a strategy, under the policy of the case's precision.

    Raises:
        UnsupportedError: its code fails in that scope.
    """
    import keras

    from harness.worker.jobs.arithmetic import step_in_precision
    from harness.worker.jobs.workload import workload_anew
    from strategies.baselines.replicated_step import ReplicaBoundary
    from strategies.baselines.variables import created_while_tracing, lacking, recorded
    from strategies.capture.capture import declared_variables
    from strategies.capture.tracing import body_of
    from workloads.keras_step import step_of
    from workloads.precision import policy_of

    workload, structure = workload_anew(case, seed)
    with policy_of(case.computation.precision), distribution.scope(), recorded() as variables:
        try:
            original = step_of(workload, structure).step
        except Exception as error:
            # The same code has made a step to capture.
            raise UnsupportedError(
                "train_step() must return a step in the scope of TensorFlow's strategy, too, got "
                f"{described(error)}"
            ) from error
        step = step_in_precision(original, case.computation.precision, case.workload_name)
        body = _under_policy(keras.config.dtype_policy(), body_of(step))
    n_examples = (captured.batch[0].shape.dims or (-1,))[0]
    boundary = ReplicaBoundary([b.values for b in captured.gradients()], captured.losses[0], n_examples)
    if lacking(captured.variables, variables, declared_variables(step)):
        with boundary.recorder.recording_optimizers():
            variables += created_while_tracing(
                lambda batch: body(batch, boundary.recorder), structure, n_examples, distribution
            )
    return Built(
        body=body,
        boundary=boundary,
        structure=structure,
        declared=declared_variables(step),
        created=variables,
    )


def _under_policy(policy: "keras.DTypePolicy", body: "Body") -> "Body":
    """Step that is traced under its maker's policy.

    Keras has one for each thread, and TensorFlow traces each replica in a thread of its own.
    """
    from workloads.precision import under_policy

    def traced(batch: object, recorder: "BoundaryRecorder") -> object:
        with under_policy(policy):
            return body(batch, recorder)

    return traced


@dataclass(slots=True, frozen=True, kw_only=True)
class Distributed:
    """TensorFlow's strategy of a process."""

    distribution: "Distribution"


def start_distribution(
    state: JobState, task: int, addresses: Sequence[str], n_devices: int, *, plan: Plan
) -> None:
    """Create a plan's strategy, and with it the server of one task, on the port reserved for it.

    Raises:
        CaseError: `port-in-use`, see `rendezvous.start_server`; `no-device` if this host lacks the plan's
            devices.
    """
    from strategies.baselines.distribution import distribution_of

    try:
        with on_reserved_port(state, task, addresses):
            distribution = distribution_of(plan, task, addresses, n_devices)
    except StrategyError as error:
        raise CaseError(NO_DEVICE, str(error), stage="provision") from error
    use_distribution(state, distribution)
    if plan.device == "gpu":
        import tensorflow as tf

        names = [device.name for device in tf.config.list_logical_devices("GPU")]
        require_devices(task, names, plan.replicas_per_task[task])


def use_distribution(state: JobState, distribution: "Distribution") -> None:
    """Run this process's steps under one of TensorFlow's strategies, closed when the process ends."""
    state.stack.callback(distribution.close)
    state.put(Distributed(distribution=distribution))


def stop_distribution(state: JobState) -> None:
    """Release the devices of the strategy."""
    state.get(Distributed).distribution.close()
