"""What the tests need to run on any device: how to make its clients, and how to say a program to it."""

from anydevice.arrays import aligned
from anydevice.backend import Absent, Backend
from anydevice.programs import Programs

__all__ = ["Absent", "Backend", "Programs", "aligned"]
