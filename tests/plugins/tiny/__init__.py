"""The tiny plugin: a functional PJRT plugin in C for the tests. README.md tells how it is used."""

from tiny.control import Control
from tiny.program import TinyProgram

__all__ = ["Control", "TinyProgram"]
