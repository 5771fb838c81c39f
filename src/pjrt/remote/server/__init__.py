"""The server: devices of a client of this process for programs elsewhere."""
