"""Facts about a plugin, for the head of a report and its table of capabilities."""

from __future__ import annotations

from typing import Any

from pjrt.capi.layer.schema import FUNCTIONS
from pjrt.capi.raw import Struct
from pjrt.conformance.plugin.outcome import Failed, Unsupported
from pjrt.conformance.plugin.subject import Subject


def facts_of(subject: Subject) -> dict[str, Any]:
    """Return the facts that a plugin states about itself and its client, as values that JSON has.

    ``problem`` is why no client can be made; empty if one can.
    """
    plugin = subject.plugin
    facts: dict[str, Any] = {
        "api_version": list(plugin.api_version),
        "extensions": sorted(plugin.extensions),
        "functions": [name for name in FUNCTIONS if plugin.has(name)],
        "attributes": {},
        "platform": "",
        "platform_version": "",
        "devices": 0,
        "memories": [],
        "problem": "",
    }
    if plugin.has("PJRT_Plugin_Attributes"):
        facts["attributes"] = _attributes(plugin.call("PJRT_Plugin_Attributes").fields.get("attributes") or [])
    try:
        client = subject.client
        facts["platform"] = _text(subject.call("PJRT_Client_PlatformName", client=client).platform_name)
        facts["platform_version"] = _text(subject.call("PJRT_Client_PlatformVersion", client=client).platform_version)
        facts["devices"] = len(subject.devices)
        facts["memories"] = sorted(subject.memories)
    except (Unsupported, Failed) as problem:
        facts["problem"] = str(problem)
    return facts


def _attributes(listed: list[Struct]) -> dict[str, Any]:
    return {_text(each.name): _text(each.value) if isinstance(each.value, bytes) else each.value for each in listed}


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")
