"""`python -m harness.cli`: the same as `stratbench`."""

import sys

from harness.cli import main

sys.exit(main())
