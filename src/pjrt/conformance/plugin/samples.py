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
from pjrt.conformance.plugin.execution_samples import EXECUTION_SAMPLES
from pjrt.conformance.plugin.outcome import Unsupported
from pjrt.models.output_path import writing

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
    **EXECUTION_SAMPLES,
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
