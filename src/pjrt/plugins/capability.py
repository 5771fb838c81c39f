"""Asking a device what it can do, in a process of its own: a compiler that crashes or hangs hurts nobody, and what a
library does to the process that loads it ends with that process.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pjrt.api.attributes import NamedValue
from pjrt.api.capability import Capabilities, Feature
from pjrt.api.compatibility import Effort, Reason, ReasonKind, Support, Verdict
from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import DeadlineExceededError, InternalError, InvalidArgumentError, NotFoundError, PjrtError
from pjrt.api.program import Program
from pjrt.plugins import registry
from pjrt.system.python_process import run_function

TIME_LIMIT = 600.0
"""How long a device may take to answer, in seconds."""


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to ask: the client of a plugin, or one of its topologies.

    Attributes:
        plugin: the plugin's name, or the path of its library.
        topology: the topology's name, such as ``v5e:2x2``; None for the client.
        options: the options of the client or topology.
    """

    plugin: str
    topology: str | None = None
    options: Mapping[str, NamedValue] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.plugin}:{self.topology}" if self.topology else self.plugin


def support_of(
    target: Target,
    program: Program,
    options: CompileOptions | None = None,
    *,
    effort: Effort | None = None,
    time_limit: float = TIME_LIMIT,
) -> Support:
    """Whether a device can run a program. Where no client can be made, what the plugin says of itself must do.

    Args:
        target: the device.
        program: the program.
        options: how it is compiled; what they leave to the program, such as its partitions, is taken from there.
        effort: the effort to make; None for the cheapest that gives a yes or a no.
        time_limit: the seconds that the device may take.

    Returns:
        The verdict. A compiler that crashes is a no; one that is not done in time is a maybe.

    Raises:
        NotFoundError: there is no such plugin.
        InternalError: it crashes before it has seen the program.
        PjrtError: it says why it cannot be loaded, or why there is no such topology.
    """
    question = {
        "effort": None if effort is None else effort.value,
        "format": str(program.format),
        "compile_options": _as_plain(CompileOptions.of(options)),
    }
    try:
        return Support.from_dict(_ask(target, question, program.code, time_limit))
    except _Lost as lost:
        if not lost.has_seen:
            raise lost.error from None
        if effort in (Effort.OPS, Effort.TYPES):
            raise InternalError(f"{target}: {lost.error.message}") from None
        doubts = support_of(target, program, options, effort=Effort.TYPES, time_limit=time_limit)
        pointed = [reason for reason in doubts.reasons if reason.locations]
        return Support.of(Effort.COMPILE, [lost.reason, *pointed])


def capabilities_of(target: Target, *, time_limit: float = TIME_LIMIT) -> Capabilities:
    """What a device says that it can do; where no client can be made, what the plugin says.

    Raises:
        PjrtError: as for ``support_of``.
    """
    try:
        return Capabilities.from_dict(_ask(target, {}, None, time_limit))
    except _Lost as lost:
        raise lost.error from None


class _Lost(Exception):  # noqa: N818 - it is an answer, too
    """The other process gave no answer.

    Attributes:
        error: what became of it.
        reason: the same as a reason against the program that it had.
        has_seen: whether it had begun with the program.
    """

    def __init__(self, error: PjrtError, has_seen: bool) -> None:
        hangs = isinstance(error, DeadlineExceededError)
        self.error = error
        self.reason = Reason(
            Verdict.MAYBE if hangs else Verdict.NO,
            ReasonKind.COMPILE,
            "hang" if hangs else "crash",
            error.message,
        )
        self.has_seen = has_seen


def _ask(target: Target, question: dict[str, Any], code: bytes | None, time_limit: float) -> dict[str, Any]:
    """The other process's answer."""
    whole = {
        **question,
        "plugin": target.plugin,
        "topology": target.topology,
        "options": dict(target.options),
    }
    with tempfile.TemporaryDirectory(prefix="pjrt-ask-") as name:
        folder = Path(name)
        (folder / "question").write_text(json.dumps(whole), encoding="utf-8")
        if code is not None:
            (folder / "program").write_bytes(code)
        end = run_function(answer_in_child, folder, time_limit)
        answer = folder / "answer"
        if not answer.exists():
            has_seen = (folder / "seen").exists()
            if end is None:
                who = "it" if has_seen else f"{target}: the process that loaded it"
                raise _Lost(DeadlineExceededError(f"{who} was not done within {time_limit:g} seconds"), has_seen)
            what = "the compiler" if has_seen else f"{target}: the process that loaded it"
            raise _Lost(InternalError(f"{what} crashed: {end}"), has_seen)
        said: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    if "error" in said:
        raise PjrtError.of(said["error"], said["message"])
    return said


# In the other process.


def answer_in_child(folder: Path) -> None:
    """What the other process does: answers the question in a folder."""
    asked = json.loads((folder / "question").read_text(encoding="utf-8"))
    target = Target(asked["plugin"], asked["topology"], asked["options"])
    try:
        answer = _support(target, asked, folder) if "effort" in asked else _capabilities(target).as_dict()
    except Exception as error:
        wrapped = PjrtError.wrap(error)
        answer = {"error": int(wrapped.code), "message": wrapped.message}
    written = folder / "written"
    written.write_text(json.dumps(answer, default=str), encoding="utf-8")
    written.rename(folder / "answer")


def _capabilities(target: Target) -> Capabilities:
    if target.topology is not None:
        return registry.topology(target.plugin, target.topology, **target.options).capabilities
    plugin = registry.get(target.plugin)
    if not registry.has_hardware(registry.declaration(target.plugin)):
        return plugin.capabilities
    with registry.client(target.plugin, **target.options) as client:
        return client.capabilities


def _support(target: Target, asked: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    program = Program((folder / "program").read_bytes(), asked["format"])
    options = _options(asked["compile_options"])
    effort = None if asked["effort"] is None else Effort(asked["effort"])
    if target.topology is not None:
        topology = registry.topology(target.plugin, target.topology, **target.options)
        (folder / "seen").touch()
        return topology.supports(program, options, effort=effort).as_dict()
    plugin = registry.get(target.plugin)
    problem = "its hardware is not here"
    if registry.has_hardware(registry.declaration(target.plugin)):
        try:
            client = registry.client(target.plugin, **target.options)
        except (InvalidArgumentError, NotFoundError):
            raise
        except PjrtError as error:
            problem = f"no client could be made: {error.message}"
        else:
            with client:
                (folder / "seen").touch()
                return client.supports(program, options, effort=effort).as_dict()
    (folder / "seen").touch()
    return _without_device(plugin.capabilities, program, options, effort, problem).as_dict()


def _without_device(
    capabilities: Capabilities, program: Program, options: CompileOptions, effort: Effort | None, problem: str
) -> Support:
    from pjrt import stablehlo

    found = stablehlo.supports(program, options, capabilities, effort=effort)
    advice = "; a topology may do without it" if capabilities.has(Feature.AOT_TOPOLOGIES) else ""
    reasons = tuple(
        replace(reason, message=f"it was not compiled: {problem}{advice}")
        if reason.kind is ReasonKind.COMPILE
        else reason
        for reason in found.reasons
    )
    return replace(found, reasons=reasons)


_LEFT = ("num_replicas", "num_partitions", "use_shardy_partitioner", "use_spmd_partitioning")
"""The options that may be left to the program; their proto has no way to say so."""


def _as_plain(options: CompileOptions) -> dict[str, Any]:
    """Return compile options as JSON has them."""
    return {"proto": options.to_proto().hex(), "left": [name for name in _LEFT if getattr(options, name) is None]}


def _options(plain: Mapping[str, Any]) -> CompileOptions:
    """Return what ``_as_plain`` was given."""
    left: dict[str, Any] = dict.fromkeys(plain["left"])
    return replace(CompileOptions.from_proto(bytes.fromhex(plain["proto"])), **left)
