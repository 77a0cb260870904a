"""Guards the containers of a run: `python -m harness.provision.docker.guard RUN`.

When its driver closes standard input, in order or because it died, the remains of the run are removed.
"""

import signal
import sys
from collections.abc import Sequence


def main(argv: Sequence[str]) -> None:
    """Wait for the driver's end, then remove."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.buffer.read()
    # Not before: it waits for hours, and what it needs takes memory.
    from harness.provision.docker.engine import engine
    from harness.provision.docker.leftovers import remove_run

    with engine() as client:
        remove_run(client, argv[0])


if __name__ == "__main__":
    main(sys.argv[1:])
