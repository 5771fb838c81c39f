"""Model files as callables: names, nested arguments, whole arrays, any shape, on any device.

This package must not know any one device. Names are imported at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pjrt.api.lazy_names import lazy_names

if TYPE_CHECKING:
    from pjrt.host_memory.difference import Difference
    from pjrt.host_memory.tolerance import DEFAULT_TOLERANCES, Tolerance
    from pjrt.models.benchmark import Benchmark, DeviceBenchmark, Ratio, bench, benchmark_page, write_times
    from pjrt.models.comparison.comparison import Comparison, ResultDifference, compare
    from pjrt.models.comparison.difference_search import (
        Case,
        Cause,
        FirstDifference,
        SearchLimits,
        Suspect,
        ValueDifference,
    )
    from pjrt.models.inputs import Input, make_arguments
    from pjrt.models.measurement import Histogram, Latencies, MemoryPeak
    from pjrt.models.model import Compilation, Model, load_model
    from pjrt.models.model_file import ModelFile
    from pjrt.models.offloading.offloaded_model import OffloadedModel, offload
    from pjrt.models.offloading.stages import Action, OffloadPlan, StagePlan, Step
    from pjrt.models.profile import DeviceProfile, write_timeline
    from pjrt.models.report.program_page import program_dot, program_page
    from pjrt.models.saving import save_model
    from pjrt.models.serving.server import ModelServer, ServingOptions

__all__ = [
    "DEFAULT_TOLERANCES",
    "Action",
    "Benchmark",
    "Case",
    "Cause",
    "Comparison",
    "Compilation",
    "DeviceBenchmark",
    "DeviceProfile",
    "Difference",
    "FirstDifference",
    "Histogram",
    "Input",
    "Latencies",
    "MemoryPeak",
    "Model",
    "ModelFile",
    "ModelServer",
    "OffloadPlan",
    "OffloadedModel",
    "Ratio",
    "ResultDifference",
    "SearchLimits",
    "ServingOptions",
    "StagePlan",
    "Step",
    "Suspect",
    "Tolerance",
    "ValueDifference",
    "bench",
    "benchmark_page",
    "compare",
    "load_model",
    "make_arguments",
    "offload",
    "program_dot",
    "program_page",
    "save_model",
    "write_timeline",
    "write_times",
]

_HOMES = {
    ".benchmark": "Benchmark DeviceBenchmark Ratio bench benchmark_page write_times",
    ".comparison.comparison": "Comparison ResultDifference compare",
    ".comparison.difference_search": "Case Cause FirstDifference SearchLimits Suspect ValueDifference",
    "pjrt.host_memory.difference": "Difference",
    "pjrt.host_memory.tolerance": "DEFAULT_TOLERANCES Tolerance",
    ".inputs": "Input make_arguments",
    ".measurement": "Histogram Latencies MemoryPeak",
    ".model": "Compilation Model load_model",
    ".model_file": "ModelFile",
    ".offloading.offloaded_model": "OffloadedModel offload",
    ".profile": "DeviceProfile write_timeline",
    ".offloading.stages": "Action OffloadPlan StagePlan Step",
    ".saving": "save_model",
    ".serving.server": "ModelServer ServingOptions",
    ".report.program_page": "program_dot program_page",
}


if not TYPE_CHECKING:  # a type checker has the names from above; with these functions it would accept any other
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
