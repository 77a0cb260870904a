"""From a traced step to a `TrainGraph`: what is forward, what is update, and where the boundary between them lies."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from strategies.errors import CaptureError
from strategies.ir.effects import READ_OPS, Uses, resource_uses
from strategies.ir.graph import DType, Graph, Node, Shape, output_index, producer, tensor
from strategies.ir.train_graph import (
    BatchInput,
    Boundary,
    Kind,
    Loss,
    Rule,
    TrainGraph,
    UpdateRegion,
    Variable,
)
from strategies.ir.traversal import ancestors, descendants, prune

_INTEGERS = frozenset({"int32", "uint32", "int64", "uint64"})
_GENERATOR_OPS = frozenset({"RngReadAndSkip", "RngSkip"})
_CHECK_OPS = frozenset({"Assert", "CheckNumerics", "CheckNumericsV2"})
_BATCH_DEPENDENT = "Placeholder"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedVariable:
    """A variable of a trace; `placeholder` stands for its handle there, None when the step never uses it."""

    name: str
    placeholder: str | None
    dtype: DType
    shape: Shape
    trainable: bool
    optimizer_owned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedGradient:
    """Identity nodes that one gradient call of the trace put behind a trainable's gradient."""

    call: int
    variable: str
    values: str
    indices: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedInput:
    """A placeholder of the trace that stands for a component of the batch."""

    path: str
    node: str
    dtype: DType
    shape: Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """All that a trace tells about a step.

    Attributes:
        constants: placeholder of a captured tensor → the constant that replaces it.
        marks: gradients of every gradient call, nested ones included.
        must_run: nodes with effects, which the traced function runs whether or not a result needs them.
    """

    graph: Graph
    constants: Mapping[str, Node]
    variables: tuple[TracedVariable, ...]
    marks: tuple[TracedGradient, ...]
    batch: tuple[TracedInput, ...]
    loss: str
    must_run: tuple[str, ...]


def assemble(traced: TracedStep) -> TrainGraph:
    """Take a traced step apart.

    Raises:
        CaptureError: when an update reads forward values past the boundary, or forward state is written where its
            replicas cannot be merged.
    """
    access = _access_nodes(traced.variables)
    graph = _with_resources(traced, access)
    marks = _outermost(graph, traced.marks)
    parts = _Parts.find(graph, traced, marks, access)
    graph = parts.graph
    variables = tuple(parts.variable(v) for v in traced.variables)
    graph, state_boundaries, dropped = _state_boundaries(graph, variables, parts)
    boundaries = (*_gradient_boundaries(graph, marks, variables), *state_boundaries)
    order = {node.name: i for i, node in enumerate(graph.nodes)}
    regions = _regions(graph, variables, parts, order)
    in_update = {name for region in regions for name in region.nodes}
    effects, state_targets = _side_effects(graph, traced.must_run, in_update | dropped)
    step = TrainGraph(
        graph=graph,
        variables=variables,
        boundaries=boundaries,
        regions=regions,
        batch=tuple(BatchInput(path=b.path, node=b.node, dtype=b.dtype, shape=b.shape) for b in traced.batch),
        losses=(Loss(tensor=traced.loss),),
        state_targets=state_targets,
        effects=effects,
        readiness=_readiness(boundaries, graph, order),
    )
    return replace(step, graph=prune(graph, step.roots()))


def node_slug(name: str) -> str:
    """A variable's name with what a node name must not hold replaced by `_`."""
    return (
        "".join(c if (c.isalnum() and c.isascii()) or c in "_./-" else "_" for c in name).strip("/")
        or "unnamed"
    )


@dataclass(frozen=True, slots=True)
class _Access:
    """Nodes through which a session creates, loads and reads a variable."""

    handle: Node
    placeholder: Node
    load: Node
    read: Node


def _access_nodes(variables: Sequence[TracedVariable]) -> dict[str, _Access]:
    access: dict[str, _Access] = {}
    taken: set[str] = set()
    for variable in variables:
        slug = base = f"variables/{node_slug(variable.name)}"
        while slug in taken:
            slug += "_"
        taken.add(slug)
        access[variable.name] = variable_nodes(slug, variable.dtype, variable.shape, shared_name=base)
    return access


def variable_nodes(slug: str, dtype: DType, shape: Shape, *, shared_name: str) -> _Access:
    """Handle, initial value, assignment and read of a resource variable, under one name."""
    handle = Node(
        name=slug,
        op="VarHandleOp",
        attrs={
            "dtype": dtype,
            "shape": shape,
            "shared_name": shared_name.encode(),
            "container": b"",
            "allowed_devices": (),
        },
    )
    placeholder = Node(name=f"{slug}/initial", op="Placeholder", attrs={"dtype": dtype, "shape": shape})
    load = Node(
        name=f"{slug}/load",
        op="AssignVariableOp",
        inputs=(slug, placeholder.name),
        attrs={"dtype": dtype, "validate_shape": False},
    )
    read = Node(name=f"{slug}/read", op="ReadVariableOp", inputs=(slug,), attrs={"dtype": dtype})
    return _Access(handle, placeholder, load, read)


def _with_resources(traced: TracedStep, access: Mapping[str, _Access]) -> Graph:
    """Variables in place of captured handles, constants in place of captured tensors, IdentityN taken apart."""
    handles = {
        v.placeholder: access[v.name].handle.name for v in traced.variables if v.placeholder is not None
    }
    renamed = dict(handles)
    nodes: list[Node] = [node for a in access.values() for node in (a.handle, a.placeholder, a.load, a.read)]
    for node in traced.graph.nodes:
        if node.name in handles:
            continue
        if node.name in traced.constants:
            nodes.append(traced.constants[node.name])
        elif node.op == "IdentityN" and not node.control_inputs:
            # Keras clips through an IdentityN, which would tie every variable's update to every other's gradient.
            for i, (ref, dtype) in enumerate(zip(node.inputs, _types(node), strict=True)):
                name = node.name if i == 0 else f"{node.name}/{i}"
                renamed[tensor(node.name, i)] = name
                nodes.append(
                    Node(name=name, op="Identity", inputs=(ref,), attrs={"T": dtype}, device=node.device)
                )
        else:
            nodes.append(node)
    return traced.graph.with_nodes(_renamed(nodes, renamed))


def _types(node: Node) -> tuple[DType, ...]:
    types = node.attrs["T"]
    assert isinstance(types, tuple)
    return tuple(t for t in types if isinstance(t, DType))


def _type(node: Node) -> DType:
    dtype = node.attrs["T"]
    assert isinstance(dtype, DType)
    return dtype


def _renamed(nodes: Iterable[Node], renamed: Mapping[str, str]) -> list[Node]:
    """Nodes whose inputs follow `renamed` (by full reference, or by the producer of output 0)."""
    return [
        replace(node, inputs=tuple(_follow(ref, renamed) for ref in node.inputs))
        if any(ref.lstrip("^") in renamed or ref.removesuffix(":0") in renamed for ref in node.inputs)
        else node
        for node in nodes
    ]


def _follow(ref: str, renamed: Mapping[str, str]) -> str:
    if ref[0] == "^":
        return "^" + renamed.get(ref[1:], ref[1:])
    return renamed.get(ref) or renamed.get(ref.removesuffix(":0")) or ref


def _outermost(graph: Graph, marks: Sequence[TracedGradient]) -> tuple[TracedGradient, ...]:
    """The gradients of calls from which no other call's gradient is computed."""
    calls: dict[int, list[TracedGradient]] = {}
    for mark in marks:
        calls.setdefault(mark.call, []).append(mark)
    if len(calls) < 2:
        return tuple(marks)
    outer = []
    for call, own in calls.items():
        others = {m.values for other, ms in calls.items() if other != call for m in ms}
        reached = descendants(graph, [m.values for m in own], control=False)
        if not reached & others:
            outer.extend(own)
    return tuple(outer)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What is forward and what is update, and to which part every variable belongs."""

    graph: Graph
    access: Mapping[str, _Access]
    uses: Mapping[str, Uses]
    boundary: frozenset[str]
    forward: frozenset[str]
    kinds: Mapping[str, Kind]
    slot_of: Mapping[str, str | None]
    groups: Mapping[str, str]
    seed_words: Mapping[str, int]

    @classmethod
    def find(
        cls, graph: Graph, traced: TracedStep, marks: Sequence[TracedGradient], access: Mapping[str, _Access]
    ) -> "_Parts":
        uses = resource_uses(graph)
        boundary = {n for m in marks for n in (m.values, m.indices) if n is not None}
        after = descendants(graph, boundary, control=False)
        kinds: dict[str, Kind] = {}
        for v in traced.variables:
            writes = _own_writes(uses, access[v.name])
            marked = any(m.variable == v.name for m in marks)
            if marked or (v.trainable and not v.optimizer_owned):
                kinds[v.name] = "trainable"
            elif v.optimizer_owned or any(w in after for w in writes):
                kinds[v.name] = "slot"
            else:
                kinds[v.name] = "state"
        state_writes = [
            w for v in traced.variables if kinds[v.name] == "state" for w in _own_writes(uses, access[v.name])
        ]
        forward = ancestors(graph, [*boundary, producer(traced.loss), *state_writes])
        update_writes = [
            w for v in traced.variables if kinds[v.name] != "state" for w in _own_writes(uses, access[v.name])
        ]
        stray = [w for w in update_writes if w in forward]
        if stray:
            raise CaptureError(
                f"train step: an update must come after the gradient, got {stray[0]!r}, on which the loss or a "
                "gradient depends; take all gradients before the first update"
            )
        graph = _detach_update(graph, update_writes, frozenset(boundary), frozenset(forward), uses)
        owners, groups = _slot_owners(traced.variables, kinds)
        return cls(
            graph=graph,
            access=access,
            uses=uses,
            boundary=frozenset(boundary),
            forward=frozenset(forward),
            kinds=kinds,
            slot_of=owners,
            groups=groups,
            seed_words={
                v.name: word
                for v in traced.variables
                if kinds[v.name] == "state"
                and (word := _seed_word(graph, uses, access[v.name], v)) is not None
            },
        )

    def writes(self, name: str) -> tuple[str, ...]:
        """The step's own assignments of a variable."""
        return _own_writes(self.uses, self.access[name])

    def variable(self, v: TracedVariable) -> Variable:
        access = self.access[v.name]
        kind = self.kinds[v.name]
        return Variable(
            name=v.name,
            kind=kind,
            group=self.groups[v.name],
            dtype=v.dtype,
            shape=v.shape,
            handle=access.handle.name,
            placeholder=access.placeholder.name,
            load=access.load.name,
            read=access.read.name,
            slot_of=self.slot_of[v.name],
            rule=self._rule(v) if kind == "state" else None,
            seed_word=self.seed_words.get(v.name),
        )

    def _rule(self, v: TracedVariable) -> Rule:
        if v.name in self.seed_words:
            return "per-replica"
        writes = [self.graph.by_name[w] for w in self.writes(v.name)]
        if writes and all(w.op in ("AssignAddVariableOp", "AssignSubVariableOp") for w in writes):
            return "sum"
        if v.dtype in ("bool", "string"):
            return "per-replica"
        return "first-replica" if v.dtype in _INTEGERS else "mean"


def _own_writes(uses: Mapping[str, Uses], access: _Access) -> tuple[str, ...]:
    return tuple(w for w in uses[access.handle.name].writes if w != access.load.name)


def _seed_word(graph: Graph, uses: Mapping[str, Uses], access: _Access, v: TracedVariable) -> int | None:
    """Which word of a random state is its seed: a generator's key comes last, Keras's seed first."""
    if v.dtype not in _INTEGERS or v.shape.dims not in ((2,), (3,)):
        return None
    touched = [graph.by_name[n] for n in (*uses[access.handle.name].reads, *uses[access.handle.name].writes)]
    if any(node.op in _GENERATOR_OPS or node.op.startswith("Stateful") for node in touched):
        return (v.shape.dims or (0,))[0] - 1
    reached = descendants(graph, [n.name for n in touched if n.op == "ReadVariableOp"], control=False)
    return 0 if any(graph.by_name[n].op.startswith("StatelessRandom") for n in reached) else None


def _slot_owners(
    variables: Sequence[TracedVariable], kinds: Mapping[str, Kind]
) -> tuple[dict[str, str | None], dict[str, str]]:
    """Whose slot each slot is, and the kind of slot, from Keras's names: `adam/dense_kernel_momentum`.

    An update that names its slots otherwise gets slots of no owner, each a group of its own last name part.
    """
    trainables = {v.name.replace("/", "_"): v.name for v in variables if kinds[v.name] == "trainable"}
    owners: dict[str, str | None] = {}
    groups: dict[str, str] = {}
    for v in variables:
        tail = v.name.rpartition("/")[2]
        owners[v.name], groups[v.name] = None, tail if kinds[v.name] == "slot" else kinds[v.name]
        if kinds[v.name] != "slot":
            continue
        stems = [flat for flat in trainables if tail.startswith(f"{flat}_")]
        if stems:
            stem = max(stems, key=len)
            owners[v.name], groups[v.name] = trainables[stem], tail[len(stem) + 1 :]
    return owners, groups


def _detach_update(
    graph: Graph,
    writes: Sequence[str],
    boundary: frozenset[str],
    forward: frozenset[str],
    uses: Mapping[str, Uses],
) -> Graph:
    """Give the update its own copies of forward nodes that it reads, so that the two share data at the boundary only.

    A learning rate or a loss scale is read on both sides; what depends on the batch has no such copy.
    """
    update = ancestors(graph, writes, stop=boundary | forward) - boundary - forward
    shared = {
        producer(ref)
        for name in update
        for ref in graph.by_name[name].data_inputs
        if producer(ref) in forward - boundary and producer(ref) not in uses
    }
    if not shared:
        return graph
    cloned = ancestors(graph, shared, control=False, stop=frozenset(uses)) - set(uses)
    for name in sorted(cloned):
        node = graph.by_name[name]
        if node.op == _BATCH_DEPENDENT or node.op.startswith("Random"):
            raise CaptureError(
                f"train step: the update must read forward values only through gradients, got {min(shared)!r}, which "
                "depends on the batch; compute it from gradients or variables"
            )
    renamed = {name: f"update/{name}" for name in cloned}
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.name in cloned:
            nodes.append(node)
            nodes.append(replace(_cloned(node, renamed), name=renamed[node.name]))
        elif node.name in update:
            nodes.append(_cloned(node, renamed))
        else:
            nodes.append(node)
    return graph.with_nodes(nodes)


def _cloned(node: Node, renamed: Mapping[str, str]) -> Node:
    """The node reading the clones; where it waits for an original it waits for the clone too."""
    data = []
    for ref in node.data_inputs:
        name = producer(ref)
        data.append(tensor(renamed[name], output_index(ref)) if name in renamed else ref)
    waits = [f"^{c}" for c in node.control_inputs]
    waits += [f"^{renamed[c]}" for c in node.control_inputs if c in renamed]
    return replace(node, inputs=(*data, *waits))


def _gradient_boundaries(
    graph: Graph, marks: Sequence[TracedGradient], variables: Sequence[Variable]
) -> tuple[Boundary, ...]:
    by_name = {v.name: v for v in variables}
    made = []
    for mark in marks:
        dtype = _type(graph.by_name[mark.values])
        made.append(
            Boundary(
                variable=mark.variable,
                role="gradient",
                rule="mean",
                dtype=dtype,
                shape=by_name[mark.variable].shape,
                values=mark.values,
                indices=mark.indices,
                index_dtype=None if mark.indices is None else _type(graph.by_name[mark.indices]),
            )
        )
    return tuple(made)


def _state_boundaries(
    graph: Graph, variables: Sequence[Variable], parts: _Parts
) -> tuple[Graph, tuple[Boundary, ...], set[str]]:
    """An identity before each forward state's assignment; earlier assignments of a step give way to the last.

    Returns:
        the graph, the boundaries, and the assignments that no longer run.
    """
    added: dict[str, tuple[Node, Node]] = {}
    forwarded: dict[str, str] = {}
    dropped: set[str] = set()
    boundaries = []
    for v in variables:
        if v.kind != "state" or v.rule == "per-replica" or not parts.writes(v.name):
            continue
        writes = [graph.by_name[w] for w in parts.writes(v.name)]
        _check_state_writes(v, writes)
        last = writes[-1]
        if last.op == "AssignVariableOp":
            values = {w.name: w.inputs[1] for w in writes}
            for name in parts.uses[v.handle].reads:
                before = [c for c in graph.by_name[name].control_inputs if c in values]
                if before:
                    forwarded[name] = values[before[-1]]
            dropped |= {w.name for w in writes[:-1]}
        else:
            _check_single_addition(graph, v, writes, parts.uses[v.handle].reads)
        marker = Node(
            name=f"state_boundary/{node_slug(v.name)}",
            op="Identity",
            inputs=(last.inputs[1],),
            attrs={"T": v.dtype},
        )
        added[last.name] = (marker, replace(last, inputs=(last.inputs[0], marker.name, *last.inputs[2:])))
        boundaries.append(
            Boundary(
                variable=v.name,
                role="state",
                rule=v.rule or "mean",
                dtype=v.dtype,
                shape=v.shape,
                values=marker.name,
            )
        )
    if not added:
        return graph, (), dropped
    gone = dropped | set(forwarded)
    nodes = [n for node in graph.nodes if node.name not in gone for n in added.get(node.name, (node,))]
    # A value may itself be a read that was forwarded, so references are followed to their end.
    final = {name: _end(ref, forwarded) for name, ref in forwarded.items()}
    merged = gone | set(
        added
    )  # the merge comes after every replica's forward pass, so nothing there may wait for it
    nodes = [
        _without_waits(node, merged if node.name in parts.forward and node.name not in merged else gone)
        for node in _renamed(nodes, final)
    ]
    return graph.with_nodes(nodes), tuple(boundaries), dropped


def _end(ref: str, forwarded: Mapping[str, str]) -> str:
    while ref in forwarded:
        ref = forwarded[ref]
    return ref


def _without_waits(node: Node, gone: set[str]) -> Node:
    if not any(c in gone for c in node.control_inputs):
        return node
    return replace(node, inputs=tuple(ref for ref in node.inputs if ref[0] != "^" or ref[1:] not in gone))


def _check_state_writes(v: Variable, writes: Sequence[Node]) -> None:
    for write in writes:
        if write.op not in ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"):
            raise CaptureError(
                f"variable {v.name!r}: forward state must be assigned at the top of the step, got a write by "
                f"{write.op} {write.name!r}; return the new value from the loop or branch and assign it outside"
            )


def _check_single_addition(graph: Graph, v: Variable, writes: Sequence[Node], reads: Sequence[str]) -> None:
    if len(writes) > 1:
        raise CaptureError(
            f"variable {v.name!r}: forward state may be added to once in a step, got {len(writes)} additions; "
            "add their sum"
        )
    later = [name for name in reads if writes[0].name in graph.by_name[name].control_inputs]
    if later:
        raise CaptureError(
            f"variable {v.name!r}: forward state that is summed over replicas must be read before it is added to, got "
            f"{later[0]!r} after it; assign the sum instead"
        )


def _regions(
    graph: Graph, variables: Sequence[Variable], parts: _Parts, order: Mapping[str, int]
) -> tuple[UpdateRegion, ...]:
    """One region per trainable with its slots, and one per variable that updates share (`iteration`)."""
    targets: dict[str, list[str]] = {}
    for v in variables:
        if v.kind != "state":
            targets.setdefault(v.slot_of or v.name, []).extend(parts.writes(v.name))
    handles = {v.handle for v in variables}
    stop = parts.boundary | parts.forward | handles
    regions = []
    for name, writes in targets.items():
        if writes:
            nodes = ancestors(graph, writes, stop=stop) - stop
            regions.append(
                UpdateRegion(
                    variable=name,
                    nodes=tuple(sorted(nodes, key=order.__getitem__)),
                    targets=tuple(dict.fromkeys(writes)),
                )
            )
    return tuple(regions)


def _side_effects(
    graph: Graph, must_run: Sequence[str], excluded: set[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What a step runs besides updates: effects seen from outside (printing, summaries), and state and checks."""
    effects, state = [], []
    for name in must_run:
        node = graph.by_name.get(name)
        if node is None or name in excluded or node.op in READ_OPS or node.op == "Placeholder":
            continue
        keeps_state = node.op.startswith(("Assign", "Rng")) or node.op in _CHECK_OPS
        (state if keeps_state else effects).append(name)
    return tuple(effects), tuple(state)


def _readiness(boundaries: Sequence[Boundary], graph: Graph, order: Mapping[str, int]) -> dict[str, int]:
    """Trace order of the nodes that make the gradients: reverse-mode makes them in the order in which it runs."""
    made = {
        b.variable: order[producer(graph.by_name[b.values].inputs[0])]
        for b in boundaries
        if b.role == "gradient"
    }
    return {name: place for place, name in enumerate(sorted(made, key=made.__getitem__))}
