""" """

import os
import socket
from pathlib import Path

import pytest

from harness.cluster import ClusterShape
from harness.provision.docker import provider as docker_provider
from harness.provision.docker.engine import engine
from harness.provision.failures import ProvisionError
from harness.provision.source_hash import source_hash
from harness.provision.temporary_folder import Owner


def refusal(monkeypatch: pytest.MonkeyPatch, address: str) -> str:
    monkeypatch.setenv("DOCKER_HOST", address)
    with pytest.raises(ProvisionError) as caught, engine():
        pass
    assert caught.value.exit_status == 3
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    address = f"unix://{tmp_path}/none.sock"
    assert refusal(monkeypatch, address) == (
        f"docker: no engine answers at {address} (no such file); start one, or use --provider local"
    )


def test_something_else_at_the_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "(not a socket)" in refusal(monkeypatch, f"unix://{tmp_path}/file")


def test_a_socket_that_nobody_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        assert "(no answer)" in refusal(monkeypatch, f"unix://{tmp_path}/s")


def test_certificates_that_are_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    message = refusal(monkeypatch, f"unix://{tmp_path}/s")
    assert message.startswith("docker: cannot read the certificates in DOCKER_CERT_PATH: Path to a")


def test_a_socket_in_a_folder_that_this_user_may_not_enter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    facts_of = Path.stat

    def denied(path: Path, **options: bool) -> os.stat_result:
        if path.name == "s":
            raise PermissionError(13, "Permission denied")
        return facts_of(path, **options)

    monkeypatch.setattr(Path, "stat", denied)
    message = refusal(monkeypatch, f"unix://{tmp_path}/s")
    assert message == (f"docker: permission denied for {tmp_path}/s; be let into its folder, or run as root")


def test_an_engine_of_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "must be this host's own, got tcp://192.0.2.1:2375" in refusal(monkeypatch, "tcp://192.0.2.1:2375")


def test_a_users_file_needs_a_folder_of_its_own(tmp_path: Path) -> None:
    for folder in map(Path, ("/", "/tmp", "/etc", "/opt/stratbench", "/opt/stratbench/lib", "/usr/local")):
        with (
            pytest.raises(ProvisionError, match=rf"nothing of the image, got {folder}, where their image"),
            docker_provider.start(ClusterShape(workers=1), "run", tmp_path, reads=[folder]),
        ):
            pass


def test_the_source_hash_is_of_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "harness").mkdir()
    module = tmp_path / "harness" / "a.py"
    seen = set()
    for name, text in (("a.py", "x = 1\n"), ("a.py", "x = 2\n"), ("b.py", "x = 2\n")):
        module = module.rename(module.with_name(name)) if module.exists() else module
        module.write_text(text)
        source_hash.cache_clear()
        seen.add(source_hash(tmp_path))
    assert len(seen) == 3
    (tmp_path / "harness" / "notes.txt").touch()
    source_hash.cache_clear()
    assert source_hash(tmp_path) in seen


def test_an_owner_is_this_process_and_no_other() -> None:
    own = Owner.this_process()
    assert Owner.of_text(own.to_text()) == own
    assert not own.is_dead()
    changed = own.to_text().replace(f'"pid": {own.pid}', '"pid": 1')
    assert Owner.of_text(changed).is_dead()
    with pytest.raises(ValueError, match="an owner must be an object"):
        Owner.of_text('{"pid": 1}')
