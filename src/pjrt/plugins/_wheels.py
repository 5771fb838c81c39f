"""Vendors' plugins by a short name: which wheel brings one, and where it lies when it is installed."""

from __future__ import annotations

import glob
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from pjrt.api.errors import NotFoundError


@dataclass(frozen=True)
class Wheel:
    """A wheel with a plugin.

    Attributes:
        distribution: what ``pip install`` calls it.
        library: the plugin's library, as a path from a folder of ``sys.path``.
    """

    distribution: str
    library: str


# For each name the wheels that may bring its plugin, the one to recommend first.
WHEELS = {
    "cuda": (
        Wheel("jax-cuda13-pjrt", "jax_plugins/xla_cuda13/xla_cuda_plugin.so"),
        Wheel("jax-cuda12-pjrt", "jax_plugins/xla_cuda12/xla_cuda_plugin.so"),
    ),
    "rocm": (
        Wheel("jax-rocm7-pjrt", "jax_plugins/xla_rocm7/xla_rocm_plugin.so"),
        Wheel("jax-rocm60-pjrt", "jax_plugins/xla_rocm60/xla_rocm_plugin.so"),
    ),
    "tpu": (Wheel("libtpu", "libtpu/libtpu.so"),),
}

# Where a TPU is, libtpu asks the machine's metadata server for its place in the slice. Where none is, that server
# does not exist, and libtpu keeps asking it for minutes. These settings answer in its place: do not ask, you are the
# only worker of a small slice. Topologies and compiling do not depend on which slice they name. Besides, libtpu refuses
# to be loaded by two processes at once, to keep them off one TPU; where there is none, several may well compile.
_WITHOUT_TPU = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}
_TPU_DEVICE_FILES = ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*")

# What the drivers put in place where the hardware is, in the order in which one is chosen where several are.
_DEVICE_FILES = {"tpu": _TPU_DEVICE_FILES, "cuda": ("/dev/nvidia[0-9]*",), "rocm": ("/dev/kfd",)}


def library(name: str) -> Path:
    """The library of a vendor's plugin, one of ``WHEELS``, from the first of its wheels that is installed.

    Nothing is imported for it: the packages around some plugins import a whole framework.

    Raises:
        NotFoundError: none of its wheels is installed; the message says which there are.
    """
    for wheel in WHEELS[name]:
        found = _installed(wheel)
        if found is not None:
            return found
    wanted = " or ".join(f"'pip install {wheel.distribution}'" for wheel in WHEELS[name])
    raise NotFoundError(
        f"the plugin of {name!r} is not installed: get it with {wanted}, or give the path of the plugin's library"
    )


def at_hand() -> tuple[str, ...]:
    """The names of the vendors' plugins whose hardware this machine has and whose wheel is installed, the best first.

    Nothing is loaded to find out: the driver's files say that the hardware is here.
    """
    here = (name for name, patterns in _DEVICE_FILES.items() if any(glob.glob(pattern) for pattern in patterns))
    return tuple(name for name in here if any(_installed(wheel) for wheel in WHEELS[name]))


def prepare(path: str | os.PathLike[str]) -> None:
    """Does what a plugin needs to be done before its library is opened; what the user has set is left as it is."""
    if Path(path).name == "libtpu.so" and not any(glob.glob(pattern) for pattern in _TPU_DEVICE_FILES):
        for variable, value in _WITHOUT_TPU.items():
            os.environ.setdefault(variable, value)


def _installed(wheel: Wheel) -> Path | None:
    package, _, rest = wheel.library.partition("/")
    # The specification of a top-level name is found without importing anything.
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / rest
        if path.is_file():
            return path
    return None
