"""Names of a run folder, where a person gives none, and of what lies in it."""

import re
import secrets
from datetime import datetime

from harness.canonical import slug

LOCK_FILE = ".lock"
RUN_FILE = "run.json"
"""Written last when a folder is made: one with this file is a run folder."""
EXPERIMENT = "experiment.yaml"
ENVIRONMENT = "environment.json"
RESULTS = "results.jsonl"
INDEX = "results.index"
"""Has a line for each line of the results, `<case>/<repeat>`, written after it: so lost lines are noticed."""
REPORT = "report.html"

CASES = "cases"
"""Holds `<case>/<repeat>/`, in which lie the others below."""
PLAN = "plan.json"
STEPS = "steps.parquet"
TRACE = "trace.json"
CHECKPOINT = "checkpoint"
FAILURE_LOG = "failure.log"

_DEFAULT_NAME = re.compile(r"[a-z0-9-]+-\d{8}t\d{6}z-[0-9a-f]{8}")


def default_name(experiment: str, now: datetime) -> str:
    """Make a name for the folder of a run that begins now, in UTC."""
    return f"{slug(experiment)}-{now:%Y%m%dt%H%M%Sz}-{secrets.token_hex(4)}"


def is_default_name(name: str) -> bool:
    """Return True if `default_name` made a name, and not a person."""
    return _DEFAULT_NAME.fullmatch(name) is not None
