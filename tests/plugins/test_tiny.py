"""The tiny plugin on its own: driven from C, as it is and under the sanitizers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tiny import build

pytestmark = pytest.mark.full

DRIVER = build.HERE / "driver" / "driver.c"


def run_driver(cache: Path, flags: list[str]) -> subprocess.CompletedProcess[str]:
    library = build.build_tiny(cache, flags)
    command = [*build.compiler(), "-std=c11", "-D_GNU_SOURCE", "-g", *build.WARNINGS, *flags]
    driver = library.parent / "driver"
    subprocess.run(
        [*command, f"-I{build.INCLUDE}", f"-I{build.PLUGIN}", str(DRIVER), "-o", str(driver), "-ldl", "-pthread"],
        check=True,
        timeout=120,
    )
    return subprocess.run([driver, library], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("sanitizer", ["none", "address,undefined", "thread"])
def test_driver(tiny_cache: Path, sanitizer: str) -> None:
    done = run_driver(tiny_cache, [] if sanitizer == "none" else ["-O1", f"-fsanitize={sanitizer}"])
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
