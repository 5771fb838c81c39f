"""Files that other processes see complete or not at all, permissions, stamps, the folders of users, temporary ones."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_APPLICATION = "pjrt"  # the name of our folders among those of other programs


def config_folder() -> Path:
    """Return the folder of this user's configuration of this package; it need not exist.

    ``$XDG_CONFIG_HOME/pjrt`` or ``~/.config/pjrt``; on macOS ``~/Library/Application Support/pjrt``; on Windows
    ``%APPDATA%\\pjrt``.
    """
    if sys.platform == "win32":
        return _folder_of("APPDATA", Path.home() / "AppData" / "Roaming")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / _APPLICATION
    return _folder_of("XDG_CONFIG_HOME", Path.home() / ".config")


def cache_folder() -> Path:
    """Return the folder of this user's files that can be made again; it need not exist.

    ``$XDG_CACHE_HOME/pjrt`` or ``~/.cache/pjrt``; on macOS ``~/Library/Caches/pjrt``; on Windows
    ``%LOCALAPPDATA%\\pjrt\\Cache``.
    """
    if sys.platform == "win32":
        return _folder_of("LOCALAPPDATA", Path.home() / "AppData" / "Local") / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / _APPLICATION
    return _folder_of("XDG_CACHE_HOME", Path.home() / ".cache")


def _folder_of(variable: str, otherwise: Path) -> Path:
    """Return our folder below the one that an environment variable names, if its path is absolute."""
    folder = os.environ.get(variable, "")
    return (Path(folder) if os.path.isabs(folder) else otherwise) / _APPLICATION


def shared_folder() -> Path:
    """Return an existing folder in which every user of this machine may make files, and remove only their own.

    ``/run/lock`` where it is such a folder, which is never cleaned up while the machine runs, and otherwise ``/tmp``.
    On Windows it is ``%PROGRAMDATA%\\pjrt``.

    Raises:
        OSError: the folder cannot be made.
    """
    if sys.platform == "win32":
        folder = Path(os.environ.get("PROGRAMDATA", "C:\\ProgramData")) / _APPLICATION
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    locks = Path("/run/lock")
    try:
        mode = locks.lstat().st_mode
    except OSError:
        return Path("/tmp")
    for_everyone = stat.S_IWOTH | stat.S_ISVTX
    return locks if stat.S_ISDIR(mode) and mode & for_everyone == for_everyone else Path("/tmp")


def writable_by_everyone(path: str | os.PathLike[str]) -> str:
    """Return why every user of this machine could change or replace the file at a path; empty if they cannot.

    On POSIX the modes of the file or folder and of all folders above it are checked, both of the path as it is
    written and of its links' target. A folder such as ``/tmp``, where everyone may make files but remove only their
    own, is itself unsafe; a file in it is safe if it belongs to this user or to root.
    On Windows nothing is checked, and the result is empty: Python does not read the lists of permissions there.

    Raises:
        OSError: nothing is at the path, or it cannot be read.
    """
    if sys.platform == "win32":
        return ""
    absolute = Path(os.path.abspath(path))
    for way in (absolute, absolute.resolve(strict=True)):
        if not way.is_symlink() and way.stat().st_mode & stat.S_IWOTH:
            return f"everyone may write to {way}"
        for entry, folder in zip((way, *way.parents), way.parents, strict=False):
            mode = folder.stat().st_mode
            if not mode & stat.S_IWOTH:
                continue
            if not mode & stat.S_ISVTX:
                return f"everyone may write to {folder}"
            if entry.lstat().st_uid not in (0, os.getuid()):
                return f"{entry} belongs to another user, and everyone may write to {folder}"
    return ""


def make_protected_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, if it is not there; users of other groups may not write.

    The mode does not depend on the process: some have a umask of 0.

    Raises:
        OSError: the folder cannot be made.
    """
    for each in (*reversed(folder.parents), folder):
        if not each.is_dir():
            each.mkdir(mode=0o775, exist_ok=True)


def readable_by_everyone(path: str | os.PathLike[str]) -> str:
    """Return why every user of this machine could read the file at a path; empty if they cannot.

    Only the mode of the file itself counts, as for the keys of ``ssh``: a folder may be opened later. On Windows
    nothing is checked, and the result is empty.

    Raises:
        OSError: nothing is at the path, or it cannot be read.
    """
    if sys.platform == "win32":
        return ""
    return f"everyone may read {os.fspath(path)}" if os.stat(path).st_mode & stat.S_IROTH else ""


PARTIAL = ".partial"
"""The suffix of files that are being written."""


def read_plain_file(path: str | os.PathLike[str]) -> bytes:
    """Read a regular file; reading a pipe would wait for its writer.

    Raises:
        OSError: the file cannot be read, or is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", os.fspath(path))
        return file.read()


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that other processes see complete or not at all; the last of several writers wins.

    Users outside of its group may not write to it.
    """
    with writing_whole(path) as file:
        file.write(data)


@contextlib.contextmanager
def writing_whole(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that appears at a path when the block ends, as by ``write_whole``; never, if the block fails."""
    partial = path.with_name(f".{path.name}.{os.urandom(8).hex()}{PARTIAL}")
    try:
        with open(partial, "xb", opener=functools.partial(os.open, mode=0o664)) as file:
            yield file
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


FileStamp = tuple[int, int, int, int]
"""Device, inode, size in bytes, and the time of the last write in nanoseconds."""


def file_stamp(path: str | os.PathLike[str]) -> FileStamp | None:
    """Return the stamp of the file at a path; ``None`` if there is no file, or it cannot be read."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class TemporaryFolder:
    """A folder of this process in the temporary one; only this user may use it.

    ``close`` removes it. One that a killed process left is removed by the next process that makes one: its maker keeps
    it locked, and the system unlocks it when the maker and the forks of it have ended. Windows has no such locks.

    Args:
        kind: what it is for, as a part of its name: ``pjrt-KIND-PROCESS-…``.

    Attributes:
        path: the folder.
    """

    def __init__(self, kind: str) -> None:
        import tempfile  # here, for the time that ``import pjrt`` takes

        _sweep(Path(tempfile.gettempdir()))
        self._descriptor: int | None = None
        while self._descriptor is None:  # one that another process swept before it was locked is lost
            self.path = Path(tempfile.mkdtemp(prefix=f"pjrt-{kind}-{os.getpid()}-"))
            if sys.platform == "win32":
                return
            self._descriptor = _locked(self.path)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder with all that is in it; a second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_OURS = re.compile(r"pjrt-.+-\d+-\w+")


def _sweep(folder: Path) -> None:
    """Remove the temporary folders whose makers have ended."""
    if sys.platform == "win32":
        return
    with os.scandir(folder) as entries:
        names = [each.path for each in entries if _OURS.fullmatch(each.name)]
    for name in names:
        descriptor = _locked(Path(name))
        if descriptor is not None:
            shutil.rmtree(name, ignore_errors=True)
            os.close(descriptor)


def _locked(folder: Path) -> int | None:
    """Lock a folder of this user; return its descriptor, or ``None`` if it is in use, of another user, or gone."""
    import fcntl

    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_uid == os.getuid() and os.path.samestat(os.fstat(descriptor), os.stat(folder)):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None
