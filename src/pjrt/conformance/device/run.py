"""Runs of the checks of a device, in subprocesses that the device may crash or block, and their reports."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import IO, Any

from pjrt.api.capability import Capabilities
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InternalError, InvalidArgumentError, PjrtError
from pjrt.conformance.device.checks import Finding, Kind, shown_inputs
from pjrt.conformance.device.plan import GROUPS, JAX, Choice, plan
from pjrt.conformance.device.worker import Task
from pjrt.conformance.operation_table import cases_of
from pjrt.system.python_process import PythonChild


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of all checks of a device.

    Attributes:
        device: the name of the device, as of ``pjrt.client``.
        platform: the name of its platform.
        passed: the number of checks that it passed.
        findings: what is wrong, in the order of the checks.
        skipped: the checks that do not apply to the device, each with the reason.
        untested: operations that the device declares and that no check exists for.
        seconds: the time that the test took.
        complete: whether all checks were made; not if the test ran out of time, or was interrupted.
        interrupted: whether an interrupt from the keyboard ended the test.
    """

    device: str
    platform: str
    passed: int
    findings: tuple[Finding, ...]
    skipped: Mapping[str, str]
    untested: tuple[str, ...]
    seconds: float
    complete: bool
    interrupted: bool = False

    @property
    def is_right(self) -> bool:
        """Whether nothing is wrong, as far as the checks were made."""
        return not self.findings

    def as_dict(self) -> dict[str, Any]:
        """Return the report in machine-readable form."""
        return {
            "right": self.is_right,
            "device": self.device,
            "platform": self.platform,
            "passed": self.passed,
            "findings": [each.as_dict() for each in self.findings],
            "skipped": dict(self.skipped),
            "untested": list(self.untested),
            "seconds": round(self.seconds, 3),
            "complete": self.complete,
            "interrupted": self.interrupted,
        }

    def by_subject(self) -> dict[str, list[Finding]]:
        """Return the findings by what they are about: an operation, or a check of its own."""
        groups: dict[str, list[Finding]] = {}
        for finding in self.findings:
            name = finding.check
            subject = name.split(" ")[0] if name.startswith(("stablehlo.", "chlo.", "func.")) else name
            groups.setdefault(f"{subject} ({finding.kind})", []).append(finding)
        return groups

    def __str__(self) -> str:
        lines = []
        for findings in self.by_subject().values():
            # The shortest arguments make the smallest program.
            first = min(findings, key=lambda each: sum(map(len, each.inputs)))
            lines.append(str(first))
            if len(findings) > 1:
                names = dict.fromkeys(" ".join(each.check.split(" ")[1:]) for each in findings if each is not first)
                listed = list(names)
                more = f", and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
                lines.append(f"    also: {', '.join(listed[:_LISTED])}{more}")
            lines.append("")
        reasons: dict[str, list[str]] = {}
        for name, reason in self.skipped.items():
            reasons.setdefault(reason, []).append(name)
        for reason, skipped in reasons.items():
            lines.append(f"skipped: {skipped[0] if len(skipped) == 1 else f'{len(skipped)} checks'}: {reason}")
        if self.untested:
            lines.append(f"not tested: {', '.join(self.untested)}")
        if not self.complete:
            lines.append(f"not all checks were made: {'interrupted' if self.interrupted else 'the time is up'}")
        wrong = f"{len(self.findings)} failed" if self.findings else "nothing is wrong"
        lines.append(f"{self.device}: {self.passed} checks passed, {wrong}, {self.seconds:.1f} s")
        return "\n".join(lines)


_LISTED = 12
"""The most names of further findings that a report lists."""


_START_SECONDS = 60.0
"""The least time for a subprocess to import the device and make a client."""

_STACKS_SECONDS = 10.0
"""The time for a subprocess that hangs to print where its threads are."""

_MOST_PROCESSES = 25
"""The most subprocesses of one test: a device that crashes so often is known to be broken."""


def check_device(
    device: str,
    options: Mapping[str, Any] | None = None,
    *,
    choice: Choice | None = None,
    check_seconds: float = 60.0,
    total_seconds: float = 1800.0,
    progress: Callable[[str], None] = lambda name: None,
) -> Report:
    """Test a device: its operations against the reference interpreter, its behaviour, several devices, and JAX on it.

    Args:
        device: a name as of ``pjrt.client``, such as ``my.py:make_client``.
        options: the options of its clients.
        choice: the checks to make; all of the operations that the device's own code runs by default.
        check_seconds: the seconds that one check may take; a device that takes longer hangs.
        total_seconds: the seconds that the test may take. The report then says that it is not complete.
        progress: called with the name of each check before it begins.

    Returns:
        The report. A device that crashes or hangs is reported, too. After an interrupt from the keyboard the report
        has the checks that were made until then.

    Raises:
        InvalidArgumentError: there is no such group of checks, or no check with a name that a filter allows.
        PjrtError: no client of the device can be made.
    """
    choice = choice or Choice()
    unknown = set(choice.groups) - set(GROUPS)
    if unknown:
        raise InvalidArgumentError(f"expected groups among {', '.join(GROUPS)}, found {', '.join(sorted(unknown))}")
    test = _DeviceTest(check_seconds, time.monotonic() + total_seconds, progress)
    begun = time.monotonic()
    # JAX keeps its backends until the process ends, so it has a subprocess of its own.
    in_python = tuple(each for each in GROUPS if each in choice.groups and each != JAX)
    interrupted = False
    try:
        if in_python:
            test.run(Task(device, dict(options or {}), choice, in_python))
        if JAX in choice.groups and plan(Capabilities(), choice, (JAX,)):
            test.run(Task(device, dict(options or {}), choice, (JAX,)))
    except KeyboardInterrupt:
        interrupted, test.complete = True, False
    if (choice.filters or choice.left_out) and not (test.passed or test.findings or test.skipped) and test.complete:
        wanted = ", ".join(map(repr, choice.filters or ["*"]))
        without = f", without those for {', '.join(map(repr, choice.left_out))}" if choice.left_out else ""
        raise InvalidArgumentError(
            "expected a filter that is a part of the name of a check, such as 'stablehlo.add f32' or 'donation', "
            f"found no check for {wanted} in the groups {', '.join(choice.groups)}{without}"
        )
    return Report(
        device,
        test.platform,
        test.passed,
        tuple(test.findings),
        test.skipped,
        tuple(test.untested),
        time.monotonic() - begun,
        test.complete,
        interrupted,
    )


class _DeviceTest:
    """The outcomes so far, and how to get more of them."""

    def __init__(self, check_seconds: float, end: float, progress: Callable[[str], None]) -> None:
        self._check_seconds, self._end, self._progress = check_seconds, end, progress
        self.platform = ""
        self.passed = 0
        self.findings: list[Finding] = []
        self.skipped: dict[str, str] = {}
        self.untested: list[str] = []
        self.complete = True

    def run(self, task: Task) -> None:
        """Run the checks of a task, in one subprocess after the other until none crashes."""
        for _ in range(_MOST_PROCESSES):
            with contextlib.closing(_Worker(task)) as worker:
                last = self._follow(worker)
            if last is None:
                return
            task = replace(task, begin=last + 1)
        self.complete = False

    def _follow(self, worker: _Worker) -> int | None:
        """Note the outcomes of a subprocess; return the number of the check that ended it, None if none did."""
        names: list[str] = []
        number = -1
        at = "making a client"
        while True:
            left = self._end - time.monotonic()
            if left <= 0:
                self.complete = False
                return None
            try:
                patience = self._check_seconds if names else max(self._check_seconds, _START_SECONDS)
                event = worker.next(min(patience, left))
            except TimeoutError:
                if self._end - time.monotonic() <= 0:
                    continue
                stacks = worker.stacks()
                self._lost(at, Kind.HANG, f"the device was not done within {patience:g} seconds{stacks}")
                return number if number >= 0 else None
            if event is None:
                self._lost(at, Kind.CRASH, f"the process of the device ended: {worker.ended()}")
                return number if number >= 0 else None
            match event["event"]:
                case "failed":
                    raise PjrtError.of(event["code"], event["message"])
                case "plan":
                    names, self.platform, self.untested = event["names"], event["platform"], event["untested"]
                case "begin":
                    number = event["number"]
                    at = names[number]
                    self._progress(at)
                case "end":
                    self._note(at, event)
                case "closing":
                    at, number = "closing the client", -1
                case "closed":
                    return None

    def _note(self, name: str, event: Mapping[str, Any]) -> None:
        if event["finding"] is not None:
            self.findings.append(Finding.from_dict(event["finding"]))
        elif event["skipped"] is not None:
            self.skipped[name] = event["skipped"]
        else:
            self.passed += 1

    def _lost(self, name: str, kind: Kind, message: str) -> None:
        """Note a check that ended its subprocess, with its program if it has one."""
        if not self.platform:
            raise InternalError(f"{name}: {message}")
        operation, _, rest = name.partition(" ")
        spelling = rest.split(" ")[0]
        with contextlib.suppress(InvalidArgumentError):
            for case in cases_of(operation, ElementType.from_mlir(spelling)):
                if case.label == name:
                    self.findings.append(Finding(name, kind, message, case.program, shown_inputs(case.inputs)))
                    return
        self.findings.append(Finding(name, kind, message))


class _Worker(PythonChild[dict[str, Any]]):
    """A subprocess that runs a task, and reports events."""

    def __init__(self, task: Task) -> None:
        # An interrupt from the keyboard is no fault of the device.
        super().__init__("pjrt.conformance.device.worker", _event, own_session=True)
        self.send(task, last=True)

    def stacks(self) -> str:
        """End the subprocess, and return where its threads were, for a message; empty if it does not say."""
        if hasattr(signal, "SIGABRT"):
            self.stop(signal.SIGABRT, _STACKS_SECONDS)  # on which Python prints the stacks of all threads
        self.kill()
        _, marker, stacks = self.ended().errors.partition("Fatal Python error: Aborted")
        stacks = re.sub(r"\n*Extension modules: .*", "", stacks, flags=re.DOTALL).strip()
        return f"; its threads were here:\n{stacks}" if marker else ""


def _event(file: IO[bytes]) -> dict[str, Any]:
    if not (line := file.readline()):
        raise EOFError
    event: dict[str, Any] = json.loads(line)  # ValueError: it ended in the middle of a line
    return event
