"""The devices in the box: XLA's CPU compiler, and the reference interpreter (floor 3: knows nothing of the C ABI or the
command line).
"""
