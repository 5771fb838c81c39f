"""The client of a server: ``pjrt.client("remote", address="grpc://…")``, a whole client over one connection."""
