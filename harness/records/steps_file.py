"""`steps.parquet`: every step of every worker in one repeat."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.atomic_files import write_bytes
from harness.errors import StoreError, first_line
from harness.records.run_documents import STEPS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MOST_ROWS = 10_000_000
"""Maximum of rows in a file, one for each step of each worker."""
_COLUMNS = ("worker", "step", "start_s", "end_s", "loss", "warmup")


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """Every step of every worker in one repeat; arrays of one length, one entry per worker and step.

    Args:
        worker: rank of the worker.
        step: index from 0, warm-up included.
        start_s: monotonic seconds, comparable within a worker only.
        end_s: monotonic seconds.
        loss: the worker's mean loss; NaN if it was not read.
        warmup: True if the step is not counted: before all windows, or leading into one.
        window: number of the step's window, from 0; -1 before the first.
        input_s: seconds that the step waited for its batch; None if batches were staged.
    """

    worker: npt.NDArray[np.int32]
    step: npt.NDArray[np.int32]
    start_s: npt.NDArray[np.float64]
    end_s: npt.NDArray[np.float64]
    loss: npt.NDArray[np.float64]
    warmup: npt.NDArray[np.bool_]
    window: npt.NDArray[np.int32]
    input_s: npt.NDArray[np.float64] | None = None


def write_steps(path: Path, steps: Steps) -> Path:
    """Write `steps.parquet`, atomically."""
    # pyarrow is slow to import and needed only at a run's end.
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "worker": pa.array(steps.worker, type=pa.int32()),
        "step": pa.array(steps.step, type=pa.int32()),
        "start_s": pa.array(steps.start_s, type=pa.float64()),
        "end_s": pa.array(steps.end_s, type=pa.float64()),
        "loss": pa.array(steps.loss, type=pa.float64(), from_pandas=True),
        "warmup": pa.array(steps.warmup, type=pa.bool_()),
        "window": pa.array(steps.window, type=pa.int32()),
    }
    if steps.input_s is not None:
        columns["input_s"] = pa.array(steps.input_s, type=pa.float64())
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return write_bytes(path, sink.getvalue().to_pybytes())


def read_steps(data: bytes, *, name: str = STEPS) -> Steps:
    """Read the bytes of `steps.parquet`.

    Args:
        name: name of the file, for the message.
    Raises:
        StoreError: it is not a file of steps.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        if file.metadata.num_rows > MOST_ROWS:
            raise StoreError(f"{name} must hold at most {MOST_ROWS:,} steps, got {file.metadata.num_rows:,}")
        # A small file can contain columns of any length.
        table = file.read(columns=[*_COLUMNS, "window", "input_s"], use_threads=False)
        columns = {column: table.column(column) for column in _COLUMNS}
        # Files without the column have one window.
        windows = table.column("window") if "window" in table.column_names else None
        waits = table.column("input_s") if "input_s" in table.column_names else None
        warmup = np.asarray(columns["warmup"], dtype=np.bool_)
        return Steps(
            worker=np.asarray(columns["worker"], dtype=np.int32),
            step=np.asarray(columns["step"], dtype=np.int32),
            start_s=np.asarray(columns["start_s"], dtype=np.float64),
            end_s=np.asarray(columns["end_s"], dtype=np.float64),
            loss=np.asarray(columns["loss"], dtype=np.float64),
            warmup=warmup,
            window=-warmup.astype(np.int32) if windows is None else np.asarray(windows, dtype=np.int32),
            input_s=None if waits is None else np.asarray(waits, dtype=np.float64),
        )
    # Columns of other types are refused by pyarrow or by numpy, each in its own way.
    except (OSError, pa.ArrowException, KeyError, ValueError, TypeError, OverflowError) as error:
        raise StoreError(f"{name} must hold steps written by stratbench: {first_line(str(error))}") from None
