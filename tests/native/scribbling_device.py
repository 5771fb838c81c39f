"""A device whose programs write what nobody expects into the memory that its worker shares with the runtime."""

import mmap
import os
import random
import struct

import pjrt

ANSWERS = 0xC0 + (1 << 20)  # where the ring of answers begins: behind the head and the ring of commands


def scribble(how):
    """Change the ring of answers: its counter, or the records in it."""
    shared = mmap.mmap(3, os.fstat(3).st_size)
    head, data = ANSWERS, ANSWERS + 128
    assert struct.unpack_from("<Q", shared, head)[0] < 1 << 20, "this is no counter of bytes"
    if how == "counter":
        struct.pack_into("<Q", shared, head, 1 << 60)
    elif how == "records":
        posted = struct.unpack_from("<Q", shared, head)[0]
        noise = random.Random(5).randbytes(4096)
        shared[data + posted : data + posted + len(noise)] = noise
        struct.pack_into("<Q", shared, head, posted + len(noise))
    elif how == "taken":
        struct.pack_into("<Q", shared, 0x40 + 64, 1 << 60)


def make_client(how="counter"):
    """Return a client whose programs do this."""

    def compile(program, options):
        def run(x):
            scribble(how)
            return x + 1

        return run

    return pjrt.host.HostClient("scribbling", compile=compile)
