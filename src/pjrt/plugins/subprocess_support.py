"""The support of a program by a device, and the device's capabilities, found in a subprocess.

A compiler that crashes or hangs does no harm there, and the changes that a library makes to its process end with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from pjrt.api.capability import Capabilities, Effort, Feature, Reason, ReasonKind, Support, Verdict
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions
from pjrt.api.device import NamedValue
from pjrt.api.errors import DeadlineExceededError, InternalError, InvalidArgumentError, NotFoundError, PjrtError
from pjrt.api.program import Program
from pjrt.api.topology import TopologyDescription
from pjrt.plugins import registry
from pjrt.plugins.registry import client_with_devices
from pjrt.stablehlo.reading.conversion import with_partitioning
from pjrt.system import TemporaryFolder
from pjrt.system.python_process import NoAnswerError, ask


class Compiled(Protocol):
    """An executable that was compiled before; it can be pickled."""

    @property
    def num_replicas(self) -> int:
        """The number of replicas."""

    @property
    def num_partitions(self) -> int:
        """The number of partitions."""

    def support_by(self, target: Client | TopologyDescription) -> Support:
        """Return whether a client can run it, or a client of the devices that a topology describes."""


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
    program: Program | Compiled,
    options: CompileOptions | None = None,
    *,
    effort: Effort | None = None,
    time_limit: float = TIME_LIMIT,
) -> Support:
    """Return whether a device can run a program. Where no client can be made, the plugin's capabilities decide.

    Args:
        target: the device.
        program: the program, or an executable that was compiled before, of which only the device is asked.
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
    with TemporaryFolder("support") as folder:
        begun = folder / "begun"  # made when the subprocess has the device: from then on a crash is the program's
        question = _Question(target, program, CompileOptions.of(options), effort, begun)
        try:
            return Support.from_dict(_result(ask(answer_with_support, question, time_limit)))
        except NoAnswerError as lost:
            if not begun.exists():
                raise _error(lost, f"{target}: the process that loaded it", time_limit) from None
            if effort in (Effort.OPS, Effort.TYPES):
                raise _error(lost, f"{target}: the check", time_limit) from None
            error = _error(lost, "the compiler" if isinstance(program, Program) else "the runtime", time_limit)
    located = []
    if isinstance(program, Program):
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
        return Capabilities.from_dict(_result(ask(answer_with_capabilities, target, time_limit)))
    except NoAnswerError as lost:
        raise _error(lost, f"{target}: the process that loaded it", time_limit) from None


@dataclass(frozen=True, slots=True)
class _Question:
    target: Target
    program: Program | Compiled
    options: CompileOptions
    effort: Effort | None
    begun: Path


def _result(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        raise PjrtError.of(answer["error"], answer["message"])
    return answer


def _error(lost: NoAnswerError, what: str, time_limit: float) -> PjrtError:
    if lost.end is None:
        return DeadlineExceededError(f"{what} was not done within {time_limit:g} seconds")
    return InternalError(f"{what} crashed: {lost.end}")


# In the subprocess.


def answer_with_support(question: _Question) -> dict[str, Any]:
    """Return the answer to ``support_of``."""
    return _answer(lambda: _support(question))


def answer_with_capabilities(target: Target) -> dict[str, Any]:
    """Return the answer to ``capabilities_of``."""
    return _answer(lambda: _capabilities(target))


def _answer(compute: Callable[[], Support | Capabilities]) -> dict[str, Any]:
    try:
        return compute().as_dict()
    except Exception as error:
        wrapped = PjrtError.wrap(error)
        return {"error": int(wrapped.code), "message": wrapped.message}


def _capabilities(target: Target) -> Capabilities:
    if target.topology is not None:
        return registry.topology(target.plugin, target.topology, **target.options).capabilities
    plugin = registry.load_plugin(target.plugin)
    if not registry.declaration(target.plugin).has_hardware:
        return plugin.capabilities
    with registry.client(target.plugin, **target.options) as client:
        return client.capabilities


def _support(question: _Question) -> Support:
    target, program, options, effort = question.target, question.program, question.options, question.effort
    if target.topology is not None:
        topology = registry.topology(target.plugin, target.topology, **target.options)
        question.begun.touch()
        if not isinstance(program, Program):
            return program.support_by(topology)
        return topology.supports(program, options, effort=effort)
    plugin = registry.load_plugin(target.plugin)
    problem = "its hardware is not here"
    if registry.declaration(target.plugin).has_hardware:
        try:
            # As many devices as ``pjrt run`` would make.
            needed = (
                with_partitioning(program, options).partitioning.num_devices
                if isinstance(program, Program)
                else program.num_replicas * program.num_partitions
            )
            client = client_with_devices(target.plugin, needed, target.options)
        except (InvalidArgumentError, NotFoundError):
            raise
        except PjrtError as error:
            problem = f"no client could be made: {error.message}"
        else:
            with client:
                question.begun.touch()
                if not isinstance(program, Program):
                    return program.support_by(client)
                return client.supports(program, options, effort=effort)
    question.begun.touch()
    if not isinstance(program, Program):
        return Support.of(
            Effort.OPS, [Reason(Verdict.MAYBE, ReasonKind.COMPILE, target.plugin, f"it was not loaded: {problem}")]
        )
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
