"""Pairs of a distributed model's variables and the capture's, and the copies that a worker holds."""

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
"""Prefix of what the capture keeps beside the graph and no variable of the model holds."""


@contextmanager
def recorded() -> Iterator[list[tf.Variable]]:
    """Variables made in this context and still in use at its end, in order, as their distribution made them.

    The list is filled then: a model that another one was made of, and that is of no use since, has
    variables of the same names.
    """
    kept: list[tf.Variable] = []
    made: list[ref[tf.Variable]] = []

    def creator(create: "tf.types.experimental.GenericFunction", **settings: object) -> tf.Variable:
        variable = create(**settings)
        made.append(ref(variable))
        return variable

    with tf.variable_creator_scope(creator):
        yield kept
    gc.collect()  # layers and models refer to each other
    kept += [variable for each in made if (variable := each()) is not None]


@contextmanager
def refused_by_tensorflow() -> Iterator[None]:
    """Raise what a step raises under TensorFlow's strategy as a refusal.

    Raises:
        UnsupportedError: the step fails; the message says why.
    """
    try:
        yield
    except Exception as error:
        raise UnsupportedError(
            f"train step: TensorFlow's strategy must be able to trace it, got {described(error)}; leave "
            "this strategy out for this workload"
        ) from error


def made_when_traced(
    body: Callable[[object], object], structure: object, n_examples: int, distribution: tf.distribute.Strategy
) -> list[tf.Variable]:
    """Variables that a step makes when it is first called, as metrics do, made before replicas are traced.

    There TensorFlow could not make them: a copy begins with what the first one holds. So the step is traced
    here, and never run, with its variables made outside of the trace.

    Args:
        structure: of one example, without the batch axis. n_examples: in a batch, -1 for any number.
    Raises:
        UnsupportedError: the step fails.
    """
    size = None if n_examples < 0 else n_examples
    specs = tf.nest.map_structure(lambda s: tf.TensorSpec((size, *s.shape), s.dtype), structure)
    made: list[tf.Variable] = []
    making = False

    def outside(create: "tf.types.experimental.GenericFunction", **settings: object) -> tf.Variable:
        nonlocal making
        if making:  # one that the distributed variable consists of
            return create(**settings)
        making = True
        try:
            with tf.init_scope(), distribution.scope():
                made.append(tf.Variable(**settings))
        finally:
            making = False
        return made[-1]

    def traced(batch: object) -> None:
        with tf.variable_creator_scope(outside):
            body(batch)

    with refused_by_tensorflow(), _slots_in_scope(distribution, outside):
        tf.function(traced).get_concrete_function(specs)
    return made


@contextmanager
def _slots_in_scope(
    distribution: tf.distribute.Strategy, creator: Callable[..., tf.Variable]
) -> Iterator[None]:
    """Let Keras's optimizers make slots, which they do in the strategy's scope only.

    Args:
        creator: makes the variables, before that of the scope would.
    """
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
    """Captured variable's name → the distributed variable; what the capture keeps as a constant has none.

    Args:
        created: all that the model made, in order.
        declared: those whose author's own name is known.
    Raises:
        UnsupportedError: the model made other variables than when it was captured.
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
    """Whether variables are still to be made, or at least known by their names, before all can be matched."""
    known = _by_name(created, declared)
    names = {v.name for v in captured if not v.name.startswith(CONSTANTS)}
    return any(not any(name == own or _is_repeat(name, own) for own in known) for name in names - set(known))


def copies(distribution: tf.distribute.Strategy, variable: tf.Variable) -> tuple[tf.Variable, ...]:
    """This worker's copies of a variable, one for each of its replicas or one for all."""
    return tuple(distribution.experimental_local_results(variable))


def merged(
    distribution: tf.distribute.Strategy,
    states: Mapping[str, tf.Variable],
    rules: Mapping[str, str],
    initial: Mapping[str, Array],
    weight: tf.Tensor,
) -> dict[str, Array]:
    """What the replicas' own copies of forward state come to by rule; all workers must ask at the same time.

    TensorFlow leaves these copies to their replicas while it trains, and merges nothing.

    Args:
        rules: state → `mean` or `sum`. initial: state → value before the first step.
        weight: of each replica, its share of the global batch.
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
        each = distribution.run(contributions, args=(weight,))
        return {n: distribution.reduce(tf.distribute.ReduceOp.SUM, v, axis=None) for n, v in each.items()}

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
