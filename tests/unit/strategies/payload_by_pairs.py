"""Payload of a plan written out variable by variable and pair by pair, to compare with the plan's own."""

from collections import Counter
from itertools import permutations

from strategies.ir.graph import element_bytes, n_elements
from strategies.plan.aggregation import Aggregation
from strategies.plan.exchanges.collectives import LENGTH_BYTES, RING_LENGTHS_BYTES
from strategies.plan.node_rules import is_owned
from strategies.plan.partitions import parts_of
from strategies.plan.payload import (
    ID_BYTES,
    WireTypes,
    dense_crossings,
    encoded_bytes,
    gradient_bytes,
    is_summed,
    looked_up,
    most_rows,
    most_rows_bytes,
    row_bytes,
    row_crossings,
    vector_type,
)
from strategies.plan.sharding import MOST_MEMBERS_OF_A_TASK
from strategies.planner import topology_of


def payload_by_pairs(plan, step):
    """(task i, task j) → bytes from i to j, and the same of values that servers send; not rounded."""
    sent, pulled = Counter(), Counter()
    for op, links in _Step(plan, step).exchanges():
        for pair, n_bytes in links.items():
            sent[pair] += n_bytes
            pulled[pair] += n_bytes if op == "pull" else 0.0
    return sent, pulled


class _Step:
    def __init__(self, plan, step):
        self.plan, self.by_name = plan, {v.name: v for v in step.variables}
        self.nodes = plan.nodes
        self.topology = topology_of(plan)
        self.n, self.n_tasks = self.topology.n_replicas, self.topology.n_tasks
        self.local = [self.topology.local_replicas(task) for task in range(self.n_tasks)]
        rule = Aggregation.of(plan.strategy_params, self.n_tasks)
        trained = [v.dtype for v in step.variables if v.kind == "trainable" and v.synced]
        self.servers = 1 if rule is None else rule.servers
        self.types = WireTypes(
            vector=None if rule is None else vector_type(trained), are_accumulated=plan.execution.sync
        )

    def exchanges(self):
        owned = [node for node in self.nodes if node.synchronizer != "none" and is_owned(node)]
        for node, of_node in self.joined(owned):
            if node.sparse or node.whole_gradient:
                whole = of_node[0] if len(of_node) == 1 else node.model_copy(update={"partition": None})
                yield from self.reduced(whole, self.by_name[node.variable])
        parts = [part for node in self.nodes if node not in owned for part in parts_of(node)]
        for part in parts:
            variable = self.by_name[part.variable.partition("/part_")[0]]
            if part.synchronizer == "ps":
                yield from self.served(part, variable)
            elif part.synchronizer == "robust-servers":
                yield from self.copied(part, variable)
            elif part.synchronizer == "none" and part.destination is not None:
                yield "pull", self.pulled(part, lambda n, v=variable: n * v.reads)
            elif part.synchronizer == "cross-replica-sum" or part.in_parts:
                yield from self.on_cores(part, variable)
            elif part.synchronizer != "none":
                yield from self.reduced(part, variable)
        yield from self.of_owners(owned)
        n_bytes = sum(statistic.bytes for statistic in self.plan.statistics)
        yield "sum", self.ring(2 * (self.n_tasks - 1) / self.n_tasks * n_bytes)

    def joined(self, owned):
        """Parts that cross together: if one variable is in several buckets, all parts cross alone."""
        parts = [(node, parts_of(node)) for node in owned]
        if all(len({part.group for part in of_node}) == 1 for _, of_node in parts):
            return parts
        return [(node, (part,)) for node, of_node in parts for part in of_node]

    def of_owners(self, owned):
        buckets = {}
        for node, parts in self.joined(owned):
            variable = self.by_name[node.variable]
            bucket = parts[0].group, node.dtype, node.transport == "tcp"
            n_times = 1 if node.gathered else variable.updates
            buckets.setdefault(("gather", node.gathered, *bucket), []).append((parts, n_times))
            if not node.sparse and not node.whole_gradient:
                buckets.setdefault(("scatter", False, *bucket), []).append((parts, variable.crossings))
        for (op, *_, in_ring), members in buckets.items():
            if in_ring:
                shares = Counter()
                for part, n_times in ((part, n_times) for parts, n_times in members for part in parts):
                    shares[part.owner] += part.bytes * n_times
                yield op, self.around(self.by_task(shares), 0 if op == "scatter" else 1)
                continue
            for turn in range(max(n_times for _, n_times in members)):
                yield from self.by_collectives(op, [parts for parts, n_times in members if n_times > turn])

    def by_collectives(self, op, members):
        """Rows of one length from each replica to each other; of gradients, what sends less is summed."""
        row, packed = 0, Counter()
        for parts in members:
            longest, both = max(part.bytes for part in parts), sum(part.bytes for part in parts)
            ranks = [part.owner for part in parts]
            if len(parts) > 1 and ranks == sorted(set(ranks)) and self.n * longest <= 2 * both:
                row += longest
                continue
            for part in parts:
                packed[part.owner] += part.bytes
        longest, both = max(packed.values(), default=0), sum(packed.values())
        if op == "scatter" and self.n * longest > 2 * both:
            yield "sum", self.ring(2 * (self.n - 1) / self.n * both)
        else:
            row += longest
        if op == "scatter":
            yield op, self.exchanged(dict.fromkeys(range(self.n), row))
        else:
            yield op, self.ring((self.n - 1) * row)

    def ring(self, n_bytes):
        n = self.n_tasks
        return {(task, (task + 1) % n): n_bytes for task in range(n)} if n > 1 else {}

    def around(self, shares, stays):
        n = self.n_tasks if self.n_tasks > 1 else 0
        return {(task, (task + 1) % n): sum(shares) - shares[(task + stays) % n] for task in range(n)}

    def by_task(self, shares):
        return [sum(shares[replica.rank] for replica in replicas) for replicas in self.local]

    def exchanged(self, shares):
        links = Counter()
        for one, other in permutations(self.topology.replicas(), 2):
            if one.task != other.task:
                links[one.task, other.task] += max(shares[one.rank], shares[other.rank])
        return links

    def shards(self, *examples):
        k = self.topology.micro_batches
        return [n / k for n in examples for _ in range(k)]

    def pulled(self, part, reads_of):
        others = (task for task in range(self.n_tasks) if task != part.destination)
        return {(part.destination, task): part.bytes * reads_of(len(self.local[task])) for task in others}

    def served(self, part, variable):
        by_rule = self.types.vector is not None and variable.kind == "trainable"
        dense = gradient_bytes(part, self.types) if by_rule else encoded_bytes(part)
        others = [task for task in range(self.n_tasks) if task != part.destination]
        if not part.sparse:
            spared = 1 if part.proxy and variable.reads else 0
            yield "pull", self.pulled(part, lambda n: n * variable.reads - spared * (n - 1))
        for task in others if part.sparse else ():
            for replica in self.local[task]:
                ids = looked_up(part, variable, self.shards(replica.examples)) * variable.reads
                rows = most_rows(part, variable, self.shards(replica.examples)) * row_crossings(variable)
                pushed = rows * (row_bytes(part, self.types.of_rows(part.dtype)) + ID_BYTES)
                yield "pull", {(part.destination, task): ids * row_bytes(part)}
                yield "push", {(task, part.destination): ids * ID_BYTES + pushed}
        crossings = dense_crossings(part, variable)
        yield "push", {(task, part.destination): dense * crossings for task in others}

    def copied(self, part, variable):
        pairs = [(t, server) for t in range(self.n_tasks) for server in range(self.servers) if t != server]
        yield "pull", {(server, task): part.bytes for task, server in pairs}
        yield "push", dict.fromkeys(pairs, gradient_bytes(part, self.types) * variable.crossings)

    def on_cores(self, part, variable):
        n, steps_per_loop = self.n, self.plan.execution.steps_per_loop
        updated = variable if variable.slot_of is None else self.by_name[variable.slot_of]
        crossings = variable.crossings if part.synchronizer == "cross-replica-sum" else 0
        is_whole = updated.sparse or not updated.updated_by_elements or n > MOST_MEMBERS_OF_A_TASK
        if crossings and (is_whole or not part.in_parts):
            yield "sum", self.ring(2 * (n - 1) / n * part.bytes * crossings)
        if part.in_parts:
            share = -(-n_elements(part.shape) // n) * element_bytes(part.dtype)
            if crossings and not is_whole:
                yield "scatter", self.exchanged(dict.fromkeys(range(n), share * crossings))
            n_reads = 1 if updated.sparse else max(variable.reads, 1) if variable.kind == "trainable" else 0
            yield "gather", self.ring((n - 1) * share * (n_reads + 1 / steps_per_loop))

    def reduced(self, part, variable):
        n, encoded = part.n_members(self.topology), encoded_bytes(part)
        if part.synchronizer == "average":
            yield "sum", self.ring(2 * (n - 1) / n * encoded / self.plan.execution.period)
            return
        crossings = dense_crossings(part, variable)
        by_rule, in_ring = part.synchronizer == "robust-gather", part.transport == "tcp"
        if is_summed(part) and not by_rule:
            yield "sum", self.ring(2 * (n - 1) / n * encoded * crossings)
        else:
            share = (gradient_bytes(part, self.types) if by_rule else encoded) * crossings
            shares = [k * share for k in part.n_encoders(self.topology)]
            yield "gather", self.around(shares, 1) if in_ring else self.ring((n - 1) * share)
        if part.sparse:
            yield "gather", self.rows(part, variable)

    def rows(self, part, variable):
        n, n_times = part.n_members(self.topology), row_crossings(variable)
        shards = [[replica.examples for replica in replicas] for replicas in self.local]
        if part.transport == "tcp":
            shares = [
                most_rows_bytes(part, variable, self.shards(*shard)) + RING_LENGTHS_BYTES for shard in shards
            ]
            return self.around([share * n_times for share in shares], 1)
        most = max(shards if n == self.n_tasks else ([max(shard)] for shard in shards), key=sum)
        dtype = self.types.of_rows(part.dtype) if part.synchronizer == "robust-gather" else part.dtype
        return self.ring(
            (n - 1) * (most_rows_bytes(part, variable, self.shards(*most), dtype) + LENGTH_BYTES) * n_times
        )
