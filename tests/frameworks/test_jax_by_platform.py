"""Decisions of JAX by the platform's name: the table of the page, beside what is measured."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

SCRIPT = Path(__file__).with_name("jax_by_platform.py")
PAGE = Path(__file__).parents[2] / "docs" / "frameworks" / "jax.md"
DEVICES = ("cpu", "reference", "scaffold")


def rows() -> dict[str, tuple[str, ...]]:
    """Return the table of the page: yes or no for each device, by feature."""
    section = PAGE.read_text().partition("## What JAX decides by the name of the platform")[2].partition("\n### ")[0]
    found = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 5 and cells[1] in ("yes", "no"):
            found[cells[0]] = tuple(cells[1:4])
    return found


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        check=False,
    )


@functools.cache
def results(device: str) -> dict[str, str | None]:
    done = python(str(SCRIPT), device)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, str | None] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.full
@pytest.mark.parametrize("device", DEVICES)
def test_the_table_has_what_is_measured(device: str) -> None:
    stated = {feature: cells[DEVICES.index(device)] for feature, cells in rows().items()}
    measured = {feature: "yes" if message is None else "no" for feature, message in results(device).items()}
    failures = {feature: message for feature, message in results(device).items() if message is not None}
    assert measured == stated, failures


REGISTRATIONS = {
    "a built-in device": ("'reference'", False),
    "a built-in device that is declared so": ("'reference', experimental=True", True),
    "a device of a program": ("pjrt.export(lambda: pjrt.client('reference'), name='mine')", True),
    "a device of a program, declared sound": (
        "pjrt.export(lambda: pjrt.client('reference'), name='mine'), experimental=False",
        False,
    ),
    "a device whose manifest declares it": ("'sound'", False),
}


@pytest.mark.full
@pytest.mark.parametrize(("registered", "warns"), REGISTRATIONS.values(), ids=REGISTRATIONS)
def test_jax_warns_of_experimental_platforms(tmp_path: Path, registered: str, warns: bool) -> None:
    (tmp_path / "config.toml").write_text(
        '[plugins.sound]\nfactory = "pjrt.devices.reference.plugin:ReferencePlugin"\n'
        "frameworks.jax.experimental = false\n"
    )
    code = f"""
import os
os.environ["PJRT_CONFIG"] = {str(tmp_path / "config.toml")!r}
import pjrt, jax
print(len(jax.devices(pjrt.frameworks.jax.register({registered}))), jax.default_backend())
"""
    done = python("-c", code)
    assert done.stdout.split() == ["1", "cpu"], done.stderr[-3000:]
    assert ("is experimental" in done.stderr) == warns, done.stderr


@pytest.mark.full
def test_two_processes_share_the_persistent_cache(tmp_path: Path) -> None:
    code = f"""
import pjrt, jax, numpy as np
platform = pjrt.frameworks.jax.register("reference")
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event.rpartition("/")[2]))
jax.config.update("jax_compilation_cache_dir", {str(tmp_path)!r})
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
x = jax.device_put(np.ones(7, np.float32), jax.devices(platform)[0])
assert float(jax.jit(lambda v: (v * 3).sum())(x)) == 21
print(events.count("cache_hits"), events.count("cache_misses"))
"""
    first, second = python("-c", code), python("-c", code)
    assert first.stdout.split() == ["0", "1"], first.stderr[-3000:]
    assert second.stdout.split() == ["1", "0"], second.stderr[-3000:]


@pytest.mark.full
def test_memory_that_is_not_the_hosts_is_not_shared() -> None:
    code = f"""
import sys
sys.path.insert(0, {str(SCRIPT.parent)!r})
import simulated_chip, pjrt, jax, numpy as np
simulated_chip.register()
platform = pjrt.frameworks.jax.register("simulated_chip")
device = jax.devices(platform)[0]
x = jax.device_put(np.arange(4, dtype=np.float32), device)
for share in (lambda: np.from_dlpack(x), x.__dlpack_device__, x.__dlpack__):
    try:
        share()
    except BufferError as error:
        print(error)
print(np.asarray(jax.dlpack.from_dlpack(np.arange(3), device=device)))
for refused in (
    lambda: jax.dlpack.from_dlpack(np.arange(3), device=device, copy=False),
    lambda: jax.numpy.asarray(np.arange(3), device=device, copy=False),
):
    try:
        refused()
    except Exception as error:
        print(type(error).__name__)
"""
    done = python("-c", code)
    *refused, values, imported, converted = done.stdout.splitlines()
    assert len(refused) == 3, done.stderr[-3000:]
    assert all("this array of the platform 'simulated_chip' is in other memory" in line for line in refused)
    assert (values, imported, converted) == ("[0 1 2]", "JaxRuntimeError", "ValueError")


@pytest.mark.full
@pytest.mark.parametrize(
    ("handler", "options", "message"),
    [
        ("object()", "", "expected the handler of 'name' as a Python function"),
        ("lambda x, out: None", ", api_version=0", "the handler of 'name' is for version 0 of custom calls"),
    ],
)
def test_a_handler_that_no_device_can_call_is_refused(handler: str, options: str, message: str) -> None:
    code = f"""
import pjrt, jax
platform = pjrt.frameworks.jax.register("reference")
try:
    jax.ffi.register_ffi_target("name", {handler}, platform=platform{options})
except pjrt.InvalidArgumentError as error:
    print(error.message)
"""
    done = python("-c", code)
    assert message in done.stdout, done.stderr[-3000:]
