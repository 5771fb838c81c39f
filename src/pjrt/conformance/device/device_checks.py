"""Checks of several devices: copies, replicas with collectives, programs of several partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pjrt.api.capability import Feature
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.element_type import ElementType
from pjrt.api.errors import PjrtError, UnimplementedError
from pjrt.conformance import values
from pjrt.conformance.accuracy import ROUNDED
from pjrt.conformance.device.checks import Check, Outcome, Session, Skipped
from pjrt.conformance.device.finding import Finding, Kind
from pjrt.conformance.device.operation_check import shown, shown_inputs
from pjrt.conformance.device.sample import sample_of
from pjrt.conformance.judge import first_difference
from pjrt.conformance.operation_case import Array
from pjrt.devices.reference.plugin import ReferencePlugin

_DEVICES = 2
_GROUP = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"
_ADD = (
    "({ ^bb0(%a: tensor<f32>, %b: tensor<f32>): %s = stablehlo.add %a, %b : tensor<f32> "
    '"stablehlo.return"(%s) : (tensor<f32>) -> () })'
)
_COLLECTIVES = {
    "all_reduce": (f'"stablehlo.all_reduce"(%x) <{{{_GROUP}}}> {_ADD}', "4x3xf32"),
    "all_gather": (f'"stablehlo.all_gather"(%x) <{{all_gather_dim = 0 : i64, {_GROUP}}}>', "8x3xf32"),
    "reduce_scatter": (
        f'"stablehlo.reduce_scatter"(%x) <{{scatter_dimension = 0 : i64, {_GROUP}}}> {_ADD}',
        "2x3xf32",
    ),
    "all_to_all": (
        '"stablehlo.all_to_all"(%x) <{split_dimension = 0 : i64, concat_dimension = 1 : i64, split_count = 2 : i64, '
        f"{_GROUP}}}>",
        "2x6xf32",
    ),
    "collective_permute": (
        '"stablehlo.collective_permute"(%x) <{source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}>',
        "4x3xf32",
    ),
    "collective_broadcast": (
        '"stablehlo.collective_broadcast"(%x) <{replica_groups = dense<[[1, 0]]> : tensor<1x2xi64>}>',
        "4x3xf32",
    ),
}
_SHARDED = (
    'module {\n  sdy.mesh @mesh = <["d"=2]>\n'
    '  func.func @main(%x: tensor<8x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}) -> '
    '(tensor<8x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}) {\n'
    "    %r = stablehlo.add %x, %x : tensor<8x3xf32>\n    return %r : tensor<8x3xf32> }\n}"
)


@dataclass(frozen=True, slots=True)
class DevicesCheck:
    """A check with a client of two devices.

    Attributes:
        name: the name of the check.
        function: makes the check.
    """

    name: str
    function: Callable[[Client], Outcome]

    @property
    def group(self) -> str:
        """The group ``devices``."""
        return "devices"

    def run(self, session: Session) -> Outcome:
        """Make the check, if the device can have two devices."""
        try:
            client = session.new_client(num_devices=_DEVICES)
        except (PjrtError, TypeError) as error:
            return Skipped(f"the device has no client of two devices (num_devices=2): {error}")
        with client:
            if len(client.addressable_devices) < _DEVICES:
                return Skipped(f"the device has {len(client.addressable_devices)} devices, expected 2 or more")
            return self.function(client)


def checks() -> Iterator[Check]:
    """Return the checks of several devices."""
    yield DevicesCheck("copies between devices", _copies)
    yield DevicesCheck("a run on the second device", _second_device)
    for operation, (text, result) in _COLLECTIVES.items():
        program = (
            f"func.func @main(%x: tensor<4x3xf32>) -> tensor<{result}> {{\n"
            f"  %r = {text} : (tensor<4x3xf32>) -> tensor<{result}>\n  return %r : tensor<{result}> }}"
        )
        yield DevicesCheck(f"replicas with stablehlo.{operation}", _replicas(operation, program))
    program = (
        "func.func @main(%x: tensor<4x3xf32>) -> tensor<ui32> {\n"
        "  %r = stablehlo.replica_id : tensor<ui32>\n  return %r : tensor<ui32> }"
    )
    yield DevicesCheck("replicas with stablehlo.replica_id", _replicas("replica_id", program))
    yield DevicesCheck("a program of two partitions", _partitions)


def _copies(client: Client) -> Outcome:
    first, second = client.addressable_devices[:_DEVICES]
    for element in (ElementType.F32, ElementType.S8, ElementType.PRED):
        for shape in ((), (0, 3), (7,), (1031,)):
            array = values.mixed(element, shape)
            copy = client.buffer_from_host(array, device=first).copy_to(second)
            back = copy.copy_to(first)
            if copy.device != second or np.asarray(copy).tobytes() != array.tobytes():
                message = f"a copy on {second} has other contents, or is on {copy.device}"
                return Finding("copies between devices", Kind.WRONG, message, "", shown_inputs([array]))
            if np.asarray(back).tobytes() != array.tobytes():
                message = "a copy of a copy has other contents"
                return Finding("copies between devices", Kind.WRONG, message, "", shown_inputs([array]))
    return None


def _second_device(client: Client) -> Outcome:
    name, sample = "a run on the second device", sample_of(client)
    second = client.addressable_devices[1]
    program, inputs = sample.program((3, 5)), sample.inputs((3, 5))
    executable = client.compile(program, CompileOptions(device_assignment=DeviceAssignment(((second.id,),))))
    (result,) = executable(*(client.buffer_from_host(each, device=second) for each in inputs))
    if result.device != second:
        return Finding(name, Kind.WRONG, f"expected a result on {second}, found it on {result.device}", program)
    problem = sample.problem(result, inputs)
    return Finding(name, Kind.WRONG, problem, program, shown_inputs(inputs)) if problem else None


def _replicas(operation: str, program: str) -> Callable[[Client], Outcome]:
    arrays = [values.exact(ElementType.F32, (4, 3), seed) for seed in range(_DEVICES)]
    name = f"replicas with stablehlo.{operation}"

    def check(client: Client) -> Outcome:
        declared = client.capabilities.operations
        if declared is not None and f"stablehlo.{operation}" not in declared:
            return Skipped("the device does not declare the operation")
        return _on_both(client, name, program, CompileOptions(num_replicas=_DEVICES), arrays)

    return check


def _partitions(client: Client) -> Outcome:
    name = "a program of two partitions"
    if client.capabilities.has(Feature.PARTITIONING) is False:
        return Skipped("the device declares that it does not partition programs")
    declared = client.capabilities.operations
    if declared is not None and "stablehlo.add" not in declared:
        return Skipped("the device does not declare stablehlo.add")
    options = CompileOptions(num_partitions=_DEVICES, use_shardy_partitioner=True)
    shards = np.split(values.ordinary(ElementType.F32, (8, 3)), _DEVICES)
    return _on_both(client, name, _SHARDED, options, shards)


def _on_both(client: Client, name: str, program: str, options: CompileOptions, arrays: Sequence[Array]) -> Outcome:
    """Run a program on two devices of the client and of the reference interpreter, and compare the results."""
    try:
        results = _run(client, program, options, arrays)
    except UnimplementedError as error:
        return Skipped(f"the device does not run it: {error.message}")
    except PjrtError as error:
        return Finding(name, Kind.ERROR, error.message, program, _shown(arrays))
    with ReferencePlugin().client(num_devices=_DEVICES) as judge:
        expected = _run(judge, program, options, arrays)
    for number, (result, right) in enumerate(zip(results, expected, strict=True)):
        wrong = first_difference([result], [right], ROUNDED)
        if wrong is not None:
            return Finding(name, Kind.WRONG, f"device {number}: {wrong[1]}", program, _shown(arrays))
    return None


def _shown(arrays: Sequence[Array]) -> tuple[str, ...]:
    return tuple(f"%x of device {number} = {shown(array)}" for number, array in enumerate(arrays))


def _run(client: Client, program: str, options: CompileOptions, arrays: Sequence[Array]) -> list[Array]:
    executable = client.compile(program, options)
    devices = executable.addressable_devices
    rows = [[client.buffer_from_host(array, device=device)] for array, device in zip(arrays, devices, strict=True)]
    return [np.asarray(row[0]) for row in executable.execute(rows)]
