"""A client that gives the protocol's messages to a session itself, without a transport."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import pjrt
from pjrt import ifrt
from pjrt.api.element_type import ElementType
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.values import array_spec_proto, element_type_proto, error_of, shape_proto, sharding_proto
from pjrt.remote.protocol.versions import NEWEST, Version
from pjrt.remote.server.memory import array_in, bytes_of
from pjrt.remote.server.session import ServeOptions, Session, Workers

PATIENCE = 60

ALWAYS_COPY, REUSE_INPUT, DONATE_INPUT = 1, 2, 3
ADDRESSABLE_SHARDS, ALL_SHARDS = 1, 2


def remap_plan_proto(plan: ifrt.RemapPlan) -> Any:
    """Return a plan as a ``RemapPlanProto``."""
    proto = wire.RemapPlanProto(
        input_specs=map(array_spec_proto, plan.input_specs), output_specs=map(array_spec_proto, plan.output_specs)
    )
    for mapping in plan.mappings:
        message = proto.mappings.add(in_array=mapping.in_array, out_array=mapping.out_array)
        for side, intervals in (("from", mapping.from_), ("to", mapping.to)):
            for part in ("start", "end", "step"):
                getattr(message, f"{side}_{part}").extend(getattr(interval, part) for interval in intervals)
    return proto


class ProtocolClient:
    """Speaks to a session of a client of this process.

    Args:
        client: the client that is served.
        version: the versions that both ends speak.
        options: fields of the options of the server.

    Attributes:
        session: the session.
        responses: the responses by the number of their request.
    """

    def __init__(self, client: pjrt.Client, version: Version = NEWEST, **options: Any) -> None:
        self.responses: dict[int, Any] = {}
        self._arrived = threading.Condition()
        self._handles = itertools.count(1)
        self._ops = itertools.count(1)
        self._workers = Workers(4)
        self.ifrt = ifrt.Client(client)
        self.session = Session(self.ifrt, self._receive, self._workers.for_session(), version, ServeOptions(**options))

    def close(self) -> None:
        """End the session, and its threads."""
        self.session.close("the test is over")
        assert self._workers.close(PATIENCE)

    def _receive(self, response: Any) -> None:
        with self._arrived:
            self.responses[response.response_metadata.op_id] = response
            self._arrived.notify_all()

    def handle(self) -> int:
        """Return a new handle."""
        return next(self._handles)

    def send(self, kind: str, *, context: int = 0, **fields: Any) -> int:
        """Send a request of a kind, and return its number."""
        number = next(self._ops)
        request = wire.IfrtRequest()
        request.request_metadata.op_id = number
        request.request_metadata.user_context_id = context
        message = getattr(request, f"{kind}_request")
        message.SetInParent()
        message.MergeFrom(type(message)(**fields))
        self.session.receive(request)
        return number

    def wait(self, number: int) -> Any:
        """Return the response to a request, without what is around it; raise its error."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: number in self.responses, PATIENCE), f"no response to {number}"
        response = self.responses[number]
        error = error_of(response.response_metadata.status)
        if error is not None:
            assert response.WhichOneof("response") is None
            raise error
        return getattr(response, response.WhichOneof("response"))

    def ask(self, kind: str, **fields: Any) -> Any:
        """Send a request, and return the response or raise its error."""
        return self.wait(self.send(kind, **fields))

    # Arrays.

    def put(self, value: Any, sharding: ifrt.Sharding | None = None) -> int:
        """Put an array on devices, and return its handle."""
        array = np.asarray(value)
        handle = self.handle()
        self.session.host_buffers.store(handle, bytes_of(array, None))
        self.ask(
            "make_array_from_host_buffer",
            **self.array_fields(array, sharding),
            host_buffer_handle=handle,
            array_handle=handle,
        )
        return handle

    def array_fields(self, array: np.ndarray[Any, Any], sharding: ifrt.Sharding | None = None) -> dict[str, Any]:
        """Return the fields that tell a request about an array."""
        sharding = sharding or ifrt.SingleDeviceSharding(self.ifrt.devices[0])
        return {
            "dtype": element_type_proto(ElementType.of(array.dtype)),
            "shape": shape_proto(array.shape),
            "sharding": sharding_proto(sharding),
        }

    def get(self, handle: int, shape: Sequence[int], dtype: Any = np.float32) -> np.ndarray[Any, Any]:
        """Return the value of an array."""
        buffer = self.handle()
        self.ask("copy_to_host_buffer", array_handle=handle, host_buffer_handle=buffer)
        return array_in(self.session.host_buffers.take(buffer), ElementType.of(dtype), tuple(shape), None)

    def spec(self, shape: Sequence[int], sharding: ifrt.Sharding, element_type: ElementType = ElementType.F32) -> Any:
        """Return an ``ArraySpecProto``."""
        return array_spec_proto(ifrt.ArraySpec(tuple(shape), element_type, sharding))


@contextmanager
def connected(client: pjrt.Client, version: Version = NEWEST, **options: Any) -> Iterator[ProtocolClient]:
    """Connect to a session of a client, and end it in the end."""
    speaker = ProtocolClient(client, version, **options)
    try:
        yield speaker
    finally:
        speaker.close()
