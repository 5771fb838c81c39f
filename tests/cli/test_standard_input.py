"""Programs from the standard input, as a user sends them."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest
from in_process import pjrt

from pjrt import stablehlo

TEXT = "func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {\n  return %x : tensor<2xf32>\n}"
BINARY = stablehlo.serialize(TEXT, stablehlo.current_version()).code


@pytest.mark.parametrize("program", [TEXT.encode(), BINARY, stablehlo.to_hlo(TEXT).code], ids=["text", "binary", "HLO"])
def test_each_encoding(program: bytes) -> None:
    done = pjrt("run", "-", "-d", "reference", "-i", "[1,2]", content=program)
    assert done.returncode == 0, done.stderr
    assert "f32[2] [1, 2]" in done.stdout


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("inspect", "-"), "portable artifact"), (("check", "-", "-d", "reference"), "reference: yes")],
    ids=["inspect", "check"],
)
def test_other_commands(arguments: tuple[str, ...], words: str) -> None:
    done = pjrt(*arguments, content=BINARY)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout


def test_what_is_no_program() -> None:
    for content, words, command in (
        (b"", "found nothing: 0 bytes", ("inspect", "-")),
        (b"", "found nothing: 0 bytes", ("check", "-")),
        (b"junk", "error: -: expected a program", ("run", "-")),
        (b"junk", "error: -: expected a program", ("check", "-")),
    ):
        done = pjrt(*command, content=content)
        assert (done.returncode, done.stdout) == (2, "")
        assert words in done.stderr, (command, done.stderr)
        assert len(done.stderr.splitlines()) == 1
    done = pjrt("run", "-", "--watch", content=BINARY)
    assert "with --watch, found -" in done.stderr


def test_a_terminal_is_refused_at_once() -> None:
    terminal, inside = pty.openpty()
    try:
        command = [sys.executable, "-m", "pjrt", "inspect", "-"]
        done = subprocess.run(command, stdin=inside, capture_output=True, timeout=120)
    finally:
        os.close(terminal)
        os.close(inside)
    assert done.returncode == 2
    assert b"found a terminal; give the name of a file" in done.stderr
