"""The subprocess in which a device is tested: it answers with a line of JSON for each event.

The device may crash it or hang. The parent knows from the last line which check did.
"""

from __future__ import annotations

import faulthandler
import json
import os
import pickle
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pjrt.api.errors import PjrtError
from pjrt.conformance.device.checks import Finding, Kind, Session, Skipped
from pjrt.conformance.device.plan import Choice, plan, untested_operations
from pjrt.plugins import registry


@dataclass(frozen=True, slots=True)
class Task:
    """The task of a subprocess.

    Attributes:
        device: the name of the device, as of ``pjrt.client``.
        options: the options of its clients.
        choice: the checks that the user asks for.
        groups: the groups of them that this subprocess runs.
        begin: the number of the first check to run.
    """

    device: str
    options: Mapping[str, Any]
    choice: Choice
    groups: tuple[str, ...]
    begin: int = 0


def main() -> None:
    """Run the task on the standard input, and write events to the standard output."""
    faulthandler.enable()  # the parent asks a process that hangs for the stacks of its threads
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a device prints must not come between the events

    def say(**event: Any) -> None:
        answers.write(json.dumps(event) + "\n")
        answers.flush()

    task: Task = pickle.load(sys.stdin.buffer)
    try:
        session = Session(lambda **options: registry.client(task.device, **options), task.options, task.device)
        capabilities = session.client.capabilities
        checks = plan(capabilities, task.choice, task.groups)
    except Exception as error:
        wrapped = PjrtError.wrap(error)
        say(event="failed", code=int(wrapped.code), message=wrapped.message)
        return
    say(
        event="plan",
        platform=session.client.platform_name,
        names=[each.name for each in checks],
        untested=untested_operations(capabilities),
    )
    for number in range(task.begin, len(checks)):
        say(event="begin", number=number)
        check = checks[number]
        try:
            outcome = check.run(session)
        except Exception as error:
            wrapped = PjrtError.wrap(error)
            outcome = Finding(check.name, Kind.ERROR, f"{type(error).__name__}: {wrapped.message}")
        say(
            event="end",
            finding=outcome.as_dict() if isinstance(outcome, Finding) else None,
            skipped=outcome.reason if isinstance(outcome, Skipped) else None,
        )
    say(event="closing")
    session.close()
    say(event="closed")


if __name__ == "__main__":
    main()
