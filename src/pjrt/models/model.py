"""Models: the program in a file as a callable on a client's devices."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pjrt.api.client
import pjrt.ifrt
from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.loaded_executable import ExecuteOptions
from pjrt.api.program import Program
from pjrt.api.shape_spec import Shapes as ArgumentShapes
from pjrt.models import replica_arrays
from pjrt.models.argument import Argument
from pjrt.models.binding import Binding
from pjrt.models.callable_model import SHAPES_KEPT, CallableModel
from pjrt.models.compilations import Shapes
from pjrt.models.model_file import ModelFile
from pjrt.models.weights import Weights
from pjrt.plugins.registry import client_with_devices
from pjrt.stablehlo.files.contents import FileContents
from pjrt.stablehlo.tree import NodeTypes

if TYPE_CHECKING:
    from pjrt.artifacts.compilation_cache import CompilationCache
    from pjrt.artifacts.saved_executable import SavedExecutable
    from pjrt.stablehlo.files.torch_export import ExportedProgram


def load_model(
    model: ModelFile | Program | SavedExecutable | FileContents | ExportedProgram | str | bytes | os.PathLike[str],
    client: pjrt.api.client.Client | pjrt.ifrt.Client | str | None = None,
    /,
    *,
    compile_options: CompileOptions | None = None,
    shapes_kept: int = SHAPES_KEPT,
    node_types: NodeTypes | None = None,
    cache: CompilationCache | None = None,
    **client_options: Any,
) -> Model:
    """Return the program in a file as a callable. Nothing is compiled yet.

    Args:
        model: the path of a model file; or a program, the contents of a file, a saved executable, or a
            ``torch.export.ExportedProgram``.
        client: the client to run it on, which stays the caller's; or the name of a device, of which a client with
            enough devices is made, which ``Model.close`` closes. The default is the default device.
        compile_options: the compile options; they win over the program.
        shapes_kept: the number of executables that are kept, one for each set of shapes; the least recently used one
            is dropped.
        node_types: functions that make custom nodes of the results, by the names that their types were registered
            with; other custom nodes become a ``pjrt.stablehlo.CustomNode``.
        cache: a compilation cache on disk; None compiles in any case.
        client_options: options of the client that is made.

    Raises:
        NotFoundError: there is no such file, or no such device.
        InvalidArgumentError: the file is of no supported format, or the client has too few devices.
        FailedPreconditionError: the file has a saved executable that does not fit the client.
    """
    return Model(
        ModelFile.of(model),
        client,
        compile_options=compile_options,
        shapes_kept=shapes_kept,
        node_types=node_types,
        cache=cache,
        **client_options,
    )


class Model(CallableModel[pjrt.ifrt.LoadedExecutable]):
    """A program as a callable; ``load_model`` makes it. Several threads may call it.

    A call returns at once: the values may come later.

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
        node_types: NodeTypes | None = None,
        cache: CompilationCache | None = None,
        **client_options: Any,
    ) -> None:
        super().__init__(
            file,
            file.parameters,
            Binding(file.parameters, file.input_tree),
            shapes_kept=shapes_kept,
            node_types=node_types,
        )
        self._cache = cache
        self._options = CompileOptions.of(compile_options).completed(file.partitioning)
        # A saved executable has its own options, which these replace as a whole.
        self._load_options = None if compile_options == CompileOptions() else compile_options
        self._weights = Weights(file.weights)
        self._own_client: pjrt.api.client.Client | None = None
        if isinstance(client, str) or client is None:
            client = self._own_client = client_with_devices(
                client, self._options.partitioning.num_devices, client_options
            )
        elif client_options:
            raise InvalidArgumentError(
                f"expected options of a client only with a device's name, found {sorted(client_options)} with a client"
            )
        self.client = client if isinstance(client, pjrt.ifrt.Client) else pjrt.ifrt.Client(client)
        self._check_devices()

    def _check_devices(self) -> None:
        partitioning, count = self._options.partitioning, len(self.client.devices)
        if count < partitioning.num_devices:
            platform = self.client.platform_name
            if self._own_client is not None:
                self._own_client.close()
            raise InvalidArgumentError(
                f"{partitioning} need {partitioning.num_devices} devices, the client of {platform!r} has {count}: give "
                "it more, with the option num_devices where the device has it, or export the model for fewer"
            )

    def execute(self, arguments: Sequence[Any]) -> list[pjrt.ifrt.Array]:
        arrays = self.fitted(arguments)
        # Shapes that were compiled for fit each other: only others need the time of a check.
        return self.run(self._executable(tuple(array.shape for array in arrays)), arrays)

    def put(self, executable: pjrt.ifrt.LoadedExecutable, arguments: Sequence[Argument]) -> list[Argument]:
        """Return arguments on the devices, as an executable takes them. Those that the program drops stay as they are.

        Args:
            executable: the executable, from ``compile``.
            arguments: the arguments, from ``fitted``.
        """
        return [
            argument if parameter.argument is None else self._put(executable, parameter.argument, argument)
            for parameter, argument in zip(self.parameters, arguments, strict=True)
        ]

    def _put(self, executable: pjrt.ifrt.LoadedExecutable, position: int, argument: Argument) -> pjrt.ifrt.Array:
        if isinstance(argument, pjrt.ifrt.Array):
            return argument
        return replica_arrays.put(executable, position, argument)

    def run(self, executable: pjrt.ifrt.LoadedExecutable, arguments: Sequence[Argument]) -> list[pjrt.ifrt.Array]:
        """Run an executable of this model on a flat list of arguments, and return a flat list of its results.

        Args:
            executable: the executable, from ``compile``.
            arguments: the arguments, from ``fitted`` or ``put``.
        """
        flat, options = self.program_arguments(executable, arguments)
        return list(executable(*flat)) if options is None else executable.execute(flat, options).outputs

    def program_arguments(
        self, executable: pjrt.ifrt.LoadedExecutable, arguments: Sequence[Argument]
    ) -> tuple[list[pjrt.ifrt.Array], ExecuteOptions | None]:
        """Return the arrays that an executable of this model takes, weights included, and how to execute it.

        Args:
            executable: the executable, from ``compile``.
            arguments: the arguments, from ``fitted`` or ``put``.

        Returns:
            The arrays on the devices; and the options that keep the program from donating weights, None if it donates
            none.
        """
        row: dict[int, pjrt.ifrt.Array] = self._weights.of(executable)
        for parameter, argument in zip(self.parameters, arguments, strict=True):
            if parameter.argument is not None:
                row[parameter.argument] = self._put(executable, parameter.argument, argument)
        flat = [row[position] for position in range(len(executable.parameter_specs))]
        kept = self._weights.positions & executable.donatable_input_indices
        return flat, ExecuteOptions(non_donatable_input_indices=kept) if kept else None

    def compile(self, shapes: ArgumentShapes | None = None) -> pjrt.ifrt.LoadedExecutable:
        """Return the executable for these shapes of the arguments; compile it unless it is kept.

        Args:
            shapes: as for ``pjrt.stablehlo.refine``, of the parameters; may be left out for a model without dynamic
                shapes.

        Raises:
            InvalidArgumentError: the shapes do not fit the parameters or each other, or the compiler rejects the
                program.
        """
        return self._executable(self._resolved(shapes))

    def _compile(self, shapes: Shapes) -> pjrt.ifrt.LoadedExecutable:
        if self.file.executable is not None:
            loaded = self.file.executable.load(self.client.pjrt_client, self._load_options)
            return self.client.on_global_arrays(loaded, self.file.executable.program_signature())
        program = self.file.program_for(self.client.platform_name, shapes)
        if self._cache is None:
            executable = self.client.pjrt_client.compile(program, self._options)
        else:
            executable = self._cache.compile(self.client.pjrt_client, program, self._options)
        return self.client.on_global_arrays(executable, self.file.signature_of(program))

    def values(self, executable: pjrt.ifrt.LoadedExecutable, results: Sequence[pjrt.ifrt.Array]) -> Mapping[str, Any]:
        """Return the whole values of results as numpy arrays, by name; wait for them.

        Args:
            executable: the executable that returned the results.
            results: the flat results.

        Returns:
            The values by the names of the results, such as ``result['logits']``; a result without a name is
            ``result_0`` by its index. The values of several replicas have ``_of_replica_0`` behind the name.
        """
        columns = [replica_arrays.values_of_replicas(executable, *pair) for pair in enumerate(results)]
        return replica_arrays.named_by_replica(self.file.signature.result_names(), columns)

    def close(self) -> None:
        """Unload the executables, and close the client if the model made it. May be called again."""
        self._compilations.close()
        self._weights.delete()
        if self._own_client is not None:
            self._own_client.close()

    def __repr__(self) -> str:
        return f"<Model {self.file!r} on {self.client.platform_name}>"
