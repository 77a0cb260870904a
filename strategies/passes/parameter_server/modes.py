"""Which passes carry out the knobs of a parameter server: how variables are read, and who updates when."""

from collections.abc import Mapping

from strategies.passes.parameter_server.asynchronous import AsyncUpdates, OwnMean
from strategies.passes.parameter_server.proxy import ProxyVariables
from strategies.passes.parameter_server.stale_and_backup import UpdatesInTurn
from strategies.passes.parameter_server.synchronous import ParameterServerSync
from strategies.passes.run import Pass
from strategies.plan.schema import Plan


def reading_passes(plan: Plan, task: int) -> tuple[Pass, ...]:
    """What comes between making replicas and combining what they contribute."""
    remote = frozenset(n.variable for n in plan.nodes if n.proxy and n.destination != task)
    passes: list[Pass] = []
    if remote:
        passes.append(ProxyVariables(task=task, remote=remote))
    if not plan.strategy_params.get("sync", True):
        passes.append(OwnMean(task=task))
    return tuple(passes)


def updating_pass(plan: Plan, task: int, destinations: Mapping[str, int]) -> Pass:
    """The synchronisation that a plan's knobs ask for."""
    params = plan.strategy_params
    if not params.get("sync", True):
        return AsyncUpdates(task=task, destinations=destinations)
    staleness, backup = (int(params.get(knob) or 0) for knob in ("staleness", "backup"))
    if staleness or backup:
        return UpdatesInTurn(task=task, destinations=destinations, staleness=staleness, backup=backup)
    return ParameterServerSync(task=task, destinations=destinations)
