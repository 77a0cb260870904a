"""Summaries of steps as builders see them, made by hand."""

from strategies.plan.schema import StepSummary, VariableSummary


def trainable(name, *shape, readiness=0, **fields):
    n = 4
    for length in shape:
        n *= length
    return VariableSummary(
        **{
            "name": name,
            "kind": "trainable",
            "dtype": "float",
            "shape": shape,
            "bytes": n,
            "synced": True,
            "readiness": readiness,
            **fields,
        }
    )


def slot(name, of, *shape):
    return trainable(name, *shape, kind="slot", slot_of=of, synced=False, readiness=None, reads=0)


def state(name, *shape, rule="mean"):
    synced = rule != "per-replica"
    return trainable(name, *shape, kind="state", rule=rule, synced=synced, readiness=None)


def step_of(*variables):
    return StepSummary(workload="hand-made", n_nodes=1, variables=variables, batch=())
