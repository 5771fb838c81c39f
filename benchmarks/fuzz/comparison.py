"""The target ``compare``: blocks of random programs, each in one module, and one by one what did not agree there."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

import pjrt
from benchmarks.fuzz.random_programs import BLOCK, RandomProgram
from benchmarks.fuzz.worker import options_for

_DEVICES = ("reference", "cpu")


class Comparison:
    """The comparison of random programs on `reference` and on `cpu`.

    Args:
        seed: the seed of the programs.
        end: the number where it ends. A block is compared one by one if it ends later, or if its first program was not
            asked for: after one that ended its process the rest is tried in this way.
    """

    def __init__(self, seed: int, end: int) -> None:
        self._seed = seed
        self._end = end
        self._clients = [pjrt.client(device) for device in _DEVICES]
        self._of_block: dict[int, str] = {}
        self._error: Exception | None = None

    def agrees(self, number: int) -> bool:
        """Whether the devices agree about a program; prints how they do not.

        Raises:
            UnimplementedError: `cpu` says that XLA computes the program wrongly.
        """
        if number % BLOCK == 0:
            self._try_block(number)
        difference = self._of_block.get(number)
        if difference == "":
            return True
        beside = f"only beside the others of its block: {difference}" if difference else ""
        try:
            difference = self._differences([number])[number] or beside
        except Exception as error:
            self._error = None
            print(f"program {number}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            raise
        if difference:
            print(f"program {number}: {difference}", file=sys.stderr, flush=True)
        if self._error is not None and number % BLOCK == BLOCK - 1:
            print(f"programs {number - BLOCK + 1} to {number}: {self._error}", file=sys.stderr, flush=True)
            raise self._error  # each alone had none
        return not difference

    def _try_block(self, begin: int) -> None:
        self._of_block, self._error = {}, None
        if begin + BLOCK <= self._end:
            try:
                self._of_block = self._differences(range(begin, begin + BLOCK))
            except Exception as error:
                self._error = error

    def _differences(self, numbers: Sequence[int]) -> dict[int, str]:
        """Return how the devices differ about each of some programs of one block, empty where they agree."""
        programs = [RandomProgram(self._seed, number) for number in numbers]
        text = programs[0].text if len(programs) == 1 else RandomProgram.joined(programs)
        arguments = [argument for program in programs for argument in program.arguments]
        expected, found = (
            [
                np.asarray(result)
                for result in client.compile(text, options_for(device, numbers[0] // BLOCK))(*arguments)
            ]
            for client, device in zip(self._clients, _DEVICES, strict=True)
        )
        differences, at = {}, 0
        for number, program in zip(numbers, programs, strict=True):
            part = slice(at, at + len(program.results))
            differences[number] = program.difference(found[part], expected[part])
            at = part.stop
        return differences
