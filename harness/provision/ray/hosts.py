"""Hosts of a cluster's workers, as their provider watches over them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from harness.cluster.link_limits import Limits
from harness.worker.process.forked_process import STOPPED_S
from harness.worker.process.messages import CutOff, Died, Silent


class Hosts(Protocol):
    """The hosts of all workers, by worker."""

    @property
    def addresses(self) -> Sequence[str]:
        """Of each worker, where its peers reach it."""

    def is_up(self) -> bool:
        """Whether Ray itself still runs."""

    def options(self, worker: int) -> Mapping[str, object]:
        """Arguments of Ray's `options` by which a worker's actor gets to its host, as it is now."""

    def cores(self, worker: int) -> tuple[int, ...] | None:
        """Those to pin a worker to on its host, as it is now; None for all that there are."""

    def failure(self, worker: int, *, stopped_s: float = STOPPED_S) -> Died | Silent | CutOff | None:
        """What has become of a worker's host; None while it is well.

        Args:
            stopped_s: for how long a host may be halted and count as well.
        """

    def renew(self, n_workers: int) -> Sequence[int]:
        """Replace those among the first hosts that have failed, and return which: their actors are gone.

        Raises:
            ProvisionError: new ones cannot be had, or Ray itself has ended for good.
        """

    def condemn(self, worker: int) -> None:
        """Have a host replaced by the next `renew`, for what was seen of it from others."""

    def admit(self, folder: Path) -> None:
        """Let workers write into a folder that the driver has made."""

    def limit_links(self, limits: Limits) -> None:
        """Limit the links of the first workers, where they are not limited so already.

        Raises:
            ProvisionError: this host cannot.
        """
