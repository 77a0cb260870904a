"""`docs/strategies.md`, made from the registry by `python -m strategies.planning.docs_page` (`make docs`)."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from strategies.errors import UnsupportedError
from strategies.plan import compressors
from strategies.plan.compressed_payload import payload_bytes
from strategies.plan.compressors import BY_NAME
from strategies.plan.schema import Compression, StepSummary, VariableSummary
from strategies.plan.strategy import Param, Strategy
from strategies.planning.docs_texts import KNOBS as KNOB_TEXTS
from strategies.planning.docs_texts import STRATEGIES as TEXTS
from strategies.planning.registry import KNOBS, STRATEGIES, make_plan
from strategies.topology import Topology

PAGE = Path(__file__).parents[2] / "docs" / "strategies.md"
_N_LAYERS, _UNITS, _ROWS, _COLUMNS, _EXAMPLES = 8, 1024, 50_000, 64, 64
_GRADIENT = (1024, 1024)
_FOUR = Topology(replicas_per_task=(1,) * 4, batch_size=_EXAMPLES)
_ONE = Topology(replicas_per_task=(1,), batch_size=_EXAMPLES)
_INTRODUCTION = f"""\
# Strategies

<!-- Made by `make docs` from strategies/planning: registry.py, docs_texts.py. -->

Symbols: W workers (tasks), R replicas in each, N = W·R replicas in all, S bytes of all dense variables. A
*row* is what one id looks up in a variable whose gradient is sparse. Any task may serve variables.

Classes: **exact** computes what one device computes, up to rounding; **bounded** keeps to a bound
that it states, and every run checks these two; **statistical** reaches a loss in so many steps, and is not
compared; **control** must differ. A [knob](#knobs) can change the class, as its line says.

Bytes and memory follow from the plan: `stratbench plan WORKLOAD --strategy S` tells them for your model. An
example: {_N_LAYERS} dense kernels of {_UNITS} × {_UNITS} and a table of {_ROWS:,} rows of {_COLUMNS}, of
which each of {_EXAMPLES} examples looks up one, all float32 with a momentum slot, on 4 workers of a replica.
"""


def page() -> str:
    """The whole page, as Markdown."""
    return "\n".join(
        [
            _INTRODUCTION,
            _overview(),
            *(line for strategy in STRATEGIES for line in _section(strategy)),
            *_knobs(),
            *_compressors(),
        ]
    )


def example() -> StepSummary:
    """The step of the example."""
    table = VariableSummary(
        name="table",
        kind="trainable",
        dtype="float",
        shape=(_ROWS, _COLUMNS),
        bytes=_ROWS * _COLUMNS * 4,
        sparse=True,
        rows_per_example=1.0,
        synced=True,
        readiness=_N_LAYERS,
        partitionable_axes=(0,),
        apart=True,
        apart_axes=(0,),
        read_before_update=True,
    )
    kernels = [
        VariableSummary(
            name=f"kernel_{k}",
            kind="trainable",
            dtype="float",
            shape=(_UNITS, _UNITS),
            bytes=_UNITS * _UNITS * 4,
            synced=True,
            readiness=_N_LAYERS - 1 - k,
            partitionable_axes=(0, 1),
            apart=True,
            apart_axes=(0, 1),
            read_before_update=True,
        )
        for k in range(_N_LAYERS)
    ]
    slots = [
        VariableSummary(
            name=f"{v.name}/momentum",
            kind="slot",
            slot_of=v.name,
            dtype=v.dtype,
            shape=v.shape,
            bytes=v.bytes,
            reads=0,
        )
        for v in (table, *kernels)
    ]
    return StepSummary(workload="example", n_nodes=0, variables=(table, *kernels, *slots), batch=())


def _overview() -> str:
    header = ["strategy", "class", "all send", "busiest sends", "fullest server", "each replica"]
    return _table(header, [_figures(strategy) for strategy in STRATEGIES])


def _figures(strategy: Strategy) -> list[str]:
    name = [f"[`{strategy.name}`](#{strategy.name})", strategy.strategy_class]
    try:
        plan = make_plan(strategy.name, {}, example(), _ONE if strategy.single else _FOUR)
    except UnsupportedError:
        return [*name, "–", "–", "–", "–"]
    sent = [sum(row) for row in plan.payload_matrix]
    return [*name, *map(_megabytes, (sum(sent), max(sent), max(plan.server_bytes), plan.worker_bytes))]


def _section(strategy: Strategy) -> Iterable[str]:
    text = TEXTS[strategy.name]
    yield f"\n## {strategy.name}\n"
    yield f"{_sentence(strategy.summary)} Class: **{strategy.strategy_class}**.\n"
    yield f"- **Bytes:** {text.payload}."
    yield f"- **Memory:** {text.memory}."
    yield f"- **Choose it** {text.choose}."
    yield f"- **Not** {text.avoid}."
    if strategy.params:
        knobs = ", ".join(f"`{p.name}` ({_value(p.default)})" for p in strategy.params)
        yield f"- **Knobs** (default): {knobs}."


def _knobs() -> Iterable[str]:
    yield "\n## Knobs\n"
    yield _table(
        ["knob", "values", "`stratbench tune` tries", "meaning"],
        [
            [
                f"`{name}`",
                _values(KNOBS[name]),
                ", ".join(map(_value, KNOBS[name].tunable)) or "–",
                KNOB_TEXTS[name],
            ]
            for name in sorted(KNOBS)
        ],
    )


def _values(param: Param) -> str:
    if param.choices:
        return ", ".join(f"`{choice}`" for choice in param.choices)
    words = {bool: "true or false", int: "whole number", float: "number", str: "word"}
    least = "" if param.minimum is None else f", at least {param.minimum:g}"
    return f"{words[param.type]}{least}"


def _compressors() -> Iterable[str]:
    n_bytes = _GRADIENT[0] * _GRADIENT[1] * 4
    shape = " × ".join(map(str, _GRADIENT))
    yield "\n## Compressors\n"
    yield "What `compressor` may be. Rows of sparse gradients, integers and what would become no smaller"
    yield "travel as they are. With feedback, the next gradient gets what the encoding lost. *Bytes* are"
    yield f"those of a gradient of {shape} float32, which is {_megabytes(n_bytes)}.\n"
    rows = []
    for each in BY_NAME.values():
        options = {option.name: option.default for option in each.options}
        compression = Compression.model_validate({"name": each.name, **options})
        encoded = payload_bytes(_GRADIENT, "float", compression)
        knobs = ", ".join(f"`{compressors.param_of(name)}` ({value})" for name, value in options.items())
        share = f"{_megabytes(encoded)} ({encoded / n_bytes:.1%})"
        rows.append([f"`{each.name}`", each.summary, "yes" if each.feedback else "no", share, knobs or "–"])
    yield _table(["compressor", "what travels", "feedback", "bytes", "knobs (default)"], rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _value(value: object) -> str:
    if value is None:
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _megabytes(n_bytes: int) -> str:
    return "0" if n_bytes == 0 else f"{n_bytes / 1e6:.3g} MB"


def main() -> int:
    """Write the page."""
    PAGE.write_text(page() + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
