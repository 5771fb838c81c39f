"""Comparisons: one model on several devices, whether their results agree, and where they begin to differ."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pjrt.ifrt
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import InvalidArgumentError, PjrtError
from pjrt.api.printable import html_table
from pjrt.api.program import Program
from pjrt.host_memory.difference import Difference
from pjrt.host_memory.tolerance import Tolerance
from pjrt.models.binding import fitted_on_host
from pjrt.models.comparison.compared_device import Array, ComparedDevice, DeviceInProcess, DeviceInWorker
from pjrt.models.comparison.difference_search import Cause, FirstDifference, Search, SearchLimits
from pjrt.models.inputs import arrays_in, values_of, with_type
from pjrt.models.model import Device, named_by_replica, named_devices
from pjrt.models.model_file import ModelFile
from pjrt.stablehlo import Cutter

REFERENCE = "reference"
"""The platform that is the judge where it takes part."""


@dataclass(frozen=True, slots=True)
class ResultDifference:
    """The difference of one result of a device from the judge's.

    Attributes:
        device: the device's name.
        result: the name of the result; with the replica behind it where there are several.
        difference: the difference.
    """

    device: str
    result: str
    difference: Difference

    def as_dict(self) -> dict[str, Any]:
        """Return it in machine-readable form."""
        return {"device": self.device, "result": self.result, **self.difference.as_dict()}

    def __str__(self) -> str:
        return f"{self.device}: {self.result}: {self.difference}"


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """The results of several devices, compared with those of one of them, the judge.

    Attributes:
        judge: the name of the device, or of the file, whose results are expected.
        devices: the names of the devices that were compared with the judge.
        differences: the difference of each result of each device, also where they agree.
        errors: the errors of the devices that did not run the model, by name.
        odd_ones: of three devices or more, those that differ from most of the others.
        first_differences: the first operation that differs, for each device that differs.
        tolerance: the tolerance.
    """

    judge: str
    devices: tuple[str, ...]
    differences: tuple[ResultDifference, ...]
    errors: Mapping[str, PjrtError]
    odd_ones: tuple[str, ...]
    first_differences: Mapping[str, FirstDifference]
    tolerance: Tolerance

    @property
    def agrees(self) -> bool:
        """Whether every device ran the model, and all results are within the tolerance."""
        return not self.errors and all(each.difference.agrees for each in self.differences)

    @property
    def disagreements(self) -> tuple[ResultDifference, ...]:
        """The differences beyond the tolerance."""
        return tuple(each for each in self.differences if not each.difference.agrees)

    @property
    def first_difference(self) -> FirstDifference | None:
        """The first operation that differs, of the first device that differs; None where all agree."""
        return next(iter(self.first_differences.values()), None)

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison in machine-readable form."""
        return {
            "agrees": self.agrees,
            "judge": self.judge,
            "devices": list(self.devices),
            "odd_ones": list(self.odd_ones),
            "differences": [each.as_dict() for each in self.differences],
            "errors": {name: {"code": e.code.name, "message": e.message} for name, e in self.errors.items()},
            "first_differences": {name: each.as_dict() for name, each in self.first_differences.items()},
        }

    def __repr__(self) -> str:
        return f"<Comparison: {self._verdict()}>"

    def _repr_html_(self) -> str:
        rows = [
            (each.device, each.result, "agrees" if each.difference.agrees else "differs", str(each.difference))
            for each in self.differences
        ]
        rows += [(name, "", "failed", error.message) for name, error in self.errors.items()]
        return html_table(self._verdict(), rows, ("device", "result", "", "difference"))

    def _verdict(self) -> str:
        return f"{', '.join(self.devices)} and {self.judge} {'agree' if self.agrees else 'differ'}"

    def __str__(self) -> str:
        lines = [self._verdict()]
        lines += [f"{name}: {error.message}" for name, error in self.errors.items()]
        lines += map(str, self.differences)
        lines += [f"the odd one out: {name}" for name in self.odd_ones]
        lines += [str(each) for each in self.first_differences.values()]
        return "\n".join(lines)


def compare(
    model: ModelFile | Program | str | bytes | os.PathLike[str],
    devices: Sequence[Device],
    inputs: Sequence[Any] | Mapping[str, Any] | str = ("random:0",),
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    expected: Mapping[str, Array] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    find_first: bool = True,
    limits: SearchLimits | None = None,
    isolated: bool = False,
    time_limit: float = 600.0,
    compile_options: CompileOptions | None = None,
    client_options: Mapping[str, Any] | None = None,
) -> Comparison:
    """Run a model on several devices with the same inputs, and compare the results.

    Args:
        model: the path of a model file, or a program.
        devices: names of devices, as of ``pjrt.client``, or clients; None is the default device. The judge is
            ``reference`` where it is among them; else, of three devices or more, one of those that agree with most
            others; else the first.
        inputs: the arguments: texts such as ``random:0`` or ``x=FILE.npy``, as ``pjrt run --input`` takes them; or
            arrays, flat or nested as the model takes them, in a sequence or by name.
        shapes: shapes for texts such as ``random:0``, by a parameter's name or index, or sizes by symbol, where the
            model has dynamic shapes.
        expected: results to compare with, by name, as ``pjrt run -o`` writes them. Then they are the judge's, and a
            device that agrees with them is the judge of the search.
        rtol: the relative tolerance; by default that of each type, see ``DEFAULT_TOLERANCES``.
        atol: the absolute tolerance; likewise.
        find_first: whether to search for the first operation that differs, if the results do.
        limits: the limits of that search.
        isolated: whether each device that is given by name runs in a worker, a process of its own, on Linux; a crash is
            then an error of the device.
        time_limit: the seconds that one run may take in a worker.
        compile_options: the compile options; they win over the program.
        client_options: options of the clients that are made.

    Returns:
        The comparison. A device that cannot run the model, or crashes in its worker, differs.

    Raises:
        NotFoundError: there is no such file or device.
        InvalidArgumentError: fewer than two devices are given, or the inputs do not fit the model.
        PjrtError: no device runs the model.
    """
    file = ModelFile.of(model)
    tolerance = Tolerance(rtol, atol)
    named = named_devices(devices)
    if len(named) + (expected is not None) < 2:
        raise InvalidArgumentError(
            f"expected two devices or more to compare, or one and the expected results, found {len(named)}; "
            "add 'reference' as the judge"
        )
    arrays = _arrays(file, inputs, shapes)
    options = CompileOptions.of(compile_options).completed(file.partitioning)

    def open_(name: str, device: str | Client | pjrt.ifrt.Client) -> ComparedDevice:
        if isolated and isinstance(device, str) and sys.platform == "linux":
            return DeviceInWorker(name, device, options, client_options or {}, time_limit)
        return DeviceInProcess(name, device, options, client_options or {})

    with contextlib.ExitStack() as stack:
        participants = [stack.enter_context(contextlib.closing(open_(*each))) for each in named]
        return _Comparing(file, arrays, participants, tolerance).run(expected, find_first, limits or SearchLimits())


def _arrays(
    file: ModelFile, inputs: Sequence[Any] | Mapping[str, Any] | str, shapes: Mapping[str, Sequence[int]] | None
) -> list[Array]:
    """Return an array for each parameter, on the host: each device gets it from there."""
    values = values_of(file, inputs, shapes)
    return [fitted_on_host(*pair) for pair in zip(file.parameters, values, strict=True)]


def _program(file: ModelFile, platform: str, arrays: Sequence[Array]) -> tuple[Program, list[Array]]:
    """Return the program with static shapes as a platform compiles it, and its arguments."""
    program = file.program_for(platform, [array.shape for array in arrays])
    row: dict[int, Array] = dict(file.weights)
    for parameter, array in zip(file.parameters, arrays, strict=True):
        if parameter.argument is not None:
            row[parameter.argument] = array
    return program, [row[position] for position in sorted(row)]


class _Comparing:
    """The devices, the arrays and the tolerance of one comparison."""

    def __init__(
        self, file: ModelFile, arrays: Sequence[Array], devices: Sequence[ComparedDevice], tolerance: Tolerance
    ) -> None:
        self._file, self._arrays, self._tolerance = file, arrays, tolerance
        self._devices = {device.name: device for device in devices}
        self._results: dict[str, dict[str, Array]] = {}
        self._errors: dict[str, PjrtError] = {}

    def run(self, expected: Mapping[str, Array] | None, find_first: bool, limits: SearchLimits) -> Comparison:
        platforms = {name: device.platform_name for name, device in self._devices.items()}
        for name, device in self._devices.items():
            program, arguments = _program(self._file, platforms[name], self._arrays)
            try:
                rows = device.run(program, [arguments])
            except PjrtError as error:
                self._errors[name] = error
                continue
            self._results[name] = named_by_replica(self._file.signature.result_names(), list(zip(*rows, strict=True)))
        if not self._results:
            raise next(iter(self._errors.values()))
        judge, odd_ones = (EXPECTED, ()) if expected is not None else self._judged()
        right = self._results[judge] if expected is None else self._matched(expected)
        differences = [
            ResultDifference(name, result, difference)
            for name in self._results
            if name != judge
            for result, difference in self._compared(self._results[name], right)
        ]
        comparison = Comparison(
            judge,
            tuple(name for name in self._devices if name != judge),
            tuple(differences),
            self._errors,
            odd_ones,
            {},
            self._tolerance,
        )
        search_judge = self._search_judge(comparison)
        if find_first and search_judge is not None and not comparison.agrees:
            return replace(comparison, first_differences=dict(self._firsts(comparison, search_judge, limits)))
        return comparison

    def _compared(self, values: Mapping[str, Array], right: Mapping[str, Array]) -> Iterator[tuple[str, Difference]]:
        for name, value in values.items():
            yield name, Difference.of(value, right[name], self._tolerance)

    def _agree(self, one: str, other: str) -> bool:
        compared = self._compared(self._results[one], self._results[other])
        return all(difference.agrees for _, difference in compared)

    def _judged(self) -> tuple[str, tuple[str, ...]]:
        """Return the judge, and the devices that differ from most of the others."""
        names = list(self._results)
        groups = {name: [other for other in names if other == name or self._agree(other, name)] for name in names}
        largest = max(names, key=lambda name: len(groups[name]))
        is_majority = len(names) > 2 and 2 * len(groups[largest]) > len(names)
        odd_ones = tuple(name for name in names if name not in groups[largest]) if is_majority else ()
        reference = next((name for name in names if self._devices[name].platform_name == REFERENCE), None)
        first = largest if is_majority else names[0]
        return reference or first, odd_ones

    def _matched(self, expected: Mapping[str, Array]) -> dict[str, Array]:
        """Return the expected results by the names of the results."""
        results = next(iter(self._results.values()))
        return {
            name: with_type(array, results[name].dtype) for name, array in by_names(list(results), expected).items()
        }

    def _search_judge(self, comparison: Comparison) -> ComparedDevice | None:
        """Return the device that knows the values inside of the program; None if no device is right."""
        if comparison.judge in self._devices:
            return self._devices[comparison.judge]
        wrong = {each.device for each in comparison.disagreements}
        right = [self._devices[name] for name in self._results if name not in wrong]
        return min(right, key=lambda device: device.platform_name != REFERENCE, default=None)

    def _firsts(
        self, comparison: Comparison, judge: ComparedDevice, limits: SearchLimits
    ) -> Iterator[tuple[str, FirstDifference]]:
        differing = dict.fromkeys([*self._errors, *(each.device for each in comparison.disagreements)])
        for name in differing:
            device = self._devices[name]
            program, arguments = _program(self._file, device.platform_name, self._arrays)
            try:
                cutter = Cutter(program, trusted=True)
                search = Search(cutter, device, judge, arguments, self._tolerance, limits, self._errors.get(name))
                yield name, search.run()
            except PjrtError as error:
                note = f"the search failed: {error.message}"
                yield name, FirstDifference(name, judge.name, Cause.UNKNOWN, notes=(note,))


EXPECTED = "the expected results"
"""The judge's name where results are given to compare with."""


def differences_from_file(
    results: Mapping[str, Array], path: str | os.PathLike[str], tolerance: Tolerance
) -> list[ResultDifference]:
    """Compare the results of one run with those in a file.

    Args:
        results: the results by name.
        path: the file, as ``read_expected`` takes it.
        tolerance: the tolerance.

    Raises:
        InvalidArgumentError: the file has other names, or is damaged.
        NotFoundError: there is no such file.
    """
    expected = by_names(list(results), read_expected(path))
    return [
        ResultDifference(os.fspath(path), name, Difference.of(value, with_type(expected[name], value.dtype), tolerance))
        for name, value in results.items()
    ]


def read_expected(path: str | os.PathLike[str]) -> Mapping[str, Array]:
    """Return the arrays of a ``.npy``, ``.npz`` or ``.safetensors`` file, as ``pjrt run -o`` writes it, by name.

    Raises:
        InvalidArgumentError: the file is of another format, or is damaged.
        NotFoundError: there is no such file.
    """
    return arrays_in(os.fspath(path), os.fspath(path), "--expect")


def by_names(names: Sequence[str], expected: Mapping[str, Array]) -> dict[str, Array]:
    """Return expected arrays in the order of the results; a single one needs no name.

    Raises:
        InvalidArgumentError: the names are not those of the results.
    """
    if len(names) == len(expected) == 1:
        return {names[0]: next(iter(expected.values()))}
    if set(names) != set(expected):
        raise InvalidArgumentError(
            f"expected arrays with the names of the results ({', '.join(names)}), found {', '.join(expected)}"
        )
    return {name: expected[name] for name in names}
