"""All sources together, in the order of precedence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pjrt.plugins import _builtin
from pjrt.plugins.declaration import Declaration
from pjrt.plugins.discovery import config_file, directories, entry_points, namespace, variables, wheels
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


def _merged(found: Sequence[Found], *, all_installed: bool = True) -> Sequence[Declaration]:
    plugins = (*merged(found), *config_file.problems())
    return config_file.applied(plugins, all_installed=all_installed)


def _named_by_user() -> Iterator[Found]:
    for each in variables.found():
        yield Found(each, named_by_user=True)
    for each in config_file.found():
        yield Found(each, named_by_user=True)


def _in_the_box() -> Iterator[Found]:
    for each in _builtin.DEVICES.values():
        yield Found(each)


def _installed() -> Iterator[Found]:
    points = entry_points.read()
    for source in (
        directories.found(),
        entry_points.found(points),
        wheels.found(),
        entry_points.found_for_frameworks(points),
        namespace.found(),
    ):
        yield from map(Found, source)
