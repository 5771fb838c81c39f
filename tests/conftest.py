"""Fixtures that every test may use: each room's own lie beside its tests."""

import signal

pytest_plugins = ["tiny.fixtures"]

# A runner in the background of a shell has Ctrl-C ignored, and its children inherit that; the tests of Ctrl-C need it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
