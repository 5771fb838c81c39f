"""Installed packages, made by the tests: a folder of ``sys.path`` with modules and the metadata that pip writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install(
    folder: Path,
    name: str,
    entry_points: Mapping[str, Mapping[str, str]] | None = None,
    files: Mapping[str, str | bytes | Path] | None = None,
    version: str = "1.0",
) -> None:
    """Put a package into a folder.

    Args:
        folder: the folder, to be put on ``sys.path``.
        name: the distribution's name.
        entry_points: for each group what each name stands for.
        files: for each file, by its path in the folder, its text or bytes, or the file to link to.
        version: the distribution's version.
    """
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines: list[str] = []
    for group, points in (entry_points or {}).items():
        lines += [f"[{group}]", *(f"{point} = {target}" for point, target in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for place, content in (files or {}).items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            path.symlink_to(content)
        elif isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content)
    record = [f"{place},," for place in files or {}]
    (metadata / "RECORD").write_text("\n".join(record) + "\n")
