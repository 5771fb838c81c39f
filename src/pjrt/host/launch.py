"""Launches: one run of a program on all of its devices."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pjrt.api import waits
from pjrt.api.errors import AbortedError, CancelledError, DeadlineExceededError, InvalidArgumentError, PjrtError
from pjrt.api.program import the_stranger
from pjrt.host.device_errors import without_traceback
from pjrt.host.fork_safety import runtime_lock

if TYPE_CHECKING:
    from pjrt.host.process_exchange import ProcessExchange

_run_ids = itertools.count(1)

_WAIT_SLICE_SECONDS = 0.5


class Launch:
    """The common part of one run on several devices: its number, and the means to meet each other.

    Attributes:
        run_id: a number that is different for each run in this process.
        launch_id: the number that the caller gave, 0 for none.
        processes: the way to the other processes, if devices of several processes take part; otherwise ``None``.
    """

    __slots__ = (
        "_changed", "_error", "_given_up", "_interruptions", "_mail", "_meetings", "_stranger", "_under_way",
        "launch_id", "processes", "run_id",
    )  # fmt: skip

    def __init__(self, launch_id: int = 0, processes: ProcessExchange | None = None) -> None:
        self.run_id = next(_run_ids)
        self.launch_id = launch_id
        self.processes = processes
        self._changed = threading.Condition(runtime_lock)
        self._meetings: dict[Hashable, _Meeting] = {}
        self._mail: dict[Hashable, deque[Any]] = {}
        self._error: PjrtError | None = None
        self._given_up = False
        self._interruptions = waits.interruption_count()
        self._stranger = the_stranger()
        # The executions that are not done. They hold the launch, too, until then.
        self._under_way: list[_UnderWay] = []

    def rendezvous(
        self, key: Hashable, who: Hashable, participants: Sequence[Hashable], value: Any, timeout: float
    ) -> list[Any]:
        """Meet the other participants under a key; return the values of all, in the order of ``participants``.

        Args:
            key: the meeting. After each participant has used it once, it may be used again.
            who: the participant that calls.
            participants: all participants; the same for all.
            value: the caller's value.
            timeout: the longest time to wait for the others, in seconds.

        Raises:
            InvalidArgumentError: the caller is not a participant, or has come to the meeting already.
            AbortedError: another device of the launch failed.
            DeadlineExceededError: a participant did not come in time.
        """
        expected = tuple(participants)
        if who not in expected:
            raise InvalidArgumentError(f"{who} is not one of the participants {expected} of the rendezvous {key!r}")
        with self._changed:
            meeting = self._join(key, who, expected, value)
            if meeting.is_complete:
                del self._meetings[key, expected]
                self._changed.notify_all()
            else:
                self._wait_for(meeting, key, timeout)
            return [meeting.values[participant] for participant in expected]

    def work_together(
        self,
        key: Hashable,
        who: Hashable,
        participants: Sequence[Hashable],
        value: Any,
        timeout: float,
        work: Callable[[list[Any]], Sequence[Any]],
    ) -> Any:
        """Meet the other participants under a key, and let the last one that comes do some work for all.

        Args:
            key, who, participants, value, timeout: as ``rendezvous`` has them. The time to wait ends when all are
                there: the work may take longer.
            work: called with the values of all, in the order of ``participants``; returns a result for each of them.

        Returns:
            The caller's own result.

        Raises:
            PjrtError: the work failed; or as ``rendezvous``.
        """
        expected = tuple(participants)
        if expected == (who,):
            self.check()
            return work([value])[0]
        with self._changed:
            meeting = self._join(key, who, expected, value)
            if not meeting.is_complete:
                self._wait_for(meeting, key, timeout)
                while meeting.outcome is None:
                    self.check()
                    self._changed.wait(_WAIT_SLICE_SECONDS)
                return self._result(meeting, expected.index(who))
            del self._meetings[key, expected]
            self._changed.notify_all()
        outcome: Sequence[Any] | PjrtError
        try:
            outcome = work([meeting.values[participant] for participant in expected])
        except BaseException as error:
            outcome = without_traceback(error)
        with self._changed:
            meeting.outcome = outcome
            self._changed.notify_all()
        return self._result(meeting, expected.index(who))

    @staticmethod
    def _result(meeting: _Meeting, place: int) -> Any:
        if isinstance(meeting.outcome, PjrtError):
            raise meeting.outcome
        assert meeting.outcome is not None
        return meeting.outcome[place]

    def post(self, key: Hashable, value: Any) -> None:
        """Leave a value under a key for ``take``; do not wait."""
        with self._changed:
            self._mail.setdefault(key, deque()).append(value)
            self._changed.notify_all()

    def take(self, key: Hashable, timeout: float) -> Any:
        """Return the first value that was left under a key; wait for it.

        Raises:
            AbortedError: another device of the launch failed.
            DeadlineExceededError: nothing was left in time.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while not self._mail.get(key):
                self.check()
                left = deadline - time.monotonic()
                if left <= 0:
                    raise DeadlineExceededError(f"no other device left anything under {key!r} within {timeout:g} s")
                self._changed.wait(min(left, _WAIT_SLICE_SECONDS))
            return self._mail[key].popleft()

    def abort(self, error: PjrtError) -> None:
        """Make all present and future waits of the launch fail because of this error."""
        with self._changed:
            first = self._error is None
            if first:
                self._error = error
                self._changed.notify_all()
        if first and self.processes is not None:
            self.processes.fail(error)

    def give_up(self, error: PjrtError) -> None:
        """Abort the launch although no device failed, because nobody waits for it any more."""
        with self._changed:
            if self._error is None:
                self._given_up = True
            self.abort(error)

    def poison(self, error: PjrtError) -> None:
        """Fail the results of all executions at once, whatever their functions are doing."""
        for execution in list(self._under_way):
            execution.poison(error)

    @property
    def is_given_up(self) -> bool:
        """Whether nobody waits for it any more."""
        return self._given_up

    def begin(self, execution: _UnderWay) -> None:
        """Add an execution that begins."""
        self._under_way.append(execution)

    def end(self, execution: _UnderWay) -> None:
        """Remove an execution that is done or has failed; does nothing the second time."""
        with contextlib.suppress(ValueError):
            self._under_way.remove(execution)

    def check(self) -> None:
        """Raise an error if the launch has ended.

        Raises:
            AbortedError: a device of the launch failed, or the launch was given up: by the client of a server that has
                left, for example.
        """
        self._end_with_stranger()
        if self._interruptions != waits.interruption_count():
            waits.forget_variables()
            if not any(each.is_wanted for each in self._under_way):
                self.give_up(
                    CancelledError("Ctrl-C ended a wait for a device, and nothing holds the results of the launch")
                )
        if self._error is not None:
            raise self._aborted()

    def check_wanted(self) -> None:
        """Raise an error if the client of a server that began the launch has left: it need not begin on a device.

        Raises:
            AbortedError: the launch was given up for that.
        """
        if self._end_with_stranger():
            raise self._aborted()

    def _end_with_stranger(self) -> bool:
        if self._stranger is None or not self._stranger.has_left:
            return False
        self.give_up(CancelledError("the client that ran the program has left"))
        return True

    def _join(self, key: Hashable, who: Hashable, expected: tuple[Hashable, ...], value: Any) -> _Meeting:
        self.check()
        place = (key, expected)
        meeting = self._meetings.get(place)
        if meeting is None:
            meeting = self._meetings[place] = _Meeting(len(expected))
        if who in meeting.values:
            raise InvalidArgumentError(f"{who} came to the rendezvous {key!r} twice")
        meeting.values[who] = value
        return meeting

    def _wait_for(self, meeting: _Meeting, key: Hashable, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not meeting.is_complete:
            self.check()
            left = deadline - time.monotonic()
            if left <= 0:
                raise DeadlineExceededError(
                    f"a collective cannot complete: {len(meeting.values)} of {meeting.expected} participants came to "
                    f"the rendezvous {key!r} within {timeout:g} s, only {list(meeting.values)}; is the program run on "
                    "all of its devices?"
                )
            self._changed.wait(min(left, _WAIT_SLICE_SECONDS))

    def _aborted(self) -> PjrtError:
        assert self._error is not None
        why = "the launch was given up" if self._given_up else "another device of the launch failed"
        error = AbortedError(f"{why}: {self._error}", payloads=self._error.payloads)
        error.__cause__ = self._error
        return error


class _UnderWay(Protocol):
    """The part of an execution that a launch knows."""

    @property
    def is_wanted(self) -> bool:
        """Whether an owner of its results is left."""

    def poison(self, error: PjrtError) -> bool:
        """Fail the results at once."""


class _Meeting:
    __slots__ = ("expected", "outcome", "values")

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.values: dict[Hashable, Any] = {}
        self.outcome: Sequence[Any] | PjrtError | None = None

    @property
    def is_complete(self) -> bool:
        return len(self.values) == self.expected
