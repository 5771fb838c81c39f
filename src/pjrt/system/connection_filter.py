"""A filter of a listening socket: attempts to connect that the kernel drops before it allocates anything for them.

Linux has such filters for each user (``SO_ATTACH_FILTER``), as programs of BPF: an instruction is its code, two
relative jumps and a number. Connections that are open have the filter, too, and none of their packets is dropped.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import sys
from collections.abc import Mapping

MOST_KEPT_OUT = 64
"""The networks that a filter may have."""

_ATTACH, _DETACH = 26, 27
_LOAD, _LOAD_HALF, _LOAD_BYTE, _AND, _IS, _AT_LEAST, _RETURN = 0x20, 0x28, 0x30, 0x54, 0x15, 0x35, 0x06
_FLAGS, _NEW_OR_ANSWER, _NEW = 13, 0x12, 0x02  # a byte of the header of TCP, and two bits of it
_PROTOCOL, _RANDOM, _NETWORK_HEADER = 0xFFFFF000, 0xFFFFF000 + 56, 0xFFF00000
_IPV4, _IPV6 = 0x0800, 0x86DD
_PASS, _DROP = 0xFFFFFFFF, 0

_Instruction = tuple[int, int, int, int]


def drop_attempts(descriptor: int, shares: Mapping[str, float]) -> None:
    """Have the kernel drop attempts to connect to a socket that listens, at random; other systems drop none.

    Args:
        descriptor: the socket.
        shares: by network the share of the attempts that pass. A network is an address of IPv4, or the first 64 bits
            of one of IPv6 in hexadecimal digits. All attempts of other networks pass.
    """
    if sys.platform != "linux":
        return
    program = [(_LOAD_BYTE, 0, 0, _FLAGS), (_AND, 0, 0, _NEW_OR_ANSWER), (_IS, 1, 0, _NEW), (_RETURN, 0, 0, _PASS)]
    for network, share in shares.items():
        program += _dropping(network, share)
    program.append((_RETURN, 0, 0, _PASS))
    code = ctypes.create_string_buffer(b"".join(struct.pack("@HBBI", *each) for each in program))
    with contextlib.suppress(OSError):  # it is closed by now, or a sandbox has no filters
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, descriptor)
        try:
            if shares:
                described = struct.pack("@HP", len(program), ctypes.addressof(code))
                listener.setsockopt(socket.SOL_SOCKET, _ATTACH, described)
            else:
                listener.setsockopt(socket.SOL_SOCKET, _DETACH, 0)
        finally:
            listener.detach()


def _dropping(network: str, share: float) -> list[_Instruction]:
    """Return the instructions that drop an attempt of a network, or go on behind them for that of another one."""
    if "." in network:
        kind, first = _IPV4, 12
        words = struct.unpack("!I", socket.inet_aton(network))
    else:
        kind, first = _IPV6, 8
        words = struct.unpack("!2I", bytes.fromhex(network))
    tests = [(_LOAD_HALF, _PROTOCOL, kind)]
    tests += [(_LOAD, _NETWORK_HEADER + first + 4 * place, word) for place, word in enumerate(words)]
    program: list[_Instruction] = []
    for number, (load, place, value) in enumerate(tests):
        behind = 2 * (len(tests) - number - 1) + 4
        program += [(load, 0, 0, place), (_IS, 0, behind, value)]
    least = int(share * 0xFFFFFFFF)
    return [*program, (_LOAD, 0, 0, _RANDOM), (_AT_LEAST, 0, 1, least), (_RETURN, 0, 0, _DROP), (_RETURN, 0, 0, _PASS)]
