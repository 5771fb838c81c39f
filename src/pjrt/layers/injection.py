"""The rules of the layer ``inject``, and the faults that it made."""

from __future__ import annotations

from dataclasses import dataclass

from pjrt.capi import LoadedPlugin
from pjrt.capi.layer import stack


@dataclass(frozen=True, slots=True)
class InjectionRule:
    """A rule of the layer ``inject``, and how often it was used.

    Attributes:
        text: the rule, as in the options of the layer.
        calls: the number of calls that it is for.
        faults: the number of these calls to which its fault happened.
    """

    text: str
    calls: int
    faults: int


def injections(plugin: LoadedPlugin) -> tuple[InjectionRule, ...]:
    """Return the rules of a wrapped plugin's layer ``inject``, in order, with what they did up to now.

    Raises:
        InvalidArgumentError: the plugin has no such layer.
    """
    return tuple(InjectionRule(*rule) for rule in stack.injected_faults(plugin.address))


def inject(plugin: LoadedPlugin, rules: stack.LayerOptions) -> None:
    """Replace the rules of a wrapped plugin's layer ``inject`` from the next call on. No rules make no faults.

    Events that are never ready stay so until their end. A rule for a client knows the clients that were made since
    the layer has followed clients: since its first rule with ``client``, ``ready``, ``flip`` or ``memory``.

    Args:
        plugin: what ``pjrt.layers.wrap(plugin, ["inject"], inject=…)`` returned.
        rules: a rule, several, or their text, as for ``wrap``.

    Raises:
        InvalidArgumentError: the plugin has no such layer, or a rule is wrong.
    """
    stack.replace_rules(plugin.address, rules)
