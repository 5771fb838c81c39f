"""The uniform device API: the abstract classes that every device implements and every user calls, one module a noun.

This is the lowest layer: it must not know any device, any compiler, the C ABI or the command line. The names follow
PJRT's own in Python spelling, and each docstring has the name in PJRT. An operation that a device does not have raises
``UnimplementedError``, which names the device and the operation.
"""
