"""Which programs a device supports, and its capabilities, read in a subprocess.

A compiler that crashes or hangs does no harm there, and the changes that a library makes to its process end with it.
"""

from __future__ import annotations

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
from pjrt.system.python_process import NoAnswerError, ask

TIME_LIMIT = 600.0
"""The default time limit of a question, in seconds."""


@dataclass(frozen=True, slots=True)
class Target:
    """A device: the client of a plugin, or one of its topologies.

    Attributes:
        plugin: the plugin's name, or the path of its library.
        topology: the topology's name, such as ``v5e:2x2``; ``None`` for the client.
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
    """Return whether a device can run a program. Where no client can be made, the plugin's capabilities decide.

    Args:
        target: the device.
        program: the program.
        options: the compile options; those that they leave open, such as the partitions, come from the program.
        effort: the effort to make; ``None`` for the cheapest that gives a yes or a no.
        time_limit: the seconds that the device may take.

    Returns:
        The verdict. A compiler that crashes is a no; one that takes too long is a maybe.

    Raises:
        NotFoundError: there is no plugin of that name.
        InternalError: the subprocess crashed before it had the program.
        PjrtError: the plugin cannot be loaded, or has no such topology.
    """
    with tempfile.TemporaryDirectory(prefix="pjrt-support-") as name:
        folder = Path(name)
        (folder / "program").write_bytes(program.code)
        question = {
            **_question(target),
            "effort": None if effort is None else effort.value,
            "format": str(program.format),
            "compile_options": _as_plain(CompileOptions.of(options)),
            "folder": name,
        }
        try:
            return Support.from_dict(_result(ask(answer_in_subprocess, question, time_limit)))
        except NoAnswerError as lost:
            if not (folder / "begun").exists():
                raise _error(lost, f"{target}: the process that loaded it", time_limit) from None
            if effort in (Effort.OPS, Effort.TYPES):
                raise _error(lost, f"{target}: the check", time_limit) from None
            error = _error(lost, "the compiler", time_limit)
    doubts = support_of(target, program, options, effort=Effort.TYPES, time_limit=time_limit)
    located = [doubt for doubt in doubts.reasons if doubt.locations]
    is_hang = isinstance(error, DeadlineExceededError)
    verdict, feature = (Verdict.MAYBE, "hang") if is_hang else (Verdict.NO, "crash")
    return Support.of(Effort.COMPILE, [Reason(verdict, ReasonKind.COMPILE, feature, error.message), *located])


def capabilities_of(target: Target, *, time_limit: float = TIME_LIMIT) -> Capabilities:
    """Return a device's capabilities; where no client can be made, those of the plugin.

    Raises:
        PjrtError: as for ``support_of``.
    """
    try:
        return Capabilities.from_dict(_result(ask(answer_in_subprocess, _question(target), time_limit)))
    except NoAnswerError as lost:
        raise _error(lost, f"{target}: the process that loaded it", time_limit) from None


def _question(target: Target) -> dict[str, Any]:
    return {"plugin": target.plugin, "topology": target.topology, "options": dict(target.options)}


def _result(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        raise PjrtError.of(answer["error"], answer["message"])
    return answer


def _error(lost: NoAnswerError, what: str, time_limit: float) -> PjrtError:
    if lost.end is None:
        return DeadlineExceededError(f"{what} was not done within {time_limit:g} seconds")
    return InternalError(f"{what} crashed: {lost.end}")


# In the subprocess.


def answer_in_subprocess(question: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a question; called in the subprocess."""
    target = Target(question["plugin"], question["topology"], question["options"])
    try:
        return _support(target, question).as_dict() if "effort" in question else _capabilities(target).as_dict()
    except Exception as error:
        wrapped = PjrtError.wrap(error)
        return {"error": int(wrapped.code), "message": wrapped.message}


def _capabilities(target: Target) -> Capabilities:
    if target.topology is not None:
        return registry.topology(target.plugin, target.topology, **target.options).capabilities
    plugin = registry.get(target.plugin)
    if not registry.declaration(target.plugin).has_hardware:
        return plugin.capabilities
    with registry.client(target.plugin, **target.options) as client:
        return client.capabilities


def _support(target: Target, question: Mapping[str, Any]) -> Support:
    folder = Path(question["folder"])
    program = Program((folder / "program").read_bytes(), question["format"])
    options = _options(question["compile_options"])
    effort = None if question["effort"] is None else Effort(question["effort"])
    begun = folder / "begun"  # from there on a crash is the program's
    if target.topology is not None:
        topology = registry.topology(target.plugin, target.topology, **target.options)
        begun.touch()
        return topology.supports(program, options, effort=effort)
    plugin = registry.get(target.plugin)
    problem = "its hardware is not here"
    if registry.declaration(target.plugin).has_hardware:
        try:
            client = registry.client(target.plugin, **target.options)
        except (InvalidArgumentError, NotFoundError):
            raise
        except PjrtError as error:
            problem = f"no client could be made: {error.message}"
        else:
            with client:
                begun.touch()
                return client.supports(program, options, effort=effort)
    begun.touch()
    return _without_device(plugin.capabilities, program, options, effort, problem)


def _without_device(
    capabilities: Capabilities, program: Program, options: CompileOptions, effort: Effort | None, problem: str
) -> Support:
    from pjrt import stablehlo

    support = stablehlo.supports(program, options, capabilities, effort=effort)
    advice = "; a topology may do without it" if capabilities.has(Feature.AOT_TOPOLOGIES) else ""
    reasons = tuple(
        replace(reason, message=f"it was not compiled: {problem}{advice}")
        if reason.kind is ReasonKind.COMPILE
        else reason
        for reason in support.reasons
    )
    return replace(support, reasons=reasons)


_LEFT = ("num_replicas", "num_partitions", "use_shardy_partitioner", "use_spmd_partitioning")
"""The options that may be left to the program: ``None``, which their proto cannot express."""


def _as_plain(options: CompileOptions) -> dict[str, Any]:
    """Return compile options as JSON has them."""
    return {"proto": options.to_proto().hex(), "left": [name for name in _LEFT if getattr(options, name) is None]}


def _options(plain: Mapping[str, Any]) -> CompileOptions:
    """Return the compile options that ``_as_plain`` converted."""
    left: dict[str, Any] = dict.fromkeys(plain["left"])
    return replace(CompileOptions.from_proto(bytes.fromhex(plain["proto"])), **left)
