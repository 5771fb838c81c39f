"""``pjrt worker`` as a user calls it; a worker that works is in ``tests/clusters/launchers/test_external.py``."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_process import pjrt


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text("a-token-of-more-than-sixteen-letters")
    return path


def test_wrong_arguments_are_errors(token_file: Path) -> None:
    assert "Missing option '--controller'" in pjrt("worker", "--token-file", token_file).stderr
    assert "Missing option '--token-file'" in pjrt("worker", "--controller", "node0:1").stderr
    assert "expected an address HOST:PORT" in worker("node0", token_file)
    assert "cannot read" in worker("node0:1", token_file.with_name("missing"))
    token_file.write_text("short")
    assert "expected a token of 16 to 1024 letters" in worker("node0:1", token_file)
    token_file.chmod(0o644)
    assert "is not secret" in worker("node0:1", token_file)


def test_a_controller_that_does_not_answer_is_named(token_file: Path) -> None:
    message = worker("127.0.0.1:1", token_file, "--timeout", "0.2")
    assert "no controller of a cluster answered within 0.2 s at 127.0.0.1:1 (Connection refused)" in message


def worker(address: str, token_file: Path, *further: str) -> str:
    """Run the command, which must fail; return its message."""
    done = pjrt("worker", "--controller", address, "--token-file", token_file, *further)
    assert done.returncode == 2
    return done.stderr
