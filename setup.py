"""Builds the C boundary: each ``.pyx`` file becomes a module. The rest is in pyproject.toml.

Needs Cython and a C compiler, nothing else; also builds offline with ``pip install --no-build-isolation``.
After a change of a ``.pyx`` file in an editable install: ``python setup.py build_ext --inplace``.
"""

import multiprocessing
import os
import platform
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = Path("src/pjrt")
POSIX = SOURCES / "distributed"  # jobs of many processes: not on Windows
HEADERS = SOURCES / "abi"
NATIVE = SOURCES / "native"
RUNTIME = [str(NATIVE / "include"), str(NATIVE / "library")]
DEPENDS = [str(header) for header in sorted(HEADERS.rglob("*.h"))]
# Microsoft's compiler hides what is not exported anyway, and has C11's atomics only where they are asked for.
FLAGS = (
    ["/O2", "/std:c11", "/experimental:c11atomics", "/utf-8"]
    if sys.platform == "win32"
    else ["-O2", "-g0", "-fvisibility=hidden"]
)

COLD = {f"pjrt.capi.{name}" for name in ("_device", "_extensions", "_plugin", "_transfers")}
"""The modules of what is called once for a client, a program or a topology, or moves whole arrays. They take a third of
the time with little optimization, and calls are as fast as before. In the others -Og costs an execution up to 5 %.
"""
LITTLE = ["/O1"] if sys.platform == "win32" else ["-Og", "-finline-functions", "-finline-small-functions"]

if sys.platform.startswith("linux"):
    # Cython compiles in processes of its own. From Python 3.14 on the default would run this file again in each.
    multiprocessing.set_start_method("fork", force=True)


def module(source: Path) -> Extension:
    """Return the module of a file of Cython."""
    name = ".".join(source.relative_to("src").with_suffix("").parts)
    # A worker has its end of the rings that it shares with the runtime.
    ring = [str(NATIVE / "library" / "ring.c")] if name == "pjrt.native._commands" else []
    return Extension(
        name,
        [str(source), *ring],
        include_dirs=[str(HEADERS), *RUNTIME] if source.is_relative_to(NATIVE) else [str(HEADERS)],
        depends=[*DEPENDS, *map(str, sorted(NATIVE.rglob("*.h")))] if source.is_relative_to(NATIVE) else DEPENDS,
        extra_compile_args=[*FLAGS, *(LITTLE if name in COLD else [])],
    )


modules = [
    module(source)
    for source in sorted(SOURCES.rglob("*.pyx"))
    if sys.platform != "win32" or not source.is_relative_to(POSIX)
]

# Not a module: the layers of the C ABI, a shared library without Python. Its trampolines are in assembler, for Linux on
# the two processors that plugins are made for.
LAYERS = SOURCES / "layers" / "library"
layers = Extension(
    "pjrt.layers._library",
    [str(source) for source in (*sorted(LAYERS.rglob("*.c")), HEADERS / "generated" / "schema_tables.c")],
    include_dirs=[str(HEADERS), str(LAYERS)],
    depends=[*DEPENDS, *(str(header) for header in sorted(LAYERS.rglob("*.h")))],
    define_macros=[("_GNU_SOURCE", None)],
    extra_compile_args=FLAGS,
    extra_link_args=["-ldl", "-lpthread"],
)

# Not a module: the runtime in C, which is copied for each device with a driver. The driver's header is public.
native = Extension(
    "pjrt.native._library",
    [str(source) for source in sorted((NATIVE / "library").glob("*.c"))],
    include_dirs=[str(HEADERS), *RUNTIME],
    depends=[*DEPENDS, *(str(header) for header in sorted(NATIVE.rglob("*.h")))],
    define_macros=[("_GNU_SOURCE", None)],
    extra_compile_args=[*FLAGS, "-std=c11"],
    extra_link_args=["-ldl", "-lpthread"],
)


class BuildExtensions(build_ext):
    """Build the modules; Cython runs only here, as pip also runs this file for the names of what it needs."""

    def build_extensions(self) -> None:
        """Translate all modules with Cython, side by side, then compile what takes longest first."""
        translated = cythonize(
            [extension for extension in self.extensions if extension in modules],
            include_path=["src"],
            build_dir="build/cython",
            nthreads=os.cpu_count() if sys.platform.startswith("linux") else 0,
            compiler_directives={
                "language_level": 3,
                "binding": True,
                "embedsignature": False,
                # Nothing here can be pickled, and object says so itself: code for it would be a tenth of all.
                "auto_pickle": False,
                # Indices are checked, as anywhere in Python: a plugin or a framework decides how long things are.
                "wraparound": False,
                "initializedcheck": False,
                # No module turns the GIL on where Python runs without it: what threads share is guarded.
                "freethreading_compatible": True,
            },
        )
        sources = {extension.name: extension.sources for extension in translated}
        for extension in self.extensions:
            extension.sources = sources.get(extension.name, extension.sources)
        size = {extension.name: os.path.getsize(extension.sources[0]) for extension in translated}
        self.extensions.sort(key=lambda extension: -size.get(extension.name, sys.maxsize))  # the libraries first
        super().build_extensions()


setup(
    ext_modules=[
        *([native] if sys.platform.startswith("linux") else []),
        *([layers] if sys.platform.startswith("linux") and platform.machine() in ("x86_64", "aarch64") else []),
        *modules,
    ],
    cmdclass={"build_ext": BuildExtensions},
    # The compilations run side by side.
    options={"build_ext": {"parallel": os.cpu_count()}},
)
