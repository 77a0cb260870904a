"""The command line: reads arguments, calls the pipeline, prints the answer."""

import os
import sys
from collections.abc import Sequence

__all__ = ["main"]
_INTERRUPTED = b'{"error": {"type": "interrupted", "message": "interrupted", "field": null}}\n'


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line by `harness.cli.app`; an interrupt during its import costs one line, too."""
    try:
        from harness.cli.app import main as run

        return run(arguments)
    except KeyboardInterrupt:
        if arguments is not None:
            raise
        # Before handlers of signals are set, nothing has been started that would have to be stopped.
        if "--json" in sys.argv:
            os.write(1, _INTERRUPTED)
        os.write(2, b"stratbench: interrupted\n")
        os._exit(130)
