"""A step with a table whose gradient comes as rows, and an update of one's own."""

from dataclasses import replace

from golden_steps import FLOAT, tiny
from graph_text import from_text

from strategies.ir.graph import DType, Shape
from strategies.ir.train_graph import Boundary, TrainGraph, UpdateRegion

_NODES = """
w = VarHandleOp() {{container='', dtype=float, shape=<5,2>, shared_name='w'}}
w/initial = Placeholder() {{dtype=float, shape=<5,2>}}
w/load = AssignVariableOp(w, w/initial) {{dtype=float}}
w/read = ReadVariableOp(w) {{dtype=float}}
x = Placeholder() {{dtype=float, shape=<?>}}
first = ReadVariableOp(w) {{dtype=float}}
loss = Loss(x, first)
backward = Gradient(x)
found = Ids(x)
rate = Placeholder() {{dtype=float, shape=<>, output_shapes=[<>]}}
rows = Identity(backward) {{T=float}}
ids = Identity(found) {{T=int32}}
{nodes}
update = ResourceScatterSub(w, ids, {delta}, ^first) {{Tindices=int32, dtype=float}}
"""


def table_step(nodes: str, delta: str) -> TrainGraph:
    """A step that takes `delta` off its table at `ids`.

    Args:
        nodes: text that makes `delta` of `rows`, `ids` and a scalar `rate`.
    """
    step = tiny()
    own = tuple(line.split(" = ")[0] for line in nodes.strip().splitlines())
    boundary = Boundary(
        variable="w",
        role="gradient",
        rule="mean",
        dtype=FLOAT,
        shape=Shape((5, 2)),
        values="rows",
        indices="ids",
        index_dtype=DType("int32"),
    )
    return replace(
        step,
        graph=from_text(_NODES.format(nodes=nodes, delta=delta)),
        variables=(replace(step.variables[0], shape=Shape((5, 2))),),
        boundaries=(boundary,),
        regions=(UpdateRegion(variable="w", nodes=(*own, "update"), targets=("update",)),),
    )
