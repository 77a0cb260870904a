"""Profile of a step without communication, from traced steps of a worker."""

import itertools
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.prediction.profile import Span, StepProfile, VariableNodes, profile_of, typical_profile
from harness.worker.jobs.training import Training
from harness.worker.process.job import JobState

if TYPE_CHECKING:
    from tensorflow.compat.v1 import RunMetadata

    from harness.worker.session.session import WorkerSession
    from harness.worker.variable_parts import Array
    from strategies.ir.graph import Graph
    from strategies.ir.train_graph import TrainGraph
    from strategies.plan.schema import Plan

N_STEPS = 5
"""Traced steps of a profile, after one that builds the graphs of tracing."""


def step_profile(state: JobState, capture: str, plan: "Plan") -> StepProfile:
    """Job that traces steps of this worker, whose replicas do not communicate.

    Args:
        capture: folder of the capture.
        plan: plan without exchanges, whose program the worker's session runs.
    """
    from harness.worker.session.capture_store import load_step
    from harness.worker.session.session import WorkerSession
    from strategies.compile import compile_step

    training = state.get(Training)
    assert isinstance(training.session, WorkerSession)
    compiled = compile_step(load_step(Path(capture)), plan, training.task, check=False)
    feeds = list(itertools.islice(itertools.cycle(training.feeds), N_STEPS + 1))
    examples = compiled.program.stop - compiled.program.start
    return profile(training.session, compiled.step, feeds, examples=examples)


def profile(
    session: "WorkerSession", step: "TrainGraph", feeds: "Sequence[Sequence[Array]]", *, examples: int
) -> StepProfile:
    """Run steps and profile all but the first.

    Args:
        step: rewritten step that the session runs.
        feeds: batches of two steps or more.
        examples: examples of this worker in a step.
    """
    first, *others = feeds
    profiles = []
    with session.traced() as tracer:
        session.step(first)
        for feed in others:
            tracer.begin()
            tracer.seen.clear()
            session.step(feed)
            spans = _spans(tracer.seen, session.calls)
            variables = _nodes(step, spans.keys())
            profiles.append(
                profile_of(
                    spans,
                    variables,
                    shared_updates=step.shared_update,
                    rows=_rows(step, tracer.seen),
                    examples=examples,
                )
            )
    return typical_profile(profiles)


def _spans(seen: "Sequence[RunMetadata]", calls: Collection[str]) -> dict[str, list[Span]]:
    from harness.worker.session import trace_events

    spans: dict[str, list[Span]] = {}
    for event in trace_events.operations(seen, origin_ns=0, waits=(), calls=calls):
        if event.kind in ("compute", "host"):
            spans.setdefault(event.name, []).append((event.start_s, event.end_s))
    return spans


def _rows(step: "TrainGraph", seen: "Sequence[RunMetadata]") -> dict[str, float]:
    """Variable → rows of its sparse gradient in a traced step, by the shape of its rows or of their ids.

    A variable with a gradient whose rows and ids are both without a trace is left out.
    """
    lengths = {
        (node.node_name, output.slot): output.tensor_description.shape.dim[0].size
        for metadata in seen
        for device in metadata.step_stats.dev_stats
        for node in device.node_stats
        for output in node.output
        if output.tensor_description.shape.dim
    }
    rows: dict[str, float] = {}
    unknown: set[str] = set()
    for boundary in step.boundaries:
        if boundary.indices is None:
            continue
        ends = (_before_identities(step.graph, ref) for ref in (boundary.values, boundary.indices))
        length = next((lengths[end] for end in ends if end in lengths), None)
        if length is None:
            unknown.add(boundary.variable)
        else:
            rows[boundary.variable] = rows.get(boundary.variable, 0.0) + length
    return {name: n for name, n in rows.items() if name not in unknown}


def _before_identities(graph: "Graph", ref: str) -> tuple[str, int]:
    """Node and output of a tensor, before the identities that TensorFlow's optimizers remove."""
    from strategies.ir.graph import output_index, producer

    node = graph.by_name[producer(ref)]
    while node.op == "Identity":
        ref = node.inputs[0]
        node = graph.by_name[producer(ref)]
    return node.name, output_index(ref)


def _nodes(step: "TrainGraph", traced: Collection[str]) -> dict[str, VariableNodes]:
    """Traced operations of each variable.

    TensorFlow's optimizers remove nodes; the nearest traced ones take their place.
    """
    from strategies.ir.graph import producer
    from strategies.ir.resource_uses import resource_uses

    graph, uses = step.graph, resource_uses(step.graph)
    updating = step.update_nodes()
    makers: dict[str, set[str]] = {}
    for boundary in step.boundaries:
        ends = [producer(ref) for ref in (boundary.values, boundary.indices) if ref is not None]
        makers.setdefault(boundary.variable, set()).update(_nearest(graph, ends, traced, forwards=False))
    updates: dict[str, set[str]] = {}
    for region in step.regions:
        updates.setdefault(region.variable, set()).update(region.nodes)
    users: dict[str, set[str]] = {}
    for variable in step.variables:
        reads = [name for name in uses[variable.handle].reads if name not in updating]
        begun = [user.name for read in reads for user in graph.consumers.get(read, ())]
        own = _nearest(graph, [name for name in begun if name not in updating], traced, forwards=True)
        users.setdefault(variable.stored, set()).update(own - updating)
    return {
        name: VariableNodes(
            users=sorted(users.get(name, ())),
            makers=sorted(makers.get(name, ())),
            updates=sorted(updates.get(name, ())),
        )
        for name in dict.fromkeys((*users, *makers, *updates))
    }


def _nearest(graph: "Graph", begun: Iterable[str], traced: Collection[str], *, forwards: bool) -> set[str]:
    """First traced nodes on each way from some nodes, themselves included."""
    from strategies.ir.graph import producer

    nearest: set[str] = set()
    waiting, visited = list(begun), set(begun)
    while waiting:
        name = waiting.pop()
        if name in traced:
            nearest.add(name)
            continue
        if forwards:
            others = [user.name for user in graph.consumers.get(name, ())]
        else:
            others = [producer(ref) for ref in graph.by_name[name].inputs]
        for other in others:
            if other not in visited:
                visited.add(other)
                waiting.append(other)
    return nearest
