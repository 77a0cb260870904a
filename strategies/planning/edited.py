"""A plan that a person has edited: read from its JSON, and made one of a captured step again.

What `stratbench plan --json` prints and what a run folder holds as `plan.json` are both read. Bytes, class,
notes and `sparse_duplicates` in the file are passed over: they follow from the nodes and knobs. So are how it
was tuned and what it costs on a TPU slice, which say nothing of nodes that were changed since.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import ValidationError

from strategies.builders import local, parameter_server
from strategies.builders.waiting import check_apart
from strategies.errors import StrategyError, UnsupportedError
from strategies.plan.schema import Frozen, Plan, PlanNode, StepSummary, StrategyClass, mistake
from strategies.plan.strategy import ParamValue, Strategy
from strategies.planning.node_rules import check_nodes
from strategies.planning.plan import assembled, check_param, settled
from strategies.planning.registry import KNOBS, STRATEGIES
from strategies.topology import Topology


class _Document(Frozen):
    """What a plan says; the rest of its fields follows from this."""

    workload: str
    strategy: str
    strategy_params: Mapping[str, bool | int | float | str | None] = {}
    replicas_per_task: tuple[int, ...]
    nodes: tuple[PlanNode, ...]


_DERIVED = {"class", "slice", "tuning", *Plan.model_fields} - {*_Document.model_fields}


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedPlan:
    """A plan's file as a strategy.

    Attributes:
        where: begins each error line.
        strategy: under the name that records say, in the class that the nodes come to.
        params: knobs of the strategy that the plan was made with.
    """

    where: str
    strategy: Strategy
    params: Mapping[str, ParamValue]
    workload: str
    replicas_per_task: tuple[int, ...]
    nodes: tuple[PlanNode, ...]

    def plan(self, step: StepSummary, topology: Topology) -> Plan:
        """The plan of a captured step.

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
            check_nodes(self.nodes, step, topology, where=self.where)
            self._check_knobs(topology)
        return assembled(self.strategy, self.params, self.nodes, step, topology)

    def _check_knobs(self, topology: Topology) -> None:
        try:
            parameter_server.check_knobs(self.params, self.nodes, topology)
        except StrategyError as error:
            raise StrategyError(f"{self.where}: {error}") from None

    def refusal(self, workload: str, replicas_per_task: tuple[int, ...]) -> str | None:
        """Why it is not for this workload on these workers, None where it is."""
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


def read_plan(text: str, *, name: str, where: str) -> EditedPlan:
    """Read a plan.

    Args:
        text: JSON.
        name: what records are to call it.
        where: begins each error line.
    Raises:
        StrategyError: it is no plan, or its knobs contradict each other.
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
    except json.JSONDecodeError as error:
        raise StrategyError(
            f"{where}: must be JSON, got {error.msg} in line {error.lineno}; begin with what "
            "`stratbench plan --json` prints"
        ) from error
    except (RecursionError, ValueError) as error:
        # Brackets in brackets for ever, or a number of thousands of digits.
        raise StrategyError(
            f"{where}: must be JSON of a plan's size, got {error}; begin with what "
            "`stratbench plan --json` prints"
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
    """The strategy that a plan was made with, which may be a user's own whose file is not needed here."""
    made_with = next((s for s in STRATEGIES if s.name == document.strategy), None)
    if made_with is None:
        own = Strategy(
            name=document.strategy,
            summary="an edited plan",
            strategy_class="exact",
            layout=local.independent,
            params=(),
        )
        given = document.strategy_params.items()
        params = {k: check_param(own.name, KNOBS[k], v) if k in KNOBS else v for k, v in given}
        check_apart(params)
        knobs = {p.name: p.default for p in parameter_server.PARAMS} | params
        return replace(own, strategy_class=parameter_server.settle(knobs, "exact")), params
    if made_with.runner != "graph":
        raise StrategyError(
            f"must be of a strategy that rewrites the graph, got {made_with.name!r}, which runs the "
            "workload's own code under TensorFlow; use that strategy itself"
        )
    # A plan names all of its knobs: of two that exclude each other, one is there at its default.
    usual = {p.name: (type(p.default), p.default) for p in made_with.params}
    asked = {k: v for k, v in document.strategy_params.items() if usual.get(k) != (type(v), v)}
    return settled(made_with, asked)


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
    """Workers and their replicas, as a person says it."""
    counts = [f"{n} replica" + "s" * (n != 1) for n in dict.fromkeys(replicas_per_task)]
    n_workers = len(replicas_per_task)
    return f"{n_workers} worker{'s' * (n_workers != 1)} of {' and '.join(counts)}"
