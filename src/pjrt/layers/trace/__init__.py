"""Traces: files of recorded calls, read, and written as logs, as summaries and for trace viewers."""

from __future__ import annotations

from pjrt.layers.trace.trace_file import Call, Trace, TraceOptions, is_trace_file, read_trace, save_trace, switch_trace
from pjrt.layers.trace.trace_views import TraceSummary, log_lines, summarize, write_chrome_trace

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
