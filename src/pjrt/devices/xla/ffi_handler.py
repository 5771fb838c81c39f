"""Handlers of XLA's foreign function interface (FFI): Python functions, and jaxlib's own with checks of their calls."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from pjrt.api.element_type import AnyDType, ElementType
from pjrt.api.errors import InternalError, InvalidArgumentError, PjrtError, from_author
from pjrt.devices.xla import _jaxlib
from pjrt.host_memory.array import is_packed, packed, packed_size, unpacked
from pjrt.stablehlo.encodings.hlo_parameters import ELEMENT_TYPES, HloArray, HloCustomCall
from pjrt.stablehlo.encodings.jaxlib import load
from pjrt.stablehlo.ir.mlir_module import walk


@dataclasses.dataclass(frozen=True)
class DeviceArray:
    """An array in memory of a GPU, as a Python function gets it that is a handler of a custom call.

    ``torch.as_tensor`` and ``cupy.asarray`` take it without a copy, by ``__cuda_array_interface__``. It is valid during
    the call only. Work on it belongs on ``stream``: the program's work before the call is enqueued there, and so is the
    work after it.

    Attributes:
        pointer: the address on the GPU; 0 for an array without elements.
        shape: the sizes of the dimensions; elements are in row-major order.
        dtype: the numpy type of the elements; types of ``ml_dtypes`` have no name in ``__cuda_array_interface__``.
        stream: the address of the program's stream, a ``CUstream`` or ``hipStream_t``.
        writable: whether it is a result, which the function fills.
    """

    pointer: int
    shape: tuple[int, ...]
    dtype: AnyDType
    stream: int
    writable: bool

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, not self.writable),
            "strides": None,
            "stream": self.stream or 1,  # 0 is not allowed: 1 names the default stream
        }


# The signatures of jaxlib's handlers, in C. These trust their callers: they copy a whole operand into the memory of a
# result, and compute the sizes of everything from the shape of one operand. JAX calls them with shapes that fit; any
# other program may not. The table below says what fits. The handlers of jaxlib 0.9 to 0.12 need the same.
#
# A signature is a text such as ``T*mn T*n -> T*mn``. Each word is an operand or result: a letter for its element type,
# ``*`` for the dimensions of a batch, which all have in common, and a letter for each further dimension. One letter is
# one size, but for ``k``, the smaller one of ``m`` and ``n``, and ``l``, which is ``n`` − 1.

_MOST = 2**31 - 1
"""LAPACK counts in integers of 32 bits."""

_NEVER_EMPTY = "mnp"
"""The sizes of matrices that LAPACK refuses to be 0, or ends the process at. XLA removes most calls with such ones."""

_TYPED_API = 4
_FIRST_APIS = (0, 1)

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Signature:
    """One way in which a target can be called.

    Attributes:
        text: the operands and results.
        attributes: by name the values that each attribute may have: letters, which are passed as their numbers, or
            numbers and truth values as MLIR writes them; ``None`` for any whole number of 32 bits.
        fits: whether the sizes, and the attributes that are numbers, fit together.
        elements: the element types that each letter stands for.
        api_versions: the versions of custom calls that the handler is registered for.
    """

    text: str
    attributes: Mapping[str, str | tuple[str, ...] | None] = field(default_factory=dict)
    fits: Callable[[Sizes], bool] = lambda sizes: True
    elements: Mapping[str, Sequence[str]] = field(default_factory=dict)
    api_versions: tuple[int, ...] = (_TYPED_API,)

    def accepts(self, call: HloCustomCall) -> bool:
        """Whether a call has this signature."""
        if call.api_version not in self.api_versions:
            return False
        sizes: dict[str, int] = {}
        if self.api_versions == (_TYPED_API,) and not self._reads_attributes(call.config, sizes):
            return False
        operands, results = (side.split() for side in self.text.split("->"))
        return (
            (len(operands), len(results)) == (len(call.operands), len(call.results))
            and _match((*operands, *results), (*call.operands, *call.results), self.elements, sizes)
            and self.fits(sizes)
        )

    def _reads_attributes(self, config: str, sizes: dict[str, int]) -> bool:
        """Read the attributes into the sizes; return whether they are those of the signature, and have its values."""
        given = _attributes_of(config)
        if given is None or given.keys() != self.attributes.keys():
            return False
        for name, allowed in self.attributes.items():
            value = given[name]
            if allowed is None:
                if not value.endswith(" : i32"):
                    return False
                sizes[name] = int(value.removesuffix(" : i32"))
            elif value not in ([f"{ord(letter)} : ui8" for letter in allowed] if isinstance(allowed, str) else allowed):
                return False
        return True


def _match(
    words: Sequence[str], values: Sequence[HloArray], elements: Mapping[str, Sequence[str]], sizes: dict[str, int]
) -> bool:
    """Whether the types of values are those that words describe; note the sizes of their letters."""
    chosen: dict[str, str] = {}
    batch: tuple[int, ...] | None = None
    for word, value in zip(words, values, strict=True):
        letter, dimensions, shape = word[0], word[1:], value.shape
        if value.element not in elements[letter] or chosen.setdefault(letter, value.element) != value.element:
            return False
        if dimensions.startswith("*"):
            dimensions = dimensions[1:]
            if len(shape) < len(dimensions):
                return False
            outer = shape[: len(shape) - len(dimensions)]
            batch = outer if batch is None else batch
            if outer != batch:
                return False
            shape = shape[len(outer) :]
        if len(shape) != len(dimensions):
            return False
        for name, size in zip(dimensions, shape, strict=True):
            if size > _MOST or (not size and name in _NEVER_EMPTY) or _size(name, size, sizes) != size:
                return False
    return True


def _size(name: str, found: int, sizes: dict[str, int]) -> int:
    """Return the size that a letter stands for; the first one that is found, if it is not known yet."""
    if name == "k" and "m" in sizes and "n" in sizes:
        return min(sizes["m"], sizes["n"])
    if name == "l":
        return max(sizes["n"] - 1, 0)
    return sizes.setdefault(name, found)


_ATTRIBUTE = r"(\w+) = (-?\d+ : u?i\d+|true|false)"


def _attributes_of(config: str) -> Mapping[str, str] | None:
    """Return the attributes in a configuration, as MLIR writes them; ``None`` if there are others than numbers."""
    if not config:
        return {}
    if not re.fullmatch(rf"\{{({_ATTRIBUTE}(, {_ATTRIBUTE})*)?\}}", config):
        return None
    pairs = re.findall(_ATTRIBUTE, config)
    return dict(pairs) if len(dict(pairs)) == len(pairs) else None


# LAPACK.


def _svd_fits(sizes: Sizes) -> bool:
    """Whether LAPACK can count the memory that it needs for a decomposition."""
    smaller = min(sizes["m"], sizes["n"])
    return 4 * smaller * smaller + 100 * smaller + sizes["m"] + sizes["n"] <= _MOST


def _range_fits(sizes: Sizes) -> bool:
    low, high, n = sizes["low"], sizes["high"], sizes["n"]
    return 1 <= low <= max(1, n) and min(low, n) <= high <= n


_UPLO = {"uplo": "LU"}
_SVD = (
    Signature("T*mn -> T*mn R*k T*mm T*nn I*", {"mode": "AN"}, _svd_fits),
    Signature("T*mn -> T*mn R*k T*mk T*kn I*", {"mode": "SN"}, _svd_fits),
)
_TRSM = {"uplo": "LU", "trans_x": "NTC", "diag": "NU"}
_ROUTINES: dict[str, tuple[Signature, ...]] = {
    "gehrd": (Signature("T*nn -> T*nn T*l I*", {"low": None, "high": None}, _range_fits),),
    "geqp3": (Signature("T*mn I*n -> T*mn I*n T*k"),),
    "geqrf": (Signature("T*mn -> T*mn T*k"),),
    "gesdd": _SVD,
    "gesvd": _SVD,
    "getrf": (Signature("T*mn -> T*mn I*k I*"),),
    "gtsv": (Signature("T*n T*n T*n T*nc -> T*n T*n T*n T*nc I*"),),
    "potrf": (Signature("T*nn -> T*nn I*", _UPLO),),
    "trsm": (
        Signature("T*mm T*mn -> T*mn", {"side": "L", **_TRSM}),
        Signature("T*nn T*mn -> T*mn", {"side": "R", **_TRSM}),
    ),
    "or/ungqr": (Signature("T*mp T*q -> T*mp", fits=lambda sizes: sizes["q"] <= sizes["p"] <= sizes["m"]),),
    "or/unmqr": tuple(
        Signature(
            f"T*{rows}p T*q T*mn -> T*mn",
            {"left": (left,), "transpose": ("false", "true")},
            lambda sizes, rows=rows: sizes["q"] <= min(sizes["p"], sizes[rows]),  # type: ignore[misc]
        )
        for left, rows in (("true", "m"), ("false", "n"))
    ),
    "sy/heevd": (Signature("T*nn -> T*nn R*n I*", {"mode": "VN", **_UPLO}),),
    "sy/hetrd": (Signature("T*nn -> T*nn R*n R*l T*l I*", _UPLO),),
}
_EIGENVECTORS = {"compute_left": "VN", "compute_right": "VN"}
_SCHUR = {"mode": "VN", "sort": "N"}
_OF_REAL = {
    "geev": (Signature("T*nn -> T*n T*n C*nn C*nn I*", _EIGENVECTORS),),
    "gees": (Signature("T*nn -> T*nn T*nn T*n T*n I* I*", _SCHUR),),
}
_OF_COMPLEX = {
    "geev": (Signature("T*nn -> T*n T*nn T*nn I*", _EIGENVECTORS),),
    "gees": (Signature("T*nn -> T*nn T*nn T*n I* I*", _SCHUR),),
}
_LAPACK_TYPES = {
    "s": ("F32", "F32", "C64"),
    "d": ("F64", "F64", "C128"),
    "c": ("C64", "F32", ""),
    "z": ("C128", "F64", ""),
}
"""For each prefix of LAPACK its element type, the real one, and the complex one."""

# Sparse matrices. The indices are checked when the program runs: see the end of this file.

_MULTIPLIED = ("S32", "S64", "F32", "F64", "C64", "C128")
_CSR = tuple(
    Signature(text, {}, lambda sizes: sizes["p"] == sizes["r"] + 1, {"T": _MULTIPLIED, "J": ("S32", "S64")})
    for text in ("Tz Jp Jz Tk -> Tr", "Tz Jp Jz Tkc -> Trc")
)

CSR_PRODUCT = "cpu_csr_sparse_dense_ffi"
"""jaxlib's target that multiplies a sparse matrix, and trusts its indices."""

CHECKED_CSR_PRODUCT = "pjrt.cpu_csr_sparse_dense"
"""The target that checks the indices first."""


def _signatures() -> dict[str, tuple[Signature, ...]]:
    table: dict[str, tuple[Signature, ...]] = {
        "tridiagonal_solve_perturbed_ffi": (
            Signature("T*n T*n T*n T*nc -> T*nc", elements={"T": ("F32", "F64", "C64", "C128")}),
        ),
        # XLA's own, which a program may call by its name.
        "TopK": tuple(
            Signature(
                text, fits=lambda sizes: sizes["j"] <= sizes["n"], elements={"T": ("F32",), "I": ("S32",)},
                api_versions=_FIRST_APIS,
            )
            for text in ("Tn -> Tj Ij", "Tbn -> Tbj Ibj")
        ),
        CHECKED_CSR_PRODUCT: _CSR,
    }  # fmt: skip
    for prefix, (own, real, wide) in _LAPACK_TYPES.items():
        elements = {"T": (own,), "R": (real,), "C": (wide,) if wide else (), "I": ("S32",)}
        for name, signatures in (_ROUTINES | (_OF_COMPLEX if prefix in "cz" else _OF_REAL)).items():
            of_real, _, of_complex = name.rpartition("/")
            routine = name if not of_real else (of_complex if prefix in "cz" else of_real + of_complex[2:])
            table[f"lapack_{prefix}{routine}_ffi"] = tuple(
                Signature(each.text, each.attributes, each.fits, elements) for each in signatures
            )
    return table


SIGNATURES = _signatures()
"""The signatures of each target that is checked."""


def check_signature(call: HloCustomCall) -> None:
    """Raise an error if a call of a target of the table does not have one of its signatures.

    Raises:
        InvalidArgumentError: the operands, results or attributes do not fit together.
    """
    signatures = SIGNATURES[call.target]
    if any(signature.accepts(call) for signature in signatures):
        return
    operands, results = (", ".join(map(str, each)) for each in (call.operands, call.results))
    expected = " or ".join(dict.fromkeys(f"'{signature.text}'" for signature in signatures))
    raise InvalidArgumentError(
        f"the custom call {call.target} would leave the memory of its operands and results: expected {expected} (a "
        "word is an operand or result: its type, * for the dimensions of a batch, a letter for each size; k is the "
        f"smaller one of m and n, l is n - 1) and attributes that fit; found ({operands}) -> ({results}) with "
        f"{call.config[:200]!r} and API version {call.api_version}"
    )


# Python functions as handlers. XLA calls a handler with a call frame, a C struct. ctypes reads it here, and its buffers
# become numpy arrays over the same memory. The structs are those of XLA's header ``xla/ffi/api/c_api.h``.

_API_VERSION = (0, 1)
"""The oldest version of the interface with these structs; XLA accepts handlers of older versions than its own."""

_EXECUTE = 3
_TOKEN = 17
_METADATA_EXTENSION = 1
_ARRAY, _DICTIONARY, _SCALAR, _STRING = 1, 2, 3, 4

# Elements of less than a byte are packed; numpy holds each in a byte of its own.
_PACKED = {number: each for number, each in ELEMENT_TYPES.items() if is_packed(each)}
_DTYPES = {
    number: each.dtype
    for number, each in ELEMENT_TYPES.items()
    if number not in _PACKED and each is not ElementType.TOKEN
}


class _Header(ctypes.Structure):
    _fields_: ClassVar[tuple[tuple[str, Any], ...]] = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
    )


class _Span(ctypes.Structure):
    _fields_ = (("ptr", ctypes.c_void_p), ("len", ctypes.c_size_t))


class _Buffer(_Header):
    _fields_ = (
        ("dtype", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    )


class _Scalar(ctypes.Structure):
    _fields_ = (("dtype", ctypes.c_int), ("value", ctypes.c_void_p))


class _Array(ctypes.Structure):
    _fields_ = (("dtype", ctypes.c_int), ("size", ctypes.c_size_t), ("data", ctypes.c_void_p))


class _Values(_Header):
    """Arguments or results."""

    _fields_ = (
        ("size", ctypes.c_int64),
        ("types", ctypes.POINTER(ctypes.c_int)),
        ("values", ctypes.POINTER(ctypes.POINTER(_Buffer))),
    )


class _Attributes(_Header):
    _fields_ = (
        ("size", ctypes.c_int64),
        ("types", ctypes.POINTER(ctypes.c_int)),
        ("names", ctypes.POINTER(ctypes.POINTER(_Span))),
        ("values", ctypes.POINTER(ctypes.c_void_p)),
    )


class _ErrorCreateArgs(_Header):
    _fields_ = (("message", ctypes.c_char_p), ("code", ctypes.c_int))


class _Version(_Header):
    _fields_ = (("major", ctypes.c_int), ("minor", ctypes.c_int))


_ErrorCreate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_ErrorCreateArgs))


class _StreamGetArgs(_Header):
    _fields_ = (("context", ctypes.c_void_p), ("stream", ctypes.c_void_p))


_StreamGet = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_StreamGetArgs))


class _Api(_Header):
    _fields_ = (
        ("version", _Version),
        ("internal_api", ctypes.c_void_p),
        ("error_create", _ErrorCreate),
        ("error_get_message", ctypes.c_void_p),
        ("error_destroy", ctypes.c_void_p),
        ("handler_register", ctypes.c_void_p),
        ("stream_get", _StreamGet),
    )


class _CallFrame(_Header):
    _fields_ = (
        ("api", ctypes.POINTER(_Api)),
        ("context", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("arguments", _Values),
        ("results", _Values),
        ("attributes", _Attributes),
    )


class _Metadata(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("version", _Version), ("traits", ctypes.c_uint32))


class _Extension(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("metadata", ctypes.POINTER(_Metadata)),
    )


_Handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_CallFrame))

_handlers: dict[int, tuple[Any, Callable[..., Any]]] = {}
"""Handlers and their functions by address. XLA keeps a handler for ever, so they must stay."""

_addresses: dict[tuple[Callable[..., Any], int, bool], int] = {}
_lock = threading.Lock()


def handler_of(function: Callable[..., Any], traits: int, *, on_device: bool = False) -> int:
    """Return the address of an FFI handler that calls a Python function.

    The address is the same each time, because XLA accepts the registration of a name again only with the same handler.

    The function is called on a thread of the runtime, as ``function(*operands, *results, **attributes)``: operands are
    read-only numpy arrays, results writable ones to fill, and attributes Python values. The arrays are valid during the
    call only. A result is zero before the call, or has the value of the operand whose memory the program gives it. The
    return value is ignored. An exception becomes the error of the execution.

    With ``on_device`` the buffers are in memory that the host cannot read: operands and results are ``DeviceArray``,
    and results have no value before the call.
    """
    with _lock:
        key = function, traits, on_device
        if key not in _addresses:
            handler = _Handler(_handle(function, traits, _call_on_device if on_device else _call_on_host))
            address = ctypes.cast(handler, ctypes.c_void_p).value or 0
            _handlers[address] = handler, function
            _addresses[key] = address
        return _addresses[key]


def checked_handler(address: int, check: Callable[..., Any]) -> int:
    """Return the address of an FFI handler that calls another one in C, if a check lets it.

    Args:
        address: the address of the other handler.
        check: is given the operands and results of each call as numpy arrays, and raises the error of the execution.
    """
    inner = _Handler(address)

    def handle(frame_pointer: Any) -> int | None:
        frame = frame_pointer.contents
        try:
            if frame.stage == _EXECUTE and _metadata_extension(frame) is None:
                arrays = [
                    _view(values, number, False)
                    for values in (frame.arguments, frame.results)
                    for number in range(values.size)
                ]
                check(*arrays)
        except BaseException as error:  # no exception may escape into XLA's thread
            return _failure(frame, from_author(error))
        result: int | None = inner(frame_pointer)
        return result

    with _lock:
        handler = _Handler(handle)
        own = ctypes.cast(handler, ctypes.c_void_p).value or 0
        _handlers[own] = handler, check
        return own


def function_at(address: int) -> Callable[..., Any] | None:
    """Return the Python function behind a handler of ``handler_of``; None for the address of any other handler."""
    entry = _handlers.get(address)
    return None if entry is None else entry[1]


def _handle(
    function: Callable[..., Any], traits: int, call: Callable[[Callable[..., Any], Any], None]
) -> Callable[[Any], int | None]:
    """Return the C callback of a handler: it takes a call frame, and returns an error or null."""

    def handle(frame_pointer: Any) -> int | None:
        frame = frame_pointer.contents
        try:
            if _describe(frame, traits) or frame.stage != _EXECUTE:
                return None
            call(function, frame)
        except BaseException as error:  # no exception may escape into XLA's thread
            return _failure(frame, from_author(error))
        return None

    return handle


def _call_on_host(function: Callable[..., Any], frame: Any) -> None:
    operands = [_view(frame.arguments, number, False) for number in range(frame.arguments.size)]
    results = [_result(frame, number) for number in range(frame.results.size)]
    function(*operands, *results, **_attributes(frame.attributes))
    for number, result in enumerate(results):
        _pack(frame.results.values[number].contents, result)


def _call_on_device(function: Callable[..., Any], frame: Any) -> None:
    stream = _stream_of(frame)
    arrays = [
        _on_device(values.values[number].contents, stream, writable)
        for values, writable in ((frame.arguments, False), (frame.results, True))
        for number in range(values.size)
    ]
    function(*arrays, **_attributes(frame.attributes))


def _stream_of(frame: Any) -> int:
    """Return the address of the stream that the program runs on."""
    arguments = _StreamGetArgs(ctypes.sizeof(_StreamGetArgs), None, frame.context, None)
    if frame.api.contents.stream_get(ctypes.byref(arguments)):
        raise InternalError("expected the program's stream from XLA, found an error: a custom call needs it on a GPU")
    return arguments.stream or 0


def _on_device(buffer: Any, stream: int, writable: bool) -> DeviceArray:
    dtype = np.dtype(np.bool_) if buffer.dtype == _TOKEN else _DTYPES.get(buffer.dtype)
    if dtype is None:
        raise NotImplementedError(f"elements of XLA's type number {buffer.dtype} have no numpy type on devices")
    shape = (0,) if buffer.dtype == _TOKEN else tuple(buffer.dims[: buffer.rank])
    return DeviceArray(buffer.data or 0, shape, dtype, stream, writable)


def _describe(frame: Any, traits: int) -> bool:
    """Describe the handler if the call frame only asks for that, and return whether it does."""
    extension = _metadata_extension(frame)
    if extension is None:
        return False
    metadata = extension.metadata.contents
    metadata.version.major, metadata.version.minor = _API_VERSION
    metadata.traits = traits
    return True


def _metadata_extension(frame: Any) -> Any:
    """Return the extension of a call frame that asks for a description of the handler; ``None`` without one."""
    address = frame.extension_start
    while address:
        extension = _Extension.from_address(address)
        if extension.type == _METADATA_EXTENSION:
            return extension
        address = extension.next
    return None


def _result(frame: Any, number: int) -> np.ndarray[Any, Any]:
    """Return a result to fill, which is zero: the function may leave parts of it alone."""
    buffer = frame.results.values[number].contents
    arguments = frame.arguments
    operands = {arguments.values[operand].contents.data for operand in range(arguments.size)}
    if buffer.data is not None and buffer.data not in operands:
        ctypes.memset(buffer.data, 0, _size_in_memory(buffer))
    return _view(frame.results, number, True)


def _size_in_memory(buffer: Any) -> int:
    """Return the bytes of a buffer in XLA's memory."""
    count = math.prod(buffer.dims[: buffer.rank])
    if buffer.dtype in _PACKED:
        return packed_size(count, _PACKED[buffer.dtype])
    dtype = _DTYPES.get(buffer.dtype)
    return 0 if dtype is None else count * dtype.itemsize


def _view(values: Any, number: int, writable: bool) -> np.ndarray[Any, Any]:
    buffer = values.values[number].contents
    shape = tuple(buffer.dims[dimension] for dimension in range(buffer.rank))
    return _over(buffer.data, shape, buffer.dtype, writable)


def _over(address: int | None, shape: tuple[int, ...], number: int, writable: bool) -> np.ndarray[Any, Any]:
    if number == _TOKEN:
        return np.empty(0, np.bool_)  # a token has no value; the array keeps its place among the arguments
    if number in _PACKED:
        return _unpacked(address, shape, number, writable)
    dtype = _DTYPES.get(number)
    if dtype is None:
        raise NotImplementedError(f"numpy has no type for elements of XLA's type number {number}")
    array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, _memory(address, math.prod(shape) * dtype.itemsize))
    array.flags.writeable = writable
    return array


def _memory(address: int | None, size: int) -> Any:
    return (ctypes.c_char * size).from_address(address) if size and address is not None else bytearray(size)


def _unpacked(address: int | None, shape: tuple[int, ...], number: int, writable: bool) -> np.ndarray[Any, Any]:
    """Return elements of less than a byte, each in a byte of new memory; a result is packed after the call."""
    element_type = _PACKED[number]
    size = packed_size(math.prod(shape), element_type)
    values = unpacked(np.ndarray(size, np.uint8, _memory(address, size)), shape, element_type)
    values.flags.writeable = writable
    return values


def _pack(buffer: Any, result: np.ndarray[Any, Any]) -> None:
    """Write a result whose elements are of less than a byte into XLA's memory; do nothing with other results."""
    if buffer.dtype not in _PACKED or not result.size:
        return
    values = packed(result, _PACKED[buffer.dtype])
    np.ndarray(values.size, np.uint8, _memory(buffer.data, values.size))[...] = values


def _attributes(attributes: Any) -> Mapping[str, Any]:
    return {
        _text(attributes.names[number].contents): _attribute(attributes.types[number], attributes.values[number])
        for number in range(attributes.size)
    }


def _attribute(kind: int, address: int) -> Any:
    if kind == _STRING:
        return _text(_Span.from_address(address))
    if kind == _SCALAR:
        scalar = _Scalar.from_address(address)
        return _over(scalar.value, (), scalar.dtype, False)[()].item()
    if kind == _ARRAY:
        array = _Array.from_address(address)
        return _over(array.data, (array.size,), array.dtype, False).copy()
    if kind == _DICTIONARY:
        return _attributes(_Attributes.from_address(address))
    raise NotImplementedError(f"attributes of FFI's kind {kind} are unsupported")


def _text(span: Any) -> str:
    return ctypes.string_at(span.ptr, span.len).decode() if span.len else ""


def _failure(frame: Any, error: PjrtError) -> int | None:
    arguments = _ErrorCreateArgs(
        ctypes.sizeof(_ErrorCreateArgs), None, error.message.encode(errors="replace"), int(error.code)
    )
    address: int | None = frame.api.contents.error_create(ctypes.byref(arguments))
    return address


# The product of a sparse matrix (CSR) and a dense one. jaxlib's handler reads the dense matrix wherever an index points
# to, which may be outside of it. No look at the program can find that out, because the indices come when it runs. So
# programs call a handler of this package in its place, which looks at the indices, and then calls jaxlib's.

_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_capsule_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))


@functools.cache
def register_csr_product() -> None:
    """Register the handler with XLA."""
    capsule = _jaxlib.csr_targets()[CSR_PRODUCT]
    own = checked_handler(_capsule_pointer(capsule, _capsule_name(capsule)), _check_indices)
    _jaxlib.register_handler(CHECKED_CSR_PRODUCT, own)


def guard_csr_product(module: Any, called: Collection[str]) -> None:
    """Have a program call the handler that checks the indices in place of jaxlib's.

    Args:
        module: the program, an ``MlirModule``.
        called: the targets that it calls.
    """
    if CSR_PRODUCT not in called:
        return
    with module as mlir:
        target = load("mlir.ir", "change a program").StringAttr.get(CHECKED_CSR_PRODUCT)
        for operation in walk(mlir.operation):
            attributes = operation.attributes
            if operation.name == "stablehlo.custom_call" and attributes["call_target_name"].value == CSR_PRODUCT:
                attributes["call_target_name"] = target


def _check_indices(values: Any, rows: Any, columns: Any, dense: Any, result: Any) -> None:
    """Raise an error if the indices of a sparse matrix lead out of it, or out of the dense one.

    Args:
        values: the values that are not zero.
        rows: where the values of each row begin, and the end of the last one.
        columns: the column of each value.
        dense: the dense matrix, or a vector.
        result: the result.

    Raises:
        InvalidArgumentError: an index is outside.
    """
    if rows[0] < 0 or rows[-1] > len(values) or np.any(rows[1:] < rows[:-1]):
        raise InvalidArgumentError(
            f"the rows of a sparse matrix must begin in order between 0 and its {len(values)} values; found rows that "
            f"begin between {rows.min()} and {rows.max()}"
        )
    used = columns[rows[0] : rows[-1]]
    if len(used) and not 0 <= used.min() <= used.max() < len(dense):
        raise InvalidArgumentError(
            f"the columns of a sparse matrix must be from 0 to {len(dense) - 1}, as the dense matrix has {len(dense)} "
            f"rows; found columns from {used.min()} to {used.max()}"
        )
