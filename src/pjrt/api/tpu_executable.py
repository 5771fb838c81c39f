"""Facts of a compiled TPU program (the TpuExecutable extension)."""

from __future__ import annotations

import abc
from collections.abc import Mapping

from pjrt.api.attributes import NamedValue
from pjrt.api.program import Program


class TpuExecutable(abc.ABC):
    """A serialized TPU executable, opened: no TPU is needed to read it."""

    __slots__ = ("__weakref__",)

    @abc.abstractmethod
    def target_arguments(self) -> bytes:
        """Return the vendor's serialized description of the hardware that it is for
        (``PJRT_TpuExecutable_GetTargetArguments``).
        """

    @abc.abstractmethod
    def hlo_module(self) -> Program:
        """Return the program as the compiler left it, in the format ``hlo_with_config``
        (``PJRT_TpuExecutable_GetHloModuleWithConfig``).
        """

    @abc.abstractmethod
    def memory_stats(self) -> bytes:
        """Return a serialized ``xla.CompiledMemoryStatsProto``, which says what memory a run needs, buffer by buffer
        (``PJRT_TpuExecutable_GetCompiledMemoryStats``).
        """

    @abc.abstractmethod
    def cost_analysis(self) -> Mapping[str, NamedValue]:
        """Return what one run costs, by XLA's own keys such as ``flops`` and ``bytes accessed``
        (``PJRT_TpuExecutable_RunHloCostAnalysis``).
        """
