"""The transport of the IFRT proxy protocol: gRPC."""
