"""Programs that know nothing of layers, run with layers before their plugins.

Whichever way a framework loads a plugin, it asks the dynamic linker for ``GetPjrtApi``. The library of layers is loaded
before all others and answers that question; every other one passes. Where a system lets no library come first, the
plugin is named to JAX by the path of a library with layers.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, UnimplementedError
from pjrt.capi.environment import library_path
from pjrt.capi.library_files import check_loadable
from pjrt.layers.stack import LayerOptions, check_layers, option_text, write_layer_library
from pjrt.native.exported import write_exported
from pjrt.plugins import env_vars, probe, registry
from pjrt.plugins.declaration import Declaration, is_path
from pjrt.system import TemporaryFolder, with_preloaded

TIME_LIMIT = 60.0
"""The seconds that a plugin's library may take to load before the program is started."""


def run_program(
    command: Sequence[str],
    layers: Sequence[str],
    *,
    plugin: str | os.PathLike[str] | None = None,
    options: Mapping[str, LayerOptions] | None = None,
    time_limit: float = TIME_LIMIT,
) -> int:
    """Run a program with layers before all plugins that it loads, and return its exit status.

    Args:
        command: the program and its arguments. It has the standard input and output of this process.
        layers: the names of layers; the first is nearest to the framework.
        plugin: the device that JAX and PyTorch/XLA use by default: a name of ``pjrt.plugins.names()``, or the path of a
            plugin's library. By default the program chooses. A device in Python is exported to a temporary library.
        options: the options of layers, by name.
        time_limit: the seconds that the library of ``plugin`` may take to load.

    Returns:
        The program's exit status; 128 and the signal's number if a signal ended it, as shells report it.

    Raises:
        InvalidArgumentError: a layer is unknown, or there is no command.
        NotFoundError: there is no such program or plugin.
        FailedPreconditionError: the plugin cannot be loaded, or not in time; no library can be loaded from the
            temporary folder; or the program cannot be started.
        UnimplementedError: this system needs a ``plugin`` to put layers before.
    """
    if not command:
        raise InvalidArgumentError(
            "expected a program to run, found none; give it behind --, as in: -- python train.py"
        )
    with program_environment(layers, plugin=plugin, options=options or {}, time_limit=time_limit) as environment:
        try:
            process = subprocess.Popen(list(command), env=environment)
        except FileNotFoundError as error:
            raise NotFoundError(f"there is no program {command[0]!r}") from error
        except OSError as error:
            raise FailedPreconditionError(f"cannot run {command[0]!r}: {error.strerror or error}") from error
        status = _wait(process)
    return status if status >= 0 else 128 - status


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for a program. An interrupt from the keyboard reaches the program too, which decides what comes of it."""
    earlier = signal.getsignal(signal.SIGINT)
    with contextlib.suppress(ValueError):  # not in the main thread: then no signal arrives here
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return process.wait()
    finally:
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGINT, earlier)


@contextlib.contextmanager
def program_environment(
    layers: Sequence[str],
    *,
    plugin: str | os.PathLike[str] | None = None,
    options: Mapping[str, LayerOptions],
    environment: Mapping[str, str] | None = None,
    time_limit: float = TIME_LIMIT,
) -> Iterator[dict[str, str]]:
    """Give the environment in which a program's plugins have layers, as ``run_program`` describes it.

    Libraries that are written for it are removed at the end.

    Args:
        layers: the names of layers.
        plugin: the device that frameworks use by default.
        options: the options of layers, by name.
        environment: what the environment begins with, by default that of this process.
        time_limit: the seconds that the library of ``plugin`` may take to load.
    """
    check_layers(layers)
    variables = dict(os.environ if environment is None else environment)
    with TemporaryFolder("layers") as folder:
        target = _Target.of(plugin, folder, time_limit) if plugin is not None else None
        preloaded = with_preloaded(str(library_path()), variables)
        if preloaded is not None:
            variables = preloaded
            variables["PJRT_LAYERS"] = ",".join(layers)
            for layer, values in options.items():
                variables[f"PJRT_{layer.upper()}"] = option_text(values)
        elif target is None or target.library is None:
            raise UnimplementedError(
                "on this system layers stand before a library that is named to JAX by its path: give the plugin by its "
                "path, or a device in Python"
            )
        else:
            check_loadable(folder)
            target.library = write_layer_library(Path(folder) / "liblayers.so", target.library, layers, options)
        if target is not None:
            variables.update(target.variables(variables))
        yield variables


class _Target:
    """The device that a program's frameworks shall use."""

    def __init__(self, declaration: Declaration, plugin: str, name: str, library: Path | None) -> None:
        self.declaration = declaration
        self.plugin = plugin  # in this package: its name, or the path of its library
        self.name = name  # in JAX
        self.library = library  # None: the framework finds it by itself

    @classmethod
    def of(cls, plugin: str | os.PathLike[str], folder: Path, time_limit: float) -> _Target:
        declaration = registry.declaration(plugin)
        declaration.check_usable()
        if declaration.library is None:
            check_loadable(folder)
            library = folder / f"lib{_word(declaration.name)}.so"
            write_exported(library, registry.factory_place(declaration.name))
            return cls(declaration, declaration.name, _layered(declaration.name), library)
        result = probe.probe(declaration, time_limit=time_limit)
        if result.problem:
            raise FailedPreconditionError(f"{plugin}: {result.problem}")
        if is_path(os.fspath(plugin)):
            stem = re.sub(r"^(lib)?(pjrt[-_]plugin[-_])?", "", Path(plugin).name.partition(".")[0])
            library = Path(declaration.library)
            return cls(declaration, str(library), _layered(stem or "plugin"), library)
        return cls(declaration, declaration.name, declaration.name, None)

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables that name the device to frameworks, and make it their default."""
        variables: dict[str, str] = {}
        if self.library is not None:
            listed = environment.get(env_vars.NAMES_AND_PATHS, "").split(",")
            paths = dict(each.split(os.pathsep, 1) for each in listed if os.pathsep in each)
            # A library that is named already keeps its name: JAX would make two clients of it under two names.
            own = (each for each, path in paths.items() if os.path.realpath(path) == os.path.realpath(self.plugin))
            name = next(own, self.name)
            paths = {name: str(self.library)} | {each: path for each, path in paths.items() if each != name}
            variables[env_vars.NAMES_AND_PATHS] = ",".join(f"{each}{os.pathsep}{path}" for each, path in paths.items())
            if platforms := environment.get("JAX_PLATFORMS"):
                others = [each for each in platforms.split(",") if each != name]
                variables["JAX_PLATFORMS"] = ",".join([name, *others])
        # PyTorch/XLA loads this package's entry point PJRT, or the plugin's own.
        torch_name = str(self.declaration.frameworks.get("torch_xla", {}).get("name", "")) or "PJRT"
        named = {"PJRT_DYNAMIC_PLUGINS": "1", "PJRT_DEVICE": torch_name, "PJRT_TORCH_XLA_DEVICE": self.plugin}
        return variables | named


def _layered(name: str) -> str:
    """Return a name for JAX that is not the device's own: a program may register the device under that itself."""
    return f"layered_{_word(name)}"


def _word(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "_", name)
