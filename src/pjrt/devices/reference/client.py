"""The client of the ``reference`` device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pjrt import stablehlo
from pjrt.api.compile_options import CompileOptions
from pjrt.api.key_value_store import KeyValueStore
from pjrt.api.program import Program, ProgramFormat
from pjrt.devices.collectives import xla_collectives
from pjrt.devices.reference.compiler import capabilities, compile_program
from pjrt.devices.reference.evaluator import Evaluator
from pjrt.devices.reference.observers import Observation, Profile
from pjrt.host import Compiled, HostClient
from pjrt.stablehlo import current_version, minimum_version, partitioning_of, static_check

PLATFORM = "reference"


class ReferenceClient(HostClient):
    """An interpreter of StableHLO on numpy, with a number of virtual devices.

    Args:
        num_devices: the number of devices; each runs its programs on a thread of its own.
        debug_nans: stop with a ``NonFiniteError`` at the first op that makes a NaN or an infinity from finite inputs.
        trace: called with every step, its inputs and its outputs, on the thread of the device that runs it.
        profile: add up the time per op in ``client.profile``; a ``Profile`` to add to, or True for a new one.
        break_at: names of ops or source locations (parts of them do) before which to stop in ``pdb``.
        optimize: use the optimizations of ``pjrt.devices.reference.fast``. The results are the same without them, bit
            by bit, but for sorts by comparators that contradict themselves.
        fold: let the optimizations change the steps of a program; off by default where steps are observed.
        vet: parse binary programs in a subprocess first, for programs that may be damaged.
        memory_limit: the most bytes of buffers on each device; no limit by default.
        collective_timeout, process_index, process_count, key_value_store: as ``pjrt.host.HostClient`` has them. The
            devices of several processes compute together through XLA's collectives.
    """

    __slots__ = ("profile",)

    def __init__(
        self,
        num_devices: int = 1,
        *,
        debug_nans: bool = False,
        trace: Callable[..., object] | None = None,
        profile: bool | Profile = False,
        break_at: str | Iterable[str] = (),
        optimize: bool = True,
        fold: bool | None = None,
        vet: bool = False,
        memory_limit: int | None = None,
        collective_timeout: float | None = None,
        process_index: int | None = None,
        process_count: int | None = None,
        key_value_store: KeyValueStore | None = None,
    ) -> None:
        observation = Observation.of(trace=trace, profile=profile, break_at=break_at, debug_nans=debug_nans)
        self.profile = observation.profile
        loop, folding = observation.loop, not observation.observers if fold is None else fold

        def compile_for_numpy(program: Program, options: CompileOptions) -> Compiled:
            def evaluator(module: Any) -> Evaluator:
                return Evaluator(module, optimize=optimize, fold=folding, handlers=self.ffi_handlers)

            return compile_program(program, options, evaluator, loop, vet=vet)

        super().__init__(
            PLATFORM,
            compile=compile_for_numpy,
            num_devices=num_devices,
            platform_version="StableHLO on numpy",
            attributes=plugin_attributes(),
            formats=tuple(ProgramFormat),
            capabilities=lambda: capabilities(self.ffi_handlers),
            static_check=static_check,
            partitioning=partitioning_of,
            refine=lambda program, shapes: stablehlo.refine(program, shapes),  # imported for dynamic shapes alone
            fingerprint=lambda program: stablehlo.fingerprint(program, trusted=True),  # it was compiled
            memory_limit=memory_limit,
            collective_timeout=collective_timeout,
            process_index=process_index,
            process_count=process_count,
            key_value_store=key_value_store,
            collectives=xla_collectives,
        )


def plugin_attributes() -> dict[str, int | Sequence[int]]:
    """Return the attributes of the platform: the StableHLO versions that it reads."""
    newest, oldest = current_version(), minimum_version()
    return {
        "xla_version": 2,
        "stablehlo_current_version": (newest.major, newest.minor, newest.patch),
        "stablehlo_minimum_version": (oldest.major, oldest.minor, oldest.patch),
    }
