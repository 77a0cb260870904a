"""Contents of a trace as plain values: variables, slots, marks, constants and tables."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from strategies.capture.boundary import AnyOptimizer, BoundaryRecorder, raw_variable, variable_name
from strategies.capture.resources import constant_of, is_large, large_constants, recreated_table
from strategies.capture.tracing import AnyVariable, Trace, unique_name, with_effects
from strategies.errors import CaptureError
from strategies.ir.assembly.split import outermost_gradients, used_gradients
from strategies.ir.assembly.traced import (
    TracedGradient,
    TracedStep,
    TracedTable,
    TracedVariable,
)
from strategies.ir.graph import DType, Graph, Node, Shape
from strategies.ir.side_effects import acting_ops
from strategies.ir.train_graph import BatchInput, Result, ResultRule
from strategies.ir.variable import Rule
from strategies.tf_bridge.attrs import dtype_of
from strategies.tf_bridge.graphdef import graph_from_graphdef
from strategies.tf_bridge.op_types import op_definition

Variable: TypeAlias = tf.Variable | keras.Variable


def variables_of(optimizer: AnyOptimizer) -> Sequence[Variable]:
    """All variables that an optimizer has created."""
    return list(
        optimizer.variables if isinstance(optimizer, keras.optimizers.Optimizer) else optimizer.variables()
    )


def slots_of(
    optimizers: Sequence[AnyOptimizer], trained: Sequence[tf.Variable]
) -> Mapping[int, tuple[tf.Variable, str]]:
    """id of a slot's tf.Variable → variable that it belongs to, and the kind of slot (`momentums`)."""
    owners: dict[int, tuple[tf.Variable, str]] = {}
    for optimizer in optimizers:
        slots = (
            _slots(optimizer)
            if isinstance(optimizer, keras.optimizers.Optimizer)
            else _slots_by_name(optimizer, trained)
        )
        for slot, owner, kind in slots:
            owners.setdefault(id(slot), (owner, kind))
    return owners


def _slots(optimizer: keras.optimizers.Optimizer) -> Iterator[tuple[tf.Variable, tf.Variable, str]]:
    """Slot, owner and kind of each slot; Keras keeps each kind in a list parallel to its variables."""
    trained = list(getattr(optimizer, "_trainable_variables", ()))
    for name, values in vars(optimizer).items():
        if isinstance(values, keras.optimizers.Optimizer):
            yield from _slots(values)
        elif isinstance(values, list) and values is not trained and len(values) == len(trained):
            if any(v is optimizer.iterations for v in values):
                continue  # the list of all its variables, which may have the same length by chance
            owned = {id(v) for v in optimizer.variables} - {id(v) for v in trained}
            for slot, owner in zip(values, trained, strict=True):
                if isinstance(slot, Variable) and id(slot) in owned:
                    yield raw_variable(slot), raw_variable(owner), name.strip("_")


def _slots_by_name(
    optimizer: tf.compat.v1.train.Optimizer, trained: Sequence[tf.Variable]
) -> Iterator[tuple[tf.Variable, tf.Variable, str]]:
    for kind in optimizer.get_slot_names():
        for owner in trained:
            slot = optimizer.get_slot(owner, kind)
            if slot is not None:
                yield slot, owner, kind


Array: TypeAlias = np.ndarray[Any, Any]
_OWN_JOB = "/job:localhost"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceContents:
    """A traced step, and every variable by name with its initial value."""

    step: TracedStep
    variables: Mapping[str, tf.Variable]
    initial: Mapping[str, Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Captures:
    """Captured values of a traced function, by placeholder."""

    variables: Mapping[int, str]
    constants: Mapping[str, Node]
    large: Mapping[str, Array]
    tables: tuple[TracedTable, ...]


def trace_contents(traced: Trace, declared: Sequence[AnyVariable], element_spec: object) -> TraceContents:
    """Read a trace.

    Args:
        declared: variables that belong to the step even if it does not use them.
    Raises:
        CaptureError: the step uses no gradient, or contains something that its graph cannot represent.
    """
    concrete, recorder = traced.concrete, traced.recorder
    graph = _unplaced(graph_from_graphdef(concrete.graph.as_graph_def()))
    must_run, stateful_ops = tuple(op.name for op in with_effects(concrete)), _stateful_ops(graph)
    owned = [*declared, *(v for optimizer in recorder.optimizers for v in variables_of(optimizer))]
    named = _named(owned, concrete.graph.variables, recorder.created)
    text = next((name for name, v in named.items() if v.dtype == tf.string), None)
    if text is not None:
        raise CaptureError(
            f"variable {text!r}: must hold numbers, got strings; use a constant or a lookup table"
        )
    captures = _captures(concrete, {id(v.handle) for v in named.values()})
    variables = _variables(named, captures, recorder)
    large = {**captures.large, **large_constants(graph)}
    beside = dict(zip(_unique([f"constants/{n}" for n in large], reserved=named), large.items(), strict=True))
    names = {id(v.handle): name for name, v in named.items()}
    acting = [name for name in must_run if acting_ops(graph, graph.by_name[name], stateful_ops)]
    marks = _used_marks(recorder, names, graph, acting)
    calls = sorted({mark.call for mark in outermost_gradients(graph, marks)})
    target = next(
        (recorder.targets.targets[call] for call in calls if call in recorder.targets.targets), None
    )
    loss = recorder.loss or target
    assert loss is not None
    batch = tuple(_inputs(concrete, element_spec))
    step = TracedStep(
        graph=graph,
        constants=captures.constants,
        variables=(*variables, *(_constant(name, node, value) for name, (node, value) in beside.items())),
        marks=marks,
        batch=batch,
        loss=loss,
        target=target,
        must_run=must_run,
        stateful_ops=stateful_ops,
        tables=captures.tables,
        statistics=tuple(recorder.statistics.marks),
        own_statistics=dict(recorder.statistics.own),
        synchronized=tuple(recorder.statistics.synchronized),
        results=tuple(
            Result(name=name, tensor=value.op.name, rule=_result_rule(value, batch))
            for name, value in recorder.results.items()
        ),
        rules=_rules_of_carried(recorder, names),
    )
    initial = {name: _initial(name, v) for name, v in named.items()}
    initial |= {name: value for name, (_, value) in beside.items()}
    return TraceContents(step=step, variables=named, initial=initial)


def _used_marks(
    recorder: BoundaryRecorder, names: Mapping[int, str], graph: Graph, acting: Sequence[str]
) -> tuple[TracedGradient, ...]:
    marks = [mark.named(names[id(mark.handle)]) for mark in recorder.marks]
    used = used_gradients(graph, marks, acting)
    if not used:
        raise CaptureError(
            "train step: the loss must depend on a trainable variable, got no gradient for any; compute it "
            "from the variables inside `loss`, and take the gradient with tf.GradientTape"
        )
    return used


def _initial(name: str, variable: tf.Variable) -> Array:
    if not variable.is_initialized():
        raise CaptureError(
            f"variable {name!r}: must have a value before the step is traced, got one that a trace has made "
            "and that failed; build the model first, as by calling it on a batch"
        )
    # Shares the variable's memory; `numpy()` would copy it.
    return np.asarray(variable.read_value())


def _rules_of_carried(recorder: BoundaryRecorder, names: Mapping[int, str]) -> dict[str, Rule]:
    """Rules of per-example state: it stays on the replica that has the example."""
    handles = (id(raw_variable(variable).handle) for variable in recorder.carried)
    return {names[handle]: "per-replica" for handle in handles if handle in names}


def _unplaced(graph: Graph) -> Graph:
    def freed(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(n.changed(device="") if _OWN_JOB in n.device else n for n in nodes)

    functions = {name: replace(f, nodes=freed(f.nodes)) for name, f in graph.functions.items()}
    return replace(graph, nodes=freed(graph.nodes), functions=functions)


def _named(
    declared: Sequence[AnyVariable], used: Sequence[tf.Variable], known: Sequence[keras.Variable]
) -> dict[str, tf.Variable]:
    paths = {id(raw_variable(v)): variable_name(v) for v in [*known, *declared]}
    by_handle = {id(v.handle): v for v in [*map(raw_variable, declared), *used]}
    # Eager tensors are numbered in order of creation; tf.Variable has no public creation order.
    ordered = sorted(by_handle.values(), key=lambda v: v.handle._id)  # noqa: SLF001
    names = _unique([paths.get(id(v), variable_name(v)) for v in ordered])
    return dict(zip(names, ordered, strict=True))


def _unique(names: Iterable[str], reserved: Iterable[str] = ()) -> list[str]:
    seen = set(reserved)
    unique = []
    for name in names:
        unique.append(unique_name(name, seen))
        seen.add(unique[-1])
    return unique


def _captures(concrete: tf.types.experimental.ConcreteFunction, handles: set[int]) -> _Captures:
    variables: dict[int, str] = {}
    constants: dict[str, Node] = {}
    large: dict[str, Array] = {}
    tables: list[TracedTable] = []
    for external, internal in concrete.graph.captures:
        name = internal.op.name
        if id(external) in handles:
            variables[id(external)] = name
        elif external.dtype in (tf.resource, tf.variant):
            tables.append(recreated_table(name, external))
        elif is_large(external):
            large[name] = external.numpy()
        else:
            constants[name] = constant_of(name, external)
    return _Captures(variables=variables, constants=constants, large=large, tables=tuple(tables))


def _variables(
    named: Mapping[str, tf.Variable], captures: _Captures, recorder: BoundaryRecorder
) -> list[TracedVariable]:
    owned = {id(raw_variable(v)) for optimizer in recorder.optimizers for v in variables_of(optimizer)}
    trained = {id(mark.handle) for mark in recorder.marks}
    slots = slots_of(recorder.optimizers, [v for v in named.values() if id(v.handle) in trained])
    names = {id(v): name for name, v in named.items()}
    variables = []
    for name, v in named.items():
        owner, group = slots.get(id(v), (None, None))
        variables.append(
            TracedVariable(
                name=name,
                placeholder=captures.variables.get(id(v.handle)),
                dtype=_dtype(v.dtype),
                shape=_shape(v.shape),
                trainable=bool(v.trainable) and id(v) not in owned,
                optimizer_owned=id(v) in owned,
                slot_of=names.get(id(owner)),
                group=group,
            )
        )
    return variables


def _constant(name: str, placeholder: str, value: Array) -> TracedVariable:
    return TracedVariable(
        name=name,
        placeholder=placeholder,
        dtype=_dtype(value.dtype),
        shape=Shape(value.shape),
        trainable=False,
        optimizer_owned=False,
        constant=True,
    )


def _inputs(concrete: tf.types.experimental.ConcreteFunction, element_spec: object) -> Iterator[BatchInput]:
    # TensorFlow sorts the keys of every mapping, while the others are in the order of an ordered one.
    paths = [path for path, _ in keras.tree.flatten_with_path(_with_plain_mappings(element_spec))]
    for path, tensor in zip(paths, concrete.inputs[: len(paths)], strict=True):
        yield BatchInput(
            path="/".join(str(part) for part in path) or "0",
            node=tensor.op.name,
            dtype=_dtype(tensor.dtype),
            shape=_shape(tensor.shape),
        )


def _result_rule(value: tf.Tensor, batch: Sequence[BatchInput]) -> ResultRule:
    if value.shape.rank == 0:
        if value.dtype.is_floating:
            return "mean"
        return "sum" if value.dtype.is_integer else "per-replica"
    dims, (n_examples, *_) = _shape(value.shape).dims, batch[0].shape.dims or (-1,)
    return "concatenate" if dims is not None and dims[0] == n_examples else "per-replica"


def _with_plain_mappings(structure: object) -> object:
    if isinstance(structure, Mapping):
        return {key: _with_plain_mappings(value) for key, value in structure.items()}
    if isinstance(structure, tuple | list):
        parts = [_with_plain_mappings(part) for part in structure]
        make: Callable[..., object] = type(structure)
        return make(*parts) if hasattr(structure, "_fields") else make(parts)
    return structure


def _stateful_ops(graph: Graph) -> frozenset[str]:
    ops = {node.op for nodes in (graph.nodes, *(f.nodes for f in graph.functions.values())) for node in nodes}
    return frozenset(op for op in ops if (known := op_definition(op)) is not None and known.is_stateful)


def _dtype(dtype: "tf.DType | np.dtype[Any]") -> DType:
    known = dtype_of(tf.as_dtype(dtype).as_datatype_enum)
    assert known is not None
    return known


def _shape(shape: tf.TensorShape) -> Shape:
    return Shape(None if shape.rank is None else tuple(-1 if d is None else int(d) for d in shape.as_list()))
