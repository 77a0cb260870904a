"""Facts of tensors: the same for all parts of a variable, or something that each part has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from strategies.errors import StrategyError
from strategies.ir.graph import DType


class FactKind(Enum):
    """How a tensor of the whole step relates to the tensor that stands for it in a part.

    WHOLE is the same for all parts. All others exist once per part, made by a copy of the node: HANDLE of a
    variable; SPLIT is a range of the whole along an axis; ROWS and IDS are those of a sparse gradient (or of
    a list made of it) that belong to the part, ids counted from its start; ID_COLUMN is ids as [n, 1];
    POSITIONS point into such a list, and POSITION_TABLE holds them by id; COUNT is a list's length and
    COUNT_SHAPE a shape that begins with it; LENGTH is the part's length along axis 0, and LENGTH_SHAPE a
    shape that begins with it; SAME_COUNT tells whether two lists are equally long; ZERO_ROW is one row, for
    its shape only.
    """

    WHOLE = auto()
    HANDLE = auto()
    SPLIT = auto()
    ROWS = auto()
    IDS = auto()
    ID_COLUMN = auto()
    POSITIONS = auto()
    POSITION_TABLE = auto()
    COUNT = auto()
    COUNT_SHAPE = auto()
    LENGTH = auto()
    LENGTH_SHAPE = auto()
    SAME_COUNT = auto()
    ZERO_ROW = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """What is known of a tensor.

    Attributes:
        shape: of the whole, -1 for a list's length; None when unknown. For a shape, what it describes.
        axis: of a SPLIT, from 0.
        variable: the trainable to whose parts it belongs, None for WHOLE.
        values: of a small WHOLE integer tensor that is known, flat.
    """

    kind: FactKind
    shape: tuple[int, ...] | None = None
    axis: int = 0
    variable: str | None = None
    values: tuple[int, ...] | None = None


UNKNOWN = Fact(kind=FactKind.WHOLE)


class PartUse(Enum):
    """What a part's copy of a node reads in place of a WHOLE input, if not that input itself."""

    SLICE = auto()
    LENGTH = auto()
    SHAPE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """An input that a part's copy gets in another form.

    Attributes:
        dtype: of the tensor.
        shape: of the whole tensor that is sliced, and the axis.
    """

    use: PartUse
    dtype: DType
    shape: tuple[int, ...] = ()
    axis: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOutcome:
    """How a node is carried over to the parts.

    Attributes:
        outputs: facts of its outputs.
        variable: for each part of which there is a copy of the node.
        swaps: position of a data input → what copies read there.
        combine: how the results of the copies become the one that the node had.
    """

    outputs: tuple[Fact, ...]
    variable: str
    swaps: Mapping[int, Swap] = field(default_factory=dict)
    combine: str | None = None


class NotLocalError(StrategyError):
    """A node that parts of a variable cannot compute each by itself."""

    def __init__(self, reason: str, variables: Sequence[str]) -> None:
        super().__init__(reason)
        self.variables = tuple(variables)


def owner_of(facts: Sequence[Fact]) -> str:
    """The variable to whose parts tensors belong.

    Raises:
        NotLocalError: when there are several.
    """
    names = sorted({f.variable for f in facts if f.variable is not None})
    if len(names) > 1:
        raise NotLocalError(f"it combines {names[0]!r} and {names[1]!r}", names)
    return names[0]


def broadcast(shapes: Sequence[tuple[int, ...] | None]) -> tuple[int, ...] | None:
    """The shape that shapes broadcast to, None when one is unknown; -1 stands for one length."""
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or not known:
        return None
    rank = max(map(len, known))
    padded = [(1,) * (rank - len(shape)) + shape for shape in known]
    return tuple(next((d for d in dims if d != 1), 1) for dims in zip(*padded, strict=True))
