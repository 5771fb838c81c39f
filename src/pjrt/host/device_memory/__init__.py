"""Memory of a device's own, which numpy cannot see: its author's allocator behind the buffers of the runtime.

Without one, buffers are numpy arrays, and nothing of this package is used.
"""
