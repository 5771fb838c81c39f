"""One plugin a name: the same plugin found twice is one, and of different ones with one name the first counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pjrt.plugins.declaration import Declaration, Sharing
from pjrt.plugins.discovery.packages import normalized


@dataclass(frozen=True, slots=True)
class Found:
    """A plugin as one source has it.

    Attributes:
        declaration: the plugin.
        named_by_user: whether the user chose the name. Then it keeps it even when it cannot be used: another plugin in
            its place would not be what the user asked for.
    """

    declaration: Declaration
    named_by_user: bool = False


def merged(found: Iterable[Found]) -> tuple[Declaration, ...]:
    """One plugin a name, of those found in the order of precedence.

    The same plugin, which is the same library or the same name from the same package, is one: the first place that it
    was found in gives its name and counts where they differ, and the others add what they know of it. Of different
    plugins with one name the first has it, and the others are ``shadowed`` by it; but one that cannot be used gives way
    to one that can.
    """
    kept: dict[str, Found] = {}
    for each in found:
        name = each.declaration.name
        if not _joined_a_twin(kept, each.declaration):
            kept[name] = _settled(kept.get(name), each)
    return tuple(each.declaration for each in kept.values())


def _settled(holder: Found | None, rival: Found) -> Found:
    """Who has a name that two claim."""
    if holder is None:
        return rival
    gives_way = holder.declaration.problem and not holder.named_by_user and not rival.declaration.problem
    winner, loser = (rival, holder) if gives_way else (holder, rival)
    beaten = (*holder.declaration.shadowed, replace(loser.declaration, shadowed=()))
    return replace(winner, declaration=replace(winner.declaration, shadowed=beaten))


def _joined_a_twin(kept: dict[str, Found], newcomer: Declaration) -> bool:
    """Adds what is known of a plugin to the same one, if it is among those kept or those that they shadow."""
    for name, holder in kept.items():
        if _same(holder.declaration, newcomer):
            kept[name] = replace(holder, declaration=_joined(holder.declaration, newcomer))
            return True
        beaten = holder.declaration.shadowed
        for place, other in enumerate(beaten):
            if _same(other, newcomer):
                rest = (*beaten[:place], _joined(other, newcomer), *beaten[place + 1 :])
                kept[name] = replace(holder, declaration=replace(holder.declaration, shadowed=rest))
                return True
    return False


def _same(one: Declaration, other: Declaration) -> bool:
    if one.library is not None and one.library == other.library:
        return True
    return (
        bool(one.distribution)
        and normalized(one.distribution) == normalized(other.distribution)
        and one.name.lower() == other.name.lower()
    )


def _joined(first: Declaration, other: Declaration) -> Declaration:
    aliases = [name for name in (other.name, *other.aliases) if name != first.name and name not in first.aliases]
    origins = [place for place in (other.origin, *other.other_origins) if place != first.origin]
    return replace(
        first,
        distribution=first.distribution or other.distribution,
        version=first.version or other.version,
        options={**other.options, **first.options},
        environment={**other.environment, **first.environment},
        hardware=first.hardware or other.hardware,
        priority=first.priority or other.priority,
        sharing=first.sharing if first.sharing is not Sharing.MANY else other.sharing,
        partition=first.partition or other.partition,
        resident=first.resident or other.resident,
        processes=first.processes or other.processes,
        memory=first.memory or other.memory,
        frameworks={**other.frameworks, **first.frameworks},
        aliases=(*first.aliases, *aliases),
        other_origins=(*first.other_origins, *(place for place in origins if place not in first.other_origins)),
    )
