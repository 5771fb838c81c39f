"""The IFRT proxy protocol: its messages and versions, and the objects of ``pjrt.ifrt`` inside messages."""
