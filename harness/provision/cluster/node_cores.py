"""Cores of workers on the nodes of a cluster, several of which may be containers on one machine."""

from collections.abc import Mapping, Sequence

from harness.provision.cluster.node_agent import NodeFacts


def cores_of_workers(
    facts: Sequence[NodeFacts], cores_per_worker: int, held: Mapping[int, tuple[int, ...] | None]
) -> list[tuple[int, ...] | None]:
    """Cores of each worker, which no other of the run has; None for all on a machine that has too few.

    Args:
        facts: of each worker's node. Nodes on one machine all see its cores.
        held: cores of workers that run already, and keep them.
    """
    used: dict[str, set[int]] = {}
    for worker, cores in held.items():
        used.setdefault(facts[worker].boot, set()).update(cores or ())
    core_sets = dict(held)
    for worker, node in enumerate(facts):
        if worker not in held:
            taken = used.setdefault(node.boot, set())
            own = tuple(core for core in node.cores if core not in taken)[:cores_per_worker]
            taken.update(own)
            core_sets[worker] = own if len(own) == cores_per_worker else None
    crowded = {facts[worker].boot for worker, cores in core_sets.items() if cores is None}
    return [
        None if worker not in held and node.boot in crowded else core_sets[worker]
        for worker, node in enumerate(facts)
    ]
