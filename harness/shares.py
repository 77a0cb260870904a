"""Shares of a whole as a person writes them."""

import re


def parse_share(text: str) -> float | None:
    """Read `3%` or `0.03`; None where it is neither, or 1 without a sign: a hundredth, or all?"""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]+)?)\s*(%?)", text.strip())
    if match is None:
        return None
    value = float(match[1])
    return value / 100 if match[2] else value if value < 1 else None
