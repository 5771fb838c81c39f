"""Access tokens: the file's form and protection, changes of the file, and comparisons."""

from __future__ import annotations

import hmac
import logging
from pathlib import Path

import pytest
from certificates import write_secret

from pjrt import InvalidArgumentError, NotFoundError, PermissionDeniedError
from pjrt.remote.security.credentials import AccessTokens, read_token, read_tokens

A, B = "abcdefgh" * 4, "ijklmnop" * 4


def test_names_and_comments(tmp_path: Path) -> None:
    path = write_secret(tmp_path / "tokens", f"# for the team\nalice {A}\n\n  {B}\n")
    assert read_tokens(path) == {"alice": A, "line 4": B}
    tokens = AccessTokens(path)
    assert [tokens.name_of(token) for token in (A, B, A[:-1], A + "a", "", "\N{SNOWMAN}")] == [
        *("alice", "line 4"),
        *(None,) * 4,
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "openssl rand"),
        ("# nothing\n", "openssl rand"),
        ("short\n", ":1: expected a token of 16 to 1024"),
        (f"alice {A} more\n", ":1: expected a name and a token, found 3 words"),
        (f"\n{A}\n{A}\n", ":3: the name or the token is there already"),
        (f"x {A}\nx {B}\n", ":2: the name or the token is there already"),
        ("\N{SNOWMAN}" * 20, "printable ASCII"),
        ("a" * 1025, "found 1025"),
        ("abcdefg" * 5, "at least 8 different letters, found 7; make one with: openssl"),
    ],
)
def test_wrong_lines(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        read_tokens(write_secret(tmp_path / "tokens", text))
    assert message in raised.value.message
    assert A not in raised.value.message


def test_files_that_others_read_are_refused(tmp_path: Path) -> None:
    path = write_secret(tmp_path / "tokens", A)
    path.chmod(0o644)
    with pytest.raises(PermissionDeniedError, match="chmod 600"):
        read_tokens(path)
    path.chmod(0o602)
    with pytest.raises(PermissionDeniedError, match="everyone may write"):
        read_tokens(path)
    path.chmod(0o640)
    assert read_tokens(path)
    with pytest.raises(NotFoundError, match="No such file"):
        read_tokens(tmp_path / "missing")


def test_one_token_for_a_client(tmp_path: Path) -> None:
    path = write_secret(tmp_path / "tokens", f"alice {A}\n")
    assert read_token(path) == A
    path.write_text(f"{A}\n{B}\n")
    with pytest.raises(InvalidArgumentError, match="expected one access token"):
        read_token(path)


def test_a_changed_file_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_secret(tmp_path / "tokens", f"{A}\n")
    tokens = AccessTokens(path)
    assert tokens.name_of(A)
    path.write_text(f"# new\n{B}\n")
    assert (tokens.name_of(A), tokens.name_of(B)) == (None, "line 2")
    with caplog.at_level(logging.ERROR, "pjrt.remote"):
        path.write_text("broken\n")
        assert (tokens.name_of(A), tokens.name_of(B)) == (None, None)
        path.unlink()
        assert tokens.name_of(B) is None
    assert [record.event for record in caplog.records if hasattr(record, "event")] == ["no access token is valid"] * 2
    write_secret(path, f"{B}\n")
    assert tokens.name_of(B) == "line 1"


def test_all_tokens_are_compared_in_constant_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = AccessTokens(write_secret(tmp_path / "tokens", f"{A}\n{B}\n{'qrstuvwx' * 4}\n"))
    compared = []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda x, y: (compared.append((x, y)), compare(x, y))[1])
    assert tokens.name_of(A) == "line 1"
    assert len(compared) == 3
    assert {len(x) for pair in compared for x in pair} == {32}
