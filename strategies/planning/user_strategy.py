"""A user's own strategy: what its builder must have, and the strategy that it makes."""

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Protocol, get_args

from pydantic import ValidationError

from strategies.builders import parameter_server
from strategies.builders.equal_rows import MERGE_ROWS
from strategies.errors import StrategyError
from strategies.plan.schema import PlanNode, StepSummary, StrategyClass, mistake
from strategies.plan.strategy import Layout, Param, Params, ParamValue, Settlement, Strategy
from strategies.planning.node_rules import check_nodes
from strategies.planning.plan import check_param
from strategies.planning.registry import KNOBS, STRATEGIES
from strategies.topology import Topology

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_CLASSES = get_args(StrategyClass)


class Builder(Protocol):
    """What a user's class must have to be a strategy; no base class is needed.

    Attributes:
        name: kebab-case, as records and reports will say.
        summary: a line for people.
        strategy_class: what is promised: `exact`, `bounded`, `statistical` or `control`.
        params: knobs, given as `my_strategy.py:MyBuilder:key=value`.
    """

    name: str
    summary: str
    strategy_class: StrategyClass
    params: Sequence[Param]

    def layout(self, step: StepSummary, topology: Topology, params: Params) -> Sequence[PlanNode]:
        """What happens to each variable of the step; called only for more than one replica.

        Args:
            params: all knobs by name, with defaults filled in.
        Returns:
            one node for each variable.
        """
        ...


def strategy_of(made: object, *, where: str) -> Strategy:
    """The strategy of a builder.

    Args:
        where: `path.py:Builder`; begins the error line.
    Raises:
        StrategyError: that names what the builder lacks or has wrong.
    """
    builder = _checked(made, where)
    _check_params(tuple(builder.params), where)
    declared = {p.name for p in builder.params}
    params = (*builder.params, *(p for p in (MERGE_ROWS,) if p.name not in declared))
    return Strategy(
        name=builder.name,
        summary=builder.summary,
        strategy_class=builder.strategy_class,
        layout=_checked_layout(builder, where),
        params=params,
        settle=_settlement(params),
    )


def _checked(candidate: object, where: str) -> Builder:
    if inspect.isclass(candidate) or candidate is None:
        received = f"the class {candidate.__name__}" if inspect.isclass(candidate) else "None"
        raise StrategyError(f"{where} must return a builder, got {received}; end it with return <builder>")
    rules: dict[str, tuple[Callable[[object], bool], str]] = {
        "name": (_is_name, "a kebab-case text such as 'my-strategy'"),
        "summary": (_is_text, "a line of text"),
        "strategy_class": (lambda value: value in _CLASSES, f"one of {', '.join(_CLASSES)}"),
        "params": (_are_params, "a list or tuple of Param, () for none"),
        "layout": (callable, "a method that takes step, topology and params and returns plan nodes"),
    }
    for attribute, (holds, rule) in rules.items():
        try:
            value = getattr(candidate, attribute)
        except AttributeError:
            kind = type(candidate).__name__
            raise StrategyError(
                f"{where} returned a {kind} without {attribute}; give it {attribute}, {rule}"
            ) from None
        if not holds(value):
            raise StrategyError(f"{where}: {attribute} must be {rule}, got {value!r:.80}; change it")
    builder: Builder = candidate  # type: ignore[assignment]  # The rules above are the protocol's attributes.
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
        check_nodes(nodes, step, topology, where=f"{where}: layout")
        try:
            parameter_server.check_knobs(params, nodes, topology)
        except StrategyError as error:
            raise StrategyError(f"{where}: {error}") from None
        squeezed = next((node for node in nodes if node.compressor is not None), None)
        if squeezed is not None and builder.strategy_class == "exact":
            raise StrategyError(
                f"{where}: layout: variable {squeezed.variable!r}: strategy_class exact needs gradients as "
                f"they are, got compressor {squeezed.compressor.name!r}; say bounded"
            )
        return nodes

    return layout


def _check_types(node: PlanNode, where: str) -> None:
    """A copy with changes may hold anything."""
    try:
        PlanNode.model_validate(node.model_dump(warnings=False))
    except ValidationError as error:
        raise StrategyError(
            f"{where}: layout: variable {node.variable!r}: {mistake(error)}; fields are as `stratbench plan "
            "--json` prints them"
        ) from error


def _settlement(params: Sequence[Param]) -> Settlement | None:
    """Knobs of parameter servers have a say in the class, and may contradict each other."""
    own = {p.name for p in params}
    if own.isdisjoint(p.name for p in parameter_server.PARAMS):
        return None
    others = {p.name: p.default for p in parameter_server.PARAMS if p.name not in own}

    def settle(values: Params, otherwise: StrategyClass) -> StrategyClass:
        return parameter_server.settle({**others, **values}, otherwise)

    return settle


def _check_params(params: Sequence[Param], where: str) -> None:
    names = [p.name for p in params]
    for p in params:
        if names.count(p.name) > 1:
            raise StrategyError(f"{where}: params must have different names, got {p.name!r} twice; drop one")
        if not p.name.isidentifier() or p.name != p.name.lower():
            raise StrategyError(
                f"{where}: a param's name must be snake_case, got {p.name!r}; write small letters and _"
            )
        if p.type not in (bool, int, float, str):
            raise StrategyError(
                f"{where}: param {p.name!r}: type must be bool, int, float or str, got {p.type!r}; use one "
                "of these"
            )
        known = KNOBS.get(p.name)
        if known is not None and p.type is not known.type:
            raise StrategyError(
                f"{where}: param {p.name!r}: it is a knob of type {known.type.__name__} everywhere, got "
                f"{p.type.__name__}; call yours otherwise"
            )
        _check_value(
            p, p.default, where, rule="its default must be a value", way_out="change it, or use None"
        )
        for value in p.tunable:
            _check_value(p, value, where, rule="tunable must be values", way_out="change it, or leave it out")


def _check_value(param: Param, value: ParamValue, where: str, *, rule: str, way_out: str) -> None:
    try:
        check_param(where, param, value)
    except StrategyError as error:
        raise StrategyError(
            f"{where}: param {param.name!r}: {rule} that it takes, got {value!r}; {way_out}"
        ) from error


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip()) and "\n" not in value


def _are_params(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(p, Param) for p in value)
