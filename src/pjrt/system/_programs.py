"""The system's own programs."""

from __future__ import annotations


def answer(*command: str) -> str:
    """What one of the system's own programs prints; empty if it cannot be asked."""
    import subprocess

    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
