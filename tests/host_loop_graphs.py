"""Graphs with host loops around compiled computations, as the TPU rewrites of TensorFlow leave them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from strategies.ir.graph import (
    Arg,
    DType,
    Function,
    FunctionRef,
    Graph,
    Node,
    Shape,
    TensorValue,
    output_index,
    producer,
)
from strategies.ir.tensor_proto import tensor_proto
from strategies.passes.tpu.computations import Argument, ArgumentKind, CompileMetadata, Sharding

RESOURCE, FLOAT, INT32, STRING = DType("resource"), DType("float"), DType("int32"), DType("string")


@dataclass(frozen=True, kw_only=True)
class LoopVariable:
    """A variable that a computation takes, and how its handle comes into the loop.

    Attributes:
        way: `constant` for a direct input of every iteration, `iterated` for a variable of the loop.
        n_identities: number of identities between its entry and the executes.
        shared: True for a single variable of all replicas, with one handle.
    """

    name: str
    sharding: Sharding = Sharding.TENTATIVE
    way: Literal["constant", "iterated"] = "constant"
    n_identities: int = 0
    shared: bool = False
    shape: tuple[int, ...] = (3,)
    dtype: DType = FLOAT


@dataclass(frozen=True, kw_only=True)
class HostLoopGraph:
    """A loop that counts to `n_iterations`, compiles in each iteration and executes once for each replica.

    Attributes:
        n_executes: number of executes; as many as replicas by default.
        n_results: floats that an execute returns; the loop adds up the first of each.
        readers: names of handles by which the loop reads variables after the executes, and adds up their
            norms.
        second_handles: the same, for another handle of the variable.
        metadata: serialized metadata, in place of that of the other fields.
        waits: nodes that run before it.
        sources: handle → input that replaces it, in a loop around this one.
    """

    variables: Sequence[LoopVariable]
    name: str = "loop"
    n_replicas: int = 2
    n_executes: int | None = None
    n_cores_per_replica: int = 1
    n_iterations: int = 3
    program: str = "step"
    n_results: int = 1
    readers: Sequence[str] = ()
    second_handles: Sequence[str] = ()
    metadata: bytes | None = None
    waits: Sequence[str] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    devices: Sequence[str] | None = None
    nodes: list[Node] = field(default_factory=list)

    def handles(self) -> dict[str, Node]:
        """Handles of all replicas' variables, by name; made once for all loops that use them."""
        results = {}
        for v in self.variables:
            for replica in range(1 if v.shared else self.n_replicas):
                name = v.name if v.shared else f"{v.name}_{replica}"
                results[name] = handle(name, v.shape, self.device(replica), dtype=v.dtype)
        return results

    def device(self, replica: int) -> str:
        """Place of a replica."""
        return f"/device:CPU:{replica}" if self.devices is None else self.devices[replica]

    def build(self) -> list[Node]:
        """The nodes of the loop, without its handles; `{name}/count` and `{name}/total` leave it."""
        self.nodes.clear()
        name = self.name
        waits = tuple(f"^{wait}" for wait in self.waits)
        self._add(f"{name}/zero", "Const", waits, dtype=INT32, value=number("int32", 0))
        self._add(f"{name}/limit", "Const", waits, dtype=INT32, value=number("int32", self.n_iterations))
        self._add(f"{name}/nothing", "Const", waits, dtype=FLOAT, value=number("float", 0.0))
        self._enter(f"{name}/limit", INT32, constant=True)
        self._enter(f"{name}/zero", INT32)
        self._enter(f"{name}/nothing", FLOAT)
        self._merge("count", f"{name}/zero", INT32)
        self._merge("total", f"{name}/nothing", FLOAT)
        self._add(f"{name}/less", "Less", (f"{name}/count/merge", f"{name}/limit/enter"), T=INT32)
        self._add(f"{name}/cond", "LoopCond", (f"{name}/less",))
        self._switch("count", INT32)
        self._switch("total", FLOAT)
        pivot = f"^{name}/count/body"
        self._add(f"{name}/one", "Const", (pivot,), dtype=INT32, value=number("int32", 1))
        self._add(f"{name}/next", "AddV2", (f"{name}/count/body", f"{name}/one"), T=INT32)
        handles = [self._taken(v) for v in self.variables]
        self._add(
            f"{name}/compile",
            "TPUCompile",
            (pivot,),
            NumDynamicShapes=0,
            Tguaranteed_constants=(),
            function=FunctionRef(self.program),
            metadata=self._metadata(),
            num_computations=1,
        )
        executes = self._executes(handles, pivot)
        reads = self._reads(executes or [f"{name}/count/body"])
        total = f"{name}/total/body"
        for added in (*(executes if self.n_results else ()), *reads):
            self._add(f"{added}/sum", "AddV2", (total, added), T=FLOAT)
            total = f"{added}/sum"
        self._next("count", f"{name}/next", INT32, (*executes, *reads))
        self._next("total", total, FLOAT)
        for v in self.variables:
            if v.way == "iterated":
                for source in self._names(v):
                    self._next(source, f"{name}/{source}/body", RESOURCE)
        self._add(f"{name}/count", "Exit", (f"{name}/count/switch",), T=INT32)
        self._add(f"{name}/total", "Exit", (f"{name}/total/switch",), T=FLOAT)
        return list(self.nodes)

    def _names(self, v: LoopVariable) -> list[str]:
        return [v.name] if v.shared else [f"{v.name}_{replica}" for replica in range(self.n_replicas)]

    def _taken(self, v: LoopVariable) -> list[str]:
        refs = []
        for name in self._names(v):
            self._enter(name, RESOURCE, constant=v.way == "constant")
            ref = f"{self.name}/{name}/enter"
            if v.way == "iterated":
                self._merge(name, name, RESOURCE)
                self._switch(name, RESOURCE)
                ref = f"{self.name}/{name}/body"
            for k in range(v.n_identities):
                self._add(f"{self.name}/{name}/identity_{k}", "Identity", (ref,), T=RESOURCE)
                ref = f"{self.name}/{name}/identity_{k}"
            refs.append(ref)
        return refs * self.n_replicas if v.shared else refs

    def _executes(self, handles: list[list[str]], pivot: str) -> list[str]:
        n_executes = self.n_replicas if self.n_executes is None else self.n_executes
        executes = [f"{self.name}/execute_{replica}" for replica in range(n_executes)]
        for replica, execute in enumerate(executes):
            arguments = [refs[replica % self.n_replicas] for refs in handles]
            self._add(
                execute,
                "TPUExecuteAndUpdateVariables",
                (*arguments, f"{self.name}/compile:1", pivot),
                device=self.device(replica % self.n_replicas),
                Targs=(RESOURCE,) * len(handles),
                Tresults=(FLOAT,) * self.n_results,
                device_var_reads_indices=tuple(range(len(handles))),
                device_var_updates_indices=tuple(range(len(handles))),
            )
        return executes

    def _reads(self, after: Sequence[str]) -> list[str]:
        for handle in self.second_handles:
            self._enter(f"{handle}_again", RESOURCE, constant=True)
        norms = []
        for handle in (*self.readers, *(f"{second_handle}_again" for second_handle in self.second_handles)):
            inputs = (f"{self.name}/{handle}/enter", *(f"^{name}" for name in after))
            self._add(f"{self.name}/{handle}/read", "ReadVariableOp", inputs, dtype=FLOAT)
            # TensorFlow runs no read of which it needs no value.
            norms.append(f"{self.name}/{handle}/norm")
            self._add(norms[-1], "L2Loss", (f"{self.name}/{handle}/read",), T=FLOAT)
        return norms

    def _metadata(self) -> bytes:
        if self.metadata is not None:
            return self.metadata
        return metadata(self.n_replicas, [v.sharding for v in self.variables], self.n_cores_per_replica)

    def _enter(self, source: str, dtype: DType, *, constant: bool = False) -> None:
        own = source if source.startswith(f"{self.name}/") else f"{self.name}/{source}"
        self._add(
            f"{own}/enter",
            "Enter",
            (self.sources.get(source, source),),
            T=dtype,
            frame_name=self.name.encode(),
            is_constant=constant,
            parallel_iterations=10,
        )

    def _merge(self, own: str, source: str, dtype: DType) -> None:
        entered = source if source.startswith(f"{self.name}/") else f"{self.name}/{source}"
        inputs = (f"{entered}/enter", f"{self.name}/{own}/next")
        self._add(f"{self.name}/{own}/merge", "Merge", inputs, N=2, T=dtype)

    def _switch(self, own: str, dtype: DType) -> None:
        prefix = f"{self.name}/{own}"
        self._add(f"{prefix}/switch", "Switch", (f"{prefix}/merge", f"{self.name}/cond"), T=dtype)
        self._add(f"{prefix}/body", "Identity", (f"{prefix}/switch:1",), T=dtype)

    def _next(self, own: str, ref: str, dtype: DType, waits: Sequence[str] = ()) -> None:
        inputs = (ref, *(f"^{wait}" for wait in waits))
        self._add(f"{self.name}/{own}/next", "NextIteration", inputs, T=dtype)

    def _add(self, name: str, op: str, inputs: Sequence[str], *, device: str = "", **attrs: object) -> None:
        self.nodes.append(Node(name=name, op=op, inputs=tuple(inputs), attrs=attrs, device=device))  # type: ignore[arg-type]


def number(dtype: str, value: float) -> TensorValue:
    """A scalar constant."""
    return TensorValue(tensor_proto(dtype, value))


def handle(
    name: str, shape: tuple[int, ...], device: str, *, shared_name: str | None = None, dtype: DType = FLOAT
) -> Node:
    """A handle of a variable, with its name for a shared name unless another is given."""
    attrs = {
        "allowed_devices": (),
        "container": b"",
        "debug_name": b"",
        "dtype": dtype,
        "shape": Shape(shape),
        "shared_name": (name if shared_name is None else shared_name).encode(),
    }
    return Node(name=name, op="VarHandleOp", attrs=attrs, device=device)


def metadata(n_replicas: int, shardings: Sequence[Sharding], n_cores_per_replica: int = 1) -> bytes:
    """Metadata that a compile node has of a computation that takes variables."""
    arguments = [Argument(kind=ArgumentKind.VARIABLE, sharding=sharding) for sharding in shardings]
    proto = CompileMetadata.of(n_replicas, arguments).proto
    if n_cores_per_replica == 1:
        return proto
    # Field 4, a number: what comes later in a message counts.
    return proto + bytes((4 << 3, n_cores_per_replica))


def program(n_arguments: int, n_results: int = 1, name: str = "step") -> Function:
    """A computation that does nothing."""
    return Function(
        name=name,
        inputs=tuple(Arg(name=f"v{i}", dtype=RESOURCE) for i in range(n_arguments)),
        outputs=tuple(Arg(name=f"r{i}", dtype=FLOAT) for i in range(n_results)),
        nodes=(Node(name="nothing", op="Const", attrs={"dtype": FLOAT, "value": number("float", 0.0)}),),
        results={f"r{i}": "nothing:output:0" for i in range(n_results)},
    )


def graph_of(
    *loops: HostLoopGraph, more: Sequence[Node] = (), functions: Mapping[str, Function] | None = None
) -> Graph:
    """A graph with these loops, and one handle of each variable that any of them takes."""
    handles: dict[str, Node] = {}
    for loop in loops:
        handles |= loop.handles()
    nodes = [*handles.values(), *more]
    for loop in loops:
        nodes += loop.build()
    programs = {loop.program: program(len(loop.variables), loop.n_results, loop.program) for loop in loops}
    return Graph(nodes=tuple(nodes), functions={**programs, **(functions or {})})


def changed(graph: Graph, name: str, **changes: object) -> Graph:
    """A graph with other inputs, attributes or another device of one node; attributes are added."""
    node = graph.by_name[name]
    if "attrs" in changes:
        changes["attrs"] = {**node.attrs, **changes["attrs"]}  # type: ignore[dict-item]
    new = node.changed(**changes)  # type: ignore[arg-type]
    return graph.with_nodes(new if old is node else old for old in graph.nodes)


def nested(inner: HostLoopGraph, *, n_iterations: int = 2) -> list[Node]:
    """The nodes of a loop inside of another one, `outer`, which counts and takes each handle as it is."""
    names = [*inner.handles(), *(f"{second_handle}_again" for second_handle in inner.second_handles)]
    sources = {name: f"outer/{name}/enter" for name in names}
    ends = (f"^{inner.name}/count", f"^{inner.name}/total")
    outer = HostLoopGraph(
        variables=[LoopVariable(name=name, shared=True) for name in sources],
        name="outer",
        n_executes=0,
        n_results=0,
        n_iterations=n_iterations,
    )
    nodes = {node.name: node for node in outer.build() if node.name != "outer/compile"}
    following = nodes["outer/count/next"]
    nodes["outer/count/next"] = following.changed(inputs=(*following.inputs, *ends))
    inside = replace(inner, waits=("outer/count/body",), sources=sources, nodes=[])
    return [*nodes.values(), *inside.build()]


_OUTPUTS: Mapping[str, Sequence[str]] = {
    "AddV2": ("z:0",),
    "Less": ("z:0",),
    "ReadVariableOp": ("value:0",),
    "Switch": ("output_false:0", "output_true:0"),
    "TPUCompile": ("compilation_status:0", "program:0", "may_modify_variables:0"),
    "TPUExecuteAndUpdateVariables": ("results:0", "results:1"),
    "VarHandleOp": ("resource:0",),
}
"""Op → how the body of a function writes its outputs, where that is not `output`."""


def in_function(
    nodes: Sequence[Node], arguments: Mapping[str, DType], results: Mapping[str, tuple[str, DType]], name: str
) -> Function:
    """A function whose body are nodes of a graph; arguments are what they take from other nodes.

    Args:
        results: name of a result → reference in the graph, and type.
    """
    by_name = {node.name: node for node in nodes}

    def written(ref: str) -> str:
        source = producer(ref)
        if ref[0] == "^" or source in arguments:
            return ref
        outputs = _OUTPUTS.get(by_name[source].op, ("output:0",))
        return f"{source}:{outputs[output_index(ref)]}"

    return Function(
        name=name,
        inputs=tuple(Arg(name=name, dtype=dtype) for name, dtype in arguments.items()),
        outputs=tuple(Arg(name=name, dtype=dtype) for name, (_, dtype) in results.items()),
        nodes=tuple(node.changed(inputs=tuple(map(written, node.inputs))) for node in nodes),
        results={name: written(ref) for name, (ref, _) in results.items()},
    )


def call(name: str, function: str, inputs: Mapping[str, DType], results: Sequence[DType]) -> Node:
    """A call of a function."""
    attrs = {
        "Tin": tuple(inputs.values()),
        "Tout": tuple(results),
        "config": b"",
        "config_proto": b"",
        "executor_type": b"",
        "f": FunctionRef(function),
    }
    return Node(name=name, op="StatefulPartitionedCall", inputs=tuple(inputs), attrs=attrs)


def called_loop(loop: HostLoopGraph) -> Graph:
    """A graph with a loop in a function, `train`, which its node `step` calls."""
    handles = loop.handles()
    arguments = dict.fromkeys(handles, RESOURCE)
    results = {"count": (f"{loop.name}/count", INT32), "total": (f"{loop.name}/total", FLOAT)}
    functions = (
        in_function(loop.build(), arguments, results, "train"),
        program(len(loop.variables), loop.n_results, loop.program),
    )
    caller = call("step", "train", arguments, (INT32, FLOAT))
    return Graph(
        nodes=(*handles.values(), caller), functions={function.name: function for function in functions}
    )
