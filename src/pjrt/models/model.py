"""Models: the program in a file as a callable on a client's devices."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

import pjrt.api.client
import pjrt.ifrt
from pjrt.api.compile_options import CompileOptions
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from pjrt.api.program import Program
from pjrt.artifacts.saved_executable import SavedExecutable
from pjrt.models.devices import check_devices, client_for
from pjrt.models.model_file import ModelFile
from pjrt.models.parameter import Parameter, Result

_log = logging.getLogger(__name__)

SHAPES_KEPT = 16
"""The default for the number of sets of shapes whose executables a model keeps."""

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Compilation:
    """One compilation of a model.

    Attributes:
        shapes: the shapes of the arguments, one for each parameter.
        seconds: the time that it took.
    """

    shapes: Shapes
    seconds: float


def load_model(
    model: ModelFile | Program | SavedExecutable | str | bytes | os.PathLike[str],
    client: pjrt.api.client.Client | pjrt.ifrt.Client | str | None = None,
    /,
    *,
    compile_options: CompileOptions | None = None,
    shapes_kept: int = SHAPES_KEPT,
    **client_options: Any,
) -> Model:
    """Return the program in a file as a callable. Nothing is compiled yet.

    Args:
        model: the path of a model file, or a program.
        client: the client to run it on, which stays the caller's; or the name of a device, of which a client with
            enough devices is made, which ``Model.close`` closes. The default is the default device.
        compile_options: the compile options; they win over the program.
        shapes_kept: how many executables to keep, one for each set of shapes; the least recently used is dropped.
        client_options: options of the client that is made.

    Raises:
        NotFoundError: there is no such file, or no such device.
        InvalidArgumentError: the file is of no supported format, or the client has too few devices.
    """
    return Model(
        ModelFile.of(model), client, compile_options=compile_options, shapes_kept=shapes_kept, **client_options
    )


class Model:
    """A program as a callable; ``load_model`` makes it. It may be called by several threads.

    Attributes:
        file: the model file.
        client: the client whose devices run it.
    """

    def __init__(
        self,
        file: ModelFile,
        client: pjrt.api.client.Client | pjrt.ifrt.Client | str | None = None,
        *,
        compile_options: CompileOptions | None = None,
        shapes_kept: int = SHAPES_KEPT,
        **client_options: Any,
    ) -> None:
        self.file = file
        self._options = CompileOptions.of(compile_options).completed(file.partitioning)
        self._own_client: pjrt.api.client.Client | None = None
        if isinstance(client, str) or client is None:
            client = self._own_client = client_for(client, self._options.partitioning, client_options)
        elif client_options:
            raise InvalidArgumentError(
                f"expected options of a client only with a device's name, found {sorted(client_options)} with a client"
            )
        self.client = client if isinstance(client, pjrt.ifrt.Client) else pjrt.ifrt.Client(client)
        check_devices(self.client, self._options.partitioning)
        self._shapes_kept = shapes_kept
        self._executables: OrderedDict[Shapes, pjrt.ifrt.LoadedExecutable] = OrderedDict()
        self._compilations: list[Compilation] = []
        self._lock = threading.Lock()

    @property
    def parameters(self) -> Sequence[Parameter]:
        """The arrays that the model takes, in order."""
        return self.file.parameters

    @property
    def results(self) -> Sequence[Result]:
        """The arrays that the model returns, in order."""
        return self.file.results

    @property
    def compilations(self) -> Sequence[Compilation]:
        """The compilations so far, the first one first."""
        return tuple(self._compilations)

    def __call__(self, *arguments: Any) -> tuple[pjrt.ifrt.Array, ...]:
        """Run the model and return its results at once; the values may come later.

        Raises:
            InvalidArgumentError: an argument does not fit its parameter.
        """
        return tuple(self.execute(arguments))

    def execute(self, arguments: Sequence[Any]) -> list[pjrt.ifrt.Array]:
        """Run the model on a flat list of arrays, one for each parameter, and return a flat list of its results.

        Raises:
            InvalidArgumentError: the number of arguments differs, or one does not fit its parameter.
        """
        if len(arguments) != len(self.parameters):
            raise InvalidArgumentError(
                f"expected {len(self.parameters)} arguments, one for each of "
                f"{'; '.join(map(str, self.parameters)) or 'none'}, found {len(arguments)}"
            )
        arrays = [_fitted(parameter, argument) for parameter, argument in zip(self.parameters, arguments, strict=True)]
        executable = self.compile([array.shape for array in arrays])
        return list(executable(*arrays))

    def compile(self, shapes: Sequence[Sequence[int]] | None = None) -> pjrt.ifrt.LoadedExecutable:
        """Return the executable for these shapes of the arguments; compile it unless it is kept.

        Args:
            shapes: a shape for each parameter; may be left out for a model without dynamic shapes.

        Raises:
            InvalidArgumentError: a shape does not fit its parameter, or the compiler rejects the program.
        """
        if shapes is None:
            shapes = [_static_shape(parameter) for parameter in self.parameters]
        key = tuple(tuple(shape) for shape in shapes)
        with self._lock:
            executable = self._executables.get(key)
            if executable is not None:
                self._executables.move_to_end(key)
                return executable
            begin = time.perf_counter()
            executable = self._compiled(key)
            compilation = Compilation(key, time.perf_counter() - begin)
            _log.info("compiled %s for the shapes %s in %.3f s", executable.name, key, compilation.seconds)
            self._compilations.append(compilation)
            self._executables[key] = executable
            while len(self._executables) > self._shapes_kept:
                self._executables.popitem(last=False)
            return executable

    def _compiled(self, shapes: Shapes) -> pjrt.ifrt.LoadedExecutable:
        if self.file.program is None:
            raise UnimplementedError(f"{self.file}: saved executables cannot be called yet")
        if any(parameter.is_dynamic for parameter in self.parameters):
            raise UnimplementedError(f"{self.file}: programs with dynamic shapes cannot be called yet")
        return self.client.compile(self.file.program, self._options)

    def close(self) -> None:
        """Unload the executables, and close the client if the model made it. May be called again."""
        with self._lock:
            for executable in self._executables.values():
                executable.delete()
            self._executables.clear()
        if self._own_client is not None:
            self._own_client.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Model {self.file!r} on {self.client.platform_name}>"


def _static_shape(parameter: Parameter) -> tuple[int, ...]:
    sizes = tuple(size for size in parameter.shape if isinstance(size, int))
    if len(sizes) != len(parameter.shape):
        raise FailedPreconditionError(f"{parameter} has a dynamic shape: give the shapes of all arguments")
    return sizes


def _fitted(parameter: Parameter, argument: Any) -> np.ndarray[Any, Any] | pjrt.ifrt.Array:
    """Return an argument as an array that fits the parameter."""
    array = argument if isinstance(argument, pjrt.ifrt.Array) else np.asarray(argument)
    fits = len(array.shape) == len(parameter.shape) and all(
        wanted == size or not isinstance(wanted, int) for wanted, size in zip(parameter.shape, array.shape, strict=True)
    )
    if not fits or ElementType.of(array.dtype) is not parameter.element_type:
        raise InvalidArgumentError(f"expected {parameter}, found {array.dtype}{list(array.shape)}")
    return array
