"""Makes the modules beside the tests importable from their folders."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
