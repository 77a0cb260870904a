"""Modules that contract tests share are there for these tests as well."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "contract"))
