"""A copy of the tiny plugin with one fault in it."""

from __future__ import annotations

from dataclasses import dataclass

from tiny import build


@dataclass(frozen=True)
class Mutant:
    """One fault of a plugin, as a change of one C file of the tiny plugin or of the runtime that it is made of.

    Attributes:
        name: the function or noun, a dot, and the fault.
        file: the C file that is changed.
        old: the text that is replaced; the file has it once.
        new: the text in its place.
        fault: what the plugin does wrong, in one sentence.
    """

    name: str
    file: str
    old: str
    new: str
    fault: str

    def source(self) -> str:
        """Return the changed text of the C file.

        Raises:
            ValueError: the file does not have the old text exactly once.
        """
        (text,) = (path.read_text() for path in build.tiny_sources() if path.name == self.file)
        count = text.count(self.old)
        if count != 1:
            raise ValueError(
                f"mutant {self.name}: {self.file} has the text {self.old!r} {count} times, expected once; "
                "the file has changed, so change the mutant"
            )
        return text.replace(self.old, self.new)
