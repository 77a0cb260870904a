"""Cost of each aggregation rule compared with a plain mean and a distance matrix, and its memory."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from strategies.plan.aggregation import BY_NAME, Aggregation

N_WORKERS, SIZE = 11, 1_000_000
N_ROUNDS = 15
LARGE = 25_000_000
MOST_BYTES = 3 << 30
MIXED = "krum after nearest-neighbour-mixing"

pytestmark = pytest.mark.tensorflow


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.function is test_a_rule_beside_the_mean:
        every = [*BY_NAME, MIXED, "median after bucketing"]
        metafunc.parametrize("rule", every if metafunc.config.getoption("--all-cases") else ["mean", MIXED])


class Rules:
    """Combining of the same vectors by rules, each in a session of its own."""

    def __init__(self, size: int) -> None:
        rng = np.random.default_rng(0)
        self.size = size
        self.vectors = [rng.standard_normal(size, dtype=np.float32) for _ in range(N_WORKERS)]

    @contextmanager
    def combining(self, name: str) -> Iterator[Callable[[], object]]:
        """A call that combines by a rule, by `sum ÷ n`, or that multiplies the rows by themselves."""
        import tensorflow as tf

        v1 = tf.compat.v1
        v1.disable_control_flow_v2()
        try:
            with tf.Graph().as_default() as graph:
                variables = [
                    v1.get_variable(f"vector_{k}", [self.size], use_resource=True) for k in range(N_WORKERS)
                ]
                result = self._result(name, [variable.read_value() for variable in variables])
                # Of an operation without outputs that are asked for, nothing would be left.
                combined = tf.identity(result).op
        finally:
            v1.enable_control_flow_v2()
        threads = v1.ConfigProto(intra_op_parallelism_threads=2, inter_op_parallelism_threads=2)
        with v1.Session(graph=graph, config=threads) as session:
            for variable, vector in zip(variables, self.vectors, strict=True):
                variable.load(vector, session)
            yield session.make_callable(combined)

    def _result(self, name: str, vectors: list[object]) -> object:
        import tensorflow as tf

        from strategies.numerics.aggregators import aggregate, states

        if name == "sum ÷ n":
            return tf.add_n(vectors) / N_WORKERS
        if name == "product":
            rows = tf.stack(vectors)
            return tf.matmul(rows, rows, transpose_b=True)
        rule, _, pre = name.partition(" after ")
        aggregation = Aggregation.of({"rule": rule, "pre": pre or "none"}, N_WORKERS)
        assert aggregation is not None
        types = {"float": tf.float32, "int64": tf.int64}
        state = [tf.zeros(spec.dims, types[spec.dtype]) for spec in states(aggregation, self.size, "float")]
        shares = (1.0 / N_WORKERS,) * N_WORKERS
        blocks = [tf.expand_dims(vector, 0) for vector in vectors]
        return aggregate(blocks, state, aggregation=aggregation, shares=shares).vector  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def rules() -> Rules:
    return Rules(SIZE)


def test_a_rule_beside_the_mean(
    rule: str, rules: Rules, benchmark: BenchmarkFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """All in turn in one run, of which the medians are compared."""
    names = (rule, "mean", "sum ÷ n", "product")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with (
        rules.combining(rule) as by_rule,
        rules.combining("mean") as mean,
        rules.combining("sum ÷ n") as plain,
        rules.combining("product") as product,
    ):
        calls = dict(zip(names, (by_rule, mean, plain, product), strict=True))
        for call in calls.values():
            call()

        def in_turn() -> None:
            for name, call in calls.items():
                started_s = time.perf_counter()
                call()
                seconds[name].append(time.perf_counter() - started_s)

        benchmark.pedantic(in_turn, rounds=N_ROUNDS)
    own = float(np.median(seconds[rule]))
    ratios = {name: own / float(np.median(seconds[name])) for name in names[1:]}
    benchmark.extra_info.update({f"over {name}": ratio for name, ratio in ratios.items()})
    with capsys.disabled():
        text = ", ".join(f"{ratio:.2f} of {name}" for name, ratio in ratios.items())
        sys.stdout.write(f"\n{rule}: {text}\n")


MEMORY = """
import json, sys
from tests.benchmarks.test_aggregation import LARGE, Rules

rule = sys.argv[1]
with Rules(LARGE).combining(rule) as combine:
    combine()
status = open("/proc/self/status").read()
print(json.dumps(int(status.split("VmHWM:")[1].split()[0]) * 1024))
"""


# Bulyan has the distances of Krum and sorts as a median does, with which the geometric median begins.
@pytest.mark.parametrize("rule", ["bulyan", "geometric-median", "centered-clipping"])
def test_eleven_large_gradients_take_their_own_memory_and_little_more(
    rule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process holds the draws as well, which a worker does not: they count once more here."""
    process = subprocess.run(
        [sys.executable, "-c", MEMORY, rule], capture_output=True, text=True, check=True, timeout=600
    )
    peak_bytes = json.loads(process.stdout.splitlines()[-1])
    gradients_bytes = 4 * N_WORKERS * LARGE
    with capsys.disabled():
        sys.stdout.write(f"\n{rule}: peak {peak_bytes / 2**30:.2f} GiB with the draws\n")
    assert peak_bytes - gradients_bytes <= MOST_BYTES
