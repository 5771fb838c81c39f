"""Runs a command in a host of ``switch.py``: ``enter_host.py SWITCH NAMESPACE NAME HOSTS-FILE COMMAND…``.

The host has a name of its own, and knows those of the others.
"""

from __future__ import annotations

import os
import sys

import switch

_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18


def main(process: str, namespace: str, name: str, hosts_file: str, *command: str) -> None:
    """Enter the host, and become the command."""
    entered = [f"/proc/{process}/fd/{namespace}"]
    if os.geteuid():
        entered.insert(0, f"/proc/{process}/ns/user")
    for path in [os.open(path, os.O_RDONLY) for path in entered]:
        switch.checked("setns", path, 0)
        os.close(path)
    switch.checked("unshare", switch.CLONE_NEWNS | switch.CLONE_NEWUTS)
    switch.checked("sethostname", name.encode(), len(name))
    switch.checked("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    switch.checked("mount", hosts_file.encode(), b"/etc/hosts", None, _MS_BIND, None)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
