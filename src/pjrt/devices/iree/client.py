"""The client of the ``iree`` device."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.executable import Executable
from pjrt.devices.iree import packages
from pjrt.devices.iree.compilation import PLACES, IreeCompiler
from pjrt.devices.iree.memory import ALIGNMENT, IreeGpuMemory, IreeMemory
from pjrt.devices.iree.runtime import Runtime
from pjrt.devices.iree.support import refusal
from pjrt.devices.iree.target import Target
from pjrt.devices.stablehlo_client import StableHloClient
from pjrt.host.executable import HostExecutable
from pjrt.host.loaded_executable import HostLoadedExecutable

PLATFORM = "iree"


class IreeClient(StableHloClient):
    """IREE's compiler and runtime.

    Args:
        num_devices: the number of devices. Each device of the drivers of processors is a virtual one of this machine's;
            those of the other drivers are the first of the machine's.
        driver: the driver of IREE's runtime: ``local-task`` and ``local-sync`` for processors, with threads of its own
            and without, ``cuda``, ``hip`` or ``vulkan``.
        target_cpu: the processor to compile for, as LLVM names it; this machine's by default.
        target_triple: the target triple to compile for, as LLVM names it; this machine's by default.
        target_gpu: the GPU to compile for, such as ``sm_80`` or ``gfx942``; IREE's default by default. ``hip`` has
            none.
        flags: further flags of IREE's compiler.
        compile_in: ``subprocess``, where a crash of the compiler is an error, or ``process``.
        cache: a folder for compiled modules, which any number of processes share; none by default.
        fallback: ``reference`` for the interpreter, which runs what IREE does not; ``None`` for an error instead.
        memory_limit: the most bytes of buffers on each device; no limit by default.
        collective_timeout: how long the devices of a launch wait for each other, in seconds.

    Raises:
        InvalidArgumentError: an option is not as expected.
    """

    __slots__ = ("runtime", "target")

    def __init__(
        self,
        num_devices: int = 1,
        *,
        driver: str = "local-task",
        target_cpu: str | None = None,
        target_triple: str | None = None,
        target_gpu: str | None = None,
        flags: Sequence[str] = (),
        compile_in: str = "subprocess",
        cache: str | os.PathLike[str] | None = None,
        fallback: str | None = "reference",
        memory_limit: int | None = None,
        collective_timeout: float = 60.0,
    ) -> None:
        if compile_in not in PLACES:
            raise InvalidArgumentError(f"expected one of {', '.join(PLACES)} as compile_in, found {compile_in!r}")
        self.target = target = Target.of(driver, target_cpu, target_triple, target_gpu, flags)
        self.runtime = runtime = Runtime(driver, num_devices)
        compiler = IreeCompiler(target, runtime, compile_in, None if cache is None else Path(cache).expanduser())
        super().__init__(
            PLATFORM,
            compile=compiler.compile,
            deserialize=compiler.deserialize,
            fallback=fallback,
            whole_programs=True,
            fuse=None if fallback is None else lambda operation: not refusal(operation),
            num_devices=num_devices,
            memory=(IreeMemory if target.is_local else IreeGpuMemory)(runtime),
            platform_version=f"IREE {packages.version()}, {target}",
            alignment=ALIGNMENT,
            device_kind=f"{PLATFORM} {driver}",
            device_attributes={"driver": driver},
            memory_limit=memory_limit,
            collective_timeout=collective_timeout,
        )

    def open(self) -> None:
        """Open the devices of IREE's runtime, which happens at their first use otherwise.

        Raises:
            FailedPreconditionError: the runtime is not installed.
            UnavailableError: the driver's library or its hardware is missing.
        """
        assert self.runtime.devices

    def load(self, executable: Executable, options: CompileOptions | None = None) -> HostLoadedExecutable:
        if isinstance(executable, HostExecutable) and executable.platform_name == PLATFORM and options is None:
            # Its functions are those of another client or of a topology, which has no devices.
            return self.deserialize(executable.serialize())
        return super().load(executable, options)

    def close(self) -> None:
        super().close()
        self.runtime.close()
