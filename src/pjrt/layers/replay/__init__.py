"""Replays: the calls of a recording made to another plugin, compared, and reduced to those that fail.

Names are imported at their first use: the subprocess that calls the plugin runs a module of this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pjrt.api.lazy_names import lazy_names

if TYPE_CHECKING:
    from pjrt.layers.replay.reduction import Reduction, reduce_recording
    from pjrt.layers.replay.replay_arguments import Settings
    from pjrt.layers.replay.replay_process import PluginOpener, ReplayResult, replay
    from pjrt.layers.replay.replayer import ReplayFinding

__all__ = ["PluginOpener", "Reduction", "ReplayFinding", "ReplayResult", "Settings", "reduce_recording", "replay"]

_HOMES = {
    ".reduction": "Reduction reduce_recording",
    ".replay_arguments": "Settings",
    ".replay_process": "PluginOpener ReplayResult replay",
    ".replayer": "ReplayFinding",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
