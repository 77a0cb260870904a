"""Whatever host loops there are: resharding changes nothing that is seen outside of them."""

from dataclasses import dataclass, replace

import hypothesis
import pytest
from hypothesis import strategies as st

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

import core_steps
import numpy as np
from emulated_loops import core_program, device, first_values, run
from host_loop_graphs import FLOAT, HostLoopGraph, LoopVariable, graph_of, nested

from strategies.ir.graph import Graph, Node
from strategies.passes.tpu.computations import Sharding
from strategies.passes.tpu.host_loop_reshard import reshard_host_loops

FOUR_ROUNDINGS = 4 * float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class Drawn:
    """Loops that run in turn; after each, all variables are read.

    Attributes:
        is_nested: True if the first loop is inside another one.
    """

    loops: tuple[HostLoopGraph, ...]
    is_nested: bool

    def fetches(self) -> list[str]:
        """Observations of a run."""
        ends = [f"{loop.name}/{what}" for loop in self.loops for what in ("count", "total")]
        return [*(["outer/count", *ends[2:]] if self.is_nested else ends), *(n.name for n in self._reads())]

    def graph(self) -> Graph:
        """The loops, and what reads variables between and after them."""
        handles = {name: node for loop in self.loops for name, node in loop.handles().items()}
        again = [
            handles[fromkey].changed(name=f"{fromkey}_again")
            for fromkey in dict.fromkeys(
                second_handle for loop in self.loops for second_handle in loop.second_handles
            )
        ]
        first, *others = self.loops
        nodes = [
            *handles.values(),
            *again,
            *(nested(first) if self.is_nested else first.build()),
            *self._reads(),
        ]
        functions = dict(graph_of(*self.loops).functions)
        for loop in others:
            waits = tuple(node.name for node in self._reads() if node.name.startswith(f"{first.name}/after"))
            nodes += replace(loop, waits=waits, nodes=[]).build()
        for loop in self.loops:
            shapes = tuple(v.shape for v in loop.variables)
            program = core_program(
                core_steps.mixed, len(shapes), name=loop.program, n=loop.n_replicas, shapes=shapes
            )
            functions[loop.program] = program
        return Graph(nodes=tuple(nodes), functions=functions)

    def _reads(self) -> list[Node]:
        handles = {name: node for loop in self.loops for name, node in loop.handles().items()}
        reads = []
        for place, loop in enumerate(self.loops):
            is_inside = self.is_nested and place == 0
            ends = ("^outer/count",) if is_inside else (f"^{loop.name}/count", f"^{loop.name}/total")
            for name, handle in handles.items():
                own = f"{loop.name}/after/{name}"
                attrs = {"dtype": FLOAT}
                node = Node(
                    name=own, op="ReadVariableOp", inputs=(name, *ends), attrs=attrs, device=handle.device
                )
                reads.append(node)
        return reads


@st.composite
def loops(draw: st.DrawFn) -> Drawn:
    n_replicas = draw(st.sampled_from([2, 3]))
    devices = [device(r) for r in range(n_replicas)]
    known = draw(
        st.lists(
            st.builds(
                LoopVariable,
                name=st.sampled_from(["wa", "wb", "wc"]),
                shape=st.sampled_from([(), (1,), (5,), (2, 3)]),
                shared=st.booleans(),
            ),
            min_size=1,
            max_size=3,
            unique_by=lambda v: v.name,
        )
    )
    results = []
    for name in ("first", "second")[: draw(st.integers(1, 2))]:
        variables = [
            replace(
                v,
                sharding=draw(st.sampled_from([Sharding.TENTATIVE, Sharding.ALLOWED, Sharding.DISALLOWED])),
                way=draw(st.sampled_from(["constant", "iterated"])),
                n_identities=draw(st.integers(0, 2)),
            )
            for v in draw(st.lists(st.sampled_from(known), min_size=1, unique_by=lambda v: v.name))
        ]
        loop = HostLoopGraph(
            variables=variables,
            name=name,
            program=f"{name}_step",
            n_replicas=n_replicas,
            n_iterations=draw(st.integers(0, 3)),
            devices=devices,
        )
        # What is no constant of the loop comes to its first iteration alone.
        constant = [v for v in variables if v.way == "constant"]
        names = list(replace(loop, variables=constant).handles())
        read = draw(st.lists(st.sampled_from(names), max_size=1)) if names else []
        again = draw(st.lists(st.sampled_from(list(loop.handles())), max_size=1))
        results.append(replace(loop, readers=read, second_handles=again))
    return Drawn(loops=tuple(results), is_nested=draw(st.booleans()))


CERTAIN = HostLoopGraph(
    variables=[LoopVariable(name="wa", shape=(5,)), LoopVariable(name="wb", shape=(2, 3), shared=True)],
    name="first",
    program="first_step",
    devices=[device(r) for r in range(2)],
)


@hypothesis.settings(max_examples=40, derandomize=True, deadline=None)
@hypothesis.example(
    drawn=Drawn(loops=(CERTAIN, replace(CERTAIN, name="second", program="second_step")), is_nested=True)
)
@hypothesis.given(drawn=loops())
def test_variables_are_whole_outside_of_loops(drawn):
    graph = drawn.graph()
    resharded = reshard_host_loops(graph)
    hypothesis.event("resharded" if resharded.graph is not graph else "left")
    if resharded.graph is graph:
        return
    values = {name: value for loop in drawn.loops for name, value in first_values(loop).items()}
    n_replicas = drawn.loops[0].n_replicas
    whole, parted = (
        run(graph_of_way, values, n_replicas=n_replicas, fetches=drawn.fetches())
        for graph_of_way in (graph, resharded.graph)
    )
    # Shapes of what is read are those of the variables, or the comparison fails.
    assert parted.error(whole) <= FOUR_ROUNDINGS
