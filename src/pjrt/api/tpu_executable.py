"""Facts of a compiled TPU program (the TpuExecutable extension)."""

from __future__ import annotations

import abc
from collections.abc import Mapping

from pjrt.api.attributes import NamedValue
from pjrt.api.program import Program


class TpuExecutable(abc.ABC):
    """The contents of a serialized TPU executable; no TPU is needed to read it."""

    __slots__ = ("__weakref__",)

    @abc.abstractmethod
    def target_arguments(self) -> bytes:
        """Return the vendor's serialized description of the target hardware
        (``PJRT_TpuExecutable_GetTargetArguments``).
        """

    @abc.abstractmethod
    def hlo_module(self) -> Program:
        """Return the program after the compiler's optimizations, in the format ``hlo_with_config``
        (``PJRT_TpuExecutable_GetHloModuleWithConfig``).
        """

    @abc.abstractmethod
    def memory_stats(self) -> bytes:
        """Return a serialized ``xla.CompiledMemoryStatsProto``, the memory that a run needs, buffer by buffer
        (``PJRT_TpuExecutable_GetCompiledMemoryStats``).
        """

    @abc.abstractmethod
    def cost_analysis(self) -> Mapping[str, NamedValue]:
        """Return the cost of one run, by XLA's keys such as ``flops`` and ``bytes accessed``
        (``PJRT_TpuExecutable_RunHloCostAnalysis``).
        """
