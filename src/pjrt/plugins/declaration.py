"""Declarations: what is known of a plugin before anything of it is imported or loaded."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pjrt import system
from pjrt.api.attributes import NamedValue
from pjrt.api.errors import FailedPreconditionError
from pjrt.api.plugin import Plugin


class Sharing(enum.Enum):
    """Who may have clients of a plugin's devices at one time."""

    MANY = "many"
    """Any number of clients in any number of processes."""

    ONE_PROCESS = "one-process"
    """Any number of clients, all in one process of the machine."""

    ONE_CLIENT = "one-client"
    """One client on the machine."""


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """How a plugin's own options say what this package spells ``memory`` and ``memory_fraction``.

    Attributes:
        on_demand: the options that make a client take the device's memory as it needs it, none where it does so
            without; ``None`` where it cannot.
        preallocated: the options that make it take the memory at once, as above.
        fraction: the name of the option for how much of the memory it may take, from 0 to 1; empty where there is none.
    """

    on_demand: Mapping[str, NamedValue] | None
    preallocated: Mapping[str, NamedValue] | None
    fraction: str = ""


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """How a plugin's own options say which devices are for one of several processes. Each is the name of an option,
    empty where there is none.

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
    """One plugin, as it was found or registered. It has a ``library``, or a ``factory``, or a ``problem``.

    Attributes:
        name: what ``pjrt.client`` knows it by.
        origin: where it was found, for people, such as ``wheel libtpu`` or ``PJRT_NAMES_AND_LIBRARY_PATHS``.
        library: the absolute path of its shared library with ``GetPjrtApi``.
        factory: what makes clients (or a ``pjrt.Plugin`` class): a function, or its place as ``module:attribute``,
            which is imported when the plugin is first loaded.
        distribution: the installed package that it comes from; empty if it comes from none.
        version: that package's version.
        options: the client's default options.
        environment: environment variables to be set before it is loaded, unless they are set and not empty.
        environment_without_hardware: further ones, for a machine where its hardware is not.
        hardware: file name patterns of which one matches where the plugin's hardware is; empty where it needs none.
        priority: of the plugins that can be used here, the one with the highest is the default.
        sharing: who may have clients of it at one time.
        partition: environment variables of which the first that is set lists the devices that a process may use,
            separated by commas. Processes that use different ones do not keep each other out.
        processes: how its options say which devices are for one of several processes; ``None`` where they cannot.
        process_environment: the place, as ``module:attribute``, of a function that is called with the numbers of a
            process's devices, its number on the machine and how many there are, and returns further environment
            variables for it.
        host_variable: the environment variable with the number of this machine among those of the job.
        resident: why its library cannot be in a process twice, so that new code of it needs a new process; empty where
            it can.
        topologies: the topologies that it can be asked for by name: for each generation of its devices the sizes that
            there are, written for people; empty where that is not known.
        memory: how it spells the options of memory; ``None`` where it has none.
        frameworks: what JAX (``jax``) and PyTorch/XLA (``torch_xla``) need to be told of it.
        problem: why it cannot be used; empty as long as nothing is known against it.
        disabled: whether the user's configuration turned it off; ``problem`` says where.
        aliases: other names that it was found under, which it answers to where no other plugin is called so.
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
    memory: MemoryOptions | None = None
    frameworks: Mapping[str, Mapping[str, NamedValue]] = field(default_factory=dict)
    problem: str = ""
    disabled: bool = False
    aliases: tuple[str, ...] = ()
    other_origins: tuple[str, ...] = ()
    shadowed: tuple[Declaration, ...] = ()

    def check_usable(self) -> None:
        """Returns if nothing is known against the plugin.

        Raises:
            FailedPreconditionError: something is; the message says what.
        """
        if self.problem:
            raise FailedPreconditionError(f"the plugin {self.name!r} ({self.origin}) cannot be used: {self.problem}")


def is_path(name: str) -> bool:
    """Whether what somebody calls a plugin is the path of its library."""
    return os.sep in name or "/" in name or system.is_library_file_name(name)
