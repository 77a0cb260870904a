"""Parameter servers whose workers read from copies, or do not all wait for each other."""

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

# Where a mistake leaves workers waiting for each other, the test must not wait long.
pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
tf = pytest.importorskip("tensorflow")

from cases import Case, case_of
from models import STATE
from test_mutations import After

from harness.verification.reference import Outcome
from harness.verification.worker.check import make_reference
from harness.verification.worker.in_process import InProcessCluster, programs_of
from harness.worker.session.update_loop import UpdateLoop
from strategies.capture.capture import capture
from strategies.errors import StrategyError
from strategies.ir.tensor_proto import const
from strategies.numerics.waiting import count_step
from strategies.passes.parameter_server import semi_synchronous
from strategies.passes.parameter_server.accumulator import INT64, LAST_STEP, Accumulator
from strategies.passes.pass_order import passes_of
from strategies.passes.replicate import contributions, hoist_reads
from strategies.passes.run import run_passes
from strategies.planner import payload_matrix, topology_of
from strategies.tf_bridge.program import build_program
from strategies.topology import Topology

BUILDERS = ("ps", "ps-load-balancing")
MODES = ({"sync": False}, {"staleness": 2}, {"backup": 1})
DEADLINE_S = 60.0
# Long enough for many steps of these models, should nothing hold them back.
HELD_S = 0.5


class Workers:
    """Workers that make steps in threads of their own, each when it is told to.

    Attributes:
        hurried: event after which nobody pauses any more.
    """

    def __init__(self, case: Case, cluster: InProcessCluster) -> None:
        self.case, self.cluster = case, cluster
        self.done = [0] * len(cluster.sessions)
        self.failures: list[Exception] = []
        self.hurried = threading.Event()
        self._changed = threading.Condition()

    def programs(self, *tasks: int):
        """The programs of these tasks."""
        return [self.cluster.sessions[task].program for task in tasks]

    def start(self, task: int, n_steps: int, n_forward: int = 0, pause_s: float = 0.0) -> None:
        """Begin steps of a worker; `n_forward` more forward passes or a pause before each make it slow.

        A pause takes nothing from the others' processors, like a slow host of its own.
        """
        threading.Thread(target=self._run, args=(task, n_steps, n_forward, pause_s), daemon=True).start()

    def _run(self, task: int, n_steps: int, n_forward: int, pause_s: float) -> None:
        session = self.cluster.sessions[task]
        program = session.program
        losses, names = [loss.tensor for loss in program.step.losses], [b.node for b in program.step.batch]
        try:
            for _ in range(n_steps):
                batch = self.case.batches[self.done[task] % len(self.case.batches)]
                feeds = [part[program.start : program.stop] for part in batch]
                for _ in range(n_forward):
                    session.run(losses, dict(zip(names, feeds, strict=True)))
                self.hurried.wait(pause_s)
                session.step(feeds)
                with self._changed:
                    self.done[task] += 1
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - raised where the test waits
            with self._changed:
                self.failures.append(error)
                self._changed.notify_all()

    def reach(self, task: int, n_steps: int, timeout_s: float = DEADLINE_S) -> bool:
        """Wait until a worker has made so many steps; return if it has."""
        with self._changed:
            self._changed.wait_for(lambda: self.failures or self.done[task] >= n_steps, timeout_s)
            if self.failures:
                raise self.failures[0]
            return self.done[task] >= n_steps

    def taken(self) -> int:
        """Contributions in updates that were made."""
        updates = self.cluster.sessions[0].updates
        return sum(number * times for number, times in list(updates.updates_by_size.items()))

    def updates_reach(self, n_contributions: int) -> bool:
        """Wait until all of these contributions are in updates; return if they are."""
        return self.wait_until(lambda: self.taken() >= n_contributions)

    def wait_until(self, true) -> bool:
        """Wait for a condition that sends no signal; return if it became true."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not true() and time.monotonic() < deadline_s:
            self.reach(0, 1 << 30, 0.005)
        return true()


@contextlib.contextmanager
def workers_of(case: Case, plan) -> Iterator[Workers]:
    programs = programs_of(case.step, plan)
    with InProcessCluster(programs, case.initial) as cluster:
        yield Workers(case, cluster)


def iteration(cluster) -> int:
    return next(int(value) for (name, _), value in cluster.read().items() if name.endswith("iteration"))


@pytest.fixture
def case(cases):
    return cases.of("digits-mlp", "momentum")


def plain_steps_equal(case: Case, batches, values) -> bool:
    """Return True if variables equal those of one device after these batches."""
    topology = Topology(replicas_per_task=(1,), batch_size=len(batches[0][0]))
    return make_reference(case.step, case.initial, topology, batches).judge(Outcome(values=values)).equivalent


def part(batch, first, last):
    """The examples of these workers' programs."""
    return [values[first.start : last.stop] for values in batch]


# Proxies.


@pytest.mark.parametrize("strategy", BUILDERS)
@pytest.mark.parametrize(
    "workload", [("digits-mlp", "adamw-clipped"), ("word-lm", "adagrad"), ("digits-cnn", "adam")]
)
def test_proxies_are_equivalent(cases, workload, strategy):
    case = cases.of(*workload)
    for replicas in ((2, 2), (1, 2)):
        plan = case.plan(strategy, replicas, local_proxy_variable=True)
        assert plan.strategy_class == "exact"
        assert [n.variable for n in plan.nodes if n.proxy and n.sparse] == []
        verdict = case.check(plan)
        assert verdict.equivalent
        assert verdict.tolerance < 1e-9


def sent_bytes(case: Case, plan) -> np.ndarray:
    """[i, j] bytes that values of static shape take from task i to task j, each once for a device there."""
    n = len(plan.replicas_per_task)
    sent = np.zeros((n, n))
    for program in programs_of(case.step, plan):
        crossing = {}
        with tf.Graph().as_default() as graph:
            tf.graph_util.import_graph_def(tf.compat.v1.GraphDef.FromString(program.graph_def), name="")
        needed, waiting = set(), [graph.get_operation_by_name(t) for t in program.targets]
        while waiting:
            op = waiting.pop()
            if op not in needed:
                needed.add(op)
                waiting += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
        for op in needed:
            for tensor in op.inputs:
                if tensor.dtype != tf.resource and tensor.op.device != op.device and tensor.dtype.size:
                    crossing[tensor.name, op.device] = tensor
        for (_, device), tensor in crossing.items():
            i, j = (int(d.split("task:")[1].split("/")[0]) for d in (tensor.op.device, device))
            if i != j:
                sent[i, j] += tensor.shape.num_elements() * tensor.dtype.size
    return sent


@pytest.mark.parametrize("strategy", BUILDERS)
@pytest.mark.parametrize("replicas", [(2, 2), (1, 3)])
def test_proxies_send_each_variable_once_to_a_worker(case, strategy, replicas):
    bytes_of = {}
    for proxy in (False, True):
        plan = case.plan(strategy, replicas, local_proxy_variable=proxy)
        matrix = payload_matrix(plan, case.summary).sent
        # The step is in float64, and the plan for the model's own float32. A token takes a few bytes.
        np.testing.assert_allclose(sent_bytes(case, plan), 2 * np.array(matrix), rtol=0.01)
        bytes_of[proxy] = matrix
    if strategy == "ps":
        s = bytes_of[True][1][0]
        assert (bytes_of[False][0][1], bytes_of[True][0][1]) == (replicas[1] * s, s)


def test_a_stale_proxy_is_noticed(case):
    """Biases begin at zero; the copy of one stays what it was at first."""
    plan = case.plan("ps", (1, 2), local_proxy_variable=True)
    topology = topology_of(plan)
    stale = next(n.variable for n in plan.nodes if n.proxy and n.variable.endswith("logits/bias"))

    def remaining(step, _):
        handle = next(v.handle for v in step.variables if v.name == stale)
        name = f"proxies/{handle}"
        zeros = replace(step.graph.by_name[name], op="ZerosLike")
        return replace(
            step, graph=step.graph.with_nodes(zeros if n.name == name else n for n in step.graph.nodes)
        )

    programs = []
    for task in range(2):
        passes = [
            After(p, remaining) if p.name == "proxy-variables" and task else p for p in passes_of(plan, task)
        ]
        step = run_passes(passes, case.step, topology).step
        programs.append(build_program(step, topology, task, nodes_before=1))
    assert case.check(plan).equivalent
    assert not case.run(plan, programs).equivalent


# What all modes hold.


@pytest.mark.parametrize("params", MODES, ids=str)
@pytest.mark.parametrize("strategy", BUILDERS)
@pytest.mark.parametrize("workload", [("word-lm", "adagrad"), ("digits-cnn", "adam")])
def test_updates_count_their_steps(cases, workload, strategy, params):
    """Sparse gradients, BatchNorm and random state; whatever comes together, each update is one iteration."""
    case = cases.of(*workload)
    plan = case.plan(strategy, (2, 1), **params)
    assert plan.strategy_class == "statistical"
    with workers_of(case, plan) as workers:
        for task in range(2):
            workers.start(task, 6)
        assert all(workers.reach(task, 6) for task in range(2))
        updates = workers.cluster.sessions[0].updates
        if updates is None:
            assert iteration(workers.cluster) == 12
            return
        if not params.get("backup"):
            assert workers.updates_reach(12)
            assert workers.taken() == 12
        # An update is counted a little after a worker has seen it.
        assert workers.wait_until(lambda: sum(updates.updates_by_size.values()) >= iteration(workers.cluster))
        assert iteration(workers.cluster) == sum(updates.updates_by_size.values())
        assert workers.taken() + sum(s.pace.dropped for s in workers.cluster.sessions if s.pace) <= 12


@pytest.mark.parametrize(
    "model", [*(name for name in STATE if name != "looked-at-afterwards"), "first-loops-in-step"]
)
def test_steps_of_other_kinds(cases, model):
    case = cases.model(model)
    for params in MODES:
        with workers_of(case, case.plan("ps-load-balancing", (1, 2), **params)) as workers:
            for task in range(2):
                workers.start(task, 4)
            assert all(workers.reach(task, 4) for task in range(2))
            assert all(np.isfinite(value).all() for value in workers.cluster.read().values())


def test_what_is_read_in_a_loop_is_waited_for_through_its_end(cases, monkeypatch):
    """Reads are hoisted out of loops of the first kind; one that stays inside is still waited for."""
    monkeypatch.setattr(hoist_reads, "_hoist", lambda graph, *_: graph)
    case = cases.model("first-loops-in-step")
    plan = case.plan("ps", (1, 2))
    assert case.run(plan, programs_of(case.step, plan)).equivalent
    with workers_of(case, case.plan("ps", (1, 2), staleness=1)) as workers:
        for task in range(2):
            workers.start(task, 4)
        assert all(workers.reach(task, 4) for task in range(2))


def test_sums_of_stale_and_asynchronous_steps_are_whole(cases):
    """Contributions of replicas are in a sum once, however many arrive together."""
    case = cases.model("summed-state")
    for params in MODES[:2]:
        with workers_of(case, case.plan("ps", (1, 1), **params)) as workers:
            for task in range(2):
                workers.start(task, 4)
            assert all(workers.reach(task, 4) for task in range(2))
            if workers.cluster.sessions[0].updates is not None:
                assert workers.updates_reach(8)
            seen = next(v for (name, _), v in workers.cluster.read().items() if name == "seen")
            np.testing.assert_allclose(seen, sum(batch[0].sum() for batch in case.batches))


def test_what_needs_the_batch_after_the_update_is_refused(cases):
    case = cases.model("looked-at-afterwards")
    message = r"updates come apart from the batch, got one that needs 'batch' past the gradients; leave"
    for params in MODES[1:]:
        plan = case.plan("ps", (1, 1), **params)
        with pytest.raises(StrategyError, match=message):
            programs_of(case.step, plan)


def test_one_worker_is_never_alone_out_of_step(case):
    """With a single worker there is nobody to wait for: its step is the plain one."""
    for params in ({"sync": False}, {"staleness": 2}):
        assert case.check(case.plan("ps", (2,), **params)).equivalent


def test_the_loss_falls_as_stated(cases, tmp_path):
    """Digits-mlp comes to a mean loss below 0.6 in the last ten of 120 steps of each worker."""
    import keras

    from workloads import registry
    from workloads.data.examples import examples_of

    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    workload = registry.resolve("digits-mlp", {"units": 32})
    captured = capture(workload.train_step(), workload.dataset(0).element_spec)
    examples = itertools.islice(examples_of(workload, seed=0).batches(64), 120)
    case = case_of(captured, [list(batch) for batch in examples], tmp_path / "digits+momentum")
    for params in ({}, *MODES):
        plan = case.plan("ps-load-balancing", (1, 1), **params)
        with workers_of(case, plan) as workers:
            losses = [workers.cluster.step(batch) for batch in case.batches]
        print(params or "sync", f"loss at last {np.mean(losses[-10:]):.3f}")  # noqa: T201 - a figure to see
        assert losses[0] > 2.0
        assert np.mean(losses[-10:]) < 0.6


# Asynchronous.


@pytest.mark.parametrize("strategy", BUILDERS)
def test_a_worker_goes_on_without_the_other_and_learns_from_its_own_examples(case, strategy):
    plan = case.plan(strategy, (1, 1), sync=False)
    for task in range(2):
        with workers_of(case, plan) as workers:
            workers.start(task, 3)
            assert workers.reach(task, 3)
            own = [part(batch, *workers.programs(task, task)) for batch in case.batches]
            assert plain_steps_equal(case, own, workers.cluster.read())


def test_no_asynchronous_update_is_lost(case):
    plan = case.plan("ps", (1, 1, 1), sync=False)
    with workers_of(case, plan) as workers:
        for task in range(3):
            workers.start(task, 30)
        assert all(workers.reach(task, 30) for task in range(3))
        assert iteration(workers.cluster) == 90


def test_asynchronous_gradients_of_a_wrong_scale_are_noticed(case, monkeypatch):
    monkeypatch.setattr(contributions.WorkerMean, "apply", lambda self, graph, topology: graph)
    plan = case.plan("ps", (1, 1), sync=False)
    with workers_of(case, plan) as workers:
        workers.start(0, 3)
        assert workers.reach(0, 3)
        own = [part(batch, *workers.programs(0, 0)) for batch in case.batches]
        assert not plain_steps_equal(case, own, workers.cluster.read())


# Bounded staleness.


def step_gaps(case: Case, plan, staleness: int, n_rounds: int = 3, wait_s: float = HELD_S) -> list[int]:
    """Steps by which the first worker leads a second one that pauses after each of its own.

    Args:
        wait_s: seconds for a step more than the staleness allows.
    """
    gaps = []
    with workers_of(case, plan) as workers:
        workers.start(0, staleness + n_rounds)
        for slow in range(n_rounds):
            workers.reach(0, slow + staleness)
            workers.reach(0, slow + staleness + 1, wait_s)
            gaps.append(workers.done[0] - slow)
            workers.start(1, 1)
            workers.reach(1, slow + 1)
    return gaps


@pytest.mark.parametrize("staleness", [1, 3])
def test_the_step_gap_reaches_the_staleness_and_never_exceeds_it(case, staleness):
    plan = case.plan("ps", (1, 1), staleness=staleness)
    assert step_gaps(case, plan, staleness) == [staleness] * 3


def test_a_slow_worker_holds_others_back_by_the_staleness(case):
    """The gap that a worker sees whose peer takes ten times as long, over a whole run."""
    staleness, n_steps = 2, 12
    plan = case.plan("ps-load-balancing", (1, 1), staleness=staleness)
    with workers_of(case, plan) as workers:
        workers.start(1, n_steps, n_forward=9)
        workers.start(0, n_steps)
        gaps = []
        for step in range(1, n_steps + 1):
            assert workers.reach(0, step)
            # A worker's ticks go out a little before its step is seen to end.
            gaps.append(step - workers.done[1])
        assert workers.reach(1, n_steps)
        assert max(gaps) <= staleness + 1
        assert workers.updates_reach(2 * n_steps)


def test_a_clock_that_is_ahead_is_noticed(case, monkeypatch):
    def one_more(clocks, *, task, staleness):
        return count_step(clocks, task=task, staleness=staleness + 1)

    monkeypatch.setattr(semi_synchronous, "count_step", one_more)
    plan = case.plan("ps", (1, 1), staleness=1)
    assert step_gaps(case, plan, staleness=1, n_rounds=1, wait_s=DEADLINE_S) == [2]


@pytest.mark.parametrize("together", [False, True])
def test_an_update_is_one_step_on_the_mean_of_what_is_there(case, monkeypatch, together):
    """Shards are of unequal size, so that a mean of means would differ from the mean of examples."""
    started = []
    monkeypatch.setattr(UpdateLoop, "start", lambda loop: started.append(loop))  # noqa: PLW0108 - to be a method
    plan = case.plan("ps-load-balancing", (2, 1), staleness=2)
    with workers_of(case, plan) as workers:
        for task in range(1 + together):
            workers.start(task, 1)
            assert workers.reach(task, 1)
        monkeypatch.undo()
        started[0].start()
        assert workers.updates_reach(1 + together)
        updates = started[0]
        assert dict(updates.updates_by_size) == {1 + together: 1}
        used = part(case.batches[0], *workers.programs(0, int(together)))
        assert plain_steps_equal(case, [used], workers.cluster.read())


# Backup workers.


def held_back(case: Case, plan) -> tuple[bool, int, list[int]]:
    """Two workers make three steps while the third stands still; then that one makes its own.

    Returns:
        True if the updates were those of the two alone; number of dropped ones; all workers' steps.
    """
    with workers_of(case, plan) as workers:
        for task in (0, 1):
            workers.start(task, 2)
        assert all(workers.reach(task, 2) for task in (0, 1))
        workers.start(2, 1)
        assert workers.reach(2, 1)
        for task in (0, 1):
            workers.start(task, 1)
        assert all(workers.reach(task, 3) for task in (0, 1))
        values = workers.cluster.read()
        workers.start(2, 2)
        assert workers.reach(2, 3)
        used = [part(batch, *workers.programs(0, 1)) for batch in case.batches]
        dropped = workers.cluster.sessions[2].pace.dropped
        return plain_steps_equal(case, used, values), dropped, workers.done


@pytest.mark.parametrize("strategy", BUILDERS)
def test_a_backup_worker_blocks_nobody_and_its_late_contribution_is_dropped(case, strategy):
    plan = case.plan(strategy, (1, 1, 1), backup=1)
    assert held_back(case, plan) == (True, 2, [3, 3, 3])


def test_a_late_contribution_that_is_kept_is_noticed(case, monkeypatch):
    sound = Accumulator.apply

    def never_late(self, pushed, step, after):
        last = const(f"{self.handle.name}/last", INT64, LAST_STEP, device=self.device)
        constants, push = sound(self, pushed, last.name, after)
        return [last, *constants], push

    monkeypatch.setattr(Accumulator, "apply", never_late)
    assert held_back(case, case.plan("ps", (1, 1, 1), backup=1))[0] is False


def test_throughput_with_a_slow_backup_worker(case):
    """Printed, not asserted: how fast this machine is has no place in a test. The steps made have."""
    n_steps, took_s, pause_s = 40, [], 0.0
    for _ in range(2):
        plan = case.plan("ps", (1, 1, 1), backup=1)
        with workers_of(case, plan) as workers:
            for task in range(3):
                workers.start(task, 2)
            assert all(workers.reach(task, 2) for task in range(3))
            began_s = time.monotonic()
            workers.start(2, n_steps, pause_s=pause_s)
            for task in (0, 1):
                workers.start(task, n_steps)
            assert all(workers.reach(task, 2 + n_steps) for task in (0, 1))
            took_s.append(time.monotonic() - began_s)
            workers.hurried.set()
            assert workers.reach(2, 2 + n_steps)
            updates = workers.cluster.sessions[0].updates.updates_by_size
            assert sum(updates.values()) >= n_steps
            assert min(updates) >= 2
        # The second time one worker takes ten times as long for a step.
        pause_s = 9 * took_s[0] / n_steps
    ratio = took_s[0] / took_s[1]
    print(f"throughput with one slow worker of three: {ratio:.2f} of that without")  # noqa: T201 - as above
