"""Lengths of time as a person writes them."""

import re

_DURATION = re.compile(r"(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?")


def parse_duration_s(text: str) -> float | None:
    """Read `90s`, `30m`, `1h30m` or a plain number of seconds; None where it is none of these, or nothing."""
    text = text.strip().lower()
    if re.fullmatch(r"\d{1,9}", text):
        return float(text) or None
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(hours * 3600 + minutes * 60 + seconds) or None
