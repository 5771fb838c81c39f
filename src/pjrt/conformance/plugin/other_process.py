"""Another process with the plugin, for checks of what passes between processes and of how a process ends.

It is a new Python process that loads the plugin, calls one function of a module of checks, and ends as any Python
program does, with whatever the function has left.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

from pjrt.capi import raw
from pjrt.conformance.plugin.check import Failed, Unsupported
from pjrt.conformance.plugin.samples import Samples
from pjrt.conformance.plugin.subject import Subject
from pjrt.layers.wrapping import table_of
from pjrt.system.python_process import run_module

_PATIENCE = 60.0


def call_in_another_process(subject: Subject, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with the plugin in another process; return its result when that process has ended.

    Args:
        subject: the plugin.
        function: a function of a module, which is given the plugin as a ``Subject`` of its own, and the arguments.
        arguments: values that can be pickled, as the result.

    Raises:
        Failed: the function raised it, or the process did not end normally.
        Unsupported: the function raised it.
    """
    task = (subject.name, subject.options, subject.samples.folder, function.__module__, function.__name__, arguments)
    try:
        ended = run_module(__name__, given=pickle.dumps(task), time_limit=_PATIENCE)
    except TimeoutError as error:
        raise Failed("a process that ends", f"one that still ran after {_PATIENCE:g} seconds") from error
    if ended is None:
        raise Unsupported("a Python program to start")
    if ended.status or not ended.output:
        raise Failed("a process that ends normally", str(ended))
    kind, value = pickle.loads(ended.output)
    if kind == "unsupported":
        raise Unsupported(value)
    if kind == "failed":
        raise Failed(*value)
    return value


def main() -> None:
    """Run the task of the standard input."""
    name, options, programs, module, function, arguments = pickle.load(sys.stdin.buffer)
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the plugin prints is no result
    address, _, _, owner = table_of(name)
    plugin = raw.Plugin(address, owner)
    if plugin.has("PJRT_Plugin_Initialize"):
        plugin.call("PJRT_Plugin_Initialize")
    subject = Subject(plugin, options, Samples(programs), name)
    answer: tuple[str, Any]
    try:
        answer = ("result", getattr(importlib.import_module(module), function)(subject, *arguments))
    except Unsupported as lack:
        answer = ("unsupported", str(lack))
    except Failed as failure:
        answer = ("failed", (failure.expected, failure.found))
    pickle.dump(answer, output)
    output.close()


if __name__ == "__main__":
    main()
