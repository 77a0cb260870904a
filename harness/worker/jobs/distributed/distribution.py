"""Jobs around TensorFlow's strategy object of a worker's process: made for a plan, kept, given back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import NO_DEVICE, CaseError
from harness.worker.jobs.gpus import require_devices
from harness.worker.jobs.rendezvous import on_reserved_port
from harness.worker.process.job import JobState
from strategies.errors import StrategyError
from strategies.plan.schema import Plan

if TYPE_CHECKING:
    from strategies.baselines.distribution import Distribution


@dataclass(slots=True, frozen=True, kw_only=True)
class Distributed:
    """What a process has of TensorFlow's strategy."""

    distribution: "Distribution"


def start_distribution(
    state: JobState, task: int, addresses: Sequence[str], n_devices: int, *, plan: str
) -> None:
    """Make a plan's strategy, and with it the server of one task, on the port reserved for it.

    Raises:
        CaseError: `port-in-use`, as `rendezvous.start_server`; `no-device` where this host has not what the
            plan takes.
    """
    from strategies.baselines.distribution import distribution_of

    parsed = Plan.model_validate_json(plan)
    try:
        with on_reserved_port(state, task, addresses):
            distribution = distribution_of(parsed, task, addresses, n_devices)
    except StrategyError as error:
        raise CaseError(NO_DEVICE, str(error), stage="provision") from error
    use_distribution(state, distribution)
    if parsed.device == "gpu":
        import tensorflow as tf

        names = [device.name for device in tf.config.list_logical_devices("GPU")]
        require_devices(task, names, parsed.replicas_per_task[task])


def use_distribution(state: JobState, distribution: "Distribution") -> None:
    """Let this process's steps run under a strategy of TensorFlow's, whose devices go back when it ends."""
    state.stack.callback(distribution.close)
    state.put(Distributed(distribution=distribution))


def stop_distribution(state: JobState) -> None:
    """Give back the devices that the strategy holds."""
    state.get(Distributed).distribution.close()
