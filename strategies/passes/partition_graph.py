"""The graph of a step whose variables are cut into parts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from strategies.ir.cut import Cut, part_name
from strategies.ir.graph import Attr, DType, Node, Shape, output_index, producer, tensor
from strategies.ir.part_facts import Kind, Outcome, PartUse
from strategies.ir.part_spread import Spread
from strategies.ir.train_graph import Boundary, Part, TrainGraph, UpdateRegion, Variable
from strategies.numerics.parts import join_parts, split_ids, split_parts, split_rows, stitch_rows, total
from strategies.tf_bridge.constants import constant
from strategies.tf_bridge.snippet import Snippet, TensorSpec, trace

_BOOL, _INT32 = DType("bool"), DType("int32")


class PartitionedGraph:
    """Rewrites a step: one sweep over its nodes.

    Args:
        cuts: trainable or slot → its ranges. found: how the update follows them.
    """

    def __init__(self, graph: TrainGraph, cuts: Mapping[str, Cut], found: Spread) -> None:
        self._graph = graph
        self._cuts = cuts
        self._outcomes = found.outcomes
        self._facts = found.facts
        self._variables = {v.name: v for v in graph.variables if v.name in cuts}
        self._handles = {v.handle: v for v in self._variables.values()}
        self._boundaries = {b.values: b for b in graph.gradients() if b.variable in cuts}
        indices = {b.indices: b for b in self._boundaries.values() if b.indices is not None}
        self._prefix = _free_prefix(graph)
        # Node → the variable for each of whose parts it has a copy, in its place or (reads) beside it.
        self._copied: dict[str, str] = {name: o.variable for name, o in self._outcomes.items()}
        self._copied |= {n: b.variable for n, b in (self._boundaries | indices).items()}
        self._copied |= {n: name for name, v in self._variables.items() for n in _access(v)}
        self._indices = set(indices)
        self._kept_reads = self._reads_elsewhere()
        self._joined: dict[str, str] = {}
        self._constants: dict[int, Node] = {}
        self._extra_update: list[str] = []
        self._own: dict[str, list[str]] = {}

    def step(self) -> TrainGraph:
        """The rewritten step."""
        nodes: list[Node] = []
        for node in self._graph.graph.nodes:
            nodes += self._rewritten(node)
        order = {node.name: i for i, node in enumerate(nodes)}
        shared = [*self._expanded(self._graph.shared_update), *self._extra_update]
        regions = [made for region in self._graph.regions for made in self._regions(region, shared)]
        graph = self._graph
        return replace(
            graph,
            graph=graph.graph.with_nodes(nodes),
            variables=tuple(made for v in graph.variables for made in self._parts_of(v)),
            boundaries=tuple(made for b in graph.boundaries for made in self._boundary_parts(b)),
            regions=tuple(regions),
            shared_update=tuple(sorted(dict.fromkeys(shared), key=order.__getitem__)),
            state_targets=self._expanded(graph.state_targets),
            effects=self._expanded(graph.effects),
            readiness=self._readiness(),
        )

    def _rewritten(self, node: Node) -> Iterable[Node]:
        if node.name in self._boundaries:
            return self._gradient(self._boundaries[node.name], node)
        if node.name in self._indices:
            return ()  # made with the values
        if node.name in self._outcomes:
            return self._copies(node, self._outcomes[node.name])
        if node.name in self._kept_reads:
            return self._read_elsewhere(node)
        if node.name in self._copied:
            return self._access_copies(node)
        return self._outside(node)

    def _splice(
        self, snippet: Snippet, prefix: str, inputs: Sequence[str]
    ) -> tuple[list[Node], tuple[str, ...]]:
        """A snippet's nodes; constants are the same for all variables, and shared."""
        made, refs = snippet.splice(prefix, inputs)
        renamed: dict[str, str] = {}
        nodes: list[Node] = []
        for node in made:
            if node.op == "Const":
                # All copies of a snippet's constant share its attributes.
                shared = self._constants.get(id(node.attrs))
                if shared is None:
                    shared = _node(node, f"{self._prefix}constants/{len(self._constants)}", ())
                    self._constants[id(node.attrs)] = shared
                    nodes.append(shared)
                renamed[node.name] = shared.name
            elif renamed:
                nodes.append(_node(node, node.name, tuple(renamed.get(ref, ref) for ref in node.inputs)))
            else:
                nodes.append(node)
        return nodes, refs

    def _named(self, nodes: Sequence[Node], ref: str, name: str, dtype: DType) -> list[Node]:
        """Nodes whose result goes by the name of the node in whose place they are."""
        if nodes and nodes[-1].name == ref:
            return [*nodes[:-1], _node(nodes[-1], name, nodes[-1].inputs)]
        return [*nodes, Node(name=name, op="Identity", inputs=(ref,), attrs={"T": dtype})]

    def _n_parts(self, name: str) -> int:
        return self._cuts[name].n

    def _part(self, index: int, name: str) -> str:
        return f"{self._prefix}{index}/{name}"

    # What the copies are made of.

    def _copies(self, node: Node, outcome: Outcome) -> Iterator[Node]:
        """The node once for each part."""
        sliced: dict[int, Sequence[str]] = {}
        for k, swap in outcome.swaps.items():
            if swap.use is PartUse.SLICE:
                sizes = self._cuts[outcome.variable].sizes
                snippet = trace(split_parts, (TensorSpec(dtype=swap.dtype),), axis=swap.axis, sizes=sizes)
                made, sliced[k] = self._splice(snippet, f"slice/{node.name}/{k}/", [node.data_inputs[k]])
                self._extra_update += [n.name for n in made]
                yield from made
        copies = []
        for p in range(self._n_parts(outcome.variable)):
            data = []
            for k, ref in enumerate(node.data_inputs):
                if k in sliced:
                    data.append(sliced[k][p])
                elif k in outcome.swaps:
                    made_constant = self._measure(node, k, outcome, p)
                    self._own.setdefault(self._part(p, node.name), []).append(made_constant.name)
                    yield made_constant
                    data.append(made_constant.name)
                else:
                    data.append(self._ref(ref, p))
            waits = self._waits(node, outcome.variable, p)
            attrs = node.attrs
            if "output_shapes" in attrs and isinstance(attrs["output_shapes"], tuple):
                attrs = {**attrs, "output_shapes": tuple(Shape(None) for _ in attrs["output_shapes"])}
            copies.append(_node(node, self._part(p, node.name), (*data, *waits), attrs))
        yield from copies
        if outcome.combine is not None:
            dtype = node.attrs.get("T", _BOOL)
            assert isinstance(dtype, DType)
            specs = (TensorSpec(dtype=dtype),) * len(copies)
            snippet = trace(total, specs, how=outcome.combine)
            made, (ref,) = self._splice(snippet, f"total/{node.name}/", [c.name for c in copies])
            made = self._named(made, ref, node.name, dtype)
            self._extra_update += [n.name for n in made]
            yield from made

    def _measure(self, node: Node, k: int, outcome: Outcome, p: int) -> Node:
        """A part's length or shape as a constant."""
        variable = self._variables[outcome.variable]
        shape = self._cuts[outcome.variable].shape(variable.shape.dims or (), p)
        swap = outcome.swaps[k]
        value: int | Sequence[int] = shape[0] if swap.use is PartUse.LENGTH else shape
        return constant(f"{self._part(p, node.name)}/input_{k}", value, swap.dtype, "")

    def _ref(self, ref: str, p: int) -> str:
        """A reference as a part's copy has it."""
        name = producer(ref)
        if name not in self._copied or name in self._kept_reads or self._combined(name):
            return ref
        return tensor(self._part(p, name), output_index(ref))

    def _combined(self, name: str) -> bool:
        return name in self._outcomes and self._outcomes[name].combine is not None

    def _waits(self, node: Node, variable: str | None, p: int) -> tuple[str, ...]:
        """What a part's copy waits for: copies of its own part, all copies of others."""
        names: dict[str, None] = {}
        for name in node.control_inputs:
            owner = self._copied.get(name)
            if owner is None:
                names[name] = None
            elif variable is not None and self._family(owner) == self._family(variable):
                names[self._part(p, name)] = None
            else:
                names |= dict.fromkeys(self._part(q, name) for q in range(self._n_parts(owner)))
        return tuple(f"^{name}" for name in names)

    def _family(self, name: str) -> str:
        return self._variables[name].slot_of or name

    # Variables.

    def _access_copies(self, node: Node) -> Iterator[Node]:
        variable = self._variables[self._copied[node.name]]
        cut = self._cuts[variable.name]
        for p in range(cut.n):
            attrs = dict(node.attrs)
            if "shape" in attrs:
                attrs["shape"] = Shape(cut.shape(variable.shape.dims or (), p))
            if "shared_name" in attrs:
                attrs["shared_name"] = self._part(p, node.name).encode()
            inputs = tuple(self._ref(ref, p) for ref in node.data_inputs)
            yield _node(node, self._part(p, node.name), inputs, attrs)

    def _parts_of(self, v: Variable) -> Iterator[Variable]:
        cut = self._cuts.get(v.name)
        if cut is None:
            # A slot of another shape stays whole, beside its variable's first part.
            owner = v.slot_of
            yield v if owner is None or owner not in self._cuts else replace(v, slot_of=part_name(owner, 0))
            return
        for p, start in enumerate(cut.starts):
            yield replace(
                v,
                name=part_name(v.name, p),
                slot_of=None if v.slot_of is None else part_name(v.slot_of, p),
                shape=Shape(cut.shape(v.shape.dims or (), p)),
                handle=self._part(p, v.handle),
                placeholder=self._part(p, v.placeholder),
                load=self._part(p, v.load),
                read=self._part(p, v.read),
                part=Part(variable=v.name, index=p, axis=cut.axis, start=start, stop=start + cut.sizes[p]),
            )

    # Reads outside of the update.

    def _reads_elsewhere(self) -> set[str]:
        """Nodes outside of the update that read a cut variable; their copies stand beside them."""
        found = set()
        for node in self._graph.graph.nodes:
            if node.data_inputs and producer(node.data_inputs[0]) in self._handles:
                variable = self._handles[producer(node.data_inputs[0])]
                if node.name in self._copied:
                    continue
                found.add(node.name)
                if node.op != "VariableShape":  # the whole's, a constant
                    self._copied[node.name] = variable.name
        return found

    def _read_elsewhere(self, node: Node) -> Iterator[Node]:
        variable = self._handles[producer(node.data_inputs[0])]
        dtype, shape = variable.dtype, variable.shape.dims or ()
        if node.op == "VariableShape":
            out_type = node.attrs.get("out_type", _INT32)
            assert isinstance(out_type, DType)
            yield constant(node.name, shape, out_type, node.device)
            return
        cut = self._cuts[variable.name]
        handles = [self._part(p, variable.handle) for p in range(cut.n)]
        waits = [self._waits(node, variable.name, p) for p in range(cut.n)]
        names = [self._part(p, node.name) for p in range(cut.n)]
        if node.op == "ReadVariableOp":
            yield from (
                _node(node, name, (handle, *wait))
                for name, handle, wait in zip(names, handles, waits, strict=True)
            )
            snippet = trace(join_parts, (TensorSpec(dtype=dtype),) * cut.n, axis=cut.axis)
            made, (ref,) = self._splice(snippet, f"join/{node.name}/", names)
        else:
            ids, index_dtype = node.data_inputs[1], node.attrs["Tindices"]
            assert isinstance(index_dtype, DType)
            route = trace(split_ids, (TensorSpec(dtype=index_dtype),), starts=cut.starts)
            routed, refs = self._splice(route, f"route/{node.name}/", [ids])
            yield from routed
            yield from (
                _node(node, name, (handle, local, *wait))
                for name, handle, local, wait in zip(names, handles, refs, waits, strict=False)
            )
            rows = TensorSpec(dtype=dtype, shape=Shape((-1, *shape[1:])))
            specs = (TensorSpec(dtype=index_dtype), *(TensorSpec(dtype=_INT32),) * cut.n, *(rows,) * cut.n)
            made, (ref,) = self._splice(
                trace(stitch_rows, specs), f"stitch/{node.name}/", [ids, *refs[cut.n :], *names]
            )
        yield from self._named(made, ref, node.name, dtype)

    def _outside(self, node: Node) -> Iterator[Node]:
        """A node that exists once; ranges that it reads are joined for it."""
        if not any(producer(ref) in self._copied for ref in node.inputs):
            yield node
            return
        data = []
        for ref in node.data_inputs:
            name = producer(ref)
            whole = ref
            if name in self._copied and name not in self._kept_reads and not self._combined(name):
                made, whole = self._join(ref)
                yield from made
            data.append(whole)
        yield _node(node, node.name, (*data, *self._waits(node, None, 0)))

    def _join(self, ref: str) -> tuple[Sequence[Node], str]:
        name = producer(ref)
        fact = self._facts.get(ref)
        if fact is None or fact.kind is Kind.WHOLE:
            return (), self._ref(ref, 0)  # every copy has computed it
        if ref in self._joined:
            return (), self._joined[ref]
        cut = self._cuts[self._copied[name]]
        dtype = self._graph.graph.by_name[name].attrs.get("T", self._variables[self._copied[name]].dtype)
        assert isinstance(dtype, DType)
        snippet = trace(join_parts, (TensorSpec(dtype=dtype),) * cut.n, axis=fact.axis)
        made, (joined,) = self._splice(snippet, f"join/{name}/", [self._ref(ref, p) for p in range(cut.n)])
        self._joined[ref] = joined
        return made, joined

    # Gradients.

    def _gradient(self, b: Boundary, node: Node) -> Iterator[Node]:
        cut = self._cuts[b.variable]
        by_name = self._graph.graph.by_name
        if b.indices is None:
            snippet = trace(split_parts, (TensorSpec(dtype=b.dtype),), axis=cut.axis, sizes=cut.sizes)
            made, refs = self._splice(snippet, f"split/{b.values}/", [node.data_inputs[0]])
            yield from made
            yield from self._identities(node, refs)
            return
        assert b.index_dtype is not None
        ids = by_name[b.indices]
        rows = TensorSpec(dtype=b.dtype, shape=Shape((-1, *(b.shape.dims or ())[1:])))
        specs = (rows, TensorSpec(dtype=b.index_dtype, shape=Shape((-1,))))
        snippet = trace(split_rows, specs, starts=cut.starts)
        made, refs = self._splice(snippet, f"split/{b.values}/", [node.data_inputs[0], ids.data_inputs[0]])
        yield from made
        yield from self._identities(node, refs[: cut.n])
        yield from self._identities(ids, refs[cut.n :])

    def _identities(self, node: Node, refs: Sequence[str]) -> Iterator[Node]:
        for p, ref in enumerate(refs):
            waits = self._waits(node, None, p)
            yield _node(node, self._part(p, node.name), (ref, *waits))

    def _boundary_parts(self, b: Boundary) -> Iterator[Boundary]:
        cut = self._cuts.get(b.variable)
        if cut is None or b.role != "gradient":
            yield b
            return
        for p in range(cut.n):
            yield replace(
                b,
                variable=part_name(b.variable, p),
                shape=Shape(cut.shape(b.shape.dims or (), p)),
                values=self._part(p, b.values),
                indices=None if b.indices is None else self._part(p, b.indices),
            )

    # What the step knows of its nodes.

    def _expanded(self, names: Iterable[str]) -> tuple[str, ...]:
        """Nodes by their names now, all copies in place of those that exist per part."""
        found: list[str] = []
        for name in names:
            if name in self._copied and name not in self._kept_reads:
                for p in range(self._n_parts(self._copied[name])):
                    found += [self._part(p, name), *self._own.get(self._part(p, name), ())]
            else:
                found.append(name)
        return tuple(found)

    def _regions(self, region: UpdateRegion, shared: list[str]) -> Iterator[UpdateRegion]:
        cut = self._cuts.get(region.variable)
        if cut is None:
            yield replace(region, nodes=self._expanded(region.nodes), targets=self._expanded(region.targets))
            return
        # What all parts need is nobody's own any more.
        shared += [n for n in region.nodes if n not in self._copied]
        once = [t for t in region.targets if t not in self._copied]
        for p in range(cut.n):
            nodes = [n for name in region.nodes if name in self._copied for n in self._own_nodes(p, name)]
            targets = [self._part(p, t) for t in region.targets if t in self._copied]
            yield UpdateRegion(
                variable=part_name(region.variable, p),
                nodes=tuple(nodes),
                targets=(*targets, *(once if p == 0 else ())),
            )

    def _own_nodes(self, p: int, name: str) -> list[str]:
        made = self._part(p, name)
        return [*self._own.get(made, ()), made]

    def _readiness(self) -> dict[str, int]:
        ordered = sorted(self._graph.readiness, key=self._graph.readiness.__getitem__)
        names = [
            made
            for name in ordered
            for made in (
                [part_name(name, p) for p in range(self._n_parts(name))] if name in self._cuts else [name]
            )
        ]
        return {name: place for place, name in enumerate(names)}


def _node(like: Node, name: str, inputs: tuple[str, ...], attrs: Mapping[str, Attr] | None = None) -> Node:
    # By far cheaper than `replace`, and every node of every part comes here.
    return Node(
        name=name,
        op=like.op,
        inputs=inputs,
        attrs=like.attrs if attrs is None else attrs,
        device=like.device,
        extra=like.extra,
    )


def _access(v: Variable) -> tuple[str, str, str, str]:
    return v.handle, v.placeholder, v.load, v.read


def _free_prefix(graph: TrainGraph) -> str:
    """What no node's name starts with."""
    prefix = "part_"
    while any(name.startswith(prefix) for name in graph.graph.by_name):
        prefix += "_"
    return prefix
