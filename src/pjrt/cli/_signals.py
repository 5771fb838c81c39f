"""The end of commands that run until they are asked to end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

from pjrt.cli._console import echo

INTERRUPTED = 130
"""The exit code where an interrupt from the keyboard ended the work, as shells report it."""

_ENDING = (signal.SIGINT, signal.SIGTERM)


class EndRequest:
    """A request to end, which a signal or another thread makes.

    It is a byte in a pipe, which Python writes in the signal's own handler in C. A lock would not do: a signal that
    comes just before the main thread waits for it is handled in Python only when the thread goes on, which is never.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def wakeup_fd(self) -> int:
        """The descriptor to which a signal's number is written (``signal.set_wakeup_fd``)."""
        return self._write

    def set(self) -> None:
        """Make the request, from a thread. May be called again, also when nobody waits any more."""
        with self._lock, contextlib.suppress(BlockingIOError):  # the pipe is full of requests
            if not self._is_closed:
                os.write(self._write, bytes([signal.SIGTERM]))

    def wait(self) -> None:
        """Wait until the request is made."""
        while not any(number in _ENDING for number in os.read(self._read, 64)):
            pass

    def close(self) -> None:
        """Close the pipe."""
        with self._lock:
            self._is_closed = True
            os.close(self._read)
            os.close(self._write)


@contextlib.contextmanager
def asked_to_end() -> Iterator[EndRequest]:
    """Yield a request to end, which Ctrl-C and SIGTERM make; they do nothing else meanwhile."""
    request = EndRequest()
    handlers = {number: signal.signal(number, lambda *_: None) for number in _ENDING}
    wakeup_fd = signal.set_wakeup_fd(request.wakeup_fd, warn_on_full_buffer=False)
    try:
        yield request
    finally:
        signal.set_wakeup_fd(wakeup_fd)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        request.close()


@contextlib.contextmanager
def ended_within(seconds: float, message: str) -> Iterator[None]:
    """End the process if the block takes more than so many seconds; print a message then.

    It ends also while code in C does not return, and without a wait for the threads that run it.
    """

    def end() -> None:
        echo(message, err=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
