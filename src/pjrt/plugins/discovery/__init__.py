"""Which plugins there are, found without importing or opening any of them (part of ``plugins``).

One module a source. In the order of precedence:

1. ``variables``: ``PJRT_NAMES_AND_LIBRARY_PATHS``
2. ``config_file``: tables with a library or a factory
3. the devices in the box
4. ``directories``: ``PJRT_PLUGIN_LIBRARY_PATH``
5. ``entry_points``: the group ``pjrt.plugins``
6. ``wheels``: those of vendors, whose facts are known here
7. ``entry_points``: the groups of JAX and PyTorch/XLA, where their packages carry a library
8. ``namespace``: packages in ``jax_plugins``

What a user names comes before what is found, and so a device in the box is replaced only by one that the user calls by
its name. Of what is found, what is said for this package comes before what is known of a wheel, and that before what
can be guessed from a package that was made for others.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

from pjrt.plugins import _builtin
from pjrt.plugins.declaration import Declaration
from pjrt.plugins.discovery import variables
from pjrt.plugins.discovery.merging import Found, merged


def discover() -> Sequence[Declaration]:
    """Every plugin that can be found, in the order of precedence; one a name.

    What cannot be used is among them, with its ``problem``.
    """
    return _merged([*_named_by_user(), *_in_the_box(), *_installed()])


def discover_configured() -> Sequence[Declaration]:
    """The plugins that the user names, by environment variables or in the configuration file, and the devices in the
    box; nothing is searched for.
    """
    return _merged([*_named_by_user(), *_in_the_box()], all_installed=False)


def is_configured() -> bool:
    """Whether the user names any plugin, or says anything of one, so that it may be one in the box."""
    if os.environ.get(variables.VARIABLE):
        return True
    from pjrt.plugins.discovery import config_file

    return config_file.state() is not None


def state() -> object:
    """A value that is another one when there may be something else to find: new variables, search paths or files."""
    from pjrt.plugins.discovery import config_file, directories

    return (
        tuple(os.environ.get(name) for name in (variables.VARIABLE, directories.VARIABLE, config_file.VARIABLE)),
        tuple(sys.path),
        config_file.state(),
    )


def _merged(found: Sequence[Found], *, all_installed: bool = True) -> Sequence[Declaration]:
    from pjrt.plugins.discovery import config_file

    plugins = (*merged(found), *config_file.problems())
    return config_file.applied(plugins, all_installed=all_installed)


def _named_by_user() -> Iterator[Found]:
    from pjrt.plugins.discovery import config_file

    for each in variables.found():
        yield Found(each, named_by_user=True)
    for each in config_file.found():
        yield Found(each, named_by_user=True)


def _in_the_box() -> Iterator[Found]:
    for each in _builtin.DEVICES.values():
        yield Found(each)


def _installed() -> Iterator[Found]:
    from pjrt.plugins.discovery import directories, entry_points, namespace, wheels

    points = entry_points.read()
    for source in (
        directories.found(),
        entry_points.found(points),
        wheels.found(),
        entry_points.found_for_frameworks(points),
        namespace.found(),
    ):
        yield from map(Found, source)
