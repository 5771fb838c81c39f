"""Recordings: files with the calls of a framework to a plugin, and the data that went in and came out."""

from __future__ import annotations

from pjrt.layers.recording.recording import Call, Callback, Recording
from pjrt.layers.recording.recording_text import lines_of
from pjrt.layers.recording.recording_writer import write_recording

__all__ = ["Call", "Callback", "Recording", "lines_of", "write_recording"]
