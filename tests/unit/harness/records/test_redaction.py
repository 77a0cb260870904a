"""Secrets in commands and logs are left out; what only sounds like one stays."""

import shlex

import pytest

from harness.records.redaction import REDACTED, redacted, redacted_command, redacted_document

TOKEN = "ghp_" + "a1B2" * 9


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://bob:hunter2@example.org/a", f"https://{REDACTED}@example.org/a"),
        ("https://example.org/a?token=hunter2&page=2", f"https://example.org/a?token={REDACTED}&page=2"),
        ("workload.api_key=hunter2", f"workload.api_key={REDACTED}"),
        ("MY_PASSWORD: 'hunter2 and more' next", f"MY_PASSWORD: {REDACTED} next"),
        ('{"client-secret": "hunter2", "n": 1}', f'{{"client-secret": {REDACTED}, "n": 1}}'),
        ("Authorization: Bearer hunter2hunter2", f"Authorization: {REDACTED}"),
        ("sent bearer hunter2hunter2", f"sent bearer {REDACTED}"),
        (f"clone with {TOKEN} now", f"clone with {REDACTED} now"),
        ("AKIAHUNTER2HUNTER2AB", REDACTED),
        ("-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----\nx", f"{REDACTED}\nx"),
        ("-----BEGIN PRIVATE KEY-----\nhunter2", REDACTED),
    ],
)
def test_a_secret_is_left_out(text: str, shown: str) -> None:
    assert redacted(text) == shown
    assert redacted(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "n_tokens=64, tokens: 12",
        "cluster.token_file=/run/token",
        "strategies=[ps, all-reduce:chunk_size=16]",
        "https://example.org/a@b",
        "sk-learn 1.5",
        "step 12: loss 0.5",
    ],
)
def test_what_is_none_stays(text: str) -> None:
    assert redacted(text) == text


def test_a_document_is_searched_by_names_too() -> None:
    document = {
        "params": {"api_key": "hunter2", "n": 3},
        "urls": ["ftp://a:hunter2@b"],
        "tokens": ["x"],
        "pwd": "",
    }
    assert redacted_document(document) == {
        "params": {"api_key": REDACTED, "n": 3},
        "urls": [f"ftp://{REDACTED}@b"],
        "tokens": ["x"],
        "pwd": "",
    }


def test_a_command_can_be_given_to_a_shell_again() -> None:
    words = [
        "stratbench",
        "run",
        "my file.yaml",
        "--set",
        "workload.password=hunter2",
        "--auth-token",
        "hunter2",
    ]
    shown = redacted_command(words)
    assert "hunter2" not in shown
    assert shlex.split(shown)[:4] == words[:4]
    assert redacted_command(words[:3]) == "stratbench run 'my file.yaml'"
