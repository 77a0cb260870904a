"""A smaller last batch is exact: its programs share the variables, and its shards weigh what they are."""

import functools
import itertools
from dataclasses import replace

import pytest
from matrix import CORE_ROWS, ROWS

from harness.verification.reference import Outcome
from harness.verification.worker.in_process import InProcessCluster, programs_of
from strategies.errors import StrategyError

pytestmark = pytest.mark.tensorflow

# Shards of 4 and 3 become 3 and 2, those of 2, 2, 2 and 1 become 2, 1, 1 and 1.
LAST = 5


# Model, optimizer, replicas and examples of all batches but the last; strategies take them in turn, for a
# reference takes as long as several.
ON = (("digits-cnn", "momentum", (2, 2), 7), ("word-lm", "adagrad", (1, 1), 7))
# Of full shards of two, one example each is left.
ON_CORES = ("digits-mlp", "momentum", (1, 1), 4)


@pytest.fixture(scope="module")
def shortened(cases):
    """Steps of which the one before the last has a smaller batch, so that a full one must follow it too."""

    def shortened_of(model, optimizer, n_examples, last):
        full = cases.of(model, optimizer).with_examples(n_examples)
        short = [part[:last] for part in full.batches[1]]
        return replace(full, batches=[full.batches[0], short, full.batches[2]], _references={})

    return functools.cache(shortened_of)


def programs_of_last(case, plan, last=LAST):
    return programs_of(case.step, plan.model_copy(update={"batch_size": last}))


def verdict_of(case, plan, programs, last):
    with InProcessCluster(programs, case.initial) as cluster:
        cluster.take_up(last)
        losses = [cluster.step(batch) for batch in case.batches]
        return losses, case.reference_of(plan).judge(Outcome(values=cluster.read()))


@pytest.mark.parametrize(
    ("on", "row"),
    [
        *zip(itertools.cycle(ON), (row for row in ROWS if row not in CORE_ROWS), strict=False),
        *((ON_CORES, row) for row in CORE_ROWS if row != "tpu-replicate"),
    ],
    ids=lambda v: v if isinstance(v, str) else v[0],
)
def test_a_smaller_batch_between_full_ones_is_equivalent(shortened, on, row):
    model, optimizer, replicas, n_examples = on
    last = sum(replicas) if row in CORE_ROWS else LAST
    case = shortened(model, optimizer, n_examples, last)
    assert len(case.batches[0][0]) == n_examples
    strategy, params = {**ROWS, **CORE_ROWS}[row]
    plan = case.plan(strategy, replicas, **params)
    programs = programs_of(case.step, plan)
    losses, verdict = verdict_of(case, plan, programs, programs_of_last(case, plan, last))
    assert verdict.equivalent, max(verdict.variables, key=lambda v: v.update_error)
    assert losses == pytest.approx(case.reference_of(plan).losses, rel=1e-9)


@pytest.mark.parametrize("strategy", ["ps", "all-reduce"])
def test_shards_that_weigh_what_those_of_full_batches_do_are_found(cases, strategy):
    full = cases.of("digits-cnn", "momentum")
    case = replace(full, batches=[full.batches[0], [part[:LAST] for part in full.batches[1]]], _references={})
    plan = case.plan(strategy, (1, 1))
    programs = programs_of(case.step, plan)
    wrong = [
        replace(p, start=last.start, stop=last.stop)
        for p, last in zip(programs, programs_of_last(case, plan), strict=True)
    ]
    _, verdict = verdict_of(case, plan, programs, wrong)
    assert not verdict.equivalent


def test_a_batch_with_fewer_examples_than_replicas_is_refused(cases):
    plan = cases.of("digits-cnn", "momentum").plan("ps", (2, 2)).model_copy(update={"batch_size": 3})
    with pytest.raises(StrategyError, match="each replica needs an example, got 3 examples for 4 replicas"):
        programs_of(cases.of("digits-cnn", "momentum").step, plan)
