"""Completion in the shell: names of devices and topologies, and files. ``docs/cli.md`` explains its installation."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
from click.shell_completion import CompletionItem

from pjrt import plugins

_SIZE = r"\d+(?:x\d+)+"
_FILLERS = ("ones", "random:0", "zeros")


def complete_device(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of devices that begin so; where none does, the shell completes files."""
    return [CompletionItem(name) for name in plugins.names() if name.startswith(incomplete)] or _files(incomplete)


def complete_topology(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the topologies that begin so, such as ``tpu:v5e:2x2``; where none does, the shell completes files.

    Of several topologies, separated by commas, the last is completed.
    """
    before, comma, last = incomplete.rpartition(",")
    names = [name for name in _topologies() if name.startswith(last)]
    return [CompletionItem(before + comma + name) for name in names] or _files(incomplete)


def complete_input(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the values that need no file and begin so; where none does, the shell completes files."""
    return [CompletionItem(word) for word in _FILLERS if incomplete and word.startswith(incomplete)] or _files(
        incomplete
    )


def complete_file(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Have the shell complete files."""
    return _files(incomplete)


def _files(incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


def _topologies() -> Iterator[str]:
    for declaration in plugins.declarations():
        for kind, sizes in declaration.topologies.items():
            yield f"{declaration.name}:{kind}"
            for size in re.findall(_SIZE, sizes):
                yield f"{declaration.name}:{kind}:{size}"
