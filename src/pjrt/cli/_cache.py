"""The compilation cache of a command: the option ``--cache``, and what is printed about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pjrt import system

if TYPE_CHECKING:
    from pjrt.artifacts.compilation_cache import CompilationCache


def _open(_: click.Context, __: click.Parameter, folder: str | None) -> CompilationCache | None:
    if folder is None:
        return None
    # Most runs are without a cache.
    from pjrt.artifacts.compilation_cache import CompilationCache

    return CompilationCache(folder or system.cache_folder() / "executables")


cache_option = click.option(
    "--cache",
    is_flag=False,
    flag_value="",
    metavar="[DIR]",
    callback=_open,
    help="Keep compiled programs in a folder, and take them from there. DIR is a folder of yours; the default is one "
    "for this user. Without DIR, write the option after PROGRAM.",
)
"""The option, as a ``CompilationCache`` or None."""


def as_dict(cache: CompilationCache, hits_before: int = 0) -> dict[str, Any]:
    """Return whether the program was in the cache, as ``--json`` prints it.

    Args:
        cache: the cache.
        hits_before: the number of its hits before the program was looked up.
    """
    return {"folder": str(cache.folder), "hit": cache.hits > hits_before}


def outcome(lookup: dict[str, Any]) -> str:
    """Return the result of ``as_dict`` on one line."""
    return f"{'hit' if lookup['hit'] else 'miss'}, in {lookup['folder']}"
