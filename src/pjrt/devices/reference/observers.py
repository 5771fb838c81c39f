"""Observers of a run: traces, a search for NaN and infinity, time per op, and breakpoints.

The loop calls an observer before and after each step, in regions and functions too. Observed runs have a loop of their
own, so that others pay nothing for it.
"""

from __future__ import annotations

import pdb
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, PjrtError, StatusCode
from pjrt.api.printable import printable
from pjrt.devices.reference.core.block import Block, Environment, Step, located, run_fast
from pjrt.host import Allocation
from pjrt.host.device_memory import on_host

Values = Sequence[Any]


class Observer:
    """A base class: the loop calls its methods for every step; they do nothing unless overridden."""

    def before(self, step: Step, inputs: Values) -> None:
        """Handle a step that is about to run on these values."""

    def after(self, step: Step, inputs: Values, outputs: Values) -> None:
        """Handle a step that has run. The arrays are the program's own and must not be written to."""

    def after_in(self, environment: Environment, step: Step, inputs: Values, outputs: Values) -> None:
        """Handle a step that has run in an environment, for observers that run kernels themselves."""
        self.after(step, inputs, outputs)


@dataclass(frozen=True)
class Observation:
    """The observers that the options of a client ask for.

    Attributes:
        observers: the observers, in the order in which they are called.
        profile: the profile among them, if there is one.
    """

    observers: tuple[Observer, ...]
    profile: Profile | None

    @staticmethod
    def of(
        *,
        trace: Callable[[Step, Values, Values], object] | None = None,
        profile: bool | Profile = False,
        break_at: str | Iterable[str] = (),
        debug_nans: bool = False,
        interpreter: str = "",
    ) -> Observation:
        """Return the observers of these options.

        Args:
            trace: called with every step, its inputs and its outputs.
            profile: whether to add up the time per op, or a profile to add to.
            break_at: names of ops or source locations, separated by commas or in a list.
            debug_nans: whether to stop at the first NaN or infinity.
            interpreter: the name of the interpreter in the profile, where other devices compute ops too.
        """
        total = profile if isinstance(profile, Profile) else Profile(interpreter=interpreter) if profile else None
        observers: list[Observer] = []
        if trace is not None:
            observers.append(Trace(trace))
        if break_at:
            observers.append(Breakpoints(break_at.split(",") if isinstance(break_at, str) else break_at))
        if debug_nans:
            observers.append(DebugNans())
        if total is not None:  # last, so that it does not time the others
            observers.append(total)
        return Observation(tuple(observers), total)

    @property
    def loop(self) -> Callable[[Block, Environment], None]:
        """The loop that runs steps and calls the observers."""
        return loop_for(self.observers)


def loop_for(observers: Iterable[Observer]) -> Callable[[Block, Environment], None]:
    """Return the loop that calls these observers; the fast one if there are none."""
    chosen = tuple(observers)
    if not chosen:
        return run_fast
    # A profile does not look at values: to read them from a device's memory would be a part of its times.
    see = _same if all(isinstance(observer, Profile) for observer in chosen) else on_host
    return lambda block, slots: _run_observed(chosen, see, block, slots)


def _same(value: Any) -> Any:
    return value


def _run_observed(observers: tuple[Observer, ...], see: Callable[[Any], Any], block: Block, slots: Environment) -> None:
    for code, step in zip(block.code, block.steps, strict=True):
        kernel, kind, a, b, _, dead = code
        inputs = [see(slots[i]) for i in step.inputs]
        for observer in observers:
            observer.before(step, inputs)
        try:
            value = kernel(slots[a], slots[b]) if kind == 2 else kernel(slots[a]) if kind == 1 else kernel(*a(slots))
        except StopError:
            raise
        except Exception as error:
            raise located(error, block, code) from error
        outputs = [value] if len(step.outputs) == 1 else list(value)
        seen = [see(value) for value in outputs]
        for observer in observers:
            observer.after_in(slots, step, inputs, seen)
        for slot, item in zip(step.outputs, outputs, strict=True):
            slots[slot] = item
        for slot in dead:
            slots[slot] = None


class Trace(Observer):
    """An observer that calls ``function(step, inputs, outputs)`` after every step."""

    def __init__(self, function: Callable[[Step, Values, Values], object]) -> None:
        self._function = function

    def after(self, step: Step, inputs: Values, outputs: Values) -> None:
        self._function(step, inputs, outputs)


class StopError(PjrtError):
    """An error by which an observer stops a run at a step."""


class NonFiniteError(StopError, FloatingPointError):
    """A step made a NaN or an infinity from finite inputs: ``step``, ``inputs`` and ``outputs`` are those of it."""

    default_code = StatusCode.OUT_OF_RANGE

    def __init__(self, step: Step, inputs: Values, outputs: Values) -> None:
        kind = "NaN" if any(_has(np.isnan, value) for value in outputs) else "infinity"
        shown = "; ".join(summary(value) for value in inputs)
        super().__init__(f"the first {kind} was made by {step}; its inputs were {shown}")
        self.step, self.inputs, self.outputs = step, tuple(inputs), tuple(outputs)

    def __reduce__(self) -> tuple[object, ...]:
        return NonFiniteError, (self.step, self.inputs, self.outputs)


class DebugNans(Observer):
    """An observer that raises ``NonFiniteError`` at the first NaN or infinity that a step makes from finite inputs."""

    def after(self, step: Step, inputs: Values, outputs: Values) -> None:
        if any(map(_is_not_finite, outputs)) and not any(map(_is_not_finite, inputs)):
            raise NonFiniteError(step, inputs, outputs)


def _is_not_finite(value: Any) -> bool:
    return _has(np.isnan, value) or _has(np.isinf, value)


def _has(test: Callable[[Any], Any], value: Any) -> bool:
    if isinstance(value, tuple):
        return any(_has(test, item) for item in value)
    if not isinstance(value, np.ndarray | np.generic):
        return False
    element = ElementType.of(value.dtype)
    if not (element.is_floating or element.is_complex):
        return False
    wide = value if value.dtype.kind in "fc" else value.astype(np.float32)
    return bool(test(wide).any())


def summary(value: Any) -> str:
    """Return a value as text: the type and shape of an array, and its first and last elements."""
    if not isinstance(value, np.ndarray | np.generic):
        return repr(value)
    text = np.array2string(np.asarray(value), threshold=16, edgeitems=3, precision=6).replace("\n", "")
    return f"{value.dtype}{list(value.shape)} {text}"


@dataclass
class Entry:
    """The costs of one op: its runs, its seconds (without the ops inside it), the bytes of its results."""

    calls: int = 0
    seconds: float = 0.0
    bytes_out: int = 0


class Run(NamedTuple):
    """When a step ran: on which thread, and from when to when in seconds of ``time.perf_counter``."""

    name: str
    location: str
    thread: str
    begin: float
    end: float


@dataclass
class Profile(Observer):
    """An observer that adds up time per op in ``by_op`` and ``by_location``; devices may share it.

    ``interpreter`` is the name of the interpreter where a device's author computes some of the steps: then the names of
    ops have the device that computed them, such as ``stablehlo.add on mychip``. Where ``runs`` is a list, each run of a
    step is added to it.
    """

    interpreter: str = ""
    runs: list[Run] | None = None
    by_op: defaultdict[str, Entry] = field(default_factory=lambda: defaultdict(Entry))
    by_location: defaultdict[tuple[str, str], Entry] = field(default_factory=lambda: defaultdict(Entry))

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._running = threading.local()

    def before(self, step: Step, inputs: Values) -> None:
        if not hasattr(self._running, "stack"):
            self._running.stack = []
        self._running.stack.append([0.0, time.perf_counter()])

    def after(self, step: Step, inputs: Values, outputs: Values) -> None:
        now = time.perf_counter()
        inside, begin = self._running.stack.pop()
        if self._running.stack:
            self._running.stack[-1][0] += now - begin
        size = sum(value.nbytes for value in outputs if isinstance(value, (np.ndarray, np.generic, Allocation)))
        device = self.interpreter if step.runner is None else step.runner.device
        name = f"{step.name} on {device}" if device else step.name
        with self._lock:
            for entry in (self.by_op[name], self.by_location[name, step.location]):
                entry.calls += 1
                entry.seconds += now - begin - inside
                entry.bytes_out += size
            if self.runs is not None:
                self.runs.append(Run(name, step.location, threading.current_thread().name, begin, now))

    @property
    def seconds(self) -> float:
        """The time of all steps together, in seconds."""
        return sum(entry.seconds for entry in self.by_op.values())

    def as_dict(self) -> dict[str, dict[str, float]]:
        """Return the profile per op in machine-readable form."""
        return {
            name: {"calls": entry.calls, "seconds": entry.seconds, "bytes_out": entry.bytes_out}
            for name, entry in sorted(self.by_op.items(), key=lambda item: -item[1].seconds)
        }

    def table(self, by_location: bool = False) -> str:
        """Return the profile as human-readable text, the most expensive first."""
        rows: list[tuple[str, Entry]] = list(self.by_op.items())
        if by_location:
            rows = [(f"{name} [{place}]", entry) for (name, place), entry in self.by_location.items()]
        total = self.seconds or 1.0
        lines = [f"{'ms':>10} {'%':>6} {'calls':>8} {'us/call':>10} {'MB out':>10}  op"]
        lines += [
            f"{e.seconds * 1e3:10.3f} {e.seconds / total * 100:6.1f} {e.calls:8d} {e.seconds / e.calls * 1e6:10.2f} "
            f"{e.bytes_out / 1e6:10.2f}  {name}"
            for name, e in sorted(rows, key=lambda row: -row[1].seconds)
        ]
        return "\n".join(lines)


class Breakpoints(Observer):
    """An observer that stops in the debugger before every step whose op or location contains one of some texts.

    Args:
        at: parts of op names (``"dot_general"``) or of locations (``"model.py:42"``).
        stop: called with the step and its inputs; ``pdb`` by default, in a frame that has ``step`` and ``inputs``.
    """

    def __init__(self, at: Iterable[str], stop: Callable[[Step, Values], object] | None = None) -> None:
        self._at = tuple(at)
        if isinstance(at, str) or not all(isinstance(part, str) and part for part in self._at):
            raise InvalidArgumentError(f"expected a list of op names or locations to stop at, found {at!r}")
        self._stop = stop or _debug

    def before(self, step: Step, inputs: Values) -> None:
        if any(part in step.name or part in step.location for part in self._at):
            self._stop(step, inputs)


def _debug(step: Step, inputs: Values) -> None:
    print(f"{printable(str(step))}\n`step` and `inputs` are in this frame; `c` continues", file=sys.stderr)
    pdb.set_trace()
