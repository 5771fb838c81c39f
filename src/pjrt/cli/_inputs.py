"""The arguments of a program, from the ``--input`` options."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pjrt import stablehlo
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, NotFoundError, PjrtError, ResourceExhaustedError, UnimplementedError
from pjrt.api.shape_spec import format_shape

Array = np.ndarray[Any, Any]

FORMS = (
    "PATH.npy, PATH.npz[:NAME], PATH.safetensors[:NAME], random:SEED or zeros, each optionally after NAME= or INDEX="
)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a program: its index, its name if it has one, its type (a dynamic size is −1)."""

    index: int
    name: str
    element_type: ElementType
    shape: tuple[int, ...]

    @property
    def key(self) -> str:
        """Its name in a file of arrays: ``conv.bias`` of JAX's ``weights['conv.bias']``."""
        member = re.search(r"\['([^']*)'\]$", self.name)
        return member[1] if member else self.name

    def __str__(self) -> str:
        label = f"{self.index}" + (f" ({self.name})" if self.name else "")
        sizes = ",".join("?" if size < 0 else str(size) for size in self.shape)
        return f"argument {label}: {self.element_type.name.lower()}[{sizes}]"


def parameters_of(info: stablehlo.Signature) -> list[Parameter]:
    """Return the parameters of a program.

    Raises:
        UnimplementedError: a parameter is a token or a tuple, which no file can hold.
    """
    parameters = []
    for index, argument in enumerate(info.arguments):
        if not isinstance(argument.type, stablehlo.TensorType):
            raise UnimplementedError(
                f"argument {index} of the program is a {argument.type}; only tensors are supported here"
            )
        shape = tuple(-1 if size is None else size for size in argument.type.shape)
        parameters.append(Parameter(index, argument.name, argument.type.element, shape))
    return parameters


@dataclass(frozen=True)
class _Source:
    """One ``--input`` option: the parameter that it names, its value, and the option as written."""

    target: str
    value: str
    option: str


@dataclass(frozen=True)
class Argument:
    """The array for one parameter.

    Attributes:
        array: the array.
        matched_by_type: the place in a file that the array came from, if it was matched by its type alone; empty if
            it was matched by a name, an index or the order of the options.
    """

    array: Array
    matched_by_type: str = ""


def make_arguments(parameters: Sequence[Parameter], options: Sequence[str]) -> list[Argument]:
    """Return the arrays for a program's parameters.

    A file of several arrays fills the parameters that it names. If it names none, each array goes to the one free
    parameter of its type and shape. A single array fills the first free parameter. ``random:SEED`` and ``zeros`` fill
    all that are free after that.

    Raises:
        InvalidArgumentError: an option has no known form, an array does not fit or fits several parameters,
            parameters have no value, or arrays are left over.
        NotFoundError: a file or a name in it does not exist.
    """
    filled: dict[int, Argument] = {}
    fillers: list[_Source] = []
    for option in options:
        source = _parse(option, parameters)
        if source.target:
            parameter = _find(parameters, source)
            _fill(filled, parameter, _one_array(source, parameter), source)
        elif _is_filler(source.value):
            fillers.append(source)
        else:
            _fill_from_file(filled, parameters, source)
    for source in fillers:
        for parameter in parameters:
            if parameter.index not in filled:
                filled[parameter.index] = Argument(_generate(source.value, parameter))
    open_ones = [str(p) for p in parameters if p.index not in filled]
    if open_ones:
        raise InvalidArgumentError(
            f"the program has {len(parameters)} arguments, --input gave {len(filled)}; "
            f"without a value: {'; '.join(open_ones)}; "
            "give files, or --input random:0 or --input zeros for the rest"
        )
    return [filled[p.index] for p in parameters]


def files_of(options: Sequence[str]) -> list[Path]:
    """Return the existing files that ``--input`` options name."""
    texts = [part for option in options for part in (option, option.partition("=")[2])]
    paths = [Path(part) for text in texts for part in (text, text.rpartition(":")[0]) if part]
    return [path for path in paths if path.is_file()]


def _parse(option: str, parameters: Sequence[Parameter]) -> _Source:
    target, equals, value = option.partition("=")
    names = {name for p in parameters for name in (p.name, p.key) if name}
    if equals and (target in names or target.isdigit()):
        return _Source(target, value, option)
    return _Source("", option, option)


def _find(parameters: Sequence[Parameter], source: _Source) -> Parameter:
    for parameter in parameters:
        if source.target in (parameter.name, parameter.key, str(parameter.index)):
            return parameter
    raise InvalidArgumentError(
        f"--input {source.option}: the program has arguments 0 to {len(parameters) - 1}, found {source.target}"
    )


def _fill(
    filled: dict[int, Argument], parameter: Parameter, array: Array, source: _Source, matched_by_type: str = ""
) -> None:
    if parameter.index in filled:
        raise InvalidArgumentError(f"--input {source.option}: {parameter} has a value already")
    fitted = _fitted(parameter, array)
    if fitted is None:
        raise InvalidArgumentError(f"--input {source.option}: expected {parameter}, found {_describe(array)}")
    filled[parameter.index] = Argument(fitted, matched_by_type)


def _fitted(parameter: Parameter, array: Array) -> Array | None:
    """Return the array as the parameter takes it; None if it is of another type or shape."""
    array = _same_bits(array, parameter.element_type)
    sizes_fit = len(array.shape) == len(parameter.shape) and all(
        want in (-1, have) for want, have in zip(parameter.shape, array.shape, strict=True)
    )
    return array if array.dtype == parameter.element_type.dtype and sizes_fit else None


def _describe(array: Array) -> str:
    try:
        return format_shape(ElementType.of(array.dtype), array.shape)
    except InvalidArgumentError:
        return f"an array of numpy dtype {array.dtype} and shape {array.shape}"


def _same_bits(array: Array, wanted: ElementType) -> Array:
    """Return raw bytes as the wanted type: numpy writes bfloat16 and the like to .npy files as raw bytes."""
    if array.dtype.kind == "V" and array.dtype.names is None and array.dtype.itemsize == wanted.dtype.itemsize:
        return array.view(wanted.dtype)
    return array


def _is_filler(value: str) -> bool:
    return value in ("zeros", "random") or value.startswith("random:")


def _generate(value: str, parameter: Parameter) -> Array:
    if any(size < 0 for size in parameter.shape):
        raise InvalidArgumentError(f"--input {value} cannot make {parameter}: its shape is dynamic; give a file")
    seed = "0" if value == "zeros" else value.partition(":")[2]
    if not (seed.isascii() and seed.isdigit()):
        raise InvalidArgumentError(
            f"--input {value}: expected random:SEED with a whole number from 0 up, such as random:0"
        )
    try:
        if value == "zeros":
            return np.zeros(parameter.shape, parameter.element_type.dtype)
        return _random(np.random.default_rng([int(seed), parameter.index]), parameter)
    except (MemoryError, ValueError) as error:
        # A ValueError: a number of bytes, or of digits of the seed, that no machine holds.
        raise ResourceExhaustedError(f"--input {value} cannot make {parameter}: {error}") from error


def _random(generator: np.random.Generator, parameter: Parameter) -> Array:
    kind, dtype, shape = parameter.element_type, parameter.element_type.dtype, parameter.shape
    if kind is ElementType.PRED:
        return generator.random(shape) < 0.5
    if kind.is_integer:
        low, high = _small_range(kind)
        return generator.integers(low, high, shape).astype(dtype)
    if kind.is_complex:
        return (generator.standard_normal(shape) + 1j * generator.standard_normal(shape)).astype(dtype)
    return np.asarray(generator.standard_normal(shape)).astype(dtype)


def _small_range(kind: ElementType) -> tuple[int, int]:
    """Return a range so small that sums and products of a few numbers do not overflow, where the type allows it."""
    if kind.name[0] == "U":
        return 0, min(2**kind.bits, 16)
    return (-8, 8) if kind.bits > 4 else (0, 2)


def _one_array(source: _Source, parameter: Parameter) -> Array:
    if _is_filler(source.value):
        return _generate(source.value, parameter)
    arrays = _load(source)
    if len(arrays) != 1:
        raise InvalidArgumentError(
            f"--input {source.option}: expected one array for {parameter}, "
            f"the file has {len(arrays)}: {', '.join(arrays)}; add :NAME"
        )
    return next(iter(arrays.values()))


def _fill_from_file(filled: dict[int, Argument], parameters: Sequence[Parameter], source: _Source) -> None:
    arrays = _load(source)
    named = [p.key for p in parameters if p.key]
    by_name = {p.key: p for p in parameters if named.count(p.key) == 1}
    # The name of a .npy file is not the name of an argument.
    matches = [] if source.value.endswith(".npy") else [name for name in arrays if name in by_name]
    if matches:
        unknown = ", ".join(name for name in arrays if name not in by_name)
        if unknown:
            raise InvalidArgumentError(
                f"--input {source.option}: expected the names of the program's arguments ({', '.join(named)}), "
                f"found {unknown} too; take one array with :NAME"
            )
        for name in matches:
            _fill(filled, by_name[name], arrays[name], source)
        return
    open_ones = [p for p in parameters if p.index not in filled]
    if len(open_ones) < len(arrays):
        raise InvalidArgumentError(
            f"--input {source.option}: the program has {len(parameters)} arguments, {len(filled)} with a value; "
            f"{', '.join(map(repr, list(arrays)[len(open_ones) :]))} left over"
        )
    if len(arrays) == 1:
        (array,) = arrays.values()
        _fill(filled, open_ones[0], array, source)
        return
    for name, parameter in _matched_by_type(arrays, open_ones, source).items():
        _fill(filled, parameter, arrays[name], source, f"{source.value}:{name}")


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
            which = "; ".join(map(str, fitting)) or f"none; open are: {'; '.join(map(str, parameters))}"
            raise _unclear(source, f"{name!r}, {_describe(array)}, fits {which}")
        rival = next((other for other, parameter in matched.items() if parameter is fitting[0]), None)
        if rival is not None:
            raise _unclear(source, f"{rival!r} and {name!r} both fit {fitting[0]}")
        matched[name] = fitting[0]
    return matched


def _unclear(source: _Source, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"--input {source.option}: none of its names is an argument's, and the types of its arrays are ambiguous: "
        f"{why}; name the argument of each, such as --input 0={source.value}:NAME"
    )


def _load(source: _Source) -> Mapping[str, Array]:
    path, _, name = source.value.partition(":") if not Path(source.value).exists() else (source.value, "", "")
    readers = {".npy": _load_npy, ".npz": _load_npz, ".safetensors": _load_safetensors}
    reader = readers.get(Path(path).suffix)
    if reader is None:
        raise InvalidArgumentError(f"--input {source.option}: expected {FORMS}")
    if not Path(path).is_file():
        raise NotFoundError(f"--input {source.option}: expected a file, found none at {path!r}{_why_no_name(path)}")
    try:
        arrays = reader(path)
    except PjrtError:
        raise
    except Exception as error:  # numpy's readers raise what they are made of: ast, struct, tokenize, zipfile, zlib
        raise InvalidArgumentError(
            f"--input {source.option}: {path!r} is not a readable {Path(path).suffix} file: {error}"
        ) from error
    arrays = {key: _in_native_order(array) for key, array in arrays.items()}
    if not name:
        return arrays
    if name not in arrays:
        raise NotFoundError(f"--input {source.option}: {path!r} has no array {name!r}; it has {', '.join(arrays)}")
    return {name: arrays[name]}


def _in_native_order(array: Array) -> Array:
    """Return an array in the byte order of this machine, which a file need not have."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _why_no_name(path: str) -> str:
    name, equals, _ = path.partition("=")
    return f"; the program has no argument called {name!r}" if equals else ""


def _load_npy(path: str) -> Mapping[str, Array]:
    return {Path(path).stem: np.load(path, allow_pickle=False)}


def _load_npz(path: str) -> Mapping[str, Array]:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _load_safetensors(path: str) -> Mapping[str, Array]:
    try:
        import safetensors
        from safetensors.numpy import load_file
    except ImportError as error:
        raise NotFoundError(
            "reading .safetensors needs the package of that name: pip install 'pjrt[safetensors]'"
        ) from error
    try:
        loaded: Mapping[str, Array] = load_file(path)
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from error
    return loaded
