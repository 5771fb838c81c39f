"""Inputs: the arrays for the parameters of a model, from files, numbers and fillers."""

from __future__ import annotations

import ast
import contextlib
import math
import os
import re
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType, number_array
from pjrt.api.errors import DataLossError, InvalidArgumentError, NotFoundError, ResourceExhaustedError, naming
from pjrt.api.loaded_executable import MOST_CHOICES, choices
from pjrt.api.shape_spec import format_shape
from pjrt.models.binding import SPELLINGS, Binding, numbers_by_name, spellings
from pjrt.models.model_file import ModelFile
from pjrt.stablehlo.facts.signatures import Parameter
from pjrt.stablehlo.files.safetensors import read_safetensors
from pjrt.stablehlo.ir.argument_shapes import known_shapes

Array = np.ndarray[Any, Any]

# Files of arrays: ``.npy``, ``.npz`` and ``.safetensors``.

_NPY_HEADER = 1 << 16
"""The bytes before the elements of an array in a ``.npy`` file, at the most."""
_LARGER = 16
"""Factor by which an array of another element type may be larger: the error for that says more."""


def check_sizes(path: str | os.PathLike[str], most_bytes: int) -> None:
    """Check that no array of a ``.npz`` file is much larger than any that is wanted, before one is read.

    A compressed array may be a thousand times as large as its file.

    Raises:
        InvalidArgumentError: one is larger.
        DataLossError: the file is damaged.
    """
    if Path(path).suffix != ".npz" or not zipfile.is_zipfile(path):
        return
    with _readable(Path(path)), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    for member in members:
        if member.file_size > _LARGER * most_bytes + _NPY_HEADER:
            raise InvalidArgumentError(
                f"expected arrays of at most {most_bytes:,} bytes in {os.fspath(path)!r}, found "
                f"{member.filename.removesuffix('.npy')!r} of {member.file_size:,}"
            )


def arrays_by_name(path: str | os.PathLike[str], only: str = "") -> Mapping[str, Array]:
    """Return the arrays in a file by name; the one of a ``.npy`` file has the name of the file.

    Those of a ``.safetensors`` file are mapped: the operating system reads them when they are needed, and may drop
    them again. The others are read at once, because a ``.npz`` file may be compressed.

    Args:
        path: the file.
        only: the name of the only array that is wanted; empty for all. Others may be left out.

    Raises:
        NotFoundError: there is no such file.
        InvalidArgumentError: the file is of another format.
        DataLossError: the file is damaged.
    """
    file = Path(path)
    if not file.is_file():
        raise NotFoundError(f"expected a file of arrays, found none at {str(file)!r}")
    reader = _READERS.get(file.suffix)
    if reader is None:
        raise InvalidArgumentError(f"expected a .npy, .npz or .safetensors file, found {str(file)!r}")
    with _readable(file):
        return reader(file, only)


@contextlib.contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Raise a ``DataLossError`` where a reader of the file fails in the block."""
    try:
        yield
    except Exception as error:  # numpy's readers raise what they are made of: ast, struct, tokenize, zipfile, zlib
        raise DataLossError(f"{str(file)!r} is not a readable {file.suffix} file: {error}") from error


def _load_npy(file: Path, only: str) -> Mapping[str, Array]:
    return {file.stem: np.load(file, allow_pickle=False)}


def _load_npz(file: Path, only: str) -> Mapping[str, Array]:
    # numpy leaves a file open that it opened itself and cannot read.
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        found = {only: arrays[only]} if only in arrays.files else dict(arrays)
    for name, array in found.items():
        if not isinstance(array, np.ndarray):  # numpy gives the bytes of a member that is no array
            raise ValueError(f"{name!r} in it is no array")
    return found


def _map_safetensors(file: Path, only: str) -> Mapping[str, Array]:
    return read_safetensors(np.memmap(file, np.uint8, "r") if file.stat().st_size else np.zeros(0, np.uint8))


_READERS: Mapping[str, Callable[[Path, str], Mapping[str, Array]]] = {
    ".npy": _load_npy,
    ".npz": _load_npz,
    ".safetensors": _map_safetensors,
}

SUFFIXES = tuple(_READERS)
"""The suffixes of files that can be read."""


# Values without files: numbers and fillers.

_CONSTANTS = ("zeros", "ones")
_NUMBERS_BEGIN = re.compile(r"[\[(]|[+-]?(?:\.?\d|inf\b|nan\b)|true\b|false\b", re.IGNORECASE)
_FILE_ENDS = re.compile(r"\.(npy|npz|safetensors|bin)(:[^:]*)?$")
_WORDS = {"true": True, "false": False, "inf": math.inf, "nan": math.nan}


def is_filler(text: str) -> bool:
    """Whether a source makes an array for any parameter: ``zeros``, ``ones`` or ``random:SEED[:LOW:HIGH]``."""
    return text in _CONSTANTS or text == "random" or text.startswith("random:")


def filled(text: str, parameter: Parameter) -> Array:
    """Return the array that ``zeros``, ``ones``, ``random:SEED`` or ``random:SEED:LOW:HIGH`` makes for a parameter.

    Raises:
        InvalidArgumentError: the parameter's shape is dynamic, the seed is not a whole number, or the bounds do not fit
            the type.
        ResourceExhaustedError: there is not enough memory for the array.
    """
    shape = tuple(size for size in parameter.shape if isinstance(size, int))
    if len(shape) != len(parameter.shape):
        raise InvalidArgumentError(
            f"--input {text} cannot make {parameter}: its shape is dynamic; give it by --shape, or give a file"
        )
    try:
        if text in _CONSTANTS:
            return np.full(shape, text == "ones", parameter.element_type.dtype)
        seed, bounds = _seed_and_bounds(text, parameter)
        return _random(np.random.default_rng([seed, parameter.index]), shape, parameter.element_type, bounds)
    except InvalidArgumentError:
        raise
    except (MemoryError, ValueError) as error:
        # A ValueError: a number of bytes, or of digits of the seed, that no machine holds.
        raise ResourceExhaustedError(f"--input {text} cannot make {parameter}: {error}") from error


_RANDOM = re.compile(r"random:(\d+)(?::(-?\d+):(-?\d+))?", re.ASCII)


_RANDOM_FORM = (
    "expected random:SEED with a whole number from 0 up, such as random:0, or random:SEED:LOW:HIGH for integers from "
    "LOW up to HIGH, which is not among them, such as random:0:0:30000"
)


def _seed_and_bounds(text: str, parameter: Parameter) -> tuple[int, tuple[int, int] | None]:
    match, kind = _RANDOM.fullmatch(text), parameter.element_type
    if match is None:
        raise InvalidArgumentError(f"--input {text}: {_RANDOM_FORM}")
    if match[2] is None or not kind.is_integer:
        return int(match[1]), None
    low, high = int(match[2]), int(match[3])
    least = 0 if kind.name[0] == "U" else -(2 ** (kind.bits - 1))
    if not least <= low < high <= least + 2**kind.bits:
        raise InvalidArgumentError(
            f"--input {text}: expected LOW below HIGH, both from {least} to {least + 2**kind.bits} for {parameter}"
        )
    return int(match[1]), (low, high)


def _random(
    generator: np.random.Generator, shape: tuple[int, ...], kind: ElementType, bounds: tuple[int, int] | None
) -> Array:
    if kind is ElementType.PRED:
        return generator.random(shape) < 0.5
    if kind.is_integer:
        low, high = bounds or _small_range(kind)
        if high > 1 << 63:
            return generator.integers(low, high, shape, np.uint64).astype(kind.dtype)
        return generator.integers(low, high, shape).astype(kind.dtype)
    if kind.is_complex:
        return (generator.standard_normal(shape) + 1j * generator.standard_normal(shape)).astype(kind.dtype)
    return np.asarray(generator.standard_normal(shape)).astype(kind.dtype)


def _small_range(kind: ElementType) -> tuple[int, int]:
    """Return a range so small that sums and products of a few numbers do not overflow, where the type allows it."""
    if kind.name[0] == "U":
        return 0, min(2**kind.bits, 16)
    return (-8, 8) if kind.bits > 4 else (0, 2)


def are_numbers(text: str) -> bool:
    """Whether a source begins as a number or a list of numbers does; no name of a file with a suffix does."""
    return _NUMBERS_BEGIN.match(text) is not None and not _FILE_ENDS.search(text)


def numbers(text: str, parameter: Parameter) -> Array:
    """Return the number, or the nested lists of numbers, of a text as an array for a parameter.

    ``true``, ``false``, ``inf`` and ``nan`` are numbers too, and ``1+2j`` is a complex one.

    Raises:
        InvalidArgumentError: the text is not a number or a list of them, or the parameter's type cannot hold one.
    """
    try:
        value = _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(
            f"expected a number such as 3.5, or a list such as [1, 2, 3], found {text!r}"
        ) from error
    return number_array(value, parameter.element_type)


def _value(node: ast.expr) -> Any:
    """Return the number or the nested lists of numbers that an expression spells.

    Raises:
        ValueError: it spells something else.
        InvalidArgumentError: a number is larger than any that Python has.
    """
    match node:
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Constant(value=bool() | int() | float() | complex() as number):
            if isinstance(number, float) and math.isinf(number):
                raise InvalidArgumentError(
                    f"expected numbers up to {sys.float_info.max}, found a larger one; write inf"
                )
            return number
        case ast.Name(id=name) if name.lower() in _WORDS:
            return _WORDS[name.lower()]
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return +_number(operand)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand)
        case ast.BinOp(left=real, op=ast.Add(), right=ast.Constant(value=complex() as imaginary)):
            return _number(real) + imaginary
        case ast.BinOp(left=real, op=ast.Sub(), right=ast.Constant(value=complex() as imaginary)):
            return _number(real) - imaginary
    raise ValueError("not a number")


def _number(node: ast.expr) -> Any:
    value = _value(node)
    if isinstance(value, list):
        raise ValueError("not a number")
    return value


# What an input names in files: arrays, with the parameter's type.

FORMS = (
    "PATH.npy, PATH.npz[:NAME], PATH.safetensors[:NAME], PATH.bin, a number, a list such as [1,2,3], "
    "random:SEED[:LOW:HIGH], zeros or ones, each optionally after NAME= or INDEX="
)

ARRAY_FILES = "PATH.npy, PATH.npz[:NAME] or PATH.safetensors[:NAME]"

RAW = ".bin"
"""The suffix of a file with the bytes of one array, whose type and shape are the parameter's."""


def arrays_in(text: str, option: str, flag: str = "--input", *, most_bytes: int | None = None) -> Mapping[str, Array]:
    """Return the arrays of a ``.npy``, ``.npz`` or ``.safetensors`` file by name.

    Args:
        text: the path, and optionally the name of one array after a colon.
        option: the whole option, for messages.
        flag: the name of the option, for messages.
        most_bytes: the bytes of the largest array that is wanted; None if that is not known.

    Raises:
        InvalidArgumentError: the file is of another format, or is damaged, or has a larger array.
        NotFoundError: there is no such file, or no such array in it.
    """
    path, _, name = text.partition(":") if not Path(text).exists() else (text, "", "")
    if Path(path).suffix not in SUFFIXES:
        forms = FORMS if flag == "--input" else ARRAY_FILES
        raise InvalidArgumentError(f"{flag} {option}: expected {forms}")
    _check_exists(path, option, flag)
    try:
        if most_bytes is not None and not name:
            check_sizes(path, most_bytes)
        mapped = arrays_by_name(path, name)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{flag} {option}: {error.message}") from error
    except DataLossError as error:
        raise InvalidArgumentError(f"{flag} {option}: {error.message}") from error
    # An array that stays mapped would end the process if the file became shorter, as with ``--watch``.
    read = {key: np.array(array) if isinstance(array, np.memmap) else array for key, array in mapped.items()}
    arrays = {key: _in_native_order(array) for key, array in read.items()}
    if not name:
        return arrays
    if name not in arrays:
        raise NotFoundError(f"{flag} {option}: {path!r} has no array {name!r}; it has {', '.join(arrays)}")
    return {name: arrays[name]}


def members_in(text: str, option: str, root: str) -> Mapping[str, Array]:
    """Return the arrays of one nested value in a file, by the rest of their names: ``['k']`` of ``cache['k']``.

    Args:
        text: the path, and optionally the name of the nested value after a colon, such as ``result[1]``.
        option: the whole option, for messages.
        root: the name of the nested value if ``text`` does not have one; names that begin with a bracket are members,
            too.

    Raises:
        InvalidArgumentError: the file is of another format, or is damaged.
        NotFoundError: there is no such file, or no array in it has such a name.
    """
    path, _, prefix = text.partition(":") if not Path(text).exists() else (text, "", "")
    arrays = arrays_in(path, option)
    for head in (prefix,) if prefix else (root, ""):
        members = {
            name[len(head) :]: array
            for name, array in arrays.items()
            if name.startswith(head) and name[len(head) :].startswith(("[", "."))
        }
        if members:
            return members
    raise NotFoundError(
        f"--input {option}: expected arrays such as {prefix or root}['NAME'] in {path!r}, it has {', '.join(arrays)}"
    )


def array_of_bytes(path: str, parameter: Parameter, option: str) -> Array:
    """Return the array whose bytes a ``.bin`` file has: row-major, little-endian, at least a byte for each element.

    Args:
        path: the file.
        parameter: the parameter, which has the type and the shape. One size of it may be dynamic.
        option: the whole option, for messages.

    Raises:
        InvalidArgumentError: the number of bytes is not that of the parameter, or several of its sizes are dynamic.
        NotFoundError: there is no such file.
    """
    _check_exists(path, option)
    dtype = parameter.element_type.dtype
    dynamic = [place for place, size in enumerate(parameter.shape) if not isinstance(size, int)]
    if len(dynamic) > 1:
        raise InvalidArgumentError(
            f"--input {option}: expected a shape for {parameter}, of which raw bytes have none; give a .npy file"
        )
    row = math.prod(size for size in parameter.shape if isinstance(size, int)) * dtype.itemsize
    count = Path(path).stat().st_size
    if count % row if dynamic and row else count != row:
        many = f"a multiple of {row}" if dynamic and row else str(row)
        raise InvalidArgumentError(
            f"--input {option}: expected {many} bytes for {parameter}, found a file of {count} bytes"
        )
    try:
        flat = np.fromfile(path, dtype.newbyteorder("<") if dtype.isbuiltin == 1 else dtype)
    except OSError as error:
        raise InvalidArgumentError(f"--input {option}: cannot read {path!r}: {error.strerror}") from error
    if parameter.element_type is ElementType.PRED and (flat.view(np.uint8) > 1).any():
        raise InvalidArgumentError(f"--input {option}: expected bytes of 0 and 1 for {parameter}, found larger ones")
    shape = tuple(size if isinstance(size, int) else count // row if row else 0 for size in parameter.shape)
    return _in_native_order(flat).reshape(shape)


def with_type(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return raw bytes as a type of their size: numpy writes bfloat16 and the like to files as raw bytes."""
    is_raw = array.dtype.kind == "V" and array.dtype.names is None
    return array.view(dtype) if is_raw and array.dtype.itemsize == dtype.itemsize else array


def _check_exists(path: str, option: str, flag: str = "--input") -> None:
    if not Path(path).is_file():
        raise NotFoundError(f"{flag} {option}: expected a file, found none at {path!r}{_why_no_name(path)}")


def _why_no_name(path: str) -> str:
    name, equals, _ = path.partition("=")
    return f"; the program has no argument called {name!r}" if equals else ""


def _in_native_order(array: Array) -> Array:
    """Return an array in the byte order of this machine, which a file need not have."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


# The texts of inputs are the values of the command's ``--input`` options, and messages call them so.


@dataclass(frozen=True)
class _Source:
    """One input: the parameter that it names, its value, and the text as written."""

    target: str
    value: str
    option: str


@dataclass(frozen=True)
class Input:
    """The array for one parameter.

    Attributes:
        array: the array.
        matched_by_type: the place in a file that the array came from, if it was matched by its type alone; empty if
            it was matched by a name, an index or the order of the options.
        name: what the array is called where it came from: in its file, or as its file; empty if it has no name.
    """

    array: Array
    matched_by_type: str = ""
    name: str = ""


def _swapped(parameters: Sequence[Parameter], inputs: Sequence[Input]) -> Iterator[str]:
    """Yield a line for each array that is called like another parameter of the same type, which has another array."""
    numbers = numbers_by_name(parameters)
    by_index = {each.index: (each, given) for each, given in zip(parameters, inputs, strict=True)}
    for index, (parameter, given) in by_index.items():
        other = numbers.get(given.name, index)
        named, its_own = by_index[other]
        is_right = other == index or numbers.get(its_own.name) == other
        if not is_right and _fitted(named, given.array) is not None:
            yield f"{parameter} is given {given.name!r}, which is the name of {named}; are they swapped?"


def make_arguments(
    parameters: Sequence[Parameter], options: Sequence[str], shapes: Mapping[str, Sequence[int]] | None = None
) -> list[Input]:
    """Return the arrays for a program's parameters.

    A file of several arrays fills the parameters that it names. If it names none, each array goes to the one free
    parameter of its type and shape. A single array or number fills the first free parameter. After the name of a nested
    argument (``cache=out.npz:result[1]``) a file fills the members of that argument. ``random:SEED``, ``zeros`` and
    ``ones`` fill all that are free after that. A file of an array that is called like another parameter of the same
    type gets a ``UserWarning``: the two may be swapped.

    Args:
        parameters: the parameters, such as those of a ``ModelFile``.
        options: the inputs: each a file, a number or nested lists of numbers, ``random:SEED``, ``zeros`` or ``ones``,
            optionally after the name or the index of a parameter and an equals sign.
        shapes: shapes of parameters with dynamic sizes by their names or indices, and sizes by their symbols, for what
            has no shape of its own. Sizes that follow from these or from the arrays in files need not be given.

    Raises:
        InvalidArgumentError: an option has no known form, an array does not fit or fits several parameters,
            parameters have no value, or arrays are left over.
        NotFoundError: a file or a name in it does not exist.
    """
    chosen: dict[int, Input] = {}
    fillers: list[_Source] = []
    stated, parameters = parameters, _sized(parameters, shapes or {})
    for option in options:
        source = _parse(option, parameters)
        if is_filler(source.value):
            fillers.append(source)
        elif source.target and len(places := _find(parameters, source)) == 1:
            _fill(chosen, places[0], _one_array(source, places[0]), source)
        elif source.target:
            _fill_members(chosen, parameters, source)
        elif source.value.endswith(RAW) or are_numbers(source.value):
            parameter = _first_open(chosen, parameters, source)
            _fill(chosen, parameter, _one_array(source, parameter), source)
        else:
            _fill_from_file(chosen, parameters, source)
    parameters = _sized(
        stated, dict[Any, Any](shapes or {}) | {index: each.array.shape for index, each in chosen.items()}
    )
    for source in sorted(fillers, key=lambda source: not source.target):  # those that name their parameter first
        places = _find(parameters, source) if source.target else parameters
        for parameter in places:
            if len(places) == 1 and source.target:
                _fill(chosen, parameter, filled(source.value, parameter), source)
            elif parameter.index not in chosen:
                chosen[parameter.index] = Input(filled(source.value, parameter))
    open_ones = [p for p in parameters if p.index not in chosen]
    if open_ones:
        raise InvalidArgumentError(
            f"the program has {len(parameters)} arguments, --input gave {len(chosen)}; "
            f"without a value: {_few(open_ones, '; ')}; "
            "give files, or --input random:0 or --input zeros for the rest"
        )
    inputs = [chosen[p.index] for p in parameters]
    for line in _swapped(parameters, inputs):
        warnings.warn(line, stacklevel=2)
    return inputs


def values_of(
    file: ModelFile, inputs: Sequence[Any] | Mapping[str, Any] | str, shapes: Mapping[str, Sequence[int]] | None = None
) -> list[Any]:
    """Return a value for each parameter of a model file.

    Args:
        file: the model file.
        inputs: texts such as ``random:0`` or ``x=FILE.npy``, as ``make_arguments`` takes them, or one of them; or
            values, flat or nested as the model takes them, in a sequence or by name.
        shapes: for texts that make arrays of dynamic parameters, as for ``make_arguments``.

    Raises:
        InvalidArgumentError: inputs are missing, unknown or left over, or a text has no known form.
        NotFoundError: a file does not exist.
    """
    texts = [inputs] if isinstance(inputs, str) else inputs
    binding = Binding(file.parameters, file.input_tree)
    if isinstance(texts, Mapping):
        return binding.leaves((), texts)
    if not all(isinstance(each, str) for each in texts):
        return binding.leaves(texts, {})
    with naming(file.source):
        return [each.array for each in make_arguments(file.parameters, texts, shapes)]


def _sized(parameters: Sequence[Parameter], shapes: Mapping[Any, Sequence[int]]) -> Sequence[Parameter]:
    """Return the parameters with static shapes, where these follow from the given ones."""
    if not shapes:
        return parameters
    sizes = zip(parameters, known_shapes(shapes, parameters), strict=True)
    return [parameter if shape is None else replace(parameter, shape=shape) for parameter, shape in sizes]


def check_sources(options: Sequence[str]) -> None:
    """Check what can be known of inputs without the program: that their files are there, and the form of ``random:``.

    Raises:
        NotFoundError: a file does not exist.
        InvalidArgumentError: a text that begins with ``random`` has another form.
    """
    for option in options:
        _, equals, value = option.partition("=")
        texts = [option, value] if equals else [option]
        if any(is_filler(text) and text not in _CONSTANTS and not _RANDOM.fullmatch(text) for text in texts):
            raise InvalidArgumentError(f"--input {option}: {_RANDOM_FORM}")
        if _FILE_ENDS.search(option) and not files_of([option]):
            _check_exists((value or option).partition(":")[0], option)


def files_of(options: Sequence[str]) -> list[Path]:
    """Return the existing files that ``--input`` options name."""
    texts = [part for option in options for part in (option, option.partition("=")[2])]
    paths = [Path(part) for text in texts for part in (text, text.rpartition(":")[0]) if part]
    return [path for path in paths if path.is_file()]


def _parse(option: str, parameters: Sequence[Parameter]) -> _Source:
    target, equals, value = option.partition("=")
    names = {name for p in parameters for name in spellings(p.name) if name}
    if equals and (target in names or target.isdigit() or _members(target, parameters)):
        return _Source(target, value, option)
    if equals and not Path(option).exists() and (is_filler(value) or are_numbers(value) or value.endswith(RAW)):
        raise InvalidArgumentError(
            f"--input {option}: the program has no argument called {target!r}; it has {_choices(parameters, target)}"
        )
    return _Source("", option, option)


def _choices(parameters: Sequence[Parameter], wrong: str) -> str:
    if len(parameters) > MOST_CHOICES:
        return choices([each.name or str(each.index) for each in parameters], wrong)
    return "; ".join(map(str, parameters)) or "none"


def _find(parameters: Sequence[Parameter], source: _Source) -> Sequence[Parameter]:
    """Return the parameter that an input names, or the members of the nested argument that it names."""
    for parameter in parameters:
        if source.target in (*spellings(parameter.name), str(parameter.index)):
            return [parameter]
    members = _members(source.target, parameters)
    if members:
        return members
    raise InvalidArgumentError(
        f"--input {source.option}: the program has arguments 0 to {len(parameters) - 1}, found {source.target}"
    )


def _members(root: str, parameters: Sequence[Parameter]) -> list[Parameter]:
    return [each for each in parameters if root and each.name.startswith((f"{root}[", f"{root}."))]


def _fill_members(chosen: dict[int, Input], parameters: Sequence[Parameter], source: _Source) -> None:
    """Fill the members of a nested argument from a file."""
    by_name = {each.name: each for each in parameters}
    for path, array in members_in(source.value, source.option, source.target).items():
        if source.target + path not in by_name:
            raise InvalidArgumentError(
                f"--input {source.option}: expected members of {source.target} "
                f"({', '.join(each.name for each in _members(source.target, parameters))}), found {path} too"
            )
        _fill(chosen, by_name[source.target + path], array, source)


def _fill(
    chosen: dict[int, Input], parameter: Parameter, array: Array, source: _Source, matched_by_type: str = ""
) -> None:
    if parameter.index in chosen:
        raise InvalidArgumentError(f"--input {source.option}: {parameter} has a value already")
    fitted = _fitted(parameter, array)
    if fitted is None:
        raise InvalidArgumentError(f"--input {source.option}: expected {parameter}, found {_describe(array)}")
    chosen[parameter.index] = Input(fitted, matched_by_type, _name_of(source))


def _name_of(source: _Source) -> str:
    path, _, name = source.value.partition(":") if _FILE_ENDS.search(source.value) else ("", "", "")
    return name or (Path(path).stem if path.endswith((".npy", RAW)) else "")


def _fitted(parameter: Parameter, array: Array) -> Array | None:
    """Return the array as the parameter takes it; None if it is of another type or shape."""
    array = with_type(array, parameter.element_type.dtype)
    sizes_fit = len(array.shape) == len(parameter.shape) and all(
        want == have or not isinstance(want, int) for want, have in zip(parameter.shape, array.shape, strict=True)
    )
    return array if array.dtype == parameter.element_type.dtype and sizes_fit else None


def _describe(array: Array) -> str:
    try:
        return format_shape(ElementType.of(array.dtype), array.shape)
    except InvalidArgumentError:
        return f"an array of numpy dtype {array.dtype} and shape {array.shape}"


def _one_array(source: _Source, parameter: Parameter) -> Array:
    if source.value.endswith(RAW):
        return array_of_bytes(source.value, parameter, source.option)
    if are_numbers(source.value):
        return _numbers(source, parameter)
    arrays = arrays_in(source.value, source.option, most_bytes=_most_bytes([parameter]))
    if len(arrays) != 1:
        raise InvalidArgumentError(
            f"--input {source.option}: expected one array for {parameter}, "
            f"the file has {len(arrays)}: {', '.join(arrays)}; add :NAME"
        )
    return next(iter(arrays.values()))


def _most_bytes(parameters: Sequence[Parameter]) -> int | None:
    """Return the bytes of the largest argument; None if a size of one is known only when the program is called."""
    if any(parameter.is_dynamic for parameter in parameters):
        return None
    return max((math.prod(each.sizes) * each.element_type.dtype.itemsize for each in parameters), default=0)


def _numbers(source: _Source, parameter: Parameter) -> Array:
    try:
        return numbers(source.value, parameter)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"--input {source.option}: {parameter}: {error.message}") from error


def _first_open(chosen: dict[int, Input], parameters: Sequence[Parameter], source: _Source) -> Parameter:
    for parameter in parameters:
        if parameter.index not in chosen:
            return parameter
    raise InvalidArgumentError(
        f"--input {source.option}: the program has {len(parameters)} arguments, {len(chosen)} with a value; it is left "
        "over"
    )


def _fill_from_file(chosen: dict[int, Input], parameters: Sequence[Parameter], source: _Source) -> None:
    arrays = arrays_in(source.value, source.option, most_bytes=_most_bytes(parameters))
    by_index = {each.index: each for each in parameters}
    by_name = {name: by_index[number] for name, number in numbers_by_name(parameters).items()}
    # The name of a .npy file is not the name of an argument.
    matches = [] if source.value.endswith(".npy") else [name for name in arrays if name in by_name]
    if matches:
        unknown = [name for name in arrays if name not in by_name]
        if unknown:
            names = [each.name or str(each.index) for each in parameters]
            raise InvalidArgumentError(
                f"--input {source.option}: expected the names of the program's arguments "
                f"({choices(names, unknown[0])}), found {_few(unknown)} too ({SPELLINGS}); take one array with :NAME"
            )
        for name in matches:
            _fill(chosen, by_name[name], arrays[name], source)
        return
    open_ones = [p for p in parameters if p.index not in chosen]
    if len(open_ones) < len(arrays):
        raise InvalidArgumentError(
            f"--input {source.option}: the program has {len(parameters)} arguments, {len(chosen)} with a value; "
            f"{_few([*map(repr, arrays)][len(open_ones) :])} left over"
        )
    if len(arrays) == 1:
        (array,) = arrays.values()
        _fill(chosen, open_ones[0], array, source)
        return
    for name, parameter in _matched_by_type(arrays, open_ones, source).items():
        _fill(chosen, parameter, arrays[name], source, f"{source.value}:{name}")


def _matched_by_type(
    arrays: Mapping[str, Array], parameters: Sequence[Parameter], source: _Source
) -> dict[str, Parameter]:
    """Return the parameter of each array of a file without their names, by type and shape.

    Raises:
        InvalidArgumentError: an array fits several parameters or none, or several arrays fit one.
    """
    matched: dict[str, Parameter] = {}
    for name, array in arrays.items():
        fitting = [p for p in parameters if _fitted(p, array) is not None]
        if len(fitting) != 1:
            which = _few(fitting, "; ") or f"none; open are: {_few(parameters, '; ')}"
            raise _unclear(source, f"{name!r}, {_describe(array)}, fits {which}")
        rival = next((other for other, parameter in matched.items() if parameter is fitting[0]), None)
        if rival is not None:
            raise _unclear(source, f"{rival!r} and {name!r} both fit {fitting[0]}")
        matched[name] = fitting[0]
    return matched


def _unclear(source: _Source, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"--input {source.option}: none of its names is an argument's, and the types of its arrays are ambiguous: "
        f"{why}; name the argument of each, such as --input 0={source.value}:NAME ({SPELLINGS})"
    )


def _few(values: Sequence[object], separator: str = ", ") -> str:
    """Return values for a message: of many, the first ones and how many there are."""
    shown = [*map(str, values[:MOST_CHOICES])]
    return separator.join(shown) + (f", … of {len(values)}" if len(values) > MOST_CHOICES else "")
