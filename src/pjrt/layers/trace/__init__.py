"""Traces: files of recorded calls, read, and written as logs, as summaries and for trace viewers."""

from __future__ import annotations

from pjrt.layers.trace.chrome_trace import write_chrome_trace
from pjrt.layers.trace.trace_file import is_trace_file, read_trace, save_trace, switch_trace
from pjrt.layers.trace.trace_log import log_lines
from pjrt.layers.trace.trace_options import TraceOptions
from pjrt.layers.trace.trace_records import Call, Trace
from pjrt.layers.trace.trace_summary import TraceSummary, summarize

__all__ = [
    "Call",
    "Trace",
    "TraceOptions",
    "TraceSummary",
    "is_trace_file",
    "log_lines",
    "read_trace",
    "save_trace",
    "summarize",
    "switch_trace",
    "write_chrome_trace",
]
