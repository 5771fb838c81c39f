"""The reduction of a recording: the fewest calls that still make a plugin fail in the same way."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pjrt.abi.schema import STRUCTS
from pjrt.api.errors import FailedPreconditionError
from pjrt.layers.recording import Call, Recording, functions_in, handles_in, write_recording
from pjrt.layers.replay.replay_arguments import Settings
from pjrt.layers.replay.replay_process import ReplayResult, replay
from pjrt.layers.replay.replayer import ReplayFinding
from pjrt.system import TemporaryFolder

_HANG_LIMIT = 10.0
"""The seconds after which a call counts as hanging while a hang is reduced: it would take long otherwise."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """The result of a reduction.

    Attributes:
        finding: the failure, which the shorter recording has too.
        calls: the number of calls that are left.
        of: the number of calls that there were.
        replays: how many replays it took.
        left_out: how many host arrays are left out, since the failure does not need their contents.
        complete: whether it ended by itself; otherwise the time was up, and fewer calls may do.
    """

    finding: ReplayFinding
    calls: int
    of: int
    replays: int
    left_out: int
    complete: bool


def reduce_recording(
    path: str | os.PathLike[str],
    open_plugin: Callable[[], tuple[int, Any]] | str | os.PathLike[str],
    output: str | os.PathLike[str],
    settings: Settings | None = None,
    *,
    time_limit: float = 120.0,
    total_limit: float = 300.0,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Reduction:
    """Cut a recording down to the calls with which a plugin still fails as with all, and write them to a file.

    Calls go with all calls that need what they made. Of what is left, the contents of host arrays go too, where the
    plugin fails without them.

    Args:
        path: the recording.
        open_plugin: the plugin, as for ``replay``.
        output: the new recording.
        settings: what to compare, and how far to go.
        time_limit: the seconds that one call may take.
        total_limit: the seconds for the reduction; then it ends with what it has.
        progress: is called with the number of calls that are left, and the number of replays so far.

    Raises:
        FailedPreconditionError: the plugin does not fail, or cannot be loaded.
        InvalidArgumentError: the file is no recording, or the output cannot be written.
        NotFoundError: there is no such recording.
        DataLossError: the file holds not even one call.
    """
    recording = Recording.open(path)
    settings = settings or Settings()
    first = replay(path, open_plugin, settings, time_limit=time_limit)
    if first.agrees:
        raise FailedPreconditionError(
            "there is nothing to reduce: the plugin does what the recording has; reduce with a plugin that fails"
        )
    finding = first.findings[0]
    if finding.call == 0:
        raise FailedPreconditionError(f"there is nothing to reduce: {finding}")
    with TemporaryFolder("reduce") as folder:
        limit = min(time_limit, _HANG_LIMIT) if finding.kind == "hang" else time_limit
        trial = folder / "trial.rec"

        def run(calls: Sequence[Call], left_out: Collection[int]) -> ReplayResult:
            write_recording(recording, trial, calls, leave_out=left_out)
            return replay(trial, open_plugin, replace(settings, stop_at=0), time_limit=limit)

        search = _Search(recording, finding, run, time.monotonic() + total_limit, progress)
        kept, left_out, complete = search.search()
        write_recording(recording, output, kept, leave_out=left_out)
    return Reduction(finding, len(kept), len(recording.calls), search.replays + 1, len(left_out), complete)


class _Search:
    """The search for the fewest calls (delta debugging), over calls and what depends on them."""

    def __init__(
        self,
        recording: Recording,
        finding: ReplayFinding,
        run: Callable[[Sequence[Call], Collection[int]], ReplayResult],
        deadline: float,
        progress: Callable[[int, int], None],
    ) -> None:
        self.replays = 0
        self._finding, self._run, self._deadline, self._progress = finding, run, deadline, progress
        self._trials: dict[tuple[frozenset[int], frozenset[int]], bool] = {}
        self._needs = _needs(recording)
        at = next(i for i, call in enumerate(recording.calls) if call.number == finding.call)
        # What came after the failure cannot matter, but for calls that ended while it was at work.
        self._calls = recording.calls[: at + 1]
        later = [call for call in recording.calls[at + 1 :] if self._readers(call)]
        self._calls += later[:64]

    def search(self) -> tuple[list[Call], set[int], bool]:
        """Return the calls that are left, those of them without host data, and whether the search came to an end."""
        calls = self._calls
        slim = self._closed(calls, self._ancestors(self._finding.call))
        if self._fails(slim, ()):
            calls = slim
        calls = self._without_getters(calls)
        size = max(1, len(calls) // 2)
        while size >= 1 and not self._is_over:
            calls, changed = self._pass(calls, size)
            size = min(size, len(calls)) if changed and size == 1 else size // 2
        left_out: set[int] = set()
        if self._finding.kind == "data":  # other contents would have other results on every plugin
            return calls, left_out, not self._is_over
        arrays = {call.number for call in calls if call.data is not None}
        if arrays and not self._is_over and self._fails(calls, arrays):
            return calls, arrays, True
        for number in sorted(arrays) if len(arrays) > 1 else ():
            if not self._is_over and self._fails(calls, left_out | {number}):
                left_out.add(number)
        return calls, left_out, not self._is_over

    def _without_getters(self, calls: list[Call]) -> list[Call]:
        """Try to do without all calls that only ask: they are most calls of a framework."""
        getters = {call.number for call in calls if call.number != self._finding.call and _only_asks(call)}
        fewer = self._without(calls, getters)
        return fewer if self._fails(fewer, ()) else calls

    @property
    def _is_over(self) -> bool:
        return time.monotonic() > self._deadline

    def _pass(self, calls: list[Call], size: int) -> tuple[list[Call], bool]:
        """Try to do without each run of so many calls, from the last to the first."""
        changed = False
        end = len(calls)
        while end > 0 and not self._is_over:
            begin = max(0, end - size)
            dropped = {call.number for call in calls[begin:end]}
            fewer = self._without(calls, dropped)
            if len(fewer) < len(calls) and self._finding.call not in dropped and self._fails(fewer, ()):
                calls, changed = fewer, True
            end = min(begin, len(calls))
        return calls, changed

    def _fails(self, calls: list[Call], left_out: Collection[int]) -> bool:
        if all(call.number != self._finding.call for call in calls):
            return False
        trial = frozenset(call.number for call in calls), frozenset(left_out)
        if trial in self._trials:
            return self._trials[trial]
        self.replays += 1
        result = self._run(calls, left_out)
        self._progress(len(calls), self.replays)
        first = result.findings[0] if result.findings else None
        same = first is not None and (first.signature, first.call) == (self._finding.signature, self._finding.call)
        self._trials[trial] = same
        return same

    def _without(self, calls: list[Call], dropped: set[int]) -> list[Call]:
        """Return the calls without some, and without those that need what these made."""
        gone = set(dropped)
        kept = []
        for call in calls:
            if call.number in gone or not gone.isdisjoint(self._needs[call.number]):
                gone.add(call.number)
            else:
                kept.append(call)
        return kept

    def _closed(self, calls: list[Call], numbers: set[int]) -> list[Call]:
        return [call for call in calls if call.number in numbers or self._readers(call)]

    def _readers(self, call: Call) -> bool:
        """Whether a call shows that what the failing call began has ended: without it nothing is compared."""
        if self._finding.kind not in ("data", "error", "no error", "code", "hang"):
            return False
        return call.function in _WAITS and self._finding.call in self._needs[call.number]

    def _ancestors(self, number: int) -> set[int]:
        numbers, waiting = set(), [number]
        while waiting:
            each = waiting.pop()
            if each not in numbers:
                numbers.add(each)
                waiting += self._needs[each]
        return numbers


def _only_asks(call: Call) -> bool:
    """Whether a call makes, ends and waits for nothing, and makes nothing known that later calls need."""
    fields = STRUCTS[call.arguments.kind].fields.values()
    acts = any({"DESTROYS", "DELETES", "CONSUMES", "DONATES", "KEEPS"}.intersection(each.marks) for each in fields)
    return (
        not acts and not handles_in(call.results) and not functions_in(call.arguments) and call.function not in _WAITS
    )


_WAITS = ("PJRT_Event_Await", "PJRT_Event_IsReady", "PJRT_Event_OnReady")


def _needs(recording: Recording) -> dict[int, set[int]]:
    """Return which calls each call needs: those that made or last returned a handle or a function that it takes."""
    makers: dict[tuple[str, int], int] = {}
    needs: dict[int, set[int]] = {}
    for call in recording.calls:
        taken = [("handle", each.number) for each in handles_in(call.arguments)]
        needs[call.number] = {makers[key] for key in taken if key in makers and makers[key] != call.number}
        for handle in handles_in(call.results):
            makers.setdefault(("handle", handle.number), call.number)
    for callback in recording.callbacks:
        giver = next(
            (c for c in recording.calls if any(f.number == callback.function for f in functions_in(c.arguments))), None
        )
        if giver is None:
            continue
        made = {each.number for each in handles_in(callback.arguments)}
        for call in recording.calls:
            if any(
                each.number in made and ("handle", each.number) not in makers for each in handles_in(call.arguments)
            ):
                needs[call.number].add(giver.number)
    return needs
