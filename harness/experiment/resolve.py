"""From an experiment's file and the options beside it to frozen values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from harness.errors import UsageError
from harness.experiment.chosen_strategy import merging_rows, spelt
from harness.experiment.cluster_section import (
    cluster_from,
    connection_around,
    connection_from,
    prices_from,
    without_connection,
)
from harness.experiment.references import (
    StrategyRef,
    WorkloadRef,
    home_expanded,
    strategy_from,
    workload_from,
)
from harness.experiment.spec import (
    SHAPE_KEYS,
    CaseFilter,
    Checkpoints,
    ExperimentSpec,
    Measure,
    Scenario,
    Until,
)
from strategies.errors import StrategyError
from strategies.plan.faults import Fault, check_faults, fault_of

if TYPE_CHECKING:
    from harness.experiment.schema import (
        CheckpointSection,
        ExperimentModel,
        FaultSection,
        FilterSection,
        MeasureSection,
    )
    from harness.experiment.yaml_reader import YamlValue

T = TypeVar("T")


def load_experiment(
    experiment: str,
    *,
    settings: Sequence[str] = (),
    overrides: Mapping[str, object] | None = None,
    plan: str | None = None,
    surroundings: Mapping[str, str] | None = None,
) -> ExperimentSpec:
    """Find, read, override and resolve an experiment.

    Args:
        experiment: a path, or the name of a shipped file.
        settings: `dotted.path=value` each, as given with --set; laid over the file.
        overrides: dotted path → value from other options; laid over the settings.
        plan: path of an edited plan to run beside the strategies.
        surroundings: environment variables, which name the cluster that this process is a part of.
    Raises:
        UsageError: for anything wrong in the file or the options, with the path of the field.
    """
    # YAML and pydantic are only needed once a file is read.
    from harness.experiment import file

    return laid_over(
        file.read(file.find(experiment)),
        settings=settings,
        overrides=overrides,
        plan=plan,
        surroundings=surroundings,
    )


def laid_over(
    document: Mapping[str, YamlValue],
    *,
    settings: Sequence[str] = (),
    overrides: Mapping[str, object] | None = None,
    plan: str | None = None,
    surroundings: Mapping[str, str] | None = None,
) -> ExperimentSpec:
    """Override and resolve an experiment document.

    Args:
        document: what a file would hold; the others as for `load_experiment`.
    Raises:
        UsageError: for anything wrong in it or the options, with the path of the field.
    """
    from harness.experiment import file

    values = _settings(settings)
    values.update(overrides or {})
    notes = _left_out(document, overrides or {})
    document = file.overlay(without_connection(document, values), values)
    document = file.overlay(document, connection_around(document, surroundings or {}))
    if plan is not None:
        listed = document.get("strategies", [])
        document["strategies"] = [*(listed if isinstance(listed, list) else [listed]), plan]
    replaced = any(path.split(".")[0] == "strategies" for path in values)
    spec = resolve(document, strategies_replaced=replaced)
    return dataclasses.replace(spec, notes=(*spec.notes, *notes))


def _settings(texts: Sequence[str]) -> dict[str, YamlValue]:
    """What is set by dotted path, each path once.

    Raises:
        UsageError: a path is set again, or a text sets nothing.
    """
    from harness.experiment import file

    values: dict[str, YamlValue] = {}
    for text in texts:
        path, value = file.parse_setting(text)
        if path in values:
            raise UsageError("must be set once, got it again; drop one", field=f"set {path}")
        values[path] = value
    return values


def _left_out(document: Mapping[str, YamlValue], overrides: Mapping[str, object]) -> tuple[str, ...]:
    """What options put out of force of a file without naming it."""
    measure = document.get("measure")
    until = measure.get("until") if isinstance(measure, Mapping) else None
    if until is None or overrides.get("measure.until", until) is not None:
        return ()
    return ("measure.until of the experiment is left out, since the number of repeats was given",)


def resolve(document: Mapping[str, object], *, strategies_replaced: bool = False) -> ExperimentSpec:
    """Resolve an experiment document.

    Args:
        document: the file's content.
        strategies_replaced: whether the file's own list was replaced, so that its baseline may be gone.
    Raises:
        UsageError: for the first thing wrong, with its dotted path.
    """
    from harness.experiment.schema import validate

    model = validate(document)
    merge_rows = model.measure.merge_rows
    strategies = tuple(
        dict.fromkeys(
            _strategy(item, field=f"strategies[{index}]", merge_rows=merge_rows)
            for index, item in enumerate(model.strategies)
        )
    )
    baseline, notes = _baseline(model, strategies, replaced=strategies_replaced)
    cluster, measure = cluster_from(model.cluster), _measure(model.measure)
    if False in measure.tf32 and "gpu" not in cluster.device:
        notes += ("measure.tf32 changes nothing here: TF32 is of GPUs, and cluster.device names none",)
    workloads = tuple(dict.fromkeys(_workloads(model.workloads)))
    connection = connection_from(model.cluster)
    if connection.address is not None:
        _refuse_absolute(workloads)
    return ExperimentSpec(
        name=model.name,
        workloads=workloads,
        strategies=strategies,
        cluster=cluster,
        measure=measure,
        include=_filters(model.matrix.include, "matrix.include"),
        exclude=_filters(model.matrix.exclude, "matrix.exclude"),
        baseline=baseline,
        goal=model.compare.goal,
        checkpoint=_checkpoints(model.checkpoint),
        scenarios=_scenarios(model),
        connection=connection,
        prices=prices_from(model.cluster),
        notes=notes,
    )


def _strategy(item: object, *, field: str, merge_rows: bool = False) -> StrategyRef:
    ref = spelt(strategy_from(item, field=field))
    return merging_rows(ref) if merge_rows else ref


def _workloads(items: Sequence[object]) -> Iterator[WorkloadRef]:
    for index, item in enumerate(items):
        ref = workload_from(item, field=f"workloads[{index}]")
        batch_size = ref.params.get("batch_size", 1)
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise UsageError(
                f"must be a whole number of examples, at least 1, got {batch_size!r}",
                field=f"workloads[{index}].batch_size",
            )
        yield ref


def _measure(section: MeasureSection) -> Measure:
    until = section.until
    for name, is_given in (("until", until is not None), ("aa", section.aa)):
        if is_given and not section.interleave:
            raise UsageError(
                "must be used with measure.interleave: ratios are formed within rounds; drop one of them",
                field=f"measure.{name}",
            )
    return Measure(
        warmup_steps=None if section.warmup_steps == "auto" else section.warmup_steps,
        steps=section.steps,
        repeats=section.repeats,
        interleave=section.interleave,
        seed=section.seed,
        batch=section.batch,
        trace=section.trace,
        rounds=section.rounds,
        window_s=section.window_s,
        aa=section.aa,
        observer=section.observer,
        exposed_comm=section.exposed_comm,
        evaluate=section.evaluate,
        precision=tuple(section.precision),
        xla=tuple(section.xla),
        tf32=tuple(section.tf32),
        input=section.input,
        until=None if until is None else Until(ratio_ci=until.ratio_ci, at_most_s=until.at_most),
    )


def _refuse_absolute(workloads: Sequence[WorkloadRef]) -> None:
    """Nodes of a cluster see a user's files elsewhere, where only what is relative leads to them."""
    for index, ref in enumerate(workloads):
        if ref.is_path and ref.reference.startswith("/"):
            raise UsageError(
                f"must be relative to the current folder for the cluster provider, got {ref.reference!r}; "
                "start the command in a folder above it",
                field=f"workloads[{index}]",
            )


def _checkpoints(section: CheckpointSection) -> Checkpoints:
    # A run that is resumed elsewhere means the same checkpoint.
    restore = None if section.restore is None else Path(home_expanded(section.restore)).absolute()
    return Checkpoints(save=section.save, restore=restore)


def _scenarios(model: ExperimentModel) -> tuple[Scenario, ...]:
    """What goes wrong with workers; a plain list is one scenario."""
    if isinstance(model.faults, dict):
        named = {name: (f"faults.{name}", faults) for name, faults in model.faults.items()}
    else:
        named = {"faults" if model.faults else "": ("faults", model.faults)}
    most = max(model.cluster.workers)
    scenarios = tuple(
        Scenario(
            name=name,
            faults=tuple(
                # Each draws for itself.
                _fault(item, f"{field}[{index}]", model.measure.seed + 1_000_003 * index, most)
                for index, item in enumerate(items)
            ),
        )
        for name, (field, items) in named.items()
    )
    if not scenarios:
        raise UsageError("must have a scenario, got an empty mapping; drop it", field="faults")
    for scenario in scenarios:
        alike = next(each for each in scenarios if each.faults == scenario.faults)
        if alike is not scenario:
            raise UsageError(
                f"must differ from other scenarios, got the faults of {alike.name!r}; drop one of them",
                field=f"faults.{scenario.name}",
            )
    for scenario, (field, _) in zip(scenarios, named.values(), strict=True):
        _checked(partial(check_faults, scenario.faults, most), field)
    return scenarios


def _fault(item: FaultSection, field: str, seed: int, n_workers: int) -> Fault:
    fault = _checked(partial(fault_of, item.model_dump(), seed=seed), field)
    if fault.worker >= n_workers:
        raise UsageError(
            f"must be one of {n_workers} workers, counted from 0, got {fault.worker}; raise cluster.workers",
            field=f"{field}.worker",
        )
    return fault


def _checked(make: Callable[[], T], field: str) -> T:
    try:
        return make()
    except StrategyError as error:
        raise UsageError(str(error), field=field) from error


def _baseline(
    model: ExperimentModel, strategies: tuple[StrategyRef, ...], *, replaced: bool
) -> tuple[StrategyRef, tuple[str, ...]]:
    wanted = model.compare.baseline
    if wanted is None:
        singles = [ref for ref in strategies if ref.name == "single"]
        return (singles or strategies)[0], ()
    ref = _strategy(wanted, field="compare.baseline", merge_rows=model.measure.merge_rows)
    if ref in strategies:
        return ref, ()
    if not replaced:
        names = ", ".join(str(item) for item in strategies)
        raise UsageError(
            f"must be one of the strategies ({names}), got {str(ref)!r}", field="compare.baseline"
        )
    note = f"baseline {ref} is not among the strategies given; comparing with {strategies[0]} instead"
    return strategies[0], (note,)


def _filters(sections: Sequence[FilterSection], field: str) -> tuple[CaseFilter, ...]:
    filters = []
    for index, item in enumerate(sections):
        path = f"{field}[{index}]"
        given = item.model_fields_set
        if not given:
            raise UsageError("must have at least one key, got an empty mapping; drop it", field=path)
        # Without an image of their own, cases have the provider's.
        empty = next((key for key in sorted(given - {"image"}) if getattr(item, key) is None), None)
        if empty is not None:
            raise UsageError("must say which cases are meant, got null; drop it", field=f"{path}.{empty}")
        filters.append(
            CaseFilter(
                workload=workload_from(item.workload, field=f"{path}.workload")
                if "workload" in given
                else None,
                strategy=_strategy(item.strategy, field=f"{path}.strategy") if "strategy" in given else None,
                shape=tuple(
                    (field_of_shape, getattr(item, key))
                    for field_of_shape, key in SHAPE_KEYS.items()
                    if key in given
                ),
                scenario=item.faults,
            )
        )
    return tuple(filters)
