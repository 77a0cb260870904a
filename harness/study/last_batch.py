"""Last batch of its own size, if a plan can be verified with one."""

from dataclasses import replace

from harness.errors import UsageError
from harness.worker.jobs.capture import CapturedWorkload
from strategies.builders.tpu import on_cores, uneven_shares
from strategies.plan.schema import HELD_TO_THE_REFERENCE, Plan
from strategies.planner import topology_of

FIELD = "last_batch"


def require_last_batch(n_examples: int, plan: Plan, facts: CapturedWorkload) -> None:
    """Refuse a last batch that the step or the plan cannot take.

    Args:
        facts: of the captured step.
    Raises:
        UsageError: with the way out.
    """
    topology = topology_of(plan)
    least = topology.n_shards
    if not least <= n_examples <= plan.batch_size:
        raise UsageError(
            f"must give each shard an example and be no larger than the others, got {n_examples}; choose one "
            f"from {least} to {plan.batch_size}",
            field=FIELD,
        )
    uneven = uneven_shares(replace(topology, batch_size=n_examples)) if on_cores(plan) else None
    if uneven is not None:
        raise UsageError(f"must be one that {plan.strategy} can share out: {uneven}", field=FIELD)
    if n_examples != plan.batch_size and facts.replica_batch is not None:
        raise UsageError(
            "needs a model that takes any number of examples, got one that takes "
            f"{facts.replica_batch} on each replica; drop it",
            field=FIELD,
        )
    if n_examples != plan.batch_size and facts.draws_from_ops:
        raise UsageError(
            "needs random numbers that go on from one program to the next, got a step that draws from "
            "operations' own states; draw with keras.random and a SeedGenerator, or drop it",
            field=FIELD,
        )
    if plan.strategy_class not in HELD_TO_THE_REFERENCE:
        raise UsageError(
            f"is compared for exact strategies, got {plan.strategy}, which is {plan.strategy_class}; drop it",
            field=FIELD,
        )
