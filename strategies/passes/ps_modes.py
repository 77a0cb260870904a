"""Which passes carry out the knobs of a parameter server: how variables are read, and who updates when."""

from collections.abc import Mapping

from strategies.passes.pipeline import Pass
from strategies.passes.ps_async import AsyncUpdates, OwnMean
from strategies.passes.ps_in_turn import UpdatesInTurn
from strategies.passes.ps_proxy import ProxyVariables
from strategies.passes.sync_ps import ParameterServerSync
from strategies.plan import Plan


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
