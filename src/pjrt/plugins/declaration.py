"""Declarations: the facts of a plugin before any of its code is imported or loaded."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pjrt import system
from pjrt.api.errors import FailedPreconditionError

if TYPE_CHECKING:
    from pjrt.api.device import NamedValue
    from pjrt.api.plugin import Plugin


class Sharing(enum.Enum):
    """The processes that may have clients of a plugin's devices at one time."""

    MANY = "many"
    """Any number of clients in any number of processes."""

    ONE_PROCESS = "one-process"
    """Any number of clients, all in one process of the machine."""

    ONE_CLIENT = "one-client"
    """One client on the machine."""


class MemoryOptions(NamedTuple):
    """A plugin's own client options for what this package calls ``memory`` and ``memory_fraction``.

    Attributes:
        on_demand: the options with which a client allocates the device's memory as needed; empty where that is its
            default, ``None`` where it is unsupported.
        preallocated: the options with which it allocates the memory at once, likewise.
        fraction: the name of the option for the part of the memory that it may allocate, from 0 to 1; empty for none.
    """

    on_demand: Mapping[str, NamedValue] | None
    preallocated: Mapping[str, NamedValue] | None
    fraction: str = ""


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """The names of a plugin's client options for one of several processes; empty for an option that it lacks.

    Attributes:
        devices: the numbers of the process's devices on its machine.
        count: how many devices it has.
        index: the number of the process in the job.
        total: how many processes the job has.
    """

    devices: str = ""
    count: str = ""
    index: str = ""
    total: str = ""


@dataclass(frozen=True, slots=True)
class Declaration:
    """One plugin, discovered or registered. It has a ``library``, or a ``factory``, or a ``problem``.

    Attributes:
        name: its name for ``pjrt.client``.
        origin: where it was found, human-readable, such as ``wheel libtpu`` or ``PJRT_NAMES_AND_LIBRARY_PATHS``.
        library: the absolute path of its shared library with ``GetPjrtApi``.
        factory: a function that makes clients, or a ``pjrt.Plugin`` class, or the place of one as ``module:attribute``,
            which is imported when the plugin is first loaded.
        distribution: the installed package that it comes from; empty if it comes from none.
        version: that package's version.
        options: the client's default options.
        given_options: the options behind the name by which it was asked for (``remote:address=…``), which come before
            the default ones and those of the environment.
        required_options: the options without which it makes no client, each with the environment variable that may have
            its value.
        environment: environment variables to set before it is loaded, unless they are set and not empty.
        environment_without_hardware: further ones, for a machine without its hardware.
        hardware: file name patterns, one of which matches where the plugin's hardware is; empty if it needs none.
        priority: of the plugins that can be used here, the one with the highest is the default.
        sharing: who may have clients of it at one time.
        partition: environment variables, the first set one of which lists the devices that a process may use, separated
            by commas. Processes with different devices do not exclude each other.
        processes: its options for one of several processes; ``None`` where it has none.
        process_environment: the place, as ``module:attribute``, of a function that is called with the numbers of a
            process's devices, its number on the machine and how many there are, and returns further environment
            variables for it.
        host_variable: the environment variable with the number of this machine among those of the job.
        resident: why its library cannot be in a process twice, so that new code of it needs a new process; empty where
            it can.
        topologies: its topologies by name: for each generation of its devices the sizes, human-readable; empty if
            unknown.
        topology_options: the place, as ``module:attribute``, of a function that is called with the name of a topology,
            and returns the plugin's options that describe it, or None for a name that it does not know.
        memory: its options of memory; ``None`` if they are unknown.
        frameworks: facts for JAX (``jax``) and PyTorch/XLA (``torch_xla``).
        problem: why it cannot be used; empty if no reason is known.
        disabled: whether the user's configuration turned it off; ``problem`` says where.
        aliases: other names that it was found under, which mean it where no other plugin has them.
        other_origins: where else the same plugin was found.
        shadowed: other plugins of the same name, which it takes precedence over.
    """

    name: str
    origin: str
    library: Path | None = None
    factory: str | Callable[..., Any] | Plugin | None = None
    distribution: str = ""
    version: str = ""
    options: Mapping[str, NamedValue] = field(default_factory=dict)
    given_options: Mapping[str, NamedValue] = field(default_factory=dict)
    required_options: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    environment_without_hardware: Mapping[str, str] = field(default_factory=dict)
    hardware: tuple[str, ...] = ()
    priority: int = 0
    sharing: Sharing = Sharing.MANY
    partition: tuple[str, ...] = ()
    processes: ProcessOptions | None = None
    process_environment: str = ""
    host_variable: str = ""
    resident: str = ""
    topologies: Mapping[str, str] = field(default_factory=dict)
    topology_options: str = ""
    memory: MemoryOptions | None = None
    frameworks: Mapping[str, Mapping[str, NamedValue]] = field(default_factory=dict)
    problem: str = ""
    disabled: bool = False
    aliases: tuple[str, ...] = ()
    other_origins: tuple[str, ...] = ()
    shadowed: tuple[Declaration, ...] = ()

    @property
    def has_hardware(self) -> bool:
        """Whether this machine has the plugin's hardware; true for a plugin that needs none."""
        return not self.hardware or system.any_file(self.hardware)

    def check_usable(self) -> None:
        """Return if no problem of the plugin is known.

        Raises:
            FailedPreconditionError: the plugin has a problem.
        """
        if self.problem:
            raise FailedPreconditionError(f"the plugin {self.name!r} ({self.origin}) cannot be used: {self.problem}")


def topology_lines(topologies: Mapping[str, str]) -> list[str]:
    """Return the topologies of a declaration as text: a line for the generations with the same sizes."""
    generations: dict[str, list[str]] = {}
    for generation, sizes in topologies.items():
        generations.setdefault(sizes, []).append(generation)
    return [f"{', '.join(names)}: {sizes}" for sizes, names in generations.items()]


def is_path(name: str) -> bool:
    """Whether a name is the path of a plugin's library."""
    return os.sep in name or "/" in name or system.is_library_file_name(name)
