"""The programs that checks need, by name.

Each is StableHLO text in which ``$T`` is the type of its arrays, ``4xf32`` where a check does not state another. A
plugin that reads no StableHLO gets its own: a folder with a file for each name, such as ``add.mlir``, or
``add.2x3xbf16.mlir`` for another type. The ending is the format that the plugin is given, unless it is one
that this package reads.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from pjrt.api.errors import InvalidArgumentError, NotFoundError
from pjrt.api.program import Program
from pjrt.conformance.plugin.check import Unsupported
from pjrt.models.output_path import writing

MANY = 30
"""The number of arguments of ``many_arguments``, and of results of ``many_results``."""

HANDLER = "pjrt_conformance_handler"
"""The name of the FFI handler that ``calls_handler`` and ``fails`` call."""


def _many_arguments() -> str:
    parameters = ", ".join(f"%x{i}: tensor<$T>" for i in range(MANY))
    sums = [f"  %s{i} = stablehlo.add %{f's{i - 1}' if i > 1 else 'x0'}, %x{i} : tensor<$T>" for i in range(1, MANY)]
    lines = "\n".join([*sums, f"  return %s{MANY - 1} : tensor<$T>"])
    return f"func.func public @main({parameters}) -> tensor<$T> {{\n{lines}\n}}"


def _many_results() -> str:
    types = ", ".join(["tensor<$T>"] * MANY)
    sums = [f"  %r{i} = stablehlo.add %{f'r{i - 1}' if i > 1 else 'x'}, %x : tensor<$T>" for i in range(1, MANY)]
    values = ", ".join(["%x", *(f"%r{i}" for i in range(1, MANY))])
    lines = "\n".join([*sums, f"  return {values} : {types}"])
    return f"func.func public @main(%x: tensor<$T>) -> ({types}) {{\n{lines}\n}}"


def _collective(operation: str, attributes: str, result: str = "$T", region: str = "") -> str:
    return (
        f"func.func public @main(%x: tensor<$T>) -> tensor<{result}> {{\n"
        f'  %0 = "stablehlo.{operation}"(%x) <{{{attributes}}}>{region}'
        f" : (tensor<$T>) -> tensor<{result}>\n  return %0 : tensor<{result}>\n}}"
    )


def _collectives(count: int) -> dict[str, str]:
    """Return programs in which as many devices exchange values; those for two devices have no number in their names."""
    suffix = "" if count == 2 else f"_{count}"
    devices = list(range(count))
    groups = f"replica_groups = dense<[{devices}]> : tensor<1x{count}xi64>"
    pairs = [[device, (device + 1) % count] for device in devices]
    add = (
        " ({\n  ^bb0(%a: tensor<f32>, %b: tensor<f32>):\n    %s = stablehlo.add %a, %b : tensor<f32>\n"
        "    stablehlo.return %s : tensor<f32>\n  })"
    )
    split = f"split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = {count} : i64"
    return {
        f"all_reduce{suffix}": _collective("all_reduce", groups, region=add),
        f"all_gather{suffix}": _collective("all_gather", f"all_gather_dim = 0 : i64, {groups}", f"{4 * count}xf32"),
        f"all_to_all{suffix}": _collective("all_to_all", f"{split}, {groups}"),
        f"collective_permute{suffix}": _collective(
            "collective_permute", f"source_target_pairs = dense<{pairs}> : tensor<{count}x2xi64>"
        ),
    }


def _custom_call(attributes: str) -> str:
    return (
        "func.func public @main(%x: tensor<$T>) -> tensor<$T> {\n"
        f"  %0 = stablehlo.custom_call @{HANDLER}(%x) {{api_version = 4 : i32, backend_config = {attributes}, "
        "has_side_effect = true} : (tensor<$T>) -> tensor<$T>\n  return %0 : tensor<$T>\n}"
    )


SAMPLES = {
    "identity": "func.func public @main(%x: tensor<$T>) -> tensor<$T> {\n  return %x : tensor<$T>\n}",
    "add": """func.func public @main(%x: tensor<$T>, %y: tensor<$T>) -> tensor<$T> {
  %0 = stablehlo.add %x, %y : tensor<$T>
  return %0 : tensor<$T>
}""",
    "two_results": """func.func public @main(%x: tensor<$T>, %y: tensor<$T>) -> (tensor<$T>, tensor<$T>) {
  %0 = stablehlo.add %x, %y : tensor<$T>
  %1 = stablehlo.multiply %x, %y : tensor<$T>
  return %0, %1 : tensor<$T>, tensor<$T>
}""",
    "donates_first": """func.func public @main(
  %x: tensor<$T> {tf.aliasing_output = 0 : i32}, %y: tensor<$T>
) -> tensor<$T> {
  %0 = stablehlo.add %x, %y : tensor<$T>
  return %0 : tensor<$T>
}""",
    "long_loop": """func.func public @main(%x: tensor<$T>) -> tensor<$T> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %limit = stablehlo.constant dense<20000> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %v = %x) : tensor<i32>, tensor<$T>
  cond {
    %go = stablehlo.compare LT, %i, %limit : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %go : tensor<i1>
  } do {
    %n = stablehlo.add %i, %one : tensor<i32>
    %m = stablehlo.negate %v : tensor<$T>
    stablehlo.return %n, %m : tensor<i32>, tensor<$T>
  }
  return %r#1 : tensor<$T>
}""",
    "subtract": """func.func public @main(%x: tensor<$T>, %y: tensor<$T>) -> tensor<$T> {
  %0 = stablehlo.subtract %x, %y : tensor<$T>
  return %0 : tensor<$T>
}""",
    "no_arguments": """func.func public @main() -> tensor<$T> {
  %0 = stablehlo.constant dense<3.0> : tensor<$T>
  return %0 : tensor<$T>
}""",
    "no_results": "func.func public @main(%x: tensor<$T>) {\n  return\n}",
    "many_arguments": _many_arguments(),
    "many_results": _many_results(),
    "mixed_results": """func.func public @main(%x: tensor<$T>) -> (tensor<$T>, tensor<2x3xi32>, tensor<f32>) {
  %0 = stablehlo.constant dense<7> : tensor<2x3xi32>
  %1 = stablehlo.constant dense<1.5> : tensor<f32>
  return %x, %0, %1 : tensor<$T>, tensor<2x3xi32>, tensor<f32>
}""",
    "replica_id": """func.func public @main() -> tensor<ui32> {
  %0 = stablehlo.replica_id : tensor<ui32>
  return %0 : tensor<ui32>
}""",
    "calls_handler": _custom_call("{fails = false}"),
    "fails": _custom_call("{fails = true}"),
    "sends": """func.func public @main(%x: tensor<$T>) -> tensor<$T> {
  %t = stablehlo.create_token : !stablehlo.token
  %0 = "stablehlo.send"(%x, %t) <{
    channel_handle = #stablehlo.channel_handle<handle = 7, type = 2>, is_host_transfer = true
  }> : (tensor<$T>, !stablehlo.token) -> !stablehlo.token
  return %x : tensor<$T>
}""",
    "receives": """func.func public @main() -> tensor<$T> {
  %t = stablehlo.create_token : !stablehlo.token
  %0:2 = "stablehlo.recv"(%t) <{
    channel_handle = #stablehlo.channel_handle<handle = 3, type = 3>, is_host_transfer = true
  }> : (!stablehlo.token) -> (tensor<$T>, !stablehlo.token)
  return %0#0 : tensor<$T>
}""",
    **_collectives(2),
    **_collectives(4),
}
"""The text of each program."""

_READ = (".mlir", ".mlirbc", ".stablehlo", ".bc", ".pb", ".hlo", ".txt")


@dataclass(frozen=True, slots=True)
class Samples:
    """The programs of a run.

    Attributes:
        folder: the folder of the user's programs; empty for those of this package.
    """

    folder: str = ""
    _programs: dict[tuple[str, str], Program] = field(default_factory=dict, repr=False, compare=False)

    def check(self) -> None:
        """Refuse a folder that does not exist, or has none of the programs.

        Raises:
            NotFoundError: there is no such folder.
            InvalidArgumentError: no file of it has the name of a program.
        """
        if not self.folder:
            return
        if not os.path.isdir(self.folder):
            raise NotFoundError(f"{self.folder}: there is no such folder; give one with programs such as add.mlir")
        if not any(path.name.partition(".")[0] in SAMPLES for path in Path(self.folder).iterdir()):
            raise InvalidArgumentError(
                f"{self.folder}: expected programs with names such as add.mlir ({', '.join(SAMPLES)}), found none"
            )

    def program(self, name: str, tensor: str) -> Program:
        """Return a program for arrays of a type.

        Raises:
            Unsupported: the user's folder has no such program.
        """
        if (name, tensor) not in self._programs:
            text = SAMPLES[name]
            self._programs[name, tensor] = (
                self._of_user(name, tensor)
                if self.folder
                else Program(f"module @{name} {{\n{text.replace('$T', tensor)}\n}}\n".encode())
            )
        return self._programs[name, tensor]

    def _of_user(self, name: str, tensor: str) -> Program:
        stem = name if tensor == "4xf32" else f"{name}.{tensor}"
        for path in sorted(Path(self.folder).iterdir()):
            if path.name.rpartition(".")[0] == stem:
                return _read(path)
        raise Unsupported(f"the program {stem}, which the user's folder of programs lacks")


def write_programs(folder: str | os.PathLike[str]) -> list[str]:
    """Write the programs that checks need to files, to be translated for a plugin that reads no StableHLO.

    Args:
        folder: the folder, which is made if it does not exist.

    Returns:
        The names of the files.

    Raises:
        InvalidArgumentError: the files cannot be written.
    """
    samples = Samples()
    names = [f"{name}.mlir" for name in SAMPLES]
    with writing(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
        for name, file in zip(SAMPLES, names, strict=True):
            (Path(folder) / file).write_bytes(samples.program(name, "4xf32").code)
    return names


def _read(path: Path) -> Program:
    if path.suffix not in _READ:
        return Program(path.read_bytes(), path.suffix[1:])
    from pjrt import stablehlo

    return stablehlo.read_file(path)
