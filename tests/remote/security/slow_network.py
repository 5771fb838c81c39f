"""A proxy on the loopback interface that behaves like a slow or broken network."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class SlowNetwork:
    """A way to a server: its bandwidth and latency are limited, and it can stall or break.

    Args:
        target: the host and port of the server.
        bytes_per_second: the bandwidth of each direction of each connection; 0 for any.
        latency: the time that data takes in each direction, in seconds.
        cut_after: breaks each connection when the client has sent so many bytes; 0 for never.
    """

    def __init__(
        self, target: tuple[str, int], *, bytes_per_second: float = 0, latency: float = 0, cut_after: int = 0
    ) -> None:
        self._target = target
        self._bytes_per_second = bytes_per_second
        self._latency = latency
        self._cut_after = cut_after
        self._loop = asyncio.new_event_loop()
        self._passing = asyncio.Event()
        self._passing.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.sent_by_clients = 0
        self.connections = 0
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(60)

    @property
    def address(self) -> str:
        """The address of this side, ``127.0.0.1:PORT``."""
        return f"127.0.0.1:{self._port}"

    def stall(self) -> None:
        """Pass nothing on any more; connections stay open, as when a cable is pulled."""
        self._loop.call_soon_threadsafe(self._passing.clear)

    def resume(self) -> None:
        """Pass on what came, and what comes."""
        self._loop.call_soon_threadsafe(self._passing.set)

    def cut(self) -> None:
        """Break all connections; new ones are possible."""

        def cancel() -> None:
            for task in self._tasks:
                task.cancel()

        self._loop.call_soon_threadsafe(cancel)

    def close(self) -> None:
        """End the proxy with its connections."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self, ready: threading.Event) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(ready))

    async def _serve(self, ready: threading.Event) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._begin, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._connect(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        remote_writer = None
        try:
            remote_reader, remote_writer = await asyncio.open_connection(*self._target)
            ways = [
                self._pass(reader, remote_writer, is_client=True),
                self._pass(remote_reader, writer, is_client=False),
            ]
            tasks = [self._loop.create_task(way) for way in ways]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        except OSError:
            pass
        finally:
            for end in (writer, remote_writer):
                if end is not None:
                    end.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_client: bool) -> None:
        free_at = self._loop.time()
        sent = 0
        while data := await reader.read(1 << 14 if self._bytes_per_second else 1 << 18):
            await self._passing.wait()
            if self._bytes_per_second:
                free_at = max(free_at, self._loop.time()) + len(data) / self._bytes_per_second
                await asyncio.sleep(free_at - self._loop.time())
            sent += len(data)
            self.sent_by_clients += len(data) if is_client else 0
            if is_client and self._cut_after and sent >= self._cut_after:
                return
            if self._latency:
                self._loop.call_later(self._latency, writer.write, data)
            else:
                writer.write(data)
                await writer.drain()


@contextmanager
def slow_network(target: tuple[str, int], **how: float) -> Iterator[SlowNetwork]:
    """Open a slow network, and close it after the block."""
    network = SlowNetwork(target, **how)  # type: ignore[arg-type]
    try:
        yield network
    finally:
        network.close()
