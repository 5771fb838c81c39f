"""The arguments of a replay's calls: the recorded ones, with host data and with the options that the user chose."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.capi.layer.schema import STRUCTS
from pjrt.capi.raw.memory import Memory
from pjrt.capi.raw.struct import Struct
from pjrt.host_memory.tolerance import Tolerance
from pjrt.layers.recording.recorded_value import LeftOut, Pointer
from pjrt.layers.recording.recording import Call, Recording
from pjrt.layers.replay.counterparts import Counterparts
from pjrt.layers.replay.struct_builder import StructBuilder, element_size, host_array

FROM_HOST = "PJRT_Client_BufferFromHostBuffer"
LITERAL = "PJRT_AsyncHostToDeviceTransferManager_TransferLiteral"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a replay.

    Attributes:
        tolerance: how far elements of results may be from those of the recording.
        stop_at: the number of the last call; 0 for all.
        seed: the seed of host data that the recording leaves out.
        options: options of the clients, by name; they come before the recorded ones.
        recorded_options: whether clients get the recorded options.
    """

    tolerance: Tolerance = field(default_factory=Tolerance)
    stop_at: int = 0
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    recorded_options: bool = True


class ReplayArguments:
    """A maker of argument structs.

    Raises:
        LostError: a call needs what an earlier one did not make.
        UnusableError: a call needs what this plugin lacks.
    """

    def __init__(self, recording: Recording, counterparts: Counterparts, settings: Settings) -> None:
        self._recording, self._counterparts, self._settings = recording, counterparts, settings
        self._mapped: list[Memory] = []

    def build(self, call: Call, num_outputs: int) -> tuple[int, StructBuilder]:
        """Return the address of a call's arguments, and what keeps them."""
        builder = StructBuilder(self._counterparts, num_outputs)
        arguments = call.arguments
        if call.function == "PJRT_Client_Create":
            arguments = self._client_arguments(arguments)
        elif call.function == "PJRT_Client_DmaMap":
            self._map(arguments)
        elif call.function == "PJRT_Client_LookupDevice":
            number = arguments.fields["id"]
            number = self._counterparts.device_ids.get(number, number)
            arguments = Struct(arguments.kind, {**arguments.fields, "id": number})
        elif call.function == "PJRT_Executable_OptimizedProgram" and call.error is None:
            arguments = self._program_arguments(arguments)
        if call.function not in (FROM_HOST, LITERAL):
            return builder.build_recorded(arguments), builder
        arguments = Struct(arguments.kind, {k: v for k, v in arguments.fields.items() if k != "data"})
        address = builder.build_recorded(arguments)
        if call.data is not None:
            data = self._host_data(call)
            of_array = call.function == FROM_HOST
            begin = host_array(data, arguments, builder.memory) if of_array else builder.memory.copy(data)
            ctypes.c_uint64.from_address(address + STRUCTS[arguments.kind].fields["data"].offset).value = begin
        return address, builder

    def _client_arguments(self, arguments: Struct) -> Struct:
        settings = self._settings
        recorded = arguments.fields.get("create_options") or [] if settings.recorded_options else []
        kept = [each for each in recorded if self._recording.text(each.fields["name"]) not in settings.options]
        options = [*kept, *(_named_value(name, value) for name, value in settings.options.items())]
        return Struct(arguments.kind, {**arguments.fields, "create_options": options, "num_options": len(options)})

    def _program_arguments(self, arguments: Struct) -> Struct:
        """Make room for the program of this plugin, whose size an earlier call returned."""
        program = arguments.fields["program"]
        size = self._counterparts.program_sizes.get(arguments.fields["executable"].number)
        if size is None or program.fields["code"] is None:
            return arguments
        program = Struct(program.kind, {**program.fields, "code_size": size})
        return Struct(arguments.kind, {**arguments.fields, "program": program})

    def _map(self, arguments: Struct) -> None:
        """Take new memory for the host memory that the framework registers."""
        if isinstance(arguments.fields["data"], Pointer):
            memory = Memory()
            self._mapped.append(memory)
            self._counterparts.learn_memory(arguments.fields["data"], memory.allocate(arguments.fields["size"]))

    def _host_data(self, call: Call) -> bytes | memoryview:
        if not isinstance(call.data, LeftOut):
            return self._recording.data(call.data) or b""
        generator = np.random.default_rng((self._settings.seed, call.number))
        number = call.arguments.fields.get("type", call.arguments.fields.get("shape_element_type", 0))
        kind, count = ElementType(number), call.data.size // element_size(number)
        if kind.is_floating or kind.is_complex:
            return generator.uniform(-1, 1, count).astype(kind.dtype).tobytes()
        return generator.integers(0, 2, count).astype(kind.dtype).tobytes()


def _named_value(name: str, value: Any) -> Struct:
    number = {str: 0, bool: 4, int: 1, float: 3}.get(type(value), 2)
    plain = value.encode() if isinstance(value, str) else list(value) if number == 2 else value
    return Struct("PJRT_NamedValue", {"name": name.encode(), "type": number, "value": plain})
