"""A captured training step of any size, as capture leaves it, made without TensorFlow.

A chain of layers of twenty nodes: a weight, its momentum, what reads, differentiates and updates them. One
layer in twenty also has a running mean and dropout, one in fifty is an embedding with a sparse gradient; a
step counter waits for the loss.
"""

from dataclasses import dataclass, field

from strategies.ir.assembly.assemble import assemble
from strategies.ir.assembly.traced import TracedGradient, TracedStep, TracedVariable
from strategies.ir.graph import Attr, DType, Graph, Node, Shape, TensorValue
from strategies.ir.train_graph import BatchInput, TrainGraph

FLOAT, INT32, INT64, RESOURCE = DType("float"), DType("int32"), DType("int64"), DType("resource")
WIDTH = 8
ROWS = 16
VECTOR = Shape((WIDTH,))
MATRIX = Shape((ROWS, WIDTH))
NODES_PER_LAYER = 20
_STATEFUL_OPS = frozenset(
    {
        "AssignAddVariableOp",
        "AssignSubVariableOp",
        "AssignVariableOp",
        "RandomUniform",
        "ReadVariableOp",
        "ResourceGather",
        "ResourceScatterSub",
    }
)

# Serialized TensorProtos: scalars of float, int32 and int64.
_HALF = TensorValue(b"\x08\x01\x12\x00\x2a\x04\x00\x00\x00\x3f")
_ZERO = TensorValue(b"\x08\x03\x12\x00\x3a\x01\x00")
_ONE = TensorValue(b"\x08\x09\x12\x00\x52\x01\x01")


def synthetic_step(n_nodes: int) -> TrainGraph:
    """A captured step of about this many nodes, one trainable variable for every twenty of them."""
    trace = _Trace()
    for layer in range(n_nodes // NODES_PER_LAYER):
        trace.forward(layer)
    trace.backward()
    trace.update()
    return assemble(trace.traced())


@dataclass(slots=True)
class _Layer:
    """A layer: its name and kind, the value it read, and its weight's gradient."""

    name: str
    sparse: bool
    source: str
    weight: str = ""
    mask: str = ""
    gradient: str = ""


@dataclass(slots=True)
class _Trace:
    nodes: dict[str, Node] = field(default_factory=dict)
    variables: list[TracedVariable] = field(default_factory=list)
    marks: list[TracedGradient] = field(default_factory=list)
    must_run: list[str] = field(default_factory=list)
    layers: list[_Layer] = field(default_factory=list)
    top: str = "x"

    def __post_init__(self) -> None:
        self.add("x", "Placeholder", dtype=FLOAT, shape=Shape((-1, WIDTH)))
        self.add("ids", "Placeholder", dtype=INT32, shape=Shape((-1,)))
        self.add("half", "Const", dtype=FLOAT, value=_HALF)
        self.add("axis", "Const", dtype=INT32, value=_ZERO)
        self.add("one", "Const", dtype=INT64, value=_ONE)
        self.add("size", "Shape", "x", T=FLOAT, out_type=INT32)

    def add(self, name: str, op: str, *inputs: str, **attrs: Attr) -> str:
        """A node; its name, to be read from."""
        self.nodes[name] = Node(name=name, op=op, inputs=inputs, attrs=attrs)
        return name

    def unary(self, name: str, op: str, *inputs: str) -> str:
        """A node of floats."""
        return self.add(name, op, *inputs, T=FLOAT)

    def variable(self, name: str, dtype: DType, shape: Shape, *, trainable: bool, owned: bool) -> str:
        """A variable; its handle."""
        handle = self.add(f"handle/{name}", "Placeholder", dtype=RESOURCE, shape=Shape(()))
        self.variables.append(
            TracedVariable(
                name=name,
                placeholder=handle,
                dtype=dtype,
                shape=shape,
                trainable=trainable,
                optimizer_owned=owned,
            )
        )
        return handle

    def forward(self, index: int) -> None:
        """Output of a layer: rows times its weight, or plus looked-up rows of it."""
        layer = _Layer(f"layer_{index}", index % 50 == 49, self.top)
        name = layer.name
        shape = MATRIX if layer.sparse else VECTOR
        handle = self.variable(name, FLOAT, shape, trainable=True, owned=False)
        if layer.sparse:
            layer.weight = self.add(
                f"{name}/lookup",
                "ResourceGather",
                handle,
                "ids",
                batch_dims=0,
                validate_indices=True,
                dtype=FLOAT,
                Tindices=INT32,
            )
            self.top = self.unary(f"{name}/add", "AddV2", self.top, layer.weight)
        else:
            layer.weight = self.add(f"{name}/weight", "ReadVariableOp", handle, dtype=FLOAT)
            self.top = self.unary(f"{name}/times", "Mul", self.top, layer.weight)
        if index % 20 == 19:
            self._dropout(layer)
            self._running_mean(layer)
        self.layers.append(layer)

    def _dropout(self, layer: _Layer) -> None:
        name = layer.name
        noise = self.add(
            f"{name}/noise", "RandomUniform", "size", seed=7, seed2=len(self.nodes), dtype=FLOAT, T=INT32
        )
        layer.mask = self.unary(f"{name}/mask", "AddV2", noise, "half")
        self.top = self.unary(f"{name}/dropped", "Mul", self.top, layer.mask)

    def _running_mean(self, layer: _Layer) -> None:
        name = f"{layer.name}/mean"
        handle = self.variable(name, FLOAT, VECTOR, trainable=False, owned=False)
        old = self.add(f"{name}/old", "ReadVariableOp", handle, dtype=FLOAT)
        new = self.add(f"{name}/batch", "Mean", self.top, "axis", T=FLOAT, Tidx=INT32, keep_dims=False)
        total = self.unary(f"{name}/total", "AddV2", old, new)
        scaled = self.unary(f"{name}/scaled", "Mul", total, "half")
        self.must_run.append(
            self.add(f"{name}/assign", "AssignVariableOp", handle, scaled, dtype=FLOAT, validate_shape=False)
        )

    def backward(self) -> None:
        """The loss, and gradients from the last layer to the first."""
        flat = self.add("loss/rows", "Mean", self.top, "axis", T=FLOAT, Tidx=INT32, keep_dims=False)
        self.add("loss", "Mean", flat, "axis", T=FLOAT, Tidx=INT32, keep_dims=False)
        flow = self.unary("gradients/top", "Mul", self.top, "half")
        for layer in reversed(self.layers):
            name = f"gradients/{layer.name}"
            if layer.mask:
                flow = self.unary(f"{name}/dropped", "Mul", flow, layer.mask)
            if layer.sparse:
                rows = self.unary(f"{name}/rows", "Mul", flow, "half")
                ids = self.add(f"{name}/ids", "Identity", "ids", T=INT32)
                layer.gradient = self.unary(f"{name}/values", "Identity", rows)
                self.marks.append(
                    TracedGradient(call=0, variable=layer.name, values=layer.gradient, indices=ids)
                )
                continue
            product = self.unary(f"{name}/product", "Mul", flow, layer.source)
            total = self.add(f"{name}/sum", "Sum", product, "axis", T=FLOAT, Tidx=INT32, keep_dims=False)
            flow = self.unary(f"{name}/flow", "Mul", flow, layer.weight)
            layer.gradient = self.unary(f"{name}/values", "Identity", total)
            self.marks.append(
                TracedGradient(call=0, variable=layer.name, values=layer.gradient, indices=None)
            )

    def update(self) -> None:
        """Momentum of each weight, each after the one before it; rows of an embedding move by themselves."""
        rate_handle = self.variable("optimizer/rate", FLOAT, Shape(()), trainable=False, owned=True)
        rate = self.add("optimizer/read_rate", "ReadVariableOp", rate_handle, dtype=FLOAT)
        for layer in self.layers:
            name = f"update/{layer.name}"
            handle = f"handle/{layer.name}"
            if layer.sparse:
                step = self.unary(f"{name}/step", "Mul", layer.gradient, rate)
                moved = self.add(
                    f"{name}/scatter",
                    "ResourceScatterSub",
                    handle,
                    f"gradients/{layer.name}/ids",
                    step,
                    dtype=FLOAT,
                    Tindices=INT32,
                )
                self.must_run.append(moved)
                continue
            slot = self.variable(
                f"optimizer/{layer.name}_momentum", FLOAT, VECTOR, trainable=False, owned=True
            )
            old = self.add(f"{name}/old", "ReadVariableOp", slot, dtype=FLOAT)
            scaled = self.unary(f"{name}/kept", "Mul", old, "half")
            new = self.unary(f"{name}/new", "AddV2", scaled, layer.gradient)
            assign = self.add(
                f"{name}/momentum", "AssignVariableOp", slot, new, dtype=FLOAT, validate_shape=False
            )
            step = self.unary(f"{name}/step", "Mul", new, rate)
            moved = self.add(f"{name}/weight", "AssignSubVariableOp", handle, step, f"^{assign}", dtype=FLOAT)
            self.must_run += [assign, moved]
        counter = self.variable("optimizer/iteration", INT64, Shape(()), trainable=False, owned=True)
        self.must_run.append(
            self.add("update/count", "AssignAddVariableOp", counter, "one", "^loss", dtype=INT64)
        )

    def traced(self) -> TracedStep:
        """All of it."""
        return TracedStep(
            graph=Graph(nodes=tuple(self.nodes.values())),
            constants={},
            variables=tuple(self.variables),
            marks=tuple(self.marks),
            batch=(
                BatchInput(path="0", node="x", dtype=FLOAT, shape=Shape((-1, WIDTH))),
                BatchInput(path="1", node="ids", dtype=INT32, shape=Shape((-1,))),
            ),
            loss="loss",
            must_run=tuple(self.must_run),
            stateful_ops=_STATEFUL_OPS,
        )
