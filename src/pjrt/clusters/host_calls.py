"""Calls of functions on the hosts of a cluster, as bytes: the controller writes them, and the workers make them.

A call runs any code in the worker, and its result may run code in the controller: it is any object that the user's
function returns, and what makes that is pickle. Both have shown each other that they belong to the cluster before, and
trust each other so; the page on clusters says it.
"""

from __future__ import annotations

import importlib
import io
import pickle
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pjrt.api.buffer import Buffer
from pjrt.api.errors import InvalidArgumentError, PjrtError

HostArray = np.ndarray[Any, Any]

Function = Callable[..., Any] | str
"""A function, or its place as ``module:function``, which every worker can import."""


def written(call: Function | Sequence[Any], arguments: Any, number_of: Callable[[Buffer], int | None]) -> bytes:
    """Return a call for one worker.

    Args:
        call: the function.
        arguments: its arguments.
        number_of: returns the number of a buffer among the values that go with the call; ``None`` for a buffer of
            another host.

    Raises:
        InvalidArgumentError: the function or an argument cannot be sent.
    """
    stream = io.BytesIO()
    try:
        _pickler(stream, number_of).dump((call, arguments))
    except Exception as error:
        raise InvalidArgumentError(
            f"{call!r} and its arguments cannot be sent to the workers ({type(error).__name__}: {error}); give a "
            "function of a module that the workers can import, or install the package cloudpickle"
        ) from error
    return stream.getvalue()


def result_of(answer: bytes) -> Any:
    """Return the value in the answer of a worker."""
    return pickle.loads(answer)


def call_function(call: bytes, values: Sequence[HostArray]) -> tuple[bytes, Sequence[Any]]:
    """Make a call in this process, and return its result as bytes and its arrays; the server of a worker calls it.

    Raises:
        PjrtError: the function cannot be loaded, raises an exception, or its result cannot be sent.
    """
    try:
        function, (arguments, numbers) = _Unpickler(io.BytesIO(call), values).load()
        if isinstance(function, str):
            function = _imported(function)
        if numbers is not None:  # a call for each of several arrays, some of which are the same
            arrays = [np.asarray(function(*each)) for each in arguments]
            return b"", [arrays[number] for number in numbers]
        stream = io.BytesIO()
        _pickler(stream, _refuse).dump(function(*arguments))
        return stream.getvalue(), ()
    except PjrtError:
        raise
    except Exception as error:
        traceback.print_exc()  # the worker's output comes with the host's name
        raise PjrtError.wrap(error, "in a function on this host; its traceback is in the worker's output") from error


def _imported(place: str) -> Any:
    module, separator, name = place.partition(":")
    if not separator:
        raise InvalidArgumentError(f"expected a function, or its place as 'module:function', found {place!r}")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InvalidArgumentError(f"the function {place!r} cannot be loaded on this host: {error}") from error


def _refuse(buffer: Buffer) -> int | None:
    raise InvalidArgumentError("expected a result without buffers; return a numpy array, which is copied")


def _pickler(stream: io.BytesIO, number_of: Callable[[Buffer], int | None]) -> pickle.Pickler:
    """Return a pickler for which buffers are numbers; functions of scripts need the package cloudpickle."""
    try:
        base = importlib.import_module("cloudpickle").Pickler
    except ImportError:
        base = pickle.Pickler

    class Pickler(base):  # type: ignore[misc, valid-type]  # chosen above
        def persistent_id(self, value: Any) -> Any:
            return ("buffer", number_of(value)) if isinstance(value, Buffer) else None

    return Pickler(stream, protocol=pickle.HIGHEST_PROTOCOL)


class _Unpickler(pickle.Unpickler):
    """Reads a call; the buffers are the values that came with it."""

    def __init__(self, stream: io.BytesIO, values: Sequence[HostArray]) -> None:
        super().__init__(stream)
        self._values = values

    def persistent_load(self, reference: Any) -> Any:
        _, number = reference
        return None if number is None else self._values[number]
