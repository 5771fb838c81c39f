"""Weights of the host: the arguments of a model whose values stay in the host's memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import pjrt.ifrt
from pjrt.api.errors import InvalidArgumentError
from pjrt.models.argument import fitted
from pjrt.models.array_files import arrays_by_name
from pjrt.models.binding import Binding
from pjrt.models.compilations import Shapes
from pjrt.models.model_file import ModelFile
from pjrt.stablehlo.signatures import Parameter

HostArray = np.ndarray[Any, Any]


class HostWeights:
    """The parameters of a model file that are weights, with their values, and those that are left for a call.

    Args:
        client: the client that runs the model.
        file: the model file. Weights that are in it are weights here.
        weights: further weights: a mapping as ``offload`` takes it, or the path of a file.

    Attributes:
        by_position: the values, by their position among the arguments of the program.
        parameters: the parameters that a call takes; ``index`` counts them alone.
        binding: finds the values of ``parameters`` among the arguments of a call.

    Raises:
        InvalidArgumentError: a weight is unknown, is given twice, or does not fit its parameter.
        NotFoundError: there is no such file.
    """

    def __init__(
        self,
        client: pjrt.ifrt.Client,
        file: ModelFile,
        weights: Mapping[Any, Any] | str | os.PathLike[str] | None,
    ) -> None:
        self._all = file.parameters
        values: Mapping[Any, Any] = arrays_by_name(weights) if isinstance(weights, str | os.PathLike) else weights or {}
        binding = Binding(file.parameters, file.input_tree)
        self._values: dict[int, HostArray] = {}
        for key, value in values.items():
            for index, leaf in binding.part(key, value).items():
                if index in self._values:
                    raise InvalidArgumentError(f"expected one value for {file.parameters[index]}, found two weights")
                array = np.asarray(fitted(client, file.parameters[index], leaf))
                self._values[index] = _contiguous(array)
        self.by_position: dict[int, HostArray] = {
            position: _contiguous(array) for position, array in file.weights.items()
        }
        for index, array in self._values.items():
            position = file.parameters[index].argument
            if position is not None:
                self.by_position[position] = array
        rest = [parameter for parameter in file.parameters if parameter.index not in self._values]
        self.parameters: Sequence[Parameter] = tuple(
            replace(parameter, index=index) for index, parameter in enumerate(rest)
        )
        self.binding = Binding(self.parameters, binding.tree_without(self._values.keys()))

    def all_shapes(self, shapes: Sequence[Sequence[int]]) -> Shapes:
        """Return the shape of each parameter of the model file.

        Args:
            shapes: the shapes of ``parameters``.

        Raises:
            InvalidArgumentError: the number of shapes differs.
        """
        if len(shapes) != len(self.parameters):
            raise InvalidArgumentError(f"expected {len(self.parameters)} shapes, found {len(shapes)}")
        others = iter(shapes)
        return tuple(
            self._values[each.index].shape if each.index in self._values else tuple(next(others)) for each in self._all
        )


def _contiguous(array: HostArray) -> HostArray:
    """Return an array that a device can read from begin to end; one that is so already is used in place."""
    return np.ascontiguousarray(array).reshape(array.shape)
