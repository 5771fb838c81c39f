"""The Python halves of MLIR's dialects, and how to use the bindings without them.

For each operation, type and attribute that the bindings return, they import the Python half of its dialect: a class for
each operation, which nothing here needs. That takes longer than all else that is done with a small program. So the
first of these imports in a process fail, and the bindings make an operation without a class of its own. They try again
at the next one, which takes some microseconds, so a process with many operations imports the classes after all.
"""

from __future__ import annotations

import builtins
import sys
from typing import Any

_CLASSES = "jaxlib.mlir.dialects."
_attempts_without = iter(range(2000))


def _import(name: str, *arguments: Any) -> Any:
    if name.startswith(_CLASSES) and name not in sys.modules and next(_attempts_without, None) is not None:
        raise ModuleNotFoundError(f"{name} is not needed here", name=name)
    return builtins.__import__(name, *arguments)


WITHOUT_CLASSES: Any = vars(builtins) | {"__import__": _import}
"""The ``__builtins__`` of a module whose functions use the bindings.

The bindings import on behalf of the innermost Python frame, with the ``__import__`` among the ``__builtins__`` of its
module. A module sets them in its last line: its own imports, and those in its functions, keep the real ones.
"""
