"""A plugin as a framework sees it, from the declaration that this package uses too."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pjrt.api.checks import unexpected
from pjrt.api.device import NamedValue
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError
from pjrt.plugins import device_lock, loader, registry, visible_devices
from pjrt.plugins.declaration import Declaration, is_path
from pjrt.plugins.env_vars import set_environment, split_options

JAX = "jax"
TORCH_XLA = "torch_xla"
TORCH = "torch"
TENSORFLOW = "tensorflow"

# The settings that a plugin may declare for a framework, and their types.
_SETTINGS: Mapping[str, Mapping[str, type]] = {
    JAX: {"platform": str, "priority": int, "make_default": bool, "wrap": bool, "experimental": bool},
    TORCH_XLA: {"name": str, "coordinator": bool, "wrap": bool},
    TORCH: {"wrap": bool},
    TENSORFLOW: {"name": str, "platform": str, "wrap": bool},
}

# The plugins that frameworks may have clients of, with the claims of their devices, which last as long as the process.
_handed_over: dict[str, contextlib.ExitStack] = {}


class Served:
    """A plugin for one framework.

    Args:
        device: the plugin's name, or the path of its library.
        framework: ``JAX``, ``TORCH_XLA``, ``TORCH`` or ``TENSORFLOW``.
        options: the client's options, which come before all others.
        wrap: whether the framework gets a library through this package instead of loading it itself; by default the
            plugin's own setting. A plugin in Python always goes through this package.
    """

    def __init__(
        self, device: str | os.PathLike[str], framework: str, options: Mapping[str, Any], *, wrap: bool | None = None
    ) -> None:
        if not isinstance(device, str | os.PathLike):
            raise unexpected(device, "the name of a device, or the path of a plugin's library")
        self.device, behind_name = split_options(os.fspath(device))
        self.options = {**behind_name, **options}
        self._framework = framework
        self._wrap = wrap

    @property
    def declaration(self) -> Declaration:
        """The plugin's declaration.

        Raises:
            NotFoundError: there is no such plugin.
            FailedPreconditionError: the plugin cannot be used.
        """
        declaration = registry.declaration(self.device)
        declaration.check_usable()
        return declaration

    @property
    def name(self) -> str:
        """A name for the plugin: its own, or one made from the file name of its library."""
        if not is_path(self.device):
            return self.device
        stem = Path(self.device).name.partition(".")[0]
        return re.sub(r"[^A-Za-z0-9_]+", "_", re.sub(r"^(lib)?(pjrt[-_]plugin[-_])?", "", stem)) or "plugin"

    @property
    def settings(self) -> Mapping[str, NamedValue]:
        """The plugin's settings for the framework.

        Raises:
            InvalidArgumentError: a setting is unknown or of a wrong type.
        """
        types = _SETTINGS[self._framework]
        settings = self.declaration.frameworks.get(self._framework, {})
        for key, value in settings.items():
            if key not in types:
                raise InvalidArgumentError(
                    f"the plugin {self.device!r}: unknown key frameworks.{self._framework}.{key}: the keys are "
                    f"{', '.join(types)}"
                )
            if type(value) is not types[key]:
                raise InvalidArgumentError(
                    f"the plugin {self.device!r}: frameworks.{self._framework}.{key} must be of type "
                    f"{types[key].__name__}, found {value!r}"
                )
        return settings

    @property
    def is_wrapped(self) -> bool:
        """Whether the framework gets the plugin through this package."""
        wrap = self.settings.get("wrap", False) if self._wrap is None else self._wrap
        return self.declaration.library is None or bool(wrap)

    @property
    def is_named(self) -> bool:
        """Whether the device is the name of a plugin, and no file."""
        return not is_path(self.device) and ".py:" not in self.device

    @property
    def can_be_worker(self) -> bool:
        """Whether it is a device in Python that another process can import, on Linux."""
        if sys.platform != "linux" or self.declaration.library is not None:
            return False
        try:
            registry.factory_place(self.device)
        except InvalidArgumentError:  # it was registered with an object of this process
            return False
        return True

    def library(self) -> Path:
        """Return the path of the plugin's own library, for the framework to load; set the environment that it needs."""
        declaration = self.declaration
        if declaration.library is None:
            raise FailedPreconditionError(f"the plugin {self.device!r} has no library of its own: it is {declaration}")
        set_environment(declaration)
        return declaration.library

    def own_options(self) -> dict[str, Any]:
        """Return the options of a client that the framework makes itself, under the names that the plugin knows.

        The devices belong to the framework from now on, unless they can be shared.

        Raises:
            FailedPreconditionError: another client has the devices.
            PjrtError: the plugin has no equivalent of an option.
        """
        declaration = self.declaration
        defaults, share = registry.default_options(declaration), visible_devices.start(declaration)
        # PyTorch/XLA's options name all devices of the machine; the share of this process comes after them.
        stated = {**self.options, **share} if self._framework == TORCH_XLA else {**share, **self.options}
        options = {**defaults, **stated}
        if declaration.library is None:  # the worker has the device
            return in_framework_types(options)
        options = loader.translate_memory(declaration, options)
        key = str(declaration.library)
        if key not in _handed_over:
            with contextlib.ExitStack() as stack:
                stack.enter_context(device_lock.held(declaration, options))
                _handed_over[key] = stack.pop_all()
        return in_framework_types(options)


def in_framework_types(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options in the types that the frameworks' native code takes: sequences of integers become lists."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
