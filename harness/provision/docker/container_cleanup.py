"""Process that removes a run's containers when its driver has finished or died.

`python -m harness.provision.docker.container_cleanup RUN`: the driver holds its standard input open.
"""

import signal
import sys
from collections.abc import Sequence


def main(argv: Sequence[str]) -> None:
    """Wait until standard input closes, then remove the run's containers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.buffer.read()
    # Imported late: the process waits for hours, and these modules take memory.
    from harness.provision.docker.engine import engine
    from harness.provision.docker.leftovers import remove_run

    with engine() as client:
        remove_run(client, argv[0])


if __name__ == "__main__":
    main(sys.argv[1:])
