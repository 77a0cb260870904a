"""Compressors: the table, their options, the bytes of an encoded gradient, and which gradients one shrinks.

A strategy takes one by its parameter `compressor`; options carry the prefix `compressor_`
(`all-reduce:compressor=powersgd,compressor_rank=2`). No TensorFlow.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strategies.errors import StrategyError, suggestion
from strategies.ir.graph import element_bytes, n_elements
from strategies.params import Param, ParamValue, filled
from strategies.plan.schema import Compression, PlanNode, StepSummary
from strategies.topology import Topology

COMPRESSOR = "compressor"
NONE = "none"
FLOATING = ("half", "bfloat16", "float", "double")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressor:
    """An entry of the table.

    Attributes:
        codec: encoding: `half`, `bfloat16`, `topk`, `power`, `signs` or `quantized`.
        feedback: True for error feedback: the encoding error is added to the next gradient.
        matrices: True if only gradients with two axes or more are encoded.
    """

    name: str
    summary: str
    codec: str
    feedback: bool = False
    matrices: bool = False
    params: tuple[Param, ...] = ()


_RATIO = Param(
    name="ratio",
    type=float,
    default=0.01,
    above=0.0,
    maximum=1.0,
    summary="Share of the values that is sent.",
)
_RANK = Param(name="rank", type=int, default=4, minimum=1, summary="Rank of the approximation.")
# Levels and their sign share a byte.
_LEVELS = Param(name="levels", type=int, default=127, minimum=1, maximum=127, summary="Quantisation levels.")
_COMPRESSORS = (
    Compressor(name="fp16", summary="values in half precision; large ones saturate", codec="half"),
    Compressor(
        name="fp16-ef",
        summary="fp16 with error feedback, which repays saturation",
        codec="half",
        feedback=True,
    ),
    Compressor(
        name="bf16", summary="values in bfloat16: float's range, 8 bits of precision", codec="bfloat16"
    ),
    Compressor(name="bf16-ef", summary="bf16 with error feedback", codec="bfloat16", feedback=True),
    Compressor(
        name="topk",
        summary="the largest values and their positions, with error feedback",
        codec="topk",
        feedback=True,
        params=(_RATIO,),
    ),
    Compressor(
        name="powersgd",
        summary="products of two thin matrices, warm start and error feedback; vectors pass as they are",
        codec="power",
        feedback=True,
        matrices=True,
        params=(_RANK,),
    ),
    Compressor(
        name="signsgd-ef", summary="a bit per value, with error feedback", codec="signs", feedback=True
    ),
    Compressor(
        name="qsgd",
        summary="values rounded at random to a few levels, unbiased, a byte each",
        codec="quantized",
        params=(_LEVELS,),
    ),
)
BY_NAME: Mapping[str, Compressor] = {c.name: c for c in _COMPRESSORS}


def on_own_transport(name: str) -> bool:
    """True if the workers' own transport carries the encodings of a compressor of this name.

    It does not add up half precision, which would cost it several copies.
    """
    return BY_NAME[name].codec != "half"


def is_rounded_on_wire(node: PlanNode) -> bool:
    """True if the workers' own transport does a compressor's work by rounding values as it copies them."""
    if node.compressor is None or node.transport != "tcp":
        return False
    return BY_NAME[node.compressor.name].codec == "bfloat16"


def is_encoded(node: PlanNode) -> bool:
    """True if a step encodes a gradient before it is sent."""
    return node.compressor is not None and not is_rounded_on_wire(node)


def param_of(option: str) -> str:
    """An option's name among a strategy's parameters."""
    return f"{COMPRESSOR}_{option}"


_OPTIONS = {option.name: option for c in _COMPRESSORS for option in c.params}
PARAMS = (
    Param(
        name=COMPRESSOR,
        type=str,
        default=None,
        summary="Compressor of dense gradients; see `stratbench list compressors`.",
    ),
    *(
        Param(name=param_of(name), type=o.type, default=None, summary=o.summary)
        for name, o in _OPTIONS.items()
    ),
)


def describe() -> list[dict[str, Any]]:
    """Rows of `stratbench list compressors`; options as a strategy's parameters spell them."""
    return [
        {
            "name": c.name,
            "summary": c.summary,
            "class": "bounded",
            "params": [replace(option, name=param_of(option.name)).describe() for option in c.params],
        }
        for c in _COMPRESSORS
    ]


def choose(
    strategy: str, values: Mapping[str, ParamValue]
) -> tuple[Compression | None, Mapping[str, ParamValue]]:
    """Select the compressor from a strategy's parameters, and fill in its options.

    Args:
        strategy: name of the strategy, for error messages.
    Raises:
        StrategyError: the compressor is unknown (the message suggests one), an option belongs to another
            compressor, or a number is out of range.
    """
    of = f"strategy {strategy!r}: "
    name = values.get(COMPRESSOR)
    option_values = {o: values[param_of(o)] for o in _OPTIONS if values.get(param_of(o)) is not None}
    if name is None or name == NONE:
        if option_values:
            option = min(option_values)
            taker = next(c.name for c in _COMPRESSORS if option in {o.name for o in c.params})
            raise StrategyError(
                f"{of}{param_of(option)} needs a compressor, got none; add compressor={taker} or drop it"
            )
        return None, values if name is None else {**values, COMPRESSOR: None}
    compressor = _by_name(str(name).replace("_", "-"), of)
    options = filled(COMPRESSOR, compressor, option_values, _COMPRESSORS, of=of)
    params = {COMPRESSOR: compressor.name, **{param_of(o): number for o, number in options.items()}}
    return Compression.model_validate({"name": compressor.name, **options}), {**values, **params}


def check(compression: Compression) -> None:
    """Check a plan's compressor and its options.

    Raises:
        StrategyError: it is unknown, an option is missing or belongs to another compressor, or a value is out
            of range.
    """
    options = compression.model_dump(exclude={"name"}, exclude_none=True)
    compressor = _by_name(compression.name, "")
    for name, value in filled(COMPRESSOR, compressor, options, _COMPRESSORS).items():
        if name not in options:
            raise StrategyError(f"compressor {compressor.name} needs {name}, got null; give it, as {value}")


def _by_name(name: str, of: str) -> Compressor:
    if name not in BY_NAME:
        raise StrategyError(f"{of}unknown compressor {name!r}; {suggestion(name, (NONE, *BY_NAME))}")
    return BY_NAME[name]


QSGD_BLOCK = 512
WORD_BYTES = 4
_WORD_BITS = 32


def compressed(
    nodes: Sequence[PlanNode], step: StepSummary, compression: Compression | None, topology: Topology
) -> tuple[PlanNode, ...]:
    """Return the plan's nodes, with the compressor on each gradient that it makes smaller.

    The others travel unencoded: integers, rows, new forward state, unknown lengths, vectors under a
    compressor of matrices, and what would not be fewer bytes on the wire: a gather among n members sends n/2
    times the bytes of an all-reduce.
    """
    if compression is None:
        return tuple(nodes)
    kinds = {v.name: v.kind for v in step.variables}

    def of(node: PlanNode) -> PlanNode:
        stays = node.transport is None or (node.transport == "tcp" and on_own_transport(compression.name))
        transport = node.transport if stays else "auto"
        encoded = node.model_copy(update={"compressor": compression, "transport": transport})
        gains = kinds[node.variable] == "trainable" and _gains(encoded, compression, topology)
        return encoded if gains else node

    return tuple(map(of, nodes))


def payload_bytes(shape: Sequence[int], dtype: str, compression: Compression) -> int:
    """Bytes of one encoded gradient."""
    n, value_bytes = n_elements(shape), max(element_bytes(dtype), WORD_BYTES)
    codec = BY_NAME[compression.name].codec
    if codec == "topk":
        return n_kept(n, compression.ratio or 0.0) * (value_bytes + WORD_BYTES)
    if codec == "power":
        return (n // shape[-1] + shape[-1]) * n_directions(shape, compression.rank or 0) * value_bytes
    if codec == "signs":
        return value_bytes + -(-n // _WORD_BITS) * WORD_BYTES
    if codec == "quantized":
        return -(-n // QSGD_BLOCK) * (QSGD_BLOCK + value_bytes)
    return n * element_bytes(codec)


def is_added_up(compression: Compression) -> bool:
    """True if encodings are summed on the network; others are first gathered from all members."""
    return BY_NAME[compression.name].codec in ("half", "bfloat16", "power")


def n_kept(n: int, ratio: float) -> int:
    """Number of values that top-k sends of n: ⌈ratio·n⌉, at least one."""
    # Without the margin 0.07 × 100, which is 7.000000000000001, would be 8.
    return min(n, max(1, math.ceil(ratio * n - 1e-9)))


def n_directions(shape: Sequence[int], rank: int) -> int:
    """Columns of PowerSGD's two factors: at most the rank of a matrix of this shape."""
    return max(1, min(rank, shape[-1], n_elements(shape[:-1])))


def _gains(node: PlanNode, compression: Compression, topology: Topology) -> bool:
    stays = node.synchronizer in ("none", "average")
    if stays or node.sparse or node.dtype not in FLOATING or -1 in node.shape:
        return False
    if not n_elements(node.shape) or (BY_NAME[compression.name].matrices and len(node.shape) < 2):
        return False
    if topology.n_tasks == 1 if node.synchronizer == "ps" else node.n_members(topology) == 1:
        return False
    is_gathered = node.synchronizer != "ps" and not is_added_up(compression)
    growth = sum(node.n_encoders(topology)) / 2 if is_gathered else 1.0
    return growth * payload_bytes(node.shape, node.dtype, compression) < node.bytes
