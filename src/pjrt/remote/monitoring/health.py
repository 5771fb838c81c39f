"""gRPC's health service (``grpc.health.v1``), for probes and load balancers: the method ``Check``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pjrt.api.errors import NotFoundError
from pjrt.api.protobuf import message_classes
from pjrt.remote.protocol.messages import parsed
from pjrt.remote.transport.grpc_server import SHORT, CallContext, Method, Unary

_SERVICES = ("", "xla.ifrt.proxy.GrpcIfrtService")
_SERVING, _NOT_SERVING = 1, 2

# The status is an enumeration, which is a number on the wire.
_MESSAGES = {"HealthCheckRequest": {"service": (1, "string")}, "HealthCheckResponse": {"status": (1, "int64")}}


def health_methods(is_healthy: Callable[[], bool]) -> dict[str, Method]:
    """Return the methods of the health service, by their paths.

    Args:
        is_healthy: whether the server accepts sessions.
    """

    def check(request: bytes, context: CallContext) -> bytes:
        messages = _messages()
        service = parsed(messages["HealthCheckRequest"], request).service
        if service not in _SERVICES:
            raise NotFoundError(f"expected no service or {_SERVICES[1]}, found another one")
        response: bytes = messages["HealthCheckResponse"](
            status=_SERVING if is_healthy() else _NOT_SERVING
        ).SerializeToString()
        return response

    return {"/grpc.health.v1.Health/Check": Unary(check, SHORT)}


@functools.cache
def _messages() -> dict[str, Any]:
    return message_classes("pjrt.health", _MESSAGES)
