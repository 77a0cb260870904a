"""The rule for variables that workers share, on small graphs of a writer and a reader."""

from dataclasses import replace

import pytest
from access_graphs import GRADIENT, HANDLE, LIBRARY, PREDICATE, SERVER, branch, call, loop, node
from access_rule import Run, verify_accesses

from strategies.errors import GraphError
from strategies.ir.graph import Graph


def queue(device=SERVER):
    return node("queue", "FIFOQueueV2", shared_name=b"tokens", device=device)


READER = (HANDLE, GRADIENT, PREDICATE, node("read", "ReadVariableOp", "v"))


def reader(*nodes, roots):
    return Run(name="worker 1", graph=Graph(nodes=(*READER, queue(), *nodes), functions=LIBRARY), roots=roots)


def writer(*nodes, roots):
    nodes = (HANDLE, GRADIENT, PREDICATE, queue(), *nodes)
    return Run(name="worker 0", graph=Graph(nodes=nodes, functions=LIBRARY), roots=roots)


TAKE = node("take", "QueueDequeueV2", "queue")
PUSH = node("push", "QueueEnqueueV2", "queue", "^read")


def test_a_read_of_one_worker_and_an_assignment_of_another_are_in_order():
    back = node("back", "FIFOQueueV2", shared_name=b"back", device=SERVER)
    ends = [back, node("end", "QueueDequeueV2", "back")]
    tells = [back, node("tell", "QueueEnqueueV2", "back", "^call")]
    reads = reader(PUSH, *ends, roots=["push", "end"])
    for sound in (call("shrinks", "^take"), branch("shrinks", "moves", "^take"), loop("shrinks", "^take")):
        verify_accesses([writer(TAKE, sound, *tells, roots=["tell"]), reads])
    message = (
        "variable 'weights': 'assign' in 'shrinks' in 'call' of worker 0 assigns it before or after "
        "'read' of worker 1 accesses it"
    )
    with pytest.raises(GraphError, match=message):
        verify_accesses([writer(TAKE, call("shrinks"), *tells, roots=["tell", "take"]), reads])
    with pytest.raises(GraphError, match="assigns it before or after worker 1 ends"):
        verify_accesses(
            [writer(TAKE, call("shrinks", "^take"), roots=["call"]), reader(PUSH, roots=["push"])]
        )


@pytest.mark.parametrize("pushed", [PUSH, replace(PUSH, inputs=("queue",))])
def test_variables_and_queues_are_told_by_name_and_device(pushed):
    elsewhere = replace(queue(), device="/job:worker/task:1")
    run = Run(
        name="worker 1",
        graph=Graph(
            nodes=(*READER, elsewhere, pushed, node("end", "NoOp", "^push", "^read")), functions=LIBRARY
        ),
        roots=["end"],
    )
    with pytest.raises(GraphError, match="before or after"):
        verify_accesses([writer(TAKE, call("shrinks", "^take"), roots=["call"]), run])
