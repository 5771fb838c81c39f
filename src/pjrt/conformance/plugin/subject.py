"""The plugin under test, as checks see it."""

from __future__ import annotations

from pjrt.conformance.plugin.executions import Executions


class Subject(Executions):
    """The plugin under test in the process of one check.

    ``plugin`` makes calls without any rule; ``call`` makes calls that must succeed, and ``fails`` such that must fail.
    The client, its devices and its memories are made when a check first asks for them. What a check leaves goes with
    its process.
    """
