"""Callable models: the common part of a model on its devices and of one whose weights stay in the host's memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import pjrt.ifrt
from pjrt.api.errors import naming
from pjrt.api.shape_spec import Shapes as ArgumentShapes
from pjrt.models.argument import Argument, all_fitted
from pjrt.models.binding import Binding
from pjrt.models.compilations import Compilation, Compilations, Shapes
from pjrt.models.model_file import ModelFile
from pjrt.stablehlo.shapes.argument_shapes import resolve_shapes
from pjrt.stablehlo.signatures import Parameter, Result
from pjrt.stablehlo.tree import NodeTypes

E = TypeVar("E")

SHAPES_KEPT = 16
"""The default for the number of sets of shapes whose executables a model keeps."""


class CallableModel(ABC, Generic[E]):
    """A program as a callable, with an executable of type ``E`` for each set of shapes.

    Args:
        file: the model file.
        parameters: the parameters that a call takes.
        binding: finds the values of ``parameters`` among the arguments of a call.
        shapes_kept: the number of executables that are kept.
        node_types: functions that make custom nodes of the results.

    Attributes:
        file: the model file.
        client: the client whose devices run it.
    """

    client: pjrt.ifrt.Client

    def __init__(
        self,
        file: ModelFile,
        parameters: Sequence[Parameter],
        binding: Binding,
        *,
        shapes_kept: int,
        node_types: NodeTypes | None,
    ) -> None:
        self.file = file
        self._parameters = parameters
        self._binding = binding
        self._node_types = node_types
        self._compilations = Compilations(shapes_kept, file.parameters)

    @property
    def parameters(self) -> Sequence[Parameter]:
        """The arrays that a call takes, in order."""
        return self._parameters

    @property
    def results(self) -> Sequence[Result]:
        """The arrays that a call returns, in order."""
        return self.file.results

    @property
    def compilations(self) -> Sequence[Compilation]:
        """The compilations so far, the first one first: one for each set of shapes that was new.

        Each is logged, too, by the logger ``pjrt.models``.
        """
        return self._compilations.records

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Run the model, and return its results.

        An argument is nested as the file states; where the file states no structure, arguments are flat or nested, and
        a keyword is a parameter's name. An array is one of numpy or of another library, a number of Python or a list
        of such, or a result of a model on the same client, which stays on its devices. An array on the devices is
        deleted if the program donates its parameter.

        Returns:
            Arrays (``pjrt.ifrt.Array``) in the structure that the file states for results; a tuple where it states
            none.

        Raises:
            InvalidArgumentError: arguments are missing, unknown or nested in another way, or one does not fit its
                parameter.
            FailedPreconditionError: an argument was deleted or donated, or the model is closed.
            PjrtError: as of ``execute``.
        """
        results = self.execute(self._binding.leaves(arguments, keywords))
        tree = self.file.output_tree
        return tuple(results) if tree is None else tree.unflatten(results, self._node_types)

    @abstractmethod
    def execute(self, arguments: Sequence[Any]) -> list[pjrt.ifrt.Array]:
        """Run the model on a flat list of arrays, one for each of ``parameters``, and return a flat list of results.

        Raises:
            InvalidArgumentError: the number of arguments differs, or one does not fit its parameter.
        """

    def fitted(self, arguments: Sequence[Any]) -> list[Argument]:
        """Return a flat list of arguments as arrays of the parameters' types, on the host or on the devices.

        Raises:
            InvalidArgumentError: the number of arguments differs, or one does not fit its parameter.
        """
        return all_fitted(self.client, self.parameters, arguments)

    @abstractmethod
    def close(self) -> None:
        """Unload the executables. May be called again."""

    @abstractmethod
    def _compile(self, shapes: Shapes) -> E:
        """Return the program of the file, compiled for the shapes of all parameters of the file."""

    def _executable(self, shapes: Shapes) -> E:
        """Return the executable for the shapes of all parameters of the file; compile it unless it is kept."""
        executable: E = self._compilations.get(shapes, self._compiled)
        return executable

    def _compiled(self, shapes: Shapes) -> E:
        resolve_shapes(shapes, self.file.parameters)
        with naming(self.file.source):
            return self._compile(shapes)

    def _resolved(self, shapes: ArgumentShapes | None) -> Shapes:
        """Return the shapes of ``parameters``; None stands for their own, where none is dynamic."""
        if shapes is None:
            return tuple(parameter.sizes for parameter in self.parameters)
        return resolve_shapes(shapes, self.parameters)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
