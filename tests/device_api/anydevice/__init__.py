"""Tools for tests that run on any device: make its clients, and write programs in its format."""

from anydevice.arrays import aligned
from anydevice.backend import Absent, Backend
from anydevice.programs import Programs

__all__ = ["Absent", "Backend", "Programs", "aligned"]
