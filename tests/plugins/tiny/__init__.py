"""The tiny plugin: a functional PJRT plugin in C for the tests. README.md describes its use."""

from tiny.control import Control
from tiny.program import TinyProgram

__all__ = ["Control", "TinyProgram"]
