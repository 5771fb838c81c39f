"""The messages of the gRPC service itself: versions, sessions, host buffers (``grpc_ifrt_service.proto``)."""

from __future__ import annotations

from pjrt.api.protobuf import MessageTable

# message: {field: (number, type) or (number, type, oneof)}; a type in brackets is repeated.
TRANSPORT: MessageTable = {
    "GrpcGetVersionRequest": {"min_version": (1, "IfrtProxyVersion"), "max_version": (2, "IfrtProxyVersion")},
    "GrpcGetVersionResponse": {"version": (1, "IfrtProxyVersion")},
    "GrpcIfrtSessionMetadata": {"version": (1, "IfrtProxyVersion"), "initialization_data": (2, "AttributeMapProto")},
    "GrpcHostBufferStoreMetadata": {
        "session_id": (1, "fixed64"),
        "handle": (2, "fixed64"),
        "buffer_size": (3, "int64"),
    },
    "GrpcHostBufferStoreRequest": {"data": (1, "bytes")},
    "GrpcHostBufferStoreResponse": {},
    "GrpcHostBufferReadFromDiskRequest": {"metadata": (1, "GrpcHostBufferStoreMetadata")},
    "GrpcHostBufferReadFromDiskResponse": {},
    "GrpcHostBufferLookupRequest": {"session_id": (1, "fixed64"), "handle": (2, "fixed64")},
    "GrpcHostBufferLookupResponse": {"data": (1, "bytes")},
    "GrpcHostBufferDeleteRequest": {"session_id": (1, "fixed64"), "handle": (2, "fixed64")},
    "GrpcHostBufferDeleteResponse": {},
}
