"""A plugin as frameworks are told of it: from the declaration that serves this package as well."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pjrt.api.attributes import NamedValue
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.plugins import device_lock, memory_options, registry, visible_devices
from pjrt.plugins.declaration import Declaration, is_path
from pjrt.plugins.env_vars import set_environment

JAX = "jax"
TORCH_XLA = "torch_xla"

# What a plugin may say for a framework, and of which type.
_FACTS: Mapping[str, Mapping[str, type]] = {
    JAX: {"platform": str, "priority": int, "make_default": bool, "wrap": bool},
    TORCH_XLA: {"name": str, "coordinator": bool, "wrap": bool},
}

# The plugins that frameworks may have clients of, which are theirs for as long as the process lives.
_handed_over: dict[str, contextlib.ExitStack] = {}


class Served:
    """A plugin for one framework.

    Args:
        device: the plugin's name, or the path of its library.
        framework: ``JAX`` or ``TORCH_XLA``.
        options: the client's options, which come before all others.
        wrap: whether the framework is to get a library through this package, not as it is; what the plugin says of
            itself if not said. A plugin in Python is always got through this package.
    """

    def __init__(
        self, device: str | os.PathLike[str], framework: str, options: Mapping[str, Any], *, wrap: bool | None = None
    ) -> None:
        self.device = device if isinstance(device, str) else os.fspath(device)
        self.options = dict(options)
        self._framework = framework
        self._wrap = wrap

    @property
    def declaration(self) -> Declaration:
        """What is known of the plugin.

        Raises:
            NotFoundError: there is no such plugin.
            FailedPreconditionError: it cannot be used.
        """
        found = registry.declaration(self.device)
        found.check_usable()
        return found

    @property
    def name(self) -> str:
        """A name for the plugin: its own, or one made of the file name of its library."""
        if not is_path(self.device):
            return self.device
        stem = Path(self.device).name.partition(".")[0]
        return re.sub(r"[^A-Za-z0-9_]+", "_", re.sub(r"^(lib)?(pjrt[-_]plugin[-_])?", "", stem)) or "plugin"

    @property
    def facts(self) -> Mapping[str, NamedValue]:
        """What the plugin says for the framework.

        Raises:
            InvalidArgumentError: it says what is not known, or not of its type.
        """
        known = _FACTS[self._framework]
        said = self.declaration.frameworks.get(self._framework, {})
        for key, value in said.items():
            if key not in known:
                raise InvalidArgumentError(
                    f"the plugin {self.device!r}: unknown key frameworks.{self._framework}.{key}: the keys are "
                    f"{', '.join(known)}"
                )
            if type(value) is not known[key]:
                raise InvalidArgumentError(
                    f"the plugin {self.device!r}: frameworks.{self._framework}.{key} must be of type "
                    f"{known[key].__name__}, found {value!r}"
                )
        return said

    @property
    def is_wrapped(self) -> bool:
        """Whether the framework gets the plugin through this package."""
        wrap = self.facts.get("wrap", False) if self._wrap is None else self._wrap
        return self.declaration.library is None or bool(wrap)

    def library(self) -> Path:
        """The plugin's own library, for the framework to open: what it needs of the environment is set."""
        declaration = self.declaration
        if declaration.library is None:
            raise FailedPreconditionError(f"the plugin {self.device!r} has no library of its own: it is {declaration}")
        set_environment(declaration)
        return declaration.library

    def own_options(self) -> dict[str, Any]:
        """The options of a client that the framework makes itself, in the plugin's own words. The plugin's devices are
        the framework's from now on, as far as they are not shared.

        Raises:
            FailedPreconditionError: somebody else has the devices.
            PjrtError: the plugin cannot be told an option.
        """
        declaration = self.declaration
        defaults, share = registry.default_options(declaration), visible_devices.start(declaration)
        # PyTorch/XLA is told of all devices of the machine, and of each process's share of them afterwards.
        said = {**self.options, **share} if self._framework == TORCH_XLA else {**share, **self.options}
        options = memory_options.translate(declaration, {**defaults, **said})
        key = str(declaration.library)
        if key not in _handed_over:
            with contextlib.ExitStack() as stack:
                stack.enter_context(device_lock.held(declaration, options))
                _handed_over[key] = stack.pop_all()
        return in_framework_types(options)


def in_framework_types(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as the frameworks' native parts take them: sequences of integers are lists."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
