"""Session of a program on a worker's server or its own devices, and its steps."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from harness.records.outcome import ReplicaResharding
from harness.worker.session.capture_store import InitialValues
from harness.worker.session.checkpoint import first_value
from harness.worker.session.device_batches import NUMBER, read_staged
from harness.worker.session.named_session import NamedSession, Prepared
from harness.worker.session.tensorflow_settings import OWN_DEVICES, Use, session_config
from harness.worker.session.traced_runs import (
    RUN_BYTES,
    RunsInSession,
    RunsOnServer,
    StepTracer,
    TracedRuns,
    byte_groups,
)
from harness.worker.session.update_loop import BesideStep, Pace, UpdateLoop
from harness.worker.session.variable_memory import Holdings, held_bytes, lookups
from harness.worker.transport.exchange import Exchange
from harness.worker.transport.tcp_ring import Ring
from harness.worker.variable_parts import Array, Copy, Held, of_part
from strategies.ir.variable import Part, Variable
from strategies.numerics.resharding import COUNTS, GAUGES
from strategies.program import Program
from strategies.tf_bridge.runtime import on_own_devices


class PythonCalls:
    """Python functions that graphs of this process may call, as long as this object lives.

    TensorFlow finds a function by a token, and forgets it together with the graph in which the token was
    created.

    Args:
        functions: name in the graph → function.
    """

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        self._graph = tf.Graph()
        with self._graph.as_default():
            self._tokens = {
                name: tf.numpy_function(function, [], []).get_attr("token")
                for name, function in functions.items()
            }

    def bind(self, graph_def: tf.compat.v1.GraphDef) -> dict[str, str]:
        """Replace names by this process's tokens; calls of other names stay.

        Returns:
            Calling node → name of the function.
        """
        bound = {}
        for node in graph_def.node:
            name = node.attr["token"].s.decode() if node.op == "PyFunc" else ""
            if name in self._tokens:
                node.attr["token"].s = self._tokens[name]
                bound[node.name] = name
        return bound


v1 = tf.compat.v1
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})


class WorkerSession:
    """One worker's session on its server, or on devices of its own.

    Attributes:
        initial: values for `load`.
        updates: loop of updates in the background; None if steps make their updates themselves.
        pace: pace of steps that do not wait for all contributions; None if they wait.
        waits: nodes that wait for the transport.
        calls: nodes that call functions, whose operations TensorFlow traces one by one.
        staged: batches on the replicas' devices; empty if they are fed.
        further: values of `fetching` in the last step.
    Args:
        target: address of the worker's server; for self-contained programs, `OWN_DEVICES` is possible, too.
        transport: carries the program's transfers, and belongs to the session from now on; None without
            transfers.
        fetching: tensors that every step also returns, in `further`.
        use: purpose of the session; preparing steps takes as long as a few of them.
        staged_on: device of nodes without one, if steps take batches from their replicas' devices.
    """

    def __init__(
        self,
        program: Program,
        target: str,
        initial: InitialValues,
        transport: Ring | None = None,
        *,
        fetching: Sequence[str] = (),
        use: Use = Use.MANY_STEPS,
        staged_on: str | None = None,
    ) -> None:
        self.program = program
        self.further: Sequence[Array] = ()
        self._target = target
        self.initial = initial
        self._exchange = (
            None if transport is None else Exchange(transport, program.step.transfers, program.task)
        )
        # Counters that start with a session are neither read nor saved.
        self._passing = [v for v in program.variables if not v.lasts]
        self._parts: dict[Copy, list[Variable]] = {}
        for v in program.variables:
            if v.lasts:
                self._parts.setdefault((v.stored, v.stored_rank), []).append(v)
        self._n_bytes: dict[str, int] = {}
        graph_def = v1.GraphDef.FromString(program.graph_def)
        self._calls = PythonCalls({} if self._exchange is None else self._exchange.calls())
        bound = self._calls.bind(graph_def)
        tokens = {transfer.taken_token for transfer in program.step.transfers}
        self.staged = () if staged_on is None else read_staged(graph_def, program.step.batch, staged_on)
        self._fed = [NUMBER] if self.staged else [b.node for b in program.step.batch]
        self.waits = frozenset(node for node, name in bound.items() if name in tokens)
        if target == OWN_DEVICES:
            on_own_devices(graph_def)
        self.calls = frozenset(_calls(graph_def))
        self._graph_def = graph_def
        self._session = NamedSession(graph_def, target, session_config(program, use, target))
        self._tracer: StepTracer | None = None
        self._step = _no_step if use is Use.PARTS_OF_STEPS else self._prepared(fetching)
        self.pace = None if program.step.progress is None else Pace()
        self.updates: UpdateLoop | None = None
        self._n_contributed = 0
        self._n_loops = 0
        self._beside: BesideStep | None = None
        if program.step.background:
            number = [] if program.step.n_taken is None else [program.step.n_taken]
            run = self._session.prepared((), number, program.step.background)
            if program.step.n_taken is None:
                self._beside = BesideStep(run, self._abandon)
            else:
                self.updates = UpdateLoop(run, self._abandon)

    def load(self) -> None:
        self._n_loops = 0
        self._put(self._initial_values())

    def assign(self, values: Mapping[Copy, Array]) -> None:
        self._put((v, of_part(value, v.part)) for copy, value in values.items() for v in self._parts[copy])

    def _initial_values(self) -> Iterator[tuple[Variable, Array]]:
        for (name, rank), parts in self._parts.items():
            if parts[0].fresh is None:
                value = self.initial.value(name, rank=rank, seed_word=parts[0].seed_word)
                yield from ((v, of_part(value, v.part)) for v in parts)
            else:
                saved = self.initial.of_ranks(name)
                yield from ((v, first_value(v, saved)) for v in parts)
        yield from ((v, first_value(v, {})) for v in self._passing)

    def _put(self, values: Iterable[tuple[Variable, Array]]) -> None:
        # TensorFlow prunes and places the graph again for each new set of feeds and targets.
        for group in byte_groups(values, lambda item: item[1].nbytes):
            self._n_bytes |= {v.load: value.nbytes for v, value in group}
            feed = {v.placeholder: value for v, value in group}
            self._session.run((), feed, [v.load for v, _ in group])

    def setup(self) -> None:
        """Run what precedes the first step, and start background threads."""
        if self.program.setup:
            self._session.run((), {}, self.program.setup)
        if self.updates is not None:
            self.updates.start()

    def prepare(self, batch: Sequence[Array]) -> Sequence[Array]:
        return batch

    def stage(self, batches: Sequence[Sequence[Array]]) -> list[Sequence[Array]]:
        """Put batches on the devices that use them, if steps read them there; return the feeds of steps."""
        if not self.staged:
            return list(batches)
        fed = [b.node for b in self.program.step.batch]
        for part in self.staged:
            rows = [
                self._session.run([part.source], dict(zip(fed, batch, strict=True)))[0] for batch in batches
            ]
            self._session.run((), {part.value: np.stack(rows)}, [part.load])
        return [[np.array([number], np.int32)] for number in range(len(batches))]

    def step(self, feeds: Sequence[Array]) -> Sequence[Array]:
        """Run one step.

        Args:
            feeds: this worker's examples of the global batch by component; or the number of a staged batch.
        Returns:
            Loss of each local shard, scalars.
        """
        if self.program.step.steps_per_run is not None:
            return tuple(self.steps([feeds])[0])
        if self._beside is not None:
            return self._beside.during(lambda: self._step(*feeds))
        if self.updates is None and self.pace is None:
            return self._step(*feeds)
        return self._step_beside_updates(feeds)

    @property
    def steps_per_run(self) -> int | None:
        return self.program.step.steps_per_run

    def steps(self, batches: Sequence[Sequence[Array]]) -> Array:
        """Run a step on each of some batches in one run of a loop.

        Returns:
            Losses, [n_steps, n_losses].
        """
        losses = np.stack(self._step(*map(np.stack, zip(*batches, strict=True))), axis=1)
        self._n_loops += 1
        return losses

    def aggregation_counts(self) -> list[Array]:
        """Counts of rules, [3, n_workers] for each level of gradients; empty if another worker counts."""
        counts = self.program.step.aggregation_counts
        return list(self._session.run(counts, {})) if counts else []

    def resharding(self) -> tuple[ReplicaResharding, ...]:
        """Resharding counts of each local replica; empty without resharding."""
        values = (
            self._session.run(self.program.step.reshard_counts, {})
            if self.program.step.reshard_counts
            else []
        )
        counted = (dict(zip((*COUNTS, *GAUGES), value.tolist(), strict=True)) for value in values)
        return tuple(ReplicaResharding(n_loops=self._n_loops, **counts) for counts in counted)

    def _prepared(self, fetching: Sequence[str]) -> Prepared:
        program = self.program
        losses = [*(loss.tensor for loss in program.step.losses), *filter(None, [program.step.progress])]
        step = self._session.prepared(self._fed, [*losses, *fetching], program.targets)
        if not fetching:
            return step

        def keeping(*feeds: Array) -> Sequence[Array]:
            values = step(*feeds)
            self.further = values[len(losses) :]
            return values[: len(losses)]

        return keeping

    def _step_beside_updates(self, feeds: Sequence[Array]) -> Sequence[Array]:
        if self.pace is not None and (losses := self.pace.skipped()) is not None:
            return losses
        try:
            fetched = self._step(*feeds)
        except Exception:
            if self.updates is not None:
                self.updates.check()
            raise
        if self.updates is not None:
            self.updates.check()
        self._n_contributed += 1
        return fetched if self.pace is None else self.pace.record(fetched[:-1], fetched[-1])

    @contextlib.contextmanager
    def traced(self) -> Iterator[StepTracer]:
        """Context in which steps can be traced; no step may be in flight at its start or end.

        Repeated background updates are not traced.
        """
        with StepTracer(self.program, self._traced_runs()) as tracer, contextlib.ExitStack() as restored:
            for name, value in (("_step", tracer.step), ("_tracer", tracer)):
                restored.callback(setattr, self, name, getattr(self, name))
                setattr(self, name, value)
            if self._beside is not None:
                restored.callback(setattr, self._beside, "run", self._beside.run)
                self._beside.run = tracer.beside
            if self._exchange is not None:
                restored.callback(setattr, self._exchange, "seen", None)
                self._exchange.seen = tracer.moved
            yield tracer

    def _traced_runs(self) -> TracedRuns:
        if self._target == OWN_DEVICES:
            return RunsInSession(self._session, self._fed, self.program.task)
        return RunsOnServer(self._fed, self._graph_def, self._target, self._config_of_another())

    def _config_of_another(self) -> tf.compat.v1.ConfigProto:
        return session_config(self.program, Use.MANY_STEPS, self._target)

    def passes_next(self) -> bool:
        """True if updates that did not wait for this worker have overtaken its next step."""
        return self.pace is not None and self.pace.is_ahead

    def settle(self, n_workers: int) -> None:
        """Wait until background updates have used the contributions of all workers to as many steps."""
        # If contributions may come too late, a step ends with its update.
        if self.updates is not None and self.pace is None:
            self.updates.wait_for(n_workers * self._n_contributed)

    def read(self) -> Held:
        parts: dict[Copy, list[tuple[Part | None, Array]]] = {copy: [] for copy in self._parts}
        reads = ((copy, v) for copy, parts in self._parts.items() for v in parts)
        for group in byte_groups(reads, lambda item: self._n_bytes.get(item[1].load, RUN_BYTES)):
            values = self._session.run([v.read for _, v in group], {})
            for (copy, v), value in zip(group, values, strict=True):
                parts[copy].append((v.part, value))
        return parts

    def held_bytes(self) -> Holdings:
        """Bytes in memory, here or on servers, of the variables of this worker's program."""
        if self._target == OWN_DEVICES:
            self._session.add(lookups(self._graph_def))
            return held_bytes(self._session, self._graph_def, self.program.task)
        # A session in the middle of an update accepts no more operations.
        other = NamedSession(lookups(self._graph_def), self._target, self._config_of_another())
        try:
            return held_bytes(other, self._graph_def, self.program.task)
        finally:
            other.close()

    def run(
        self, fetches: Sequence[str], feed: Mapping[str, Array], targets: Sequence[str] = ()
    ) -> list[Array]:
        """Fetch tensors by reference; with the targets of a step, run background nodes too."""

        def run() -> list[Array]:
            return self._session.run(fetches, feed, targets)

        return run() if self._beside is None or not targets else self._beside.during(run)

    def update_notes(self) -> tuple[str, ...]:
        """Sentences on contributions that updates used and dropped; empty if all wait for all."""
        notes = [] if self.updates is None else [self.updates.note()]
        if self.pace is not None and self.pace.dropped:
            notes.append(f"worker {self.program.task}: {self.pace.note()}")
        return tuple(notes)

    def _abandon(self) -> None:
        if self._tracer is not None:
            self._tracer.close()
        self._session.close()

    def close(self) -> None:
        if self.updates is not None:
            self.updates.end()
        if self._exchange is not None:
            self._exchange.close()
        self._abandon()
        if self._beside is not None:
            self._beside.end()
        if self.updates is not None:
            self.updates.join()


def _calls(graph_def: tf.compat.v1.GraphDef) -> Iterator[str]:
    for nodes in (graph_def.node, *(function.node_def for function in graph_def.library.function)):
        for node in nodes:
            # A map of protos creates missing keys on access, and TensorFlow rejects empty attributes.
            compiled = "_XlaMustCompile" in node.attr and node.attr["_XlaMustCompile"].b
            if node.op in _CALLS and not compiled:
                yield node.name


def _no_step(*_: Array) -> Sequence[Array]:
    raise AssertionError("a session that prepared no steps makes none")
