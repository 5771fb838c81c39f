"""A device with little memory: it runs programs on another one, and refuses buffers that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np

import pjrt
from pjrt.host import Compiled, HostClient
from pjrt.stablehlo import inspect


def limited(inner: pjrt.Client, memory_limit: int | None = None, **options: Any) -> HostClient:
    """Return a client with the devices' arithmetic of another client, and a memory of its own.

    It follows the donation that programs state, so that donated memory is not counted twice.
    """

    def compile(program: pjrt.Program, _: pjrt.CompileOptions) -> Compiled:
        executable = inner.compile(program)
        aliases = {
            number: argument.aliases_output
            for number, argument in enumerate(inspect(program).arguments)
            if argument.aliases_output is not None
        }

        def run(*arrays: Any) -> list[Any]:
            return [np.asarray(result) for result in executable(*(np.array(array) for array in arrays))]

        outputs = [*map(pjrt.ShapeSpec, executable.output_shapes, executable.output_element_types)]
        return Compiled(run=run, outputs=outputs, aliases=aliases)

    return HostClient("limited", compile=compile, memory_limit=memory_limit, **options)
