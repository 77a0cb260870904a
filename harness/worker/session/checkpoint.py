"""Checkpoints of a session: saving and restoring."""

import os
import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf

from harness.atomic_files import sync_directory, write_text
from harness.errors import CaseError, StoreError, UsageError, first_line
from harness.records.contained_files import make_folder
from harness.worker.session.capture_store import InitialValues, stored_name, variable_and_rank
from harness.worker.variable_parts import Array, Held, Pieces, of_part
from strategies.ir.variable import Part, Variable

v1 = tf.compat.v1
OURS = "stratbench/"
STEP = f"{OURS}step"
FIELD = "restore"
_FILES = re.compile(r"step-\d+-[0-9a-f]{8}\..+")
_OF_OBJECTS = "_CHECKPOINTABLE_OBJECT_GRAPH"
# TensorFlow's reader raises its own errors and sometimes Python's.
_READ_ERRORS = (tf.errors.OpError, ValueError, RuntimeError, OSError, IndexError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Contents of a checkpoint.

    Attributes:
        values: values by names as in `harness.worker.session.capture_store`, strategies' own included.
        step: number of steps so far; None if the writer did not record it.
    """

    values: Mapping[str, Array]
    step: int | None


def contribution(pieces_of: Held, shared: Collection[str]) -> dict[str, Pieces]:
    """Values that a worker's copies of variables, or parts of them, add to a checkpoint.

    Args:
        shared: names of variables with equal copies on all replicas; the first replica's is stored.
    """
    return {
        stored_name(name, rank): pieces
        for (name, rank), pieces in pieces_of.items()
        if name not in shared or rank is None or rank == 0
    }


def write_checkpoint(folder: Path, values: Mapping[str, Array], model: Collection[str], step: int) -> None:
    """Replace the checkpoint in a folder; until the end, even after a kill, readers see the old one.

    Args:
        values: values by stored name. model: names of the model's own variables.
    Raises:
        CaseError: `checkpoint-unwritable`; the old one is unchanged.
    """
    named = {_file_name(name, model): np.asarray(value) for name, value in values.items()}
    prefix = f"step-{step}-{secrets.token_hex(4)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        make_folder(folder.parent, folder.name)
        _save(folder / prefix, {**named, STEP: np.asarray(step, np.int64)})
        for file in folder.glob(f"{prefix}*"):
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
        sync_directory(folder)
        # From here on, readers see the new one.
        write_text(folder / "checkpoint", _pointer(folder, prefix))
    except (OSError, StoreError, tf.errors.OpError) as error:
        _remove(folder, lambda name: name.startswith(prefix))
        raise CaseError(
            "checkpoint-unwritable",
            f"checkpoint {folder}: cannot be written: {_in_a_line(error)}; make room or "
            "name another run folder with --out",
            stage="checkpoint",
        ) from error
    _remove(folder, lambda name: not name.startswith(prefix) and _FILES.fullmatch(name) is not None)


def read_checkpoint(path: Path, model: Mapping[str, Array]) -> Checkpoint:
    """Read a checkpoint of a model.

    Args:
        path: folder, or the prefix of the checkpoint's files.
        model: name → a value of the required shape and type.
    Raises:
        UsageError: there is none, it is another model's, or it is damaged.
    """
    with _refusing(path, "must be a TensorFlow checkpoint"):
        reader = tf.train.load_checkpoint(str(path))
        stored = {
            name: (tuple(shape), reader.get_variable_to_dtype_map()[name].as_numpy_dtype)
            for name, shape in reader.get_variable_to_shape_map().items()
        }
    _check_names(path, stored, model)
    for name, (shape, dtype) in sorted(stored.items()):
        own = model.get(variable_and_rank(name)[0])
        if own is not None and (shape, np.dtype(dtype)) != (own.shape, own.dtype):
            expected, got = _kind(own.shape, own.dtype), _kind(shape, np.dtype(dtype))
            raise _another_model(path, f"variable {name!r} must be {expected}, got {got}")
    with _refusing(path, "must be whole"):
        values = {name.removeprefix(OURS): np.asarray(reader.get_tensor(name)) for name in sorted(stored)}
    step = values.pop(STEP.removeprefix(OURS), None)
    return Checkpoint(values=values, step=None if step is None else int(step))


def _check_names(path: Path, stored: Collection[str], model: Collection[str]) -> None:
    if _OF_OBJECTS in stored:
        raise UsageError(
            f"checkpoint {path}: must hold variables by name, got one of tf.train.Checkpoint, which holds "
            "objects; write it by name as docs/checkpoints.md shows",
            field=FIELD,
        )
    missing = next((name for name in sorted(model) if name not in stored), None)
    if missing is not None:
        raise _another_model(path, f"variable {missing!r} of the workload is missing")
    foreign = next(
        (n for n in sorted(stored) if not n.startswith(OURS) and variable_and_rank(n)[0] not in model), None
    )
    if foreign is not None:
        raise _another_model(path, f"its variables must be the workload's, got {foreign!r}")


def _another_model(path: Path, wrong: str) -> UsageError:
    way_out = "restore it with the workload, its parameters and the optimizer that it was saved with"
    return UsageError(f"checkpoint {path}: is another model's: {wrong}; {way_out}", field=FIELD)


def _kind(shape: Sequence[int], dtype: "np.dtype[np.generic]") -> str:
    return f"{dtype.name}{list(shape)}"


@contextmanager
def _refusing(path: Path, rule: str) -> Iterator[None]:
    try:
        yield
    except _READ_ERRORS as error:
        raise UsageError(
            f"checkpoint {path}: {rule}, got {_in_a_line(error)}; name a folder that `run --checkpoint` "
            "wrote, or the prefix of a checkpoint's files",
            field=FIELD,
        ) from error


def _file_name(name: str, model: Collection[str]) -> str:
    return name if variable_and_rank(name)[0] in model else f"{OURS}{name}"


def _save(prefix: Path, values: Mapping[str, Array]) -> None:
    # Values are fed, because constants of a graph are limited to 2 GB.
    with tf.Graph().as_default():
        fed = {name: v1.placeholder(value.dtype, value.shape) for name, value in values.items()}
        saved = tf.raw_ops.SaveV2(
            prefix=str(prefix),
            tensor_names=list(fed),
            shape_and_slices=[""] * len(fed),
            tensors=list(fed.values()),
        )
        with v1.Session(config=v1.ConfigProto(device_count={"GPU": 0})) as session:
            session.run(saved, {fed[name]: value for name, value in values.items()})


def _remove(folder: Path, which: Callable[[str], bool]) -> None:
    if folder.is_dir():
        for file in folder.iterdir():
            if which(file.name):
                file.unlink(missing_ok=True)


def _pointer(folder: Path, prefix: str) -> str:
    state = v1.train.generate_checkpoint_state_proto(str(folder), prefix)
    return str(state)


def _in_a_line(error: BaseException) -> str:
    return first_line(getattr(error, "strerror", None) or str(error), type(error).__name__)


def first_value(variable: Variable, saved: Mapping[int, Array]) -> Array:
    """Initial value of an added variable, or of one worker's part of it.

    Args:
        saved: rank → whole value in the checkpoint; empty if there is none.
    Raises:
        UsageError: the saved value has another shape.
    """
    assert variable.fresh is not None
    fitting = _fitting(variable, saved)
    if saved and not fitting and variable.fresh.inherits == "alike":
        # All replicas must continue from the same value; a fresh start would, but would lose their state.
        shapes = sorted({value.shape for value in saved.values()})
        raise UsageError(
            f"state {variable.stored!r} must have the shape {list(variable.fresh.dims)}, got "
            f"{', '.join(str(list(shape)) for shape in shapes)}; restore a checkpoint of the same model and "
            "precision, or one of a strategy without this state",
            field="restore",
        )
    return variable.fresh.inherited(variable.stored_rank, fitting)


def left_out(
    variables: Sequence[Variable], initial: InitialValues, model: Collection[str]
) -> tuple[str, ...]:
    """Sentence on values of a checkpoint that this strategy cannot use; empty if it uses all.

    Args:
        variables: variables of the worker with the first replica.
        model: variables of the captured step.
    """
    used = {v.stored for v in variables if v.fresh and _fitting(v, initial.of_ranks(v.stored))}
    saved = {name for name, _ in map(variable_and_rank, initial.names)}
    unused = sorted(saved - used - set(model))
    if not unused:
        return ()
    others = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
    return (f"of the checkpoint dropped, for this strategy keeps no such state: {unused[0]}{others}",)


def _fitting(variable: Variable, saved: Mapping[int, Array]) -> dict[int, Array]:
    assert variable.fresh is not None
    part, dims = variable.part, variable.fresh.dims
    values = {r: v if part is None else of_part(v, part) for r, v in saved.items() if _reaches(v, part)}
    return {rank: value for rank, value in values.items() if value.shape == dims}


def _reaches(whole: Array, part: Part | None) -> bool:
    return part is None or (whole.ndim > part.axis and whole.shape[part.axis] >= part.stop)
