"""From a program and its options to a loaded executable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.program import Program
from pjrt.devices.xla import _raw
from pjrt.devices.xla._errors import converted
from pjrt.devices.xla.loaded_executable import XlaLoadedExecutable

if TYPE_CHECKING:
    from pjrt.devices.xla.client import XlaClient

_DEFAULT = CompileOptions()


def compile_and_load(client: XlaClient, program: Program, options: CompileOptions) -> XlaLoadedExecutable:
    """Compiles a program and loads it on the devices that the options name."""
    assignment = options.device_assignment or client.default_device_assignment(
        options.num_replicas, options.num_partitions
    )
    devices = [client.lookup_device(number) for row in assignment.device_ids for number in row]
    try:
        raw = client.raw.compile_and_load(
            program.code, _raw.device_list([d.raw for d in devices]), raw_options(options, assignment)
        )
    except Exception as error:
        raise converted(error) from error
    return XlaLoadedExecutable(client, raw, devices, assignment, options)


def raw_options(options: CompileOptions, assignment: DeviceAssignment) -> Any:
    """The options as jaxlib takes them."""
    if options == _DEFAULT:
        made = _raw.jax.CompileOptions()
    else:
        made = _raw.jax.CompileOptions.ParseFromString(options.to_proto())
    return made
