"""The requirements of buffers."""
