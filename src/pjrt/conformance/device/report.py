"""Reports: what was tested on a device, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pjrt.conformance.device.finding import Finding


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
