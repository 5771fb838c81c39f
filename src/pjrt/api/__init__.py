"""The uniform device API: what every device offers and every user calls, one module a noun.

Abstract classes and value types only. This room is the ground floor: it must not know any device, any compiler, the C
ABI or the command line; everything above speaks in its nouns. The names follow PJRT's own in Python spelling, and each
docstring says what a thing is called there. What a device does not offer raises ``UnimplementedError``, which names the
device and the operation.
"""
