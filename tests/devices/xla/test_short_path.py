"""The short path of executions: it starts a program at most once, and leaves what it cannot do to the long path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.devices.xla.executable import XlaExecutable
from pjrt.devices.xla.loaded_executable import XlaLoadedExecutable

X = np.arange(4, dtype=np.float32)


class FailingAfterStart:
    """jaxlib's executable, except that each execution starts and then raises.

    Attributes:
        starts: the number of executions that were started.
    """

    def __init__(self, jaxlib_executable: Any, error: Exception) -> None:
        self._jaxlib_executable = jaxlib_executable
        self._error = error
        self.starts = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jaxlib_executable, name)

    def execute_sharded(self, *arguments: Any, **options: Any) -> FailingAfterStart:
        self._jaxlib_executable.execute_sharded(*arguments, **options)
        self.starts += 1
        return self

    def consume_with_handlers(self, _: Any) -> Any:
        raise self._error


WAYS: dict[str, Callable[[Any, list[Any], Any], Any]] = {
    "call": lambda executable, row, device: executable(*row),
    "call with an array": lambda executable, row, device: executable(row[0], X),
    "execute_sharded": lambda executable, row, device: executable.execute_sharded(row, device),
    "with futures": lambda executable, row, device: executable.execute_sharded(row, device, returned_futures=[]),
    "execute": lambda executable, row, device: executable.execute([row])[0],
    "with a launch id": lambda executable, row, device: executable.execute([row], pjrt.ExecuteOptions(launch_id=7))[0],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", ["add", "add_in_place"])
@pytest.mark.parametrize("error", [TypeError("odd"), AttributeError("odd")], ids=repr)
def test_an_error_after_the_start_does_not_start_again(
    client: pjrt.Client, programs: Any, way: str, program: str, error: Exception
) -> None:
    compiled = client.compile(getattr(programs, program)).executable
    assert isinstance(compiled, XlaExecutable)
    failing = FailingAfterStart(compiled.jaxlib_executable, error)
    device = client.devices[0]
    executable = XlaLoadedExecutable(XlaExecutable(failing, compiled.assignment, compiled.compile_options()), [device])
    row = [client.buffer_from_host(X), client.buffer_from_host(X)]
    try:
        (result,) = WAYS[way](executable, row, device)
    except pjrt.FailedPreconditionError:  # jaxlib has taken the memory of the donated argument already
        assert program == "add_in_place"
    else:
        with pytest.raises(pjrt.PjrtError, match="odd"):
            result.to_host().result()
    assert failing.starts == 1


def test_an_argument_without_an_array_takes_the_long_path(client: pjrt.Client, add: pjrt.LoadedExecutable) -> None:
    alias, fulfillment = client.create_alias_buffer(pjrt.ShapeSpec((4,), pjrt.ElementType.F32))
    (result,) = add(alias, alias)
    assert not result.ready().done()
    fulfillment.fulfill(client.buffer_from_host(X))
    assert np.asarray(result).tolist() == [0, 2, 4, 6]
    (again,) = add(alias, alias)  # the array is there now
    assert type(again) is not type(result)
    assert np.asarray(again).tolist() == [0, 2, 4, 6]


def test_numpy_arrays_are_copied_by_a_call(client: pjrt.Client, add: pjrt.LoadedExecutable) -> None:
    """Also with gaps; what the caller writes later changes nothing."""
    x = X.copy()
    for first, second in (
        (x, client.buffer_from_host(X)),
        (client.buffer_from_host(X), x),
        (x, x),
        (np.repeat(x, 2)[::2], x),
    ):
        (result,) = add(first, second)
        x[:] = -1
        assert np.asarray(result).tolist() == [0, 2, 4, 6]
        x[:] = X
    assert np.asarray(add(x.astype(">f4"), x)[0]).tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (X.astype(np.float64), r"must be f32\[4\], found a numpy array of f64\[4\]"),
        (X[:3], r"must be f32\[4\], found f32\[3\]"),
        (X.reshape(2, 2), r"must be f32\[4\], found f32\[2,2\]"),
        (np.array(["a", "b", "c", "d"]), "the dtype <U1 is not an element type"),
    ],
)
def test_numpy_arrays_of_another_type(add: pjrt.LoadedExecutable, array: Any, message: str) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=message):
        add(X, array)


def test_a_numpy_array_is_given_for_a_donated_argument(client: pjrt.Client, programs: Any) -> None:
    executable = client.compile(programs.add_in_place)
    x, y = X.copy(), client.buffer_from_host(X)
    for arguments in ((x, y), (x, x)):
        (result,) = executable(*arguments)
        assert np.asarray(result).tolist() == [0, 2, 4, 6]
        assert x.tolist() == X.tolist()
    assert not y.is_deleted


def test_numpy_arrays_are_refused_where_buffers_are_meant(client: pjrt.Client, add: pjrt.LoadedExecutable) -> None:
    for use in (lambda: add.execute([[X, X]]), lambda: add.execute_sharded([X, X], client.devices[0])):
        with pytest.raises(pjrt.InvalidArgumentError, match="must be a buffer of this client, found ndarray"):
            use()  # type: ignore[no-untyped-call]
