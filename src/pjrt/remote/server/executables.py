"""Executables of a session, with the client's functions that they call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pjrt.api.execute_options import ExecuteOptions
from pjrt.ifrt.array import Array
from pjrt.ifrt.loaded_executable import ExecuteResult, LoadedExecutable
from pjrt.remote.server.host_callbacks import DeviceCalls, HostCallback


class SessionExecutable:
    """An executable of a session.

    Args:
        executable: the executable.
        callbacks: the functions of the client that the program calls.
        size: the bytes of the program that the client sent.
    """

    __slots__ = ("_callbacks", "executable", "size")

    def __init__(self, executable: LoadedExecutable, callbacks: Sequence[HostCallback] = (), *, size: int = 0) -> None:
        self.executable = executable
        self.size = size
        self._callbacks = tuple(callbacks)

    def launch(self, arguments: Sequence[Array], options: ExecuteOptions) -> list[Array]:
        """Run the program without a future of its completion; raise the errors of ``LoadedExecutable.execute``."""
        if not self._callbacks:
            return self.executable.launch(arguments, options)
        return self.execute(arguments, options).outputs

    def execute(self, arguments: Sequence[Array], options: ExecuteOptions) -> ExecuteResult:
        """Run the program; raise the errors of ``LoadedExecutable.execute``."""
        if not self._callbacks:
            return self.executable.execute(arguments, options)
        rows = [[DeviceCalls(callback) for callback in self._callbacks] for _ in self.executable.addressable_devices]
        options = replace(
            options,
            send_callbacks=[[entry for calls in row for entry in calls.send_callbacks()] for row in rows],
            recv_callbacks=[[entry for calls in row for entry in calls.recv_callbacks()] for row in rows],
            use_major_to_minor_data_layout_for_callbacks=any(
                callback.signature.is_row_major for callback in self._callbacks
            ),
        )
        for callback in self._callbacks:
            callback.add_user()
        try:
            result = self.executable.execute(arguments, options)
        except BaseException:
            self.release()
            raise
        result.status.add_done_callback(lambda _: self.release())
        return result

    def release(self) -> None:
        """Note that a user of the callbacks is gone: the session, which forgets the executable, or an execution."""
        for callback in self._callbacks:
            callback.remove_user()

    def delete(self) -> None:
        """Unload the executable; executions under way end first."""
        self.executable.delete()
