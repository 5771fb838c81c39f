"""Checks of buffers and memory, made on the tiny plugin without and with a fault, each in a process of its own.

    python buffer_faults.py LIBRARY

It prints the outcome of each check as JSON: ``caught`` if the check passes on the right plugin and fails with a fault,
``missed`` if it passes with each fault, ``unsupported``, or what went wrong. A check that fails leaves work behind that
uses memory of the check, so its process cannot go on.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from faulty_plugin import Change, FaultyPlugin, fails, returns, succeeds

from pjrt.capi import raw
from pjrt.conformance.plugin.check import Check, Failed, Unsupported, all_checks
from pjrt.conformance.plugin.samples import Samples
from pjrt.conformance.plugin.subject import Subject

PROGRAMS = Path(__file__).parent / "programs"
OPTIONS = {"num_devices": 2}
MODULES = (
    "calls", "copies", "creation", "host_transfers", "layouts", "memory", "pending", "properties", "raw_memory",
    "transfer_managers",
)  # fmt: skip

_NOT_CHANGED = ("PJRT_Client_Create", "PJRT_Client_AddressableDevices")

WRONG_VALUES: Mapping[str, tuple[str, Change]] = {
    "buffer.is_deleted": ("PJRT_Buffer_IsDeleted", returns(is_deleted=False)),
    "buffer.not_deleted": ("PJRT_Buffer_IsDeleted", returns(is_deleted=True)),
    "buffer.dimensions[rank_3]": ("PJRT_Buffer_Dimensions", returns(dims=lambda dims: dims[::-1])),
    "buffer.unpadded_dimensions[rank_2]": ("PJRT_Buffer_UnpaddedDimensions", returns(unpadded_dims=[4, 5])),
    "buffer.dynamic_dimensions[rank_1]": ("PJRT_Buffer_DynamicDimensionIndices", returns(num_dynamic_dims=1)),
    "buffer.on_device_size[f32]": (
        "PJRT_Buffer_OnDeviceSizeInBytes", returns(on_device_size_in_bytes=lambda size: size - 1)
    ),
    "buffer.element_type[bf16]": ("PJRT_Buffer_ElementType", returns(type=10)),
    "buffer.device_and_memory": ("PJRT_Buffer_Memory", returns(memory=8)),
    "buffer.is_on_cpu": (
        "PJRT_Buffer_IsOnCpu", lambda right, number: returns(is_on_cpu=bool(number % 2))(right, number)
    ),
    "buffer.unsafe_pointer": ("PJRT_Buffer_UnsafePointer", returns(buffer_pointer=64)),
    "buffer.use_after_delete[PJRT_Buffer_ToHostBuffer]": ("PJRT_Buffer_ToHostBuffer", succeeds(event=0)),
    "buffer.ready_event_after_delete": ("PJRT_Event_Error", succeeds()),
    "buffer.ready_event_of_a_pending_buffer": ("PJRT_Event_IsReady", returns(is_ready=True)),
    "buffer_from_host.in_use_while_aliased[immutable_zero_copy]": ("PJRT_Event_IsReady", returns(is_ready=True)),
    "buffer_from_host.to_each_device[immutable_only_during_call]": ("PJRT_Buffer_Device", returns(device=8)),
    "buffer_from_host.memory_wins": ("PJRT_Buffer_Memory", returns(memory=8)),
    "buffer_from_host.wrong_argument[null_data]": ("PJRT_Client_BufferFromHostBuffer", fails("UNKNOWN")),
    "to_host.size_query[garbage_before]": ("PJRT_Buffer_ToHostBuffer", returns(dst_size=59)),
    "to_host.too_small[one_byte_less]": ("PJRT_Buffer_ToHostBuffer", succeeds()),
    "copy_raw_to_host_future.waits": ("PJRT_Event_IsReady", returns(is_ready=True)),
    "alias_buffer.waits": ("PJRT_Event_IsReady", returns(is_ready=True)),
    "alias_buffer.error[INTERNAL]": ("PJRT_Event_Await", fails("UNKNOWN", "there is no buffer, on purpose")),
    "error_buffer.code[DATA_LOSS]": ("PJRT_Event_Await", fails("INTERNAL", "no value, on purpose")),
    "error_buffer.message[long]": ("PJRT_Event_Await", fails("DATA_LOSS", "a long story")),
    "external_reference.below_zero[never_increased]": ("PJRT_Buffer_DecreaseExternalReferenceCount", succeeds()),
    "external_reference.pointers_differ": (
        "PJRT_Buffer_OpaqueDeviceMemoryDataPointer", returns(device_memory_ptr=64)
    ),
    "memory_stats.grow": ("PJRT_Device_MemoryStats", returns(bytes_in_use=0)),
    "memory_stats.peak": ("PJRT_Device_MemoryStats", returns(peak_bytes_in_use=0)),
    "transfer_manager.buffer_count[2]": ("PJRT_AsyncHostToDeviceTransferManager_BufferCount", returns(buffer_count=1)),
    "transfer_manager.buffer_size": ("PJRT_AsyncHostToDeviceTransferManager_BufferSize", returns(buffer_size=7)),
    "async_transfer.waits_for_the_last": ("PJRT_Event_IsReady", returns(is_ready=True)),
    "layouts.default[rank_2]": ("PJRT_Layouts_MemoryLayout_Serialize", returns(serialized_bytes=b"{1}")),
    "memory_descriptions.kinds": ("PJRT_MemoryDescription_Kind", returns(kind_id=77)),
    "raw_buffer.properties": (
        "PJRT_RawBuffer_GetOnDeviceSizeInBytes", returns(on_device_size_in_bytes=lambda size: size + 1)
    ),
}  # fmt: skip
"""A wrong value for some checks, which is found by what they expect and not by a call that fails."""


class _Recorder:
    """An observer that keeps the names of the functions that are called."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def begin(self, function: str, fields: Mapping[str, Any]) -> None:
        """Keep the name."""
        if function not in self.names:
            self.names.append(function)

    def end(self, token: None, result: raw.Result) -> None:
        """See a result."""


def module_of(check: Check) -> str:
    """Return the name of the module of a check."""
    run: Any = check.run
    while isinstance(run, functools.partial):
        run = next(each for each in (*run.args, *run.keywords.values(), run.func) if callable(each))
    return str(run.__module__).rpartition(".")[2]


def checks() -> dict[str, Check]:
    """Return one check of each kind: the last of those that differ by a label."""
    return {each.name.partition("[")[0]: each for each in all_checks().values() if module_of(each) in MODULES}


def outcome(library: Path, check: Check, faults: Iterable[tuple[str, Change]] | None) -> str:
    """Make a check without a fault, and then with each of some faults, in a process of its own.

    Args:
        library: the right plugin.
        check: the check.
        faults: the faults; by default each function that the check calls fails, one after the other.
    """
    read, write = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            status = _run(library, check, faults, lambda word: os.write(write, word.encode()))
        except BaseException:
            os.write(write, traceback.format_exc()[-2000:].encode())
        os._exit(status)
    os.close(write)
    words = b"".join(iter(functools.partial(os.read, read, 1 << 16), b"")).decode()
    os.close(read)
    _, status = os.waitpid(child, 0)
    if words in ("right ", "right caught") and os.WIFSIGNALED(status):
        return "caught"  # pjrt conform finds the end of the process, too
    return words.removeprefix("right ") if words.startswith("right ") and status == 0 else words or f"status {status}"


def _run(library: Path, check: Check, faults: Iterable[tuple[str, Change]] | None, report: Callable[[str], Any]) -> int:
    recorder = _Recorder()
    subject = _subject(library, {})
    subject.plugin.observer = recorder
    try:
        check.run(subject)
    except Unsupported:
        report("unsupported")
        return 0
    report("right ")
    names = (each for each in reversed(recorder.names) if each not in _NOT_CHANGED)
    for function, change in faults or ((each, fails("UNKNOWN")) for each in names):
        try:
            check.run(_subject(library, {function: change}))
        except Failed:
            report("caught")
            return 0
        except Exception:  # a fault that the check itself does not survive
            continue
    report("missed")
    return 0


def _subject(library: Path, faults: Mapping[str, Change]) -> Subject:
    return Subject(FaultyPlugin(raw.load(library), faults), OPTIONS, Samples(str(PROGRAMS)))


def main() -> None:
    """Print the outcomes."""
    library = Path(sys.argv[1])
    failing = {name: outcome(library, check, None) for name, check in checks().items()}
    wrong = {name: outcome(library, all_checks()[name], [fault]) for name, fault in WRONG_VALUES.items()}
    print(json.dumps({"failing functions": failing, "wrong values": wrong}))


if __name__ == "__main__":
    main()
