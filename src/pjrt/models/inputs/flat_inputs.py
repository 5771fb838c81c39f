"""Flat inputs: one value for each parameter of a model, from texts or from values nested as the model takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pjrt.api.errors import PjrtError
from pjrt.models.binding import Binding
from pjrt.models.inputs.inputs import make_arguments
from pjrt.models.model_file import ModelFile


def flat_inputs(
    file: ModelFile, inputs: Sequence[Any] | Mapping[str, Any], shapes: Mapping[str, Sequence[int]] | None = None
) -> list[Any]:
    """Return a value for each parameter.

    Args:
        file: the model file.
        inputs: texts such as ``random:0`` or ``x=FILE.npy``, as the command's ``--input`` takes them; or values, flat
            or nested as the model takes them, in a sequence or by name.
        shapes: for texts that make arrays of dynamic parameters, as for ``make_arguments``.

    Raises:
        InvalidArgumentError: inputs are missing, unknown or left over, or a text has no known form.
        NotFoundError: a file does not exist.
    """
    if isinstance(inputs, Mapping):
        return Binding(file.parameters, file.input_tree).leaves((), inputs)
    if all(isinstance(each, str) for each in inputs):
        try:
            return [each.array for each in make_arguments(file.parameters, [*inputs], shapes)]
        except PjrtError as error:
            raise file.named(error) from error
    return Binding(file.parameters, file.input_tree).leaves(inputs, {})
