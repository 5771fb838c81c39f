"""Targets: the drivers of IREE's runtime, and the flags with which its compiler compiles for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pjrt.api.checks import expect_all
from pjrt.api.errors import InvalidArgumentError

_BACKENDS = {
    "local-sync": "llvm-cpu",
    "local-task": "llvm-cpu",
    "cuda": "cuda",
    "hip": "rocm",
    "vulkan": "vulkan-spirv",
}
"""The compiler's backend by the runtime's driver."""

DRIVERS = tuple(_BACKENDS)

_GPU_FLAGS = {"cuda": "--iree-cuda-target", "hip": "--iree-rocm-target", "vulkan": "--iree-vulkan-target"}

_FLAGS = (
    # Reads StableHLO, and what JAX writes beside it.
    "--iree-input-type=auto",
    # Without it, f64 becomes f32 without a word, and arguments of f64 are errors.
    "--iree-input-demote-f64-to-f32=false",
)


class Target(NamedTuple):
    """A kind of hardware to compile for.

    Attributes:
        driver: the driver of the runtime that runs the compiled module.
        cpu: the processor, as LLVM names it; ``host`` for this machine's. For the drivers of processors.
        triple: the target triple, as LLVM names it; empty for this machine's. For the drivers of processors.
        gpu: the GPU, as IREE names it, such as ``sm_80`` or ``gfx942``; empty for IREE's default.
        flags: further flags of IREE's compiler.
    """

    driver: str
    cpu: str = "host"
    triple: str = ""
    gpu: str = ""
    flags: tuple[str, ...] = ()

    @staticmethod
    def of(driver: str, cpu: str | None, triple: str | None, gpu: str | None, flags: Sequence[str]) -> Target:
        """Return a target of options that a user gave.

        Raises:
            InvalidArgumentError: the driver is unknown, an option is not for the driver, or a flag is no flag.
        """
        if driver not in DRIVERS:
            raise InvalidArgumentError(f"expected one of {', '.join(DRIVERS)} as driver, found {driver!r}")
        options = {"target_cpu": cpu, "target_triple": triple, "target_gpu": gpu}
        for name, value in options.items():
            if value is not None and (not isinstance(value, str) or not value):
                raise InvalidArgumentError(f"expected the option {name} as a name of LLVM, found {value!r}")
        is_local = driver.startswith("local-")
        for name in ("target_gpu",) if is_local else ("target_cpu", "target_triple"):
            if options[name] is not None:
                raise InvalidArgumentError(f"the option {name} is not for the driver {driver!r}")
        if driver == "hip" and gpu is None:
            raise InvalidArgumentError(
                "expected the option target_gpu for the driver 'hip', such as 'gfx942', found none"
            )
        if isinstance(flags, str):
            raise InvalidArgumentError(f"expected flags of IREE's compiler as a list, found the string {flags!r}")
        checked = tuple(expect_all(flags, str, "flags of IREE's compiler as strings"))
        for flag in checked:
            if not flag.startswith("--"):
                raise InvalidArgumentError(
                    f"expected flags of IREE's compiler such as '--iree-opt-level=O3', found {flag!r}"
                )
        # A processor of another machine is not known here: LLVM's plainest of that triple is what runs anywhere.
        return Target(driver, cpu or ("host" if triple is None else "generic"), triple or "", gpu or "", checked)

    def __str__(self) -> str:
        names = [self.driver, self.triple, self.cpu if self.is_local else self.gpu, *self.flags]
        return " ".join(filter(None, names))

    @property
    def is_local(self) -> bool:
        """Whether processors run the module, in this process."""
        return self.driver.startswith("local-")

    @property
    def is_asynchronous(self) -> bool:
        """Whether calls return before their work is done."""
        return self.driver != "local-sync"

    def compiler_flags(self) -> list[str]:
        """Return the flags of IREE's compiler."""
        flags = list(_FLAGS)
        if self.is_asynchronous:
            flags.append("--iree-execution-model=async-external")
        if self.is_local:
            flags += [
                "--iree-hal-target-device=local",
                f"--iree-hal-local-target-device-backends={_BACKENDS[self.driver]}",
            ]
            flags.append(f"--iree-llvmcpu-target-cpu={self.cpu}")
            if self.triple:
                flags.append(f"--iree-llvmcpu-target-triple={self.triple}")
        else:
            flags.append(f"--iree-hal-target-device={self.driver}")
            if self.gpu:
                flags.append(f"{_GPU_FLAGS[self.driver]}={self.gpu}")
        if not any(flag.startswith("--iree-opt-level") for flag in self.flags):
            flags.append("--iree-opt-level=O2")
        return [*flags, *self.flags]
