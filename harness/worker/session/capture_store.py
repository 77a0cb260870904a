"""Files of a capture, shared by all ranks and cases: step and initial values."""

import json
import pickle
import re
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from strategies.ir.random_ops import mix
from strategies.ir.train_graph import TrainGraph

Array: TypeAlias = np.ndarray[Any, Any]
_STEP, _INDEX, _LINES = "step.pickle", "initial.json", "lines.json"
# NumPy parses each file's header, and Python 3.11 counts the parser's depth over all threads: of two that
# read at the same time, one may raise SystemError (python/cpython issue 106905).
_READING = threading.Lock()
_OF_RANK = re.compile(r"(.+)@rank(\d+)")


def stored_name(variable: str, rank: int | None) -> str:
    """Stored name of a replica's copy: the variable's name for the first replica, or for a single copy."""
    return f"{variable}@rank{rank}" if rank else variable


def variable_and_rank(stored: str) -> tuple[str, int]:
    """Variable and rank of a stored name."""
    match = _OF_RANK.fullmatch(stored)
    return (stored, 0) if match is None else (match[1], int(match[2]))


def save(folder: Path, step: TrainGraph, initial: Mapping[str, Array]) -> None:
    """Write a capture into an empty folder."""
    folder.mkdir(parents=True, exist_ok=True)
    save_values(folder, initial)
    # Only processes of one run read it, which trust each other as they trust the workload.
    (folder / _STEP).write_bytes(pickle.dumps(step, protocol=pickle.HIGHEST_PROTOCOL))


def save_values(folder: Path, initial: Mapping[str, Array]) -> None:
    """Replace the initial values of a captured step."""
    values = folder / "initial"
    shutil.rmtree(values, ignore_errors=True)
    values.mkdir()
    index = {name: np.asarray(initial[name]).dtype.name for name in sorted(initial)}
    for number, name in enumerate(index):
        np.save(values / f"{number}.npy", np.asarray(initial[name]), allow_pickle=False)
    (folder / _INDEX).write_text(json.dumps(index))


def save_lines(folder: Path, lines: Mapping[str, str]) -> None:
    """Write the line of user code that created each node."""
    (folder / _LINES).write_text(json.dumps(lines))


def load_lines(folder: Path) -> Mapping[str, str]:
    """Node of a captured step → line of user code that created it, if known."""
    lines: dict[str, str] = json.loads((folder / _LINES).read_text())
    return lines


def load_step(folder: Path) -> TrainGraph:
    """Read a captured step."""
    step = pickle.loads((folder / _STEP).read_bytes())  # noqa: S301 - see `save`
    assert isinstance(step, TrainGraph)
    return step


class InitialValues:
    """Initial values of a capture, memory-mapped; a rank's random state is mixed on request.

    Args:
        float64: True returns floating values as float64, for a step rewritten to it.
    """

    def __init__(self, folder: Path, *, float64: bool = False) -> None:
        self._folder = folder
        self._float64 = float64
        self._dtypes: dict[str, str] = json.loads((folder / _INDEX).read_text())
        self._numbers = {name: number for number, name in enumerate(self._dtypes)}
        self._ranks: dict[str, dict[int, str]] = {}
        for stored in self._numbers:
            variable, rank = variable_and_rank(stored)
            self._ranks.setdefault(variable, {})[rank] = stored

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._numbers)

    def value(self, variable: str, *, rank: int | None = None, seed_word: int | None = None) -> Array:
        """Initial value of a variable's copy.

        Args:
            seed_word: index of the seed in a random state. A rank without a stored state of its own takes the
                first replica's, with the seed mixed with the rank and the variable's name.
        """
        own = stored_name(variable, rank)
        if rank and own in self._numbers:
            return self.stored(own)
        value = self.stored(variable)
        return value if seed_word is None or not rank else _mixed(value, seed_word, rank, variable)

    def of_ranks(self, variable: str) -> dict[int, Array]:
        """Values by replica; empty if neither capture nor checkpoint has the variable."""
        return {rank: self.stored(stored) for rank, stored in self._ranks.get(variable, {}).items()}

    def stored(self, name: str) -> Array:
        with _READING:
            value: Array = np.load(self._folder / "initial" / f"{self._numbers[name]}.npy", mmap_mode="r")
        value = of_type(value, self._dtypes[name])
        return in_float64(value) if self._float64 else value


def _mixed(value: Array, seed_word: int, rank: int, variable: str) -> Array:
    mixed = np.array(value)
    seed = int(mixed[seed_word])
    # The hash has 31 bits, so the mixed word fits the type for any seed.
    mixed[seed_word] = mix(seed, rank, variable) if seed >= 0 else -mix(-seed, rank, variable)
    return mixed


def of_type(value: Array, dtype: str) -> Array:
    """Array with its true type: NumPy files keep bfloat16 as bytes."""
    return value if value.dtype.name == dtype else value.view(getattr(ml_dtypes, dtype))


def in_float64(value: Array) -> Array:
    """Floating values (bfloat16 too) as float64, complex ones as complex128, others unchanged."""
    if np.issubdtype(value.dtype, np.complexfloating):
        return value.astype(np.complex128)
    # ml_dtypes registers bfloat16 with NumPy as a type of kind V that can be converted to floats.
    floating = np.issubdtype(value.dtype, np.floating) or value.dtype.name == "bfloat16"
    return value.astype(np.float64) if floating else value
