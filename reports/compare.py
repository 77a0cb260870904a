"""Comparisons from stored records: group by workload and cluster shape, compare, rank, judge."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.records.conditions import AS_WRITTEN
from harness.records.record import Record
from reports.case_row import case_row, is_usable, rates_of
from reports.contrasts import Contrasts
from reports.curves.fault_matrix import fault_matrices
from reports.curves.one_comparison import curves_of
from reports.curves.residuals import residuals_of
from reports.curves.sizes_and_links import Source, link_sensitivity_of, scaling_of
from reports.load import Run, legible, legible_left_out
from reports.origins import differences_of, origin_of
from reports.recommendation.candidates import ranks
from reports.recommendation.notes import notes_of
from reports.recommendation.phrases import provisional
from reports.recommendation.verdict import verdict
from reports.repeat_files.files_of_rows import ShownSteps, StepReader, StepShares, row_with_files
from reports.repeat_files.plans import lines_of_each
from reports.rows.parts import Problem
from reports.rows.report import GOALS, Comparison, Goal, LeftOut, Report
from reports.rows.row import Row
from reports.shapes import BASELINE, ComparedShape, shape_text, shapes_of, strategy_names
from reports.statistics import Ratio, mean_of
from reports.trust import trust_of


def report_title(runs: Sequence[Run]) -> str:
    """Names of the experiments, and the number of runs."""
    names = ", ".join(dict.fromkeys(_experiment(run) for run in runs))
    return f"{names}, {len(runs)} runs" if len(runs) > 1 else names or "empty report"


def hints_of(runs: Sequence[Run]) -> tuple[str, ...]:
    """Hints on runs without a result, and `compare` commands for runs of one experiment with common cases."""
    by_experiment: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.stored.created_utc or ""):
        by_experiment.setdefault(_experiment(run), []).append(run)
    newest = [(name, alike[-2], alike[-1]) for name, alike in by_experiment.items() if len(alike) > 1]
    return (
        *(_empty_hint(run) for run in runs if not run.records),
        *(
            _compare_hint(name, earlier, later)
            for name, earlier, later in newest
            if _cases(earlier) & _cases(later)
        ),
    )


def _cases(run: Run) -> set[str]:
    return {record.case for record in run.records}


def _empty_hint(run: Run) -> str:
    return (
        f"{run.name} has no result: it stopped before a repeat ended, or its results cannot be read. Its "
        f"logs are in {_folder(run)}; `stratbench run --resume` continues it."
    )


def _compare_hint(name: str, earlier: Run, later: Run) -> str:
    return (
        f"Strategies are compared within each run. To compare runs of {name}: "
        f"stratbench compare {_folder(earlier)} {_folder(later)}"
    )


def _folder(run: Run) -> str:
    """Path of a run folder as given on the command line, quoted for a shell."""
    return shlex.quote(legible(str(run.stored.path)))


def _experiment(run: Run) -> str:
    return str(run.experiment.get("name") or run.name)


_Cases = Mapping[str, Sequence[Record]]
_LEAST_BASELINES = 4
_MOST_RATIOS = 4_000
"""Most ratios of rows to selectable baselines; with many rows, fewer baselines are selectable."""


def build(
    runs: Sequence[Run],
    *,
    read_steps: StepReader | None = None,
    with_files: bool = False,
    n_baselines: int = 0,
) -> Report:
    """Make all rows of a report.

    Args:
        runs: loaded run folders; strategies are compared within a run only, because only there repeats are
            interleaved.
        read_steps: reader of per-step times; None leaves them out.
        with_files: True to add the contents of plans, logs and traces.
        n_baselines: maximum number of baselines that a reader can select.
    """
    sources: list[Source] = []
    left_out: list[LeftOut] = []
    shapes = [(n, shape, cases) for n, run in enumerate(runs) for shape, cases in shapes_of(run).items()]
    for run in runs:
        left_out.extend(replace(item, where=f"{run.name}: {item.where}") for item in run.left_out)
    cases_by_shape = [cases for *_, cases in shapes]
    shown_steps = None if read_steps is None else ShownSteps(read_steps, _shares(cases_by_shape))
    n_rows = sum(map(len, cases_by_shape))
    most_lines = lines_of_each(n_rows) if with_files else None
    n_baselines = min(n_baselines, max(_LEAST_BASELINES, _MOST_RATIOS // max(1, n_rows)))
    for run_number, shape, cases in shapes:
        source = _compared(runs[run_number], shape, cases, shown_steps, left_out, most_lines)
        others = _other_baselines(source, n_baselines)
        comparison = replace(source.comparison, other_baselines=others)
        sources.append(replace(source, comparison=comparison, run_number=run_number))
    if shown_steps is not None:
        left_out.extend(shown_steps.left_out())
    comparisons = [source.comparison for source in sources]
    problems = _problems(sources, cases_by_shape)
    return Report(
        title=report_title(runs),
        comparisons=tuple(comparisons),
        fault_matrices=fault_matrices(sources),
        scaling=scaling_of(sources),
        link_sensitivity=link_sensitivity_of(sources),
        problems=problems if len(runs) > 1 else tuple(replace(problem, run="") for problem in problems),
        left_out=tuple(map(legible_left_out, left_out)),
        origins=tuple(origin_of(run) for run in runs),
        differences=differences_of(runs),
        hints=hints_of(runs),
        residuals=residuals_of(comparisons),
        trust=trust_of([record for run in runs for record in run.records], comparisons, left_out),
    )


def _shares(cases_by_shape: Sequence[_Cases]) -> StepShares:
    rows = [records for cases in cases_by_shape for records in cases.values()]
    return StepShares.of([sum(map(is_usable, records)) for records in rows])


def _problems(sources: Sequence[Source], cases_by_shape: Sequence[_Cases]) -> tuple[Problem, ...]:
    """Problems of all rows, each once: `single` appears in several shapes."""
    problems: dict[tuple[int, str, tuple[int, ...]], Problem] = {}
    for source, cases in zip(sources, cases_by_shape, strict=True):
        for row in source.comparison.rows:
            case = cases[row.strategy][0].case
            for problem in row.problems:
                named = replace(problem, run=source.comparison.run)
                problems.setdefault((source.run_number, case, problem.repeats), named)
    return tuple(problems.values())


def _compared(
    run: Run,
    shape: ComparedShape,
    cases: Mapping[str, list[Record]],
    shown_steps: ShownSteps | None,
    left_out: list[LeftOut],
    most_plan_lines: int | None,
) -> Source:
    usable = {name: [r for r in records if is_usable(r)] for name, records in cases.items()}
    rates = {name: rates_of(records) for name, records in usable.items()}
    contrasts = Contrasts(usable)
    baseline, baseline_notes = baseline_of(run, cases, rates)
    rows = []
    for name, records in cases.items():
        ratio = None if baseline in (None, name) else contrasts.of(name, baseline)
        prediction = run.stored.predictions.get(records[0].case)
        row = case_row(name, records, usable[name], shape, ratio, prediction)
        if most_plan_lines is not None:
            row = row_with_files(run, row, records, usable[name], left_out, most_lines=most_plan_lines)
        steps = () if shown_steps is None else shown_steps.of(run, usable[name], left_out)
        rows.append(replace(row, steps=steps, is_baseline=name == baseline))
    rows.sort(
        key=lambda row: (
            row.status != "ok",
            # The speed limit is no competitor, although it is the fastest.
            row.mark.kind == "control",
            not row.mark.proven,
            -contrasts.standing(row.strategy, baseline),
            row.strategy,
        )
    )
    places = ranks(rows, contrasts)
    rows = [replace(row, rank=places.get(row.strategy)) for row in rows]
    notes = notes_of(shape, rows, cases, baseline_notes, contrasts)
    comparison = _comparison(run, shape, rows, contrasts, [r for records in cases.values() for r in records])
    comparison = replace(
        comparison,
        baseline=baseline,
        verdict=provisional(comparison.verdict, notes),
        notes=tuple(note.text for note in notes),
        note_values=notes,
    )
    return Source(shape=shape, comparison=comparison, contrasts=contrasts)


def _comparison(
    run: Run, shape: ComparedShape, rows: Sequence[Row], contrasts: Contrasts, records: Sequence[Record]
) -> Comparison:
    """Comparison without baseline and notes."""
    methods = [r.method for r in records if r.method]
    faults = next((method.faults for method in methods if method.faults), ())
    links = [r.link.measured_mbit for usable in contrasts.usable.values() for r in usable if r.link]
    return Comparison(
        run=run.name,
        workload=shape.workload,
        shape=shape_text(shape),
        provider=shape.provider,
        device=shape.device,
        workers=shape.workers,
        replicas=shape.replicas,
        batch_size=shape.batch_size or None,
        batch_rule=next((method.batch_rule for method in methods), None),
        link_requested_mbit=shape.link_mbit or None,
        link_measured_mbit=mean_of(links),
        precision=shape.precision or AS_WRITTEN,
        xla=shape.xla,
        tf32=None if not shape.tf32 else shape.tf32 == "TF32",
        scenario=shape.scenario,
        replicas_on_gpus=shape.replicas_on_gpus,
        faults=faults,
        baseline=None,
        rows=tuple(rows),
        verdict=verdict(rows, contrasts, goal=_goal(run), has_faults=bool(faults)),
        notes=(),
        curves=curves_of(rows, contrasts),
    )


def _other_baselines(source: Source, most: int) -> dict[str, dict[str, Ratio]]:
    comparison = source.comparison
    rated = [row.strategy for row in comparison.rows if row.rate is not None]
    offered = [row.strategy for row in comparison.rows if row.rate is not None and row.status == "ok"]
    if comparison.baseline is not None:
        offered = [comparison.baseline, *(name for name in offered if name != comparison.baseline)]
    return {
        base: {
            name: lead
            for name in rated
            if name != base and (lead := source.contrasts.of(name, base)) is not None
        }
        for base in (offered[:most] if len(rated) > 1 else [])
    }


def _goal(run: Run) -> Goal:
    section = run.experiment.get("compare")
    chosen = section.get("goal") if isinstance(section, Mapping) else None
    return next((goal for goal in GOALS if goal == chosen), "fastest")


_NO_BASELINE = "baseline {name} has no result, nor has any other strategy: no ratios"
_OTHER_BASELINE = "baseline {name} has no result; ratios refer to {other}"


def baseline_of(
    run: Run, cases: Mapping[str, Sequence[Record]], rates: Mapping[str, Sequence[float]]
) -> tuple[str | None, tuple[str, ...]]:
    """Strategy that ratios refer to, and a note if it is not the configured one.

    Args:
        cases: strategy → its records, of one shape.
        rates: strategy → throughput of its usable repeats.
    """
    section = run.experiment.get("compare")
    configured = section.get("baseline") if isinstance(section, Mapping) else None
    wanted = configured if isinstance(configured, str) else BASELINE
    # A bare name may match several strategies: the order of records must not decide.
    by_name = (name for name, records in sorted(cases.items()) if wanted in strategy_names(records[0]))
    matches = [name for name in ([wanted] if wanted in cases else by_name) if rates[name]]
    if matches:
        return matches[0], ()
    with_result = [name for name in cases if rates[name]]
    candidates = [name for name in with_result if cases[name][0].strategy_class != "control"] or with_result
    if not candidates:
        return None, (_NO_BASELINE.format(name=wanted),)
    return candidates[0], (_OTHER_BASELINE.format(name=wanted, other=candidates[0]),)
