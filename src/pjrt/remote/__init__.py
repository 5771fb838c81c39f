"""Remote devices: the IFRT proxy protocol, a server of any client's devices, and a client of such servers.

``serve`` lets programs in other processes, and on other machines, use the devices of a client of this process. Stock
JAX speaks the protocol with jaxlib alone. The package needs the extra ``remote``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pjrt.api.lazy_names import lazy_names

if TYPE_CHECKING:
    from pjrt.remote.metrics import MetricsServer
    from pjrt.remote.security.limits import Limits
    from pjrt.remote.security.tunnel import Tunnel
    from pjrt.remote.server.isolation import Isolated
    from pjrt.remote.server.server import Server, serve
    from pjrt.remote.server.session import ServeOptions

__all__ = ["Isolated", "Limits", "MetricsServer", "ServeOptions", "Server", "Tunnel", "serve"]

_HOMES = {
    ".metrics": "MetricsServer",
    ".security.limits": "Limits",
    ".security.tunnel": "Tunnel",
    ".server.isolation": "Isolated",
    ".server.server": "Server serve",
    ".server.session": "ServeOptions",
}


if not TYPE_CHECKING:  # a type checker has the names from above; with these functions it would accept any other
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
