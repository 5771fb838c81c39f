"""Topologies of the ``cpu`` device: a number of virtual devices of this machine's processor."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pjrt import stablehlo
from pjrt.api.capability import Effort, Support, try_compiling
from pjrt.api.checks import expect
from pjrt.api.client import Client
from pjrt.api.device import DeviceFacts
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.api.program import AnyProgram, Program
from pjrt.api.shape_spec import Layout, Shapes, TiledLayout, expect_shape
from pjrt.api.topology import TopologyDescription
from pjrt.devices.xla._jaxlib import PLATFORM_VERSION
from pjrt.devices.xla.capability import capabilities
from pjrt.devices.xla.device import IDS_OF_A_PROCESS, KINDS, describe
from pjrt.devices.xla.executable import PLATFORM, XlaExecutable
from pjrt.devices.xla.runtime import Runtime
from pjrt.devices.xla.trial_compilation import compile_safely

if TYPE_CHECKING:
    from pjrt.api.capability import Capabilities
    from pjrt.api.compile_options import CompileOptions


class XlaTopology(TopologyDescription):
    """A number of virtual CPU devices, in one process or in each process of a job.

    XLA compiles for the CPU on which it runs, so compiling for a topology makes, once, a runtime of that many devices.

    Args:
        device_counts: the number of devices of each process.
        runtime: a runtime of these devices to compile with, if there is one already.
    """

    __slots__ = ("_counts", "_descriptions", "_lock", "_runtime")

    def __init__(self, device_counts: Sequence[int], runtime: Runtime | None = None) -> None:
        self._counts = list(device_counts)
        self._descriptions = tuple(
            describe(process * IDS_OF_A_PROCESS + number, process)
            for process, count in enumerate(device_counts)
            for number in range(count)
        )
        self._runtime = runtime
        self._lock = threading.Lock()

    @property
    def platform_name(self) -> str:
        return PLATFORM

    @property
    def platform_version(self) -> str:
        return PLATFORM_VERSION

    @property
    def device_descriptions(self) -> Sequence[DeviceFacts]:
        return self._descriptions

    @property
    def capabilities(self) -> Capabilities:
        return capabilities(len(self._descriptions))

    def supports(
        self,
        program: AnyProgram,
        options: CompileOptions | None = None,
        *,
        effort: Effort | str | None = None,
    ) -> Support:
        return stablehlo.supports(
            program,
            options,
            self.capabilities,
            effort=effort,
            compile=lambda: try_compiling(self, program, options),
        )

    def compile(
        self,
        program: AnyProgram,
        options: CompileOptions | None = None,
        *,
        client: Client | None = None,
        shapes: Shapes | None = None,
    ) -> XlaExecutable:
        if client is not None:
            expect(client, Client, "a client whose devices may be used while compiling, or None")
        program = Program.of(program) if shapes is None else stablehlo.refine(program, shapes)
        return compile_safely(self._open_runtime(), program, options)

    def _open_runtime(self) -> Runtime:
        with self._lock:
            if self._runtime is None or self._runtime.is_closed:
                if len(self._counts) > 1:
                    raise UnimplementedError(
                        f"the device 'cpu' cannot compile for the devices of {len(self._counts)} processes outside of "
                        "a job; use client.topology or client.compile in a process of the job"
                    )
                self._runtime = Runtime(len(self._descriptions))
            return self._runtime

    def serialize(self) -> bytes:
        import json

        fields: dict[str, object] = {"platform": PLATFORM, "num_devices": len(self._descriptions)}
        if len(self._counts) > 1:
            fields["device_counts"] = self._counts
        return json.dumps(fields).encode()

    def deserialize(self, serialized: bytes) -> XlaTopology:
        import json

        try:
            fields = json.loads(serialized)
            number = fields["num_devices"]
            counts = fields.get("device_counts", [number])
            if (
                fields["platform"] != PLATFORM
                or not all(isinstance(count, int) and count > 0 for count in [number, *counts])
                or sum(counts) != number
            ):
                raise ValueError("not a topology of the device 'cpu'")
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidArgumentError(
                f"expected a serialized topology of the device 'cpu', found {len(serialized)} bytes: {error}"
            ) from error
        return XlaTopology(counts)

    def fingerprint(self) -> int:
        import hashlib

        return int.from_bytes(hashlib.sha256(self.serialize() + PLATFORM_VERSION.encode()).digest()[:8], "little")

    def default_layout(self, element_type: ElementType, shape: Sequence[int]) -> Layout:
        expect(element_type, ElementType, "an element type as pjrt.ElementType")
        return TiledLayout.row_major(len(expect_shape(shape)))

    @property
    def memory_space_kind_ids(self) -> Sequence[int]:
        return tuple(range(len(KINDS)))
