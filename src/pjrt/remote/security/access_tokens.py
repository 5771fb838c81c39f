"""Access tokens: secrets in a file, which clients show to a server. They are never arguments of a command.

Each line of the file is a name and a token, or a token alone. Empty lines and lines that begin with ``#`` are skipped.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import threading
from pathlib import Path

from pjrt import system
from pjrt.api.errors import InvalidArgumentError, NotFoundError, PermissionDeniedError, PjrtError
from pjrt.remote.monitoring.connection_log import log_event

_SHORTEST, _LONGEST = 16, 1024
_FEWEST_DIFFERENT = 8
_ADVICE = "make one with: openssl rand -hex 32"


class AccessTokens:
    """The tokens that a server accepts; the file is read again when it changes.

    While a changed file cannot be read, no token is accepted: a token that was removed must not stay valid because of
    a mistake in another line. The error is logged.

    Args:
        path: the file.

    Raises:
        PjrtError: the file cannot be used, see ``read_tokens``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stamp = system.file_stamp(path)
        self._digests = _digests(read_tokens(path))

    def name_of(self, token: str) -> str | None:
        """Return the name of a token; ``None`` if the token is not valid.

        The time does not depend on the letters of the valid tokens, and not on which of them it is.
        """
        digest = _digest(token)
        match = None
        for name, valid in self._current().items():
            if hmac.compare_digest(digest, valid):
                match = name
        return match

    def _current(self) -> dict[str, bytes]:
        stamp = system.file_stamp(self._path)
        with self._lock:
            if stamp != self._stamp:
                self._stamp = stamp
                try:
                    self._digests = _digests(read_tokens(self._path))
                    log_event(logging.INFO, "access tokens read again", tokens=len(self._digests))
                except PjrtError as error:
                    self._digests = {}
                    log_event(logging.ERROR, "no access token is valid", reason=error.message)
            return self._digests


def read_tokens(path: Path) -> dict[str, str]:
    """Return the tokens of a file by their names; a token without a name has that of its line, such as ``line 1``.

    Raises:
        NotFoundError: the file cannot be read.
        PermissionDeniedError: every user of this machine may read or replace the file.
        InvalidArgumentError: a line is not a token, a token or name is there twice, or the file has no token.
    """
    check_secret(path, "the file of access tokens")
    tokens: dict[str, str] = {}
    for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2:
            raise InvalidArgumentError(f"{path}:{number}: expected a name and a token, found {len(words)} words")
        name, token = words if len(words) == 2 else (f"line {number}", words[0])
        _check_token(token, f"{path}:{number}")
        if name in tokens or token in tokens.values():
            raise InvalidArgumentError(f"{path}:{number}: the name or the token is there already")
        tokens[name] = token
    if not tokens:
        raise InvalidArgumentError(f"{path} has no token; write one with: openssl rand -hex 32 > {path}")
    return tokens


def read_token(path: Path) -> str:
    """Return the token of a client's file, which has exactly one.

    Raises:
        PjrtError: the file cannot be used, see ``read_tokens``.
        InvalidArgumentError: the file has several tokens.
    """
    tokens = list(read_tokens(path).values())
    if len(tokens) != 1:
        raise InvalidArgumentError(f"expected one access token in {path}, found {len(tokens)}")
    return tokens[0]


def check_secret(path: Path, title: str) -> None:
    """Raise an error unless a file with a secret is protected from the other users of this machine.

    Raises:
        NotFoundError: the file cannot be read.
        PermissionDeniedError: every user of this machine may read or replace the file.
    """
    try:
        with path.open("rb"):
            danger = system.readable_by_everyone(path)
            if not danger and system.writable_by_everyone(path):
                danger = system.writable_by_everyone(path)
    except OSError as error:
        raise NotFoundError(f"cannot read {title} {path}: {error.strerror}") from error
    if danger:
        raise PermissionDeniedError(f"{title} {path} is not secret: {danger}; protect it: chmod 600 {path}")


def _check_token(token: str, place: str) -> None:
    """Raise an error, which does not show the token, if it can be guessed or cannot be in a header.

    A server answers thousands of guesses in a second: only the token itself keeps them from success.
    """
    if not _SHORTEST <= len(token) <= _LONGEST:
        raise InvalidArgumentError(
            f"{place}: expected a token of {_SHORTEST} to {_LONGEST} letters, found {len(token)}; {_ADVICE}"
        )
    if not all("!" <= letter <= "~" for letter in token):
        raise InvalidArgumentError(f"{place}: expected a token of printable ASCII letters")
    if len(set(token)) < _FEWEST_DIFFERENT:
        raise InvalidArgumentError(
            f"{place}: expected a token with at least {_FEWEST_DIFFERENT} different letters, found {len(set(token))}; "
            f"{_ADVICE}"
        )


def _digests(tokens: dict[str, str]) -> dict[str, bytes]:
    return {name: _digest(token) for name, token in tokens.items()}


def _digest(token: str) -> bytes:
    """Return a digest of a token: digests have one length, and a comparison shows nothing about the token."""
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
