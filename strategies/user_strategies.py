"""User strategies: a builder class in a Python file, or an edited plan file.

`stratbench plan --json` and a run folder's `plan.json` are both read. Fields that follow from nodes and knobs
are ignored: bytes, class, notes, `sparse_duplicates`, recommendation and costs on a slice.
"""

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, get_args

from pydantic import ValidationError

from strategies.builders import parameter_server
from strategies.builders.shared_params import MERGE_ROWS, check_exclusions
from strategies.errors import StrategyError, UnsupportedError
from strategies.params import Param, Params, ParamValue
from strategies.plan.node_rules import check_nodes
from strategies.plan.number_lists import Numbers
from strategies.plan.schema import Frozen, Plan, PlanNode, StepSummary, StrategyClass, mistake
from strategies.plan.strategy import Layout, Strategy, independent
from strategies.planner import assembled, class_with, settled
from strategies.registry import KNOBS, STRATEGIES
from strategies.topology import Topology
from strategies.user_errors import Rules, broken_attribute


class _Document(Frozen):
    """Fields of a plan that the others follow from."""

    workload: str
    strategy: str
    strategy_params: Mapping[str, bool | int | float | str | None] = {}
    replicas_per_task: Numbers
    nodes: tuple[PlanNode, ...]


_MATRICES = {"payload_matrix", "pull_matrix"}
"""Fields of `plan --matrix`, and of all plans until 0.1."""
_DERIVED = {"class", "slice", "recommendation", *_MATRICES, *Plan.model_fields} - {*_Document.model_fields}


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedPlan:
    """A plan file as a strategy.

    Attributes:
        where: beginning of every error message.
        strategy: strategy with the name for records and the class of its nodes.
        params: knobs of the strategy that made the original plan.
    """

    where: str
    strategy: Strategy
    params: Mapping[str, ParamValue]
    workload: str
    replicas_per_task: tuple[int, ...]
    nodes: tuple[PlanNode, ...]

    def plan(self, step: StepSummary, topology: Topology) -> Plan:
        """Plan of a captured step.

        Raises:
            UnsupportedError: the file is for another workload or other workers.
            StrategyError: a node cannot be carried out.
        """
        reason = self.refusal(step.workload, topology.replicas_per_task)
        if reason is not None:
            raise UnsupportedError(reason)
        lacking = self.strategy.lacks(topology.device)
        if lacking is not None:
            raise UnsupportedError(f"{self.where}: {lacking}")
        if topology.n_replicas > 1:
            _check(self.nodes, self.params, step, topology, where=self.where)
        return assembled(self.strategy, self.params, self.nodes, step, topology)

    def refusal(self, workload: str, replicas_per_task: tuple[int, ...]) -> str | None:
        """Reason why the plan does not fit this workload on these workers, None if it does."""
        if workload != self.workload:
            return (
                f"{self.where}: is for workload {self.workload!r}, got {workload!r}; make one with "
                f"`stratbench plan {workload} --json`"
            )
        if replicas_per_task != self.replicas_per_task:
            return (
                f"{self.where}: is for {_shape(self.replicas_per_task)}, got {_shape(replicas_per_task)}; "
                "give its numbers with --workers and --replicas, or make one for these"
            )
        return None


def _check(
    nodes: Sequence[PlanNode], params: Params, step: StepSummary, topology: Topology, *, where: str
) -> None:
    check_nodes(nodes, step, topology, where=where)
    try:
        parameter_server.check_knobs(params, nodes, topology)
    except StrategyError as error:
        raise StrategyError(f"{where}: {error}") from None


def read_plan(text: str, *, name: str, where: str) -> EditedPlan:
    """Read a plan file.

    Args:
        text: plan as JSON.
        name: name for records.
        where: beginning of every error message.
    Raises:
        StrategyError: the text is not a plan, or knobs contradict each other.
    """
    try:
        parsed = json.loads(text, object_pairs_hook=_once)
        if not isinstance(parsed, dict):
            raise StrategyError(
                f"must be a JSON object, got {type(parsed).__name__}; begin with what `stratbench plan "
                "--json` prints"
            )
        document = _Document.model_validate({k: v for k, v in parsed.items() if k not in _DERIVED})
        strategy, params = _settled(document)
    except ValidationError as error:
        raise StrategyError(f"{where}: {mistake(error)}; see what `stratbench plan --json` prints") from error
    except (RecursionError, ValueError) as error:  # also for deeply nested brackets and huge numbers
        raise StrategyError(
            f"{where}: must be JSON of a plan's size, got {error}; begin with what `stratbench plan --json` "
            "prints"
        ) from error
    except StrategyError as error:
        raise StrategyError(f"{where}: {error}") from error
    return EditedPlan(
        where=where,
        strategy=replace(strategy, name=name, strategy_class=_class_of(document.nodes, strategy)),
        params=params,
        workload=document.workload,
        replicas_per_task=document.replicas_per_task,
        nodes=document.nodes,
    )


def _settled(document: _Document) -> tuple[Strategy, Mapping[str, ParamValue]]:
    """Strategy that made a plan; for a user's own strategy, its file is not needed."""
    made_with = next((s for s in STRATEGIES if s.name == document.strategy), None)
    if made_with is None:
        own = Strategy(
            name=document.strategy,
            summary="an edited plan",
            strategy_class="exact",
            layout=independent,
            params=(),
        )
        values = document.strategy_params.items()
        params = {k: KNOBS[k].read(v, of=f"strategy {own.name!r}: ") if k in KNOBS else v for k, v in values}
        check_exclusions(params)
        return replace(own, strategy_class=class_with(params, "exact")), params
    if made_with.runner != "graph":
        raise StrategyError(
            f"must be of a strategy that rewrites the graph, got {made_with.name!r}, which runs the "
            "workload's own code under TensorFlow; use that strategy itself"
        )
    # A plan names all of its knobs: of two that exclude each other, one has its default.
    usual = {p.name: (type(p.default), p.default) for p in made_with.params}
    changes = {k: v for k, v in document.strategy_params.items() if usual.get(k) != (type(v), v)}
    return settled(made_with, changes)


def _class_of(nodes: tuple[PlanNode, ...], made_with: Strategy) -> StrategyClass:
    if all(node.synchronizer == "none" for node in nodes):
        return "control"
    averaged = any(node.synchronizer == "average" for node in nodes)
    if averaged or made_with.strategy_class == "statistical":
        return "statistical"
    return "bounded" if any(node.compressor for node in nodes) else "exact"


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members: dict[str, object] = {}
    for key, value in pairs:
        if key in members:
            raise StrategyError(f"a key must be given once, got {key!r} twice; drop one")
        members[key] = value
    return members


def _shape(replicas_per_task: tuple[int, ...]) -> str:
    counts = [f"{n} replica" + "s" * (n != 1) for n in dict.fromkeys(replicas_per_task)]
    n_workers = len(replicas_per_task)
    return f"{n_workers} worker{'s' * (n_workers != 1)} of {' and '.join(counts)}"


_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_CLASSES = get_args(StrategyClass)


class Builder(Protocol):
    """A user's strategy: any class with these attributes; no base class is needed.

    Attributes:
        name: name for records and reports, kebab-case.
        summary: one-line description.
        strategy_class: `exact`, `bounded`, `statistical` or `control`.
        params: knobs, set with `my_strategy.py:MyBuilder:key=value`.
    """

    name: str
    summary: str
    strategy_class: StrategyClass
    params: Sequence[Param]

    def layout(self, step: StepSummary, topology: Topology, params: Params) -> Sequence[PlanNode]:
        """Return one plan node per variable; called only for more than one replica.

        Args:
            params: all knobs by name, with defaults.
        """
        ...


def strategy_of(returned: object, *, where: str) -> Strategy:
    """Make a strategy from a user's builder.

    Args:
        where: `path.py:Builder`, the beginning of the error message.
    Raises:
        StrategyError: an attribute of the builder is missing or wrong; the message names it.
    """
    builder = _checked(returned, where)
    _check_params(tuple(builder.params), where)
    declared = {p.name for p in builder.params}
    params = (*builder.params, *(p for p in (MERGE_ROWS,) if p.name not in declared))
    return Strategy(
        name=builder.name,
        summary=builder.summary,
        strategy_class=builder.strategy_class,
        layout=_checked_layout(builder, where),
        params=params,
    )


def _checked(candidate: object, where: str) -> Builder:
    if inspect.isclass(candidate) or candidate is None:
        received = f"the class {candidate.__name__}" if inspect.isclass(candidate) else "None"
        raise StrategyError(f"{where} must return a builder, got {received}; end it with return <builder>")
    rules: Rules = {
        "name": (_is_name, "a kebab-case text such as 'my-strategy'"),
        "summary": (_is_text, "a line of text"),
        "strategy_class": (lambda value: value in _CLASSES, f"one of {', '.join(_CLASSES)}"),
        "params": (_are_params, "a list or tuple of Param, () for none"),
        "layout": (callable, "a method that takes step, topology and params and returns plan nodes"),
    }
    if (broken := broken_attribute(candidate, rules, where)) is not None:
        raise StrategyError(broken[1])
    builder: Builder = candidate  # type: ignore[assignment]  # The rules above check the protocol's attributes.
    if builder.name in (strategy.name for strategy in STRATEGIES):
        raise StrategyError(
            f"{where}: name must not be that of another strategy, got {builder.name!r}; choose another"
        )
    return builder


def _checked_layout(builder: Builder, where: str) -> Layout:
    def layout(step: StepSummary, topology: Topology, params: Params) -> Sequence[PlanNode]:
        nodes: object = builder.layout(step, topology, params)
        if not isinstance(nodes, list | tuple):
            raise StrategyError(
                f"{where}: layout must return a list of plan nodes, got {type(nodes).__name__}; make one for "
                "each variable with node_of(variable, …)"
            )
        for node in nodes:
            if not isinstance(node, PlanNode):
                raise StrategyError(
                    f"{where}: layout must return plan nodes, got a {type(node).__name__}; make them with "
                    "node_of(variable, …)"
                )
            _check_types(node, where)
        _check(nodes, params, step, topology, where=f"{where}: layout")
        squeezed = next((node for node in nodes if node.compressor is not None), None)
        if squeezed is not None and builder.strategy_class == "exact":
            raise StrategyError(
                f"{where}: layout: variable {squeezed.variable!r}: strategy_class exact needs gradients as "
                f"they are, got compressor {squeezed.compressor.name!r}; say bounded"
            )
        return nodes

    return layout


def _check_types(node: PlanNode, where: str) -> None:
    """Validate a node again, because `model_copy` accepts any changes."""
    try:
        PlanNode.model_validate(node.model_dump(warnings=False))
    except ValidationError as error:
        raise StrategyError(
            f"{where}: layout: variable {node.variable!r}: {mistake(error)}; fields are as `stratbench plan "
            "--json` prints them"
        ) from error


def _check_params(params: Sequence[Param], where: str) -> None:
    names = [p.name for p in params]
    for p in params:
        if names.count(p.name) > 1:
            raise StrategyError(f"{where}: params must have different names, got {p.name!r} twice; drop one")
        known = KNOBS.get(p.name)
        if known is not None and p.type is not known.type:
            raise StrategyError(
                f"{where}: param {p.name!r}: it is a knob of type {known.type.__name__} everywhere, got "
                f"{p.type.__name__}; call yours otherwise"
            )


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and "\n" not in value


def _are_params(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(p, Param) for p in value)
