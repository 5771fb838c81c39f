"""Array values: conversions of a device's array to Python and numpy, by way of a copy on the host."""

from __future__ import annotations

import abc
import math
import operator
from collections.abc import Generator, Iterator
from typing import Any, Self

import numpy as np

from pjrt.api.element_type import AnyDType, ElementType
from pjrt.api.errors import DeadlineExceededError, InvalidArgumentError, PjrtError
from pjrt.api.future import Future
from pjrt.api.shape_spec import format_shape

_SHOWN_BYTES = 1 << 16
_SHOWN_ELEMENTS = 100
_COPY_SECONDS = 0.05


class ArrayValue(abc.ABC):
    """An array whose value numpy and Python can read: a buffer, or an array that is spread over devices.

    Each conversion waits for the value and copies it to the host, as ``to_host`` does. It raises the error of the
    computation if that failed, and a ``FailedPreconditionError`` after ``delete`` or a donation. To read several
    elements, call ``numpy.asarray`` once: ``array[0]`` and ``array[1]`` copy the whole array twice, where the device's
    memory is not the host's.
    """

    __slots__ = ()

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions."""

    @property
    @abc.abstractmethod
    def element_type(self) -> ElementType:
        """The type of the elements."""

    @property
    def dtype(self) -> AnyDType:
        """The numpy dtype of the elements."""
        return self.element_type.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the elements as a numpy array, where those of less than a byte take one byte each; 0 for a
        token.
        """
        return 0 if self.element_type is ElementType.TOKEN else self.size * self.dtype.itemsize

    @property
    @abc.abstractmethod
    def is_deleted(self) -> bool:
        """Whether the array was deleted or donated."""

    @abc.abstractmethod
    def ready(self) -> Future[None]:
        """Return a future that is done when the value is there, or fails with its error."""

    @abc.abstractmethod
    def to_host(self) -> Future[np.ndarray[Any, Any]]:
        """Copy the value to the host."""

    # Numpy's protocol.

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Return the value as a numpy array; wait for it. Without a copy where the device
        allows that, then read-only.

        Raises:
            ValueError: another dtype is asked for, and no copy.
        """
        array = self.to_host().result()
        if dtype is not None and array.dtype != np.dtype(dtype):
            if copy is False:
                raise ValueError(f"an array of {array.dtype} cannot become {np.dtype(dtype)} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    # Python values.

    def item(self) -> bool | int | float | complex:
        """Return the value of an array of one element as a Python number; wait for it.

        Raises:
            InvalidArgumentError: the array has no elements, or several.
        """
        if self.size != 1:
            raise InvalidArgumentError(
                f"expected an array of one element, found {self._described()}; use array[index] for one of them, or "
                "tolist"
            )
        number: bool | int | float | complex = _with_python_numbers(self.__array__()).item()
        return number

    def tolist(self) -> Any:
        """Return the value as nested lists of Python numbers, or as one number if the array has no dimensions; wait for
        it.
        """
        return _with_python_numbers(self.__array__()).tolist()

    def __bool__(self) -> bool:
        return bool(self.item())

    def __float__(self) -> float:
        return float(self._only_number("float"))  # type: ignore[arg-type]  # complex raises a TypeError, as it should

    def __int__(self) -> int:
        return int(self._only_number("int"))  # type: ignore[arg-type]  # as above

    def __complex__(self) -> complex:
        return complex(self._only_number("complex"))

    def __index__(self) -> int:
        if not (self.element_type.is_integer and self.ndim == 0):
            raise TypeError(f"only an array of integers without dimensions is an index, found {self._described()}")
        return operator.index(self.item())  # type: ignore[arg-type]  # an integer

    def _only_number(self, kind: str) -> bool | int | float | complex:
        if self.size != 1:
            # Python's and numpy's error for a value that is no number.
            raise TypeError(f"only an array of one element can become a Python {kind}, found {self._described()}")
        return self.item()

    # A sequence along the first dimension.

    def __getitem__(self, index: Any) -> Any:
        """Return numpy's ``numpy.asarray(self)[index]``: a numpy array or scalar on the host; wait for the value.

        The whole array is copied to the host first, where the device's memory is not the host's.
        """
        return self.__array__()[index]

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"an array without dimensions has no length, found {self._described()}")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        if not self.shape:
            raise TypeError(f"an array without dimensions cannot be iterated over, found {self._described()}")
        return iter(self.__array__())

    def __contains__(self, value: object) -> bool:
        return value in self.__array__()

    # asyncio.

    def __await__(self) -> Generator[Any, None, Self]:
        """Wait for the value without blocking the event loop; the result is the array itself."""
        yield from self.ready().__await__()
        return self

    # Notebooks.

    def _repr_html_(self) -> str:
        """Return a description for notebooks, with the first values of a small array that is ready.

        It does not wait for the computation, and a twentieth of a second at most for the copy to the host.
        """
        # Only notebooks need it, and it has a large table.
        import html

        lines = [f"<code>{html.escape(repr(self))}</code>"]
        try:
            values = self._values_now()
        except PjrtError as error:
            values = f"failed: {error}"
        if values:
            lines.append(f"<pre>{html.escape(values)}</pre>")
        return f"<div>{''.join(lines)}</div>"

    def _values_now(self) -> str:
        """Return the first values, or the state that keeps them from being read."""
        if self.is_deleted or self.element_type is ElementType.TOKEN:
            return ""
        ready = self.ready()
        if not ready.done():
            return "not ready"
        ready.result()
        if self.nbytes > _SHOWN_BYTES:
            return ""
        try:
            array = self.to_host().result(_COPY_SECONDS)
        except DeadlineExceededError:
            return ""
        return np.array2string(array, threshold=_SHOWN_ELEMENTS, separator=", ")

    def _described(self) -> str:
        return format_shape(self.element_type, self.shape)


def _with_python_numbers(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array with the same values whose elements numpy turns into Python's numbers.

    The types of ml_dtypes stay what they are in ``ndarray.item``; 64 bits have room for all of their values.
    """
    if array.dtype.isbuiltin == 1:
        return array
    with np.errstate(invalid="ignore"):  # numpy warns about signaling NaNs
        return array.astype(np.int64 if ElementType.of(array.dtype).is_integer else np.float64)
