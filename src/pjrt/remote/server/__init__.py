"""The server: devices of a client of this process for programs elsewhere."""

from __future__ import annotations

from pjrt.remote.server.server import Server, serve

__all__ = ["Server", "serve"]
