"""A user's workload built anew in the scope of one of TensorFlow's strategies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.experiment.cases import Case
from strategies.errors import UnsupportedError
from strategies.ir.train_graph import TrainGraph
from strategies.ir.variable import Variable
from strategies.user_errors import described

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from strategies.baselines.replica_boundary import ReplicaBoundary
    from strategies.capture.boundary import BoundaryRecorder
    from strategies.capture.tracing import AnyVariable, Body


@dataclass(slots=True, frozen=True, kw_only=True)
class Built:
    """A workload in the scope of TensorFlow's strategy.

    Attributes:
        body: its step.
        boundary: where the step's gradients are weighed and summed.
        structure: of one example of its dataset.
        declared: variables that the step names itself.
        created: all variables of the model, in order.
    """

    body: "Body"
    boundary: "ReplicaBoundary"
    structure: object
    declared: "Sequence[AnyVariable]"
    created: "Sequence[tf.Variable]"

    def variables(self, captured: Sequence[Variable]) -> Mapping[str, "tf.Variable"]:
        """Captured variable's name → where TensorFlow has it, once the step was traced.

        Raises:
            UnsupportedError: the model made other variables than when it was captured, or an optimizer sums
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
    """Build a workload anew in the scope of a strategy, under the policy of the case's precision.

    Raises:
        UnsupportedError: its code fails in that scope.
    """
    import keras

    from harness.worker.jobs.precision import step_in_precision
    from harness.worker.jobs.workload import workload_of
    from strategies.baselines.replica_boundary import ReplicaBoundary
    from strategies.baselines.variables import lacking, made_when_traced, recorded
    from strategies.capture.capture import declared_variables
    from strategies.capture.tracing import body_of
    from workloads.steps.keras_step import step_of
    from workloads.steps.precision import forget_models, policy_of

    forget_models()
    workload = workload_of(case)
    structure = workload.dataset(seed).element_spec
    keras.utils.set_random_seed(seed)
    with policy_of(case.computation.precision), distribution.scope(), recorded() as variables:
        try:
            made = step_of(workload, structure).step
        except Exception as error:
            # The same code has made a step to capture.
            raise UnsupportedError(
                "train_step() must return a step in the scope of TensorFlow's strategy, too, got "
                f"{described(error)}"
            ) from error
        step = step_in_precision(made, case.computation.precision, case.workload_name)
        body = _under_policy(keras.config.dtype_policy(), body_of(step))
    n_examples = (captured.batch[0].shape.dims or (-1,))[0]
    boundary = ReplicaBoundary([b.values for b in captured.gradients()], captured.losses[0], n_examples)
    if lacking(captured.variables, variables, declared_variables(step)):
        with boundary.recorder.recording_optimizers():
            variables += made_when_traced(
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
    """A step that is traced under the policy that its maker has left.

    Keras has one for each thread, and TensorFlow traces each replica in a thread of its own.
    """
    from workloads.steps.precision import under_policy

    def traced(batch: object, recorder: "BoundaryRecorder") -> object:
        with under_policy(policy):
            return body(batch, recorder)

    return traced
