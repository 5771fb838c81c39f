"""All sources in the order of precedence, with one plugin for each name.

A plugin that several sources find is one plugin; of different plugins with one name the first has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from pjrt.plugins import builtin
from pjrt.plugins.declaration import Declaration
from pjrt.plugins.discovery import configuration, packages, wheels
from pjrt.plugins.discovery.packages import normalized


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plugin as one source declares it.

    Attributes:
        declaration: the plugin.
        named_by_user: whether the user chose the name. Such a plugin keeps its name even when it cannot be used:
            another plugin in its place would not be what the user asked for.
    """

    declaration: Declaration
    named_by_user: bool = False


def discover() -> Sequence[Declaration]:
    """Return every plugin, in the order of precedence; those that cannot be used have a ``problem``."""
    return _configured([*_named_by_user(), *_builtin(), *_installed()], all_installed=True)


def discover_configured() -> Sequence[Declaration]:
    """Return the plugins of environment variables and the configuration file, and the built-in devices.

    Nothing is searched for.
    """
    return _configured([*_named_by_user(), *_builtin()], all_installed=False)


def _configured(candidates: Sequence[Candidate], *, all_installed: bool) -> Sequence[Declaration]:
    plugins = (*merge(candidates), *configuration.problems())
    return configuration.apply(plugins, all_installed=all_installed)


def _named_by_user() -> Iterator[Candidate]:
    for source in (configuration.find_named(), configuration.find_in_file()):
        for plugin in source:
            yield Candidate(plugin, named_by_user=True)


def _builtin() -> Iterator[Candidate]:
    return map(Candidate, builtin.DEVICES.values())


def _installed() -> Iterator[Candidate]:
    points = packages.read_entry_points()
    for source in (
        configuration.find_in_folders(),
        packages.find_declared(points),
        wheels.find(),
        packages.find_for_frameworks(points),
        packages.find_in_namespace(),
    ):
        yield from map(Candidate, source)


def merge(candidates: Iterable[Candidate]) -> tuple[Declaration, ...]:
    """Return one plugin for each name, from candidates in the order of precedence.

    Two candidates are the same plugin if they have the same library, or the same name and the same package. The first
    one gives its name and its facts, and the others add facts that it lacks. Of different plugins with one name the
    first has it and ``shadowed`` lists the others; but a plugin that cannot be used gives way to one that can.
    """
    kept: dict[str, Candidate] = {}
    for candidate in candidates:
        name = candidate.declaration.name
        if not _add_to_same(kept, candidate.declaration):
            kept[name] = _winner(kept.get(name), candidate)
    return tuple(each.declaration for each in kept.values())


def _winner(holder: Candidate | None, rival: Candidate) -> Candidate:
    """Return which of two different plugins has their name, with the other one as shadowed."""
    if holder is None:
        return rival
    gives_way = holder.declaration.problem and not holder.named_by_user and not rival.declaration.problem
    winner, loser = (rival, holder) if gives_way else (holder, rival)
    shadowed = (*holder.declaration.shadowed, replace(loser.declaration, shadowed=()))
    return replace(winner, declaration=replace(winner.declaration, shadowed=shadowed))


def _add_to_same(kept: dict[str, Candidate], newcomer: Declaration) -> bool:
    """Add a newcomer's facts to the same plugin, if it is kept or shadowed; return whether it is."""
    for name, holder in kept.items():
        if _is_same(holder.declaration, newcomer):
            kept[name] = replace(holder, declaration=_joined(holder.declaration, newcomer))
            return True
        shadowed = holder.declaration.shadowed
        if any(_is_same(other, newcomer) for other in shadowed):
            joined = tuple(_joined(other, newcomer) if _is_same(other, newcomer) else other for other in shadowed)
            kept[name] = replace(holder, declaration=replace(holder.declaration, shadowed=joined))
            return True
    return False


def _is_same(one: Declaration, other: Declaration) -> bool:
    if one.library is not None and one.library == other.library:
        return True
    return (
        bool(one.distribution)
        and normalized(one.distribution) == normalized(other.distribution)
        and one.name.lower() == other.name.lower()
    )


_KEPT = ("name", "origin", "library", "factory", "problem", "disabled", "shadowed")
"""The fields that are those of the first declaration of a plugin alone."""


def _joined(first: Declaration, other: Declaration) -> Declaration:
    """Return the first declaration with what the other adds: entries of tables, and values that the first lacks."""
    facts: dict[str, Any] = {}
    for field in fields(Declaration):
        own, added = getattr(first, field.name), getattr(other, field.name)
        if isinstance(own, Mapping):
            facts[field.name] = {**added, **own}
        elif field.name not in _KEPT and own == field.default:
            facts[field.name] = added
    for name in ("aliases", "other_origins"):
        main = "name" if name == "aliases" else "origin"
        candidates = (*getattr(first, name), getattr(other, main), *getattr(other, name))
        facts[name] = tuple(each for each in dict.fromkeys(candidates) if each != getattr(first, main))
    return replace(first, **facts)
