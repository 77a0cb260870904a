"""Variables of a model under TensorFlow's strategies: matching them with the capture's, and copies."""

import gc
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias
from weakref import ref

import numpy as np
import tensorflow as tf

from strategies.capture.boundary import raw_variable, variable_name
from strategies.capture.tracing import AnyVariable
from strategies.errors import UnsupportedError
from strategies.ir.variable import Variable
from strategies.user_errors import described

Array: TypeAlias = np.ndarray[Any, Any]
Copy: TypeAlias = tuple[str, int | None]

CONSTANTS = "constants/"
"""Prefix of the names of captured constants, which no variable of the model holds."""


@contextmanager
def recorded() -> Iterator[list[tf.Variable]]:
    """Collect the variables created in this context; at its end the list holds those still in use, in order.

    A model that served to make another one, and is no longer used, has variables of the same names.
    """
    variables: list[tf.Variable] = []
    references: list[ref[tf.Variable]] = []

    def creator(create: "tf.types.experimental.GenericFunction", **settings: object) -> tf.Variable:
        variable = create(**settings)
        references.append(ref(variable))
        return variable

    with tf.variable_creator_scope(creator):
        yield variables
    gc.collect()  # layers and models refer to each other
    variables += [variable for reference in references if (variable := reference()) is not None]


@contextmanager
def refused_by_tensorflow() -> Iterator[None]:
    """Raise errors of a step under TensorFlow's strategy as refusals.

    Raises:
        UnsupportedError: the step fails; the message gives the reason.
    """
    try:
        yield
    except Exception as error:
        raise UnsupportedError(
            f"train step: TensorFlow's strategy must be able to trace it, got {described(error)}; leave "
            "this strategy out for this workload"
        ) from error


def created_while_tracing(
    body: Callable[[object], object], structure: object, n_examples: int, distribution: tf.distribute.Strategy
) -> list[tf.Variable]:
    """Create the variables that a step creates in its first call, such as metrics, before tracing replicas.

    TensorFlow cannot create them in replicas: a copy starts with the first copy's value. The step is traced
    here but never run; its variables are created outside the trace.

    Args:
        structure: structure of `tf.TensorSpec` for one example, without the batch axis.
        n_examples: examples per batch, -1 for any number.
    Raises:
        UnsupportedError: the step fails.
    """
    size = None if n_examples < 0 else n_examples
    specs = tf.nest.map_structure(lambda s: tf.TensorSpec((size, *s.shape), s.dtype), structure)
    variables: list[tf.Variable] = []
    making = False

    def outside(create: "tf.types.experimental.GenericFunction", **settings: object) -> tf.Variable:
        nonlocal making
        if making:  # a component of the distributed variable
            return create(**settings)
        making = True
        try:
            with tf.init_scope(), distribution.scope():
                variables.append(tf.Variable(**settings))
        finally:
            making = False
        return variables[-1]

    def traced(batch: object) -> None:
        with tf.variable_creator_scope(outside):
            body(batch)

    with refused_by_tensorflow(), _slots_in_scope(distribution, outside):
        tf.function(traced).get_concrete_function(specs)
    return variables


@contextmanager
def _slots_in_scope(
    distribution: tf.distribute.Strategy, creator: Callable[..., tf.Variable]
) -> Iterator[None]:
    """Let Keras's optimizers create slots outside of the strategy's scope."""
    extended = distribution.extended
    placed_beside = extended.colocate_vars_with

    @contextmanager
    def in_scope(variable: tf.Variable) -> Iterator[None]:
        with distribution.scope(), placed_beside(variable), tf.variable_creator_scope(creator):
            yield

    extended.colocate_vars_with = in_scope
    try:
        yield
    finally:
        del extended.colocate_vars_with


def matched(
    captured: Sequence[Variable], created: Sequence[tf.Variable], declared: Sequence[AnyVariable]
) -> dict[str, tf.Variable]:
    """Captured variable's name → distributed variable; constants of the capture have none.

    Args:
        created: all variables of the model, in order of creation.
        declared: variables whose own names, set by the workload's author, are known.
    Raises:
        UnsupportedError: the model created other variables than in the capture.
    """
    by_name = _by_name(created, declared)
    matches: dict[str, tf.Variable] = {}
    for name, alike in by_name.items():
        wanted = [v.name for v in captured if v.name == name or _is_repeat(v.name, name)]
        if wanted and len(wanted) != len(alike):
            raise UnsupportedError(
                f"variable {name!r}: must be told from others of its name, got {len(alike)}, of which the "
                f"step uses {len(wanted)}; give each a name of its own"
            )
        matches |= dict(zip(wanted, alike, strict=bool(wanted)))
    for v in captured:
        if v.name not in matches and not v.name.startswith(CONSTANTS):
            raise UnsupportedError(
                f"variable {v.name!r}: must be made by train_step(), got none under TensorFlow's strategy; "
                "create all variables there"
            )
    return matches


def lacking(
    captured: Sequence[Variable], created: Sequence[tf.Variable], declared: Sequence[AnyVariable]
) -> bool:
    """True if variables must still be created or named before all can be matched."""
    known = _by_name(created, declared)
    names = {v.name for v in captured if not v.name.startswith(CONSTANTS)}
    return any(not any(name == own or _is_repeat(name, own) for own in known) for name in names - set(known))


def copies(distribution: tf.distribute.Strategy, variable: tf.Variable) -> tuple[tf.Variable, ...]:
    """This worker's copies of a variable: one per replica, or one for all."""
    return tuple(distribution.experimental_local_results(variable))


def merged(
    distribution: tf.distribute.Strategy,
    states: Mapping[str, tf.Variable],
    rules: Mapping[str, str],
    initial: Mapping[str, Array],
    weight: tf.Tensor,
) -> dict[str, Array]:
    """Merge forward state over replicas by rule; all workers must call it together.

    TensorFlow keeps one copy per replica and merges nothing while it trains.

    Args:
        rules: name of a state variable → `mean` or `sum`.
        initial: name of a state variable → its value before the first step.
        weight: this replica's share of the global batch.
    """

    def contributions(share: tf.Tensor) -> dict[str, tf.Tensor]:
        rank = tf.distribute.get_replica_context().replica_id_in_sync_group
        parts = {}
        for name, state in states.items():
            value = tf.convert_to_tensor(state)
            before = tf.constant(initial[name])
            added = value - tf.where(tf.equal(rank, 0), tf.zeros_like(before), before)
            parts[name] = value * tf.cast(share, value.dtype) if rules[name] == "mean" else added
        return parts

    def total() -> dict[str, tf.Tensor]:
        totals = distribution.run(contributions, args=(weight,))
        return {n: distribution.reduce(tf.distribute.ReduceOp.SUM, v, axis=None) for n, v in totals.items()}

    return {name: value.numpy() for name, value in tf.function(total)().items()} if states else {}


def _by_name(
    variables: Sequence[tf.Variable], declared: Sequence[AnyVariable]
) -> dict[str, list[tf.Variable]]:
    paths = {id(raw_variable(v)): variable_name(v) for v in declared}
    by_name: dict[str, list[tf.Variable]] = defaultdict(list)
    for variable in variables:
        by_name[paths.get(id(variable), variable_name(variable))].append(variable)
    return by_name


def _is_repeat(name: str, of: str) -> bool:
    head, separator, number = name.rpartition("__")
    return bool(separator) and head == of and number.isdigit()
