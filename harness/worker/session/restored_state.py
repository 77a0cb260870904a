"""Values from a checkpoint for variables that a strategy added, and those of it that have no use."""

from collections.abc import Collection, Mapping, Sequence

from harness.equivalence.yardstick import Array
from harness.errors import UsageError
from harness.worker.session.capture_store import InitialValues, variable_and_rank
from harness.worker.session.variable_parts import of_part
from strategies.ir.variable import Part
from strategies.program import VariableAccess


def lasts(access: VariableAccess) -> bool:
    """Whether a variable's value means something beyond the session that it is in."""
    return access.fresh is None or access.fresh.inherits != "nothing"


def first_value(access: VariableAccess, saved: Mapping[int, Array]) -> Array:
    """The value that an added variable begins with, or the part of it that this is.

    Args:
        saved: rank → the whole value that a checkpoint has; empty where there is none.
    Raises:
        UsageError: it has a value of another shape, of what all must have the same of.
    """
    assert access.fresh is not None
    fitting = _fitting(access, saved)
    if saved and not fitting and access.fresh.inherits == "alike":
        # All must go on from the same value; from nothing they would, but not from where they were.
        shapes = sorted({value.shape for value in saved.values()})
        raise UsageError(
            f"state {access.variable!r} must have the shape {list(access.fresh.dims)}, got "
            f"{', '.join(str(list(shape)) for shape in shapes)}; restore a checkpoint of the same model and "
            "precision, or one of a strategy without this state",
            field="restore",
        )
    return access.fresh.inherited(access.rank, fitting)


def left_out(
    accesses: Sequence[VariableAccess], initial: InitialValues, model: Collection[str]
) -> tuple[str, ...]:
    """What a checkpoint has of a strategy and this one cannot use, in a sentence; nothing if it uses all.

    Args:
        accesses: of a worker that holds the first replica.
        model: variables of the captured step.
    """
    used = {a.variable for a in accesses if a.fresh and _fitting(a, initial.of_ranks(a.variable))}
    saved = {name for name, _ in map(variable_and_rank, initial.names)}
    unused = sorted(saved - used - set(model))
    if not unused:
        return ()
    others = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
    return (f"of the checkpoint dropped, for this strategy keeps no such state: {unused[0]}{others}",)


def _fitting(access: VariableAccess, saved: Mapping[int, Array]) -> dict[int, Array]:
    assert access.fresh is not None
    part, dims = access.part, access.fresh.dims
    values = {r: v if part is None else of_part(v, part) for r, v in saved.items() if _reaches(v, part)}
    return {rank: value for rank, value in values.items() if value.shape == dims}


def _reaches(whole: Array, part: Part | None) -> bool:
    return part is None or (whole.ndim > part.axis and whole.shape[part.axis] >= part.stop)
