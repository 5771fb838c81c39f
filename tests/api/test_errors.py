"""Errors: codes, messages and payloads go every way unchanged."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pjrt

CODES = [code for code in pjrt.StatusCode if code is not pjrt.StatusCode.OK]
PAYLOADS = {"type.googleapis.com/a": b"\x00\xff", "b": b""}


def test_the_codes_are_those_of_absl() -> None:
    assert [code.value for code in pjrt.StatusCode] == list(range(17))
    assert pjrt.StatusCode.UNIMPLEMENTED == 12
    assert pjrt.StatusCode.UNAUTHENTICATED == 16


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_a_class_and_goes_round(code: pjrt.StatusCode) -> None:
    error = pjrt.PjrtError.of(int(code), "what happened", PAYLOADS)
    assert type(error) is not pjrt.PjrtError
    assert type(error).default_code is code
    assert type(error).__name__ == code.name.title().replace("_", "").removesuffix("Error") + "Error"
    for it in (error, pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(it) is type(error)
        assert (it.code, it.message, dict(it.payloads)) == (code, "what happened", PAYLOADS)
        assert str(it) == f"{code.name}: what happened"
        assert repr(it) == f"{type(error).__name__}('what happened', code={code.name})"
        assert it.args == ("what happened",)
    assert type(error)("what happened").code is code
    assert pjrt.PjrtError.wrap(error) is error


def test_a_traceback_has_nothing_that_a_terminal_obeys() -> None:
    """Messages have names out of files, and come from peers."""
    error = pjrt.NotFoundError("no \x1b[2J\x07 here\nbut \u202ethere")
    assert str(error) == "NOT_FOUND: no \\x1b[2J\\x07 here\nbut \\u202ethere"
    assert error.message == "no \x1b[2J\x07 here\nbut \u202ethere"


def test_codes_outside_the_known_ones_are_named() -> None:
    error = pjrt.PjrtError.of(99, "odd", PAYLOADS)
    assert isinstance(error, pjrt.UnknownError)
    assert "99" in error.message
    assert dict(error.payloads) == PAYLOADS
    assert isinstance(pjrt.PjrtError.of(-1, "odd"), pjrt.UnknownError)
    assert isinstance(pjrt.PjrtError.of(0, "fine"), pjrt.InternalError)


def test_a_code_can_be_said_apart_from_the_class() -> None:
    error = pjrt.PjrtError("m", code=pjrt.StatusCode.ABORTED)
    assert error.code is pjrt.StatusCode.ABORTED
    assert pickle.loads(pickle.dumps(error)).code is pjrt.StatusCode.ABORTED
    assert pjrt.PjrtError("m").code is pjrt.StatusCode.UNKNOWN


def test_payloads_are_read_only_and_their_own() -> None:
    given_payloads = dict(PAYLOADS)
    error = pjrt.AbortedError("m", payloads=given_payloads)
    given_payloads["c"] = b"later"
    assert "c" not in error.payloads
    with pytest.raises(TypeError):
        error.payloads["c"] = b""  # type: ignore[index]


@pytest.mark.parametrize(
    ("word", "error"),
    [
        (ValueError, pjrt.InvalidArgumentError),
        (TimeoutError, pjrt.DeadlineExceededError),
        (LookupError, pjrt.NotFoundError),
        (PermissionError, pjrt.PermissionDeniedError),
        (MemoryError, pjrt.ResourceExhaustedError),
        (IndexError, pjrt.OutOfRangeError),
        (NotImplementedError, pjrt.UnimplementedError),
        (RuntimeError, pjrt.InternalError),
    ],
)
def test_pythons_own_words_catch_them(word: type[Exception], error: type[pjrt.PjrtError]) -> None:
    with pytest.raises(word, match="m"):
        raise error("m", payloads=PAYLOADS)


class OutOfTonerError(MemoryError):
    """An exception of a device's author."""


@pytest.mark.parametrize(
    ("raised", "wrapped", "message"),
    [
        (MemoryError(), pjrt.ResourceExhaustedError, "MemoryError"),
        (OutOfTonerError("cyan"), pjrt.ResourceExhaustedError, "OutOfTonerError: cyan"),
        (NotImplementedError("op"), pjrt.UnimplementedError, "NotImplementedError: op"),
        (TimeoutError("slow"), pjrt.DeadlineExceededError, "TimeoutError: slow"),
        (ValueError("v"), pjrt.InvalidArgumentError, "ValueError: v"),
        (TypeError("t"), pjrt.InvalidArgumentError, "TypeError: t"),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), pjrt.InvalidArgumentError, "UnicodeDecodeError: "),
        (FileNotFoundError(2, "no such file", "f"), pjrt.NotFoundError, "FileNotFoundError: "),
        (PermissionError("p"), pjrt.PermissionDeniedError, "PermissionError: p"),
        (KeyboardInterrupt(), pjrt.CancelledError, "KeyboardInterrupt"),
        (KeyError("k"), pjrt.InternalError, "KeyError: 'k'"),
        (ZeroDivisionError("z"), pjrt.InternalError, "ZeroDivisionError: z"),
        (SystemExit(2), pjrt.InternalError, "SystemExit: 2"),
    ],
)
def test_other_exceptions_keep_their_name_and_cause(
    raised: BaseException, wrapped: type[pjrt.PjrtError], message: str
) -> None:
    error = pjrt.PjrtError.wrap(raised)
    assert type(error) is wrapped
    assert error.message.startswith(message)
    assert error.__cause__ is raised


@given(st.sampled_from(CODES), st.text(), st.dictionaries(st.text(), st.binary(), max_size=3))
def test_any_message_and_payloads_survive_pickling(
    code: pjrt.StatusCode, message: str, payloads: dict[str, bytes]
) -> None:
    again = pickle.loads(pickle.dumps(pjrt.PjrtError.of(code, message, payloads)))
    assert (again.code, again.message, dict(again.payloads)) == (code, message, payloads)
