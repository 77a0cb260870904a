"""`stratbench verify`: does a strategy compute what one device computes?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from math import inf, isfinite
from typing import Annotated, cast

import typer

from harness.cli import options, output
from harness.cli.answer import Answer
from harness.cli.isolation import NoIsolation, RequireIsolation, isolate
from harness.equivalence.verdict import named
from harness.errors import EXIT_CASE, EXIT_OK
from harness.measure.timeouts import timeouts
from harness.provision.network_namespace import exposed_line
from harness.requests import Target, VerifyRequest

EXAMPLE = "stratbench verify digits-mlp --strategy all-reduce --workers 2"

_N_WORST = 5
_WITHOUT_LIMIT = ("bounded", "statistical")  # they differ from the exact reference by what they are


class Precision(StrEnum):
    """In which numbers to compute."""

    MODEL = "model"
    FLOAT64 = "float64"


def verify(
    context: typer.Context,
    workload: options.WorkloadArgument,
    *,
    strategy: options.StrategyOption = None,
    plan: options.PlanOption = None,
    workers: options.Workers = 2,
    replicas: options.Replicas = 1,
    steps: Annotated[
        int, typer.Option("--steps", metavar="K", min=1, help="Training steps to compare after.")
    ] = 4,
    last_batch: Annotated[
        int | None,
        typer.Option("--last-batch", metavar="N", min=1, help="Examples in the last step's batch; all."),
    ] = None,
    dtype: Annotated[
        Precision | None,
        typer.Option(
            "--dtype", help="Numbers to compute in.", show_default="float64, model for TensorFlow's own"
        ),
    ] = None,
    restore: options.Restore = None,
    shrink: Annotated[
        bool, typer.Option("--shrink", help="Name the first pass and variable that diverge.")
    ] = False,
    require_isolation: RequireIsolation = False,
    no_isolation: NoIsolation = False,
    timeout_factor: options.TimeoutFactor = 1.0,
    json: options.Json = False,
    debug: options.Debug = False,  # noqa: ARG001 - read by main
) -> Answer:
    """Compare a strategy's variables and slots with a single-device reference, made on the spot."""
    exposure = isolate(context, no_isolation=no_isolation, require_isolation=require_isolation)
    request = VerifyRequest(
        target=options.target(workload, strategy, plan, workers, replicas),
        steps=steps,
        last_batch=last_batch,
        dtype=None if dtype is None else dtype.value,
        restore=restore,
        shrink=shrink,
        live=options.is_watched(json=json),
        timeouts=timeouts(timeout_factor),
    )
    from harness import pipeline

    document = pipeline.verify(request)
    if exposure is not None:
        # Not before: a mistake of the user's costs one line.
        output.warn(exposed_line(exposure))
    return Answer(
        document=document,
        show=partial(_show, document, request.target),
        exit_status=EXIT_OK if _passes(document) else EXIT_CASE,
    )


def _show(document: Mapping[str, object], asked: Target) -> None:
    variables = document.get("variables")
    rows = (
        [item for item in variables if isinstance(item, Mapping)] if isinstance(variables, Sequence) else []
    )
    output.say(_verdict(document, asked))
    _show_undecidable(document)
    _show_separability(document)
    for key in ("warnings", "notes"):
        texts = document.get(key)
        for text in texts if isinstance(texts, Sequence) else ():
            output.say(f"{key.removesuffix('s')}: {text}")
    _show_variables(document, rows)
    _show_results(document.get("results"))
    diverged = document.get("shrink")
    if isinstance(diverged, Mapping):
        output.say()
        output.say(", ".join(f"first {key} that diverges: {value}" for key, value in diverged.items()))


def _show_undecidable(document: Mapping[str, object]) -> None:
    """What a passed check says nothing of; one that did not pass names it with its reason."""
    names = cast("Sequence[str]", document["undecidable"])
    if names and _passes(document) and document["class"] != "statistical":
        output.say(
            f"UNDECIDED: nothing can be told of {named(names)}, which rounding moves as far as the update or "
            "which did not move"
        )


def _show_separability(document: Mapping[str, object]) -> None:
    """Whether what is equivalent is also what the step means on the whole batch."""
    told = document.get("separability")
    if isinstance(told, Mapping):
        words = {True: "SEPARABLE", False: "NOT SEPARABLE", None: "SEPARABILITY UNKNOWN"}
        output.say(f"{words[cast('bool | None', document['separable'])]}: {told['explanation']}")


def _show_variables(document: Mapping[str, object], rows: Sequence[Mapping[str, object]]) -> None:
    """The variables that decide, beside what they are held to; without limits those that differ most."""
    undecidable = document.get("undecidable")
    silent = set(undecidable) if isinstance(undecidable, Sequence) else set()
    shown = sorted((row for row in rows if row["name"] not in silent), key=_badness, reverse=True)[:_N_WORST]
    if not shown:
        return
    figures = ["update_error", "tolerance", "noise_floor"]
    title = "nearest to their limits"
    if document["class"] in _WITHOUT_LIMIT:
        figures, title = ["update_error"], "farthest from the exact reference"
        shown = sorted(rows, key=lambda row: _finite_or_inf(row["update_error"]), reverse=True)[:_N_WORST]
    output.say()
    output.table(
        [f"{title}, {len(shown)} of {len(rows)}", "kind", *(key.replace("_", " ") for key in figures)],
        [
            [str(row["name"]), str(row["kind"]), *(output.number(row[key]) for key in figures)]
            for row in shown
        ],
    )


def _show_results(results: object) -> None:
    """What the last step returned beside its loss."""
    rows = [row for row in results if isinstance(row, Mapping)] if isinstance(results, Sequence) else []
    if not rows:
        return
    output.say()
    output.table(
        ["results of the last step", "rule", "each replica", "all replicas", "reference", "error"],
        [
            [
                str(row["name"]),
                str(row["rule"]),
                ", ".join(_scalar(value) for value in row["per_shard"]),
                _result(row, "value"),
                _result(row, "reference_value"),
                output.number(row["error"]),
            ]
            for row in rows
        ],
    )


def _result(row: Mapping[str, object], key: str) -> str:
    return _scalar(row[key]) if row["shape"] == [] else f"of shape {row['shape']}"


def _scalar(value: object) -> str:
    if value is None:
        return "-"
    return output.number(value) if isinstance(value, float) else str(value)


def _verdict(document: Mapping[str, object], asked: Target) -> str:
    verdict = _word(document)
    shape = f"{document['workers']} workers x {document['replicas']} replicas"
    # Files have given it a name; parameters are as they were asked for.
    strategy = replace(asked.strategy, name=str(document["strategy"]))
    workload = replace(asked.workload, reference=str(document["workload"]))
    what = f"{strategy} ({document['class']}) on {workload}, {shape}"
    error, tolerance = output.number(document["max_update_error"]), output.number(document["tolerance"])
    floor = output.number(document["noise_floor"])
    if document["class"] in _WITHOUT_LIMIT:
        variables = cast("Sequence[Mapping[str, object]]", document["variables"])
        largest = max((_finite_or_inf(v["update_error"]) for v in variables), default=0.0)
        figures = f"update errors of up to {output.number(largest)} against the exact reference"
    else:
        figures = (
            f"update error {error}, tolerance {tolerance}, noise floor {floor} where nearest to the limit"
        )
    line = f"{verdict}: {what}, {document['steps']} steps in {document['dtype']}: {figures}"
    return line if document["reason"] is None else f"{line}; {document['reason']}"


def _passes(document: Mapping[str, object]) -> bool:
    """Whether the exit status is that of success: shown, as far as its class can be."""
    if document["class"] == "bounded":
        return document["within_bound"] is True
    return document["class"] == "statistical" or document["equivalent"] is True


def _word(document: Mapping[str, object]) -> str:
    if document["class"] == "statistical":
        return "NOT COMPARED"
    if document["class"] == "bounded":
        return {True: "WITHIN ITS BOUND", False: "BEYOND ITS BOUND", None: "UNDECIDABLE"}[
            cast("bool | None", document["within_bound"])
        ]
    return {True: "EQUIVALENT", False: "NOT EQUIVALENT", None: "UNDECIDABLE"}[
        cast("bool | None", document["equivalent"])
    ]


def _badness(item: Mapping[str, object]) -> tuple[float, float]:
    """An error as a share of its tolerance; of errors alike, the one that had more room first."""
    error, tolerance = _finite_or_inf(item["update_error"]), _finite_or_inf(item["tolerance"])
    if not error or (isfinite(error) and tolerance == inf):
        return 0.0, tolerance
    return (error / tolerance if tolerance and isfinite(error) else inf), tolerance


def _finite_or_inf(value: object) -> float:
    # Missing means not finite, which is as wrong as it gets; NaN would leave the order undefined.
    return float(value) if isinstance(value, int | float) and isfinite(value) else inf
