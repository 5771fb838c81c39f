"""The client: its options, its drivers, several devices, asynchrony, and its end."""

from __future__ import annotations

import ctypes.util
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from iree_programs import DOUBLE, EXP_F64, NUMBERS, PRODUCT

import pjrt
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from pjrt.devices.iree import compiler, packages
from pjrt.devices.iree.client import IreeClient
from pjrt.devices.iree.plugin import IreePlugin

pytestmark = pytest.mark.full

NewClient = Callable[..., IreeClient]
X = np.arange(4, dtype=np.float32)


@pytest.mark.parametrize("driver", ["local-sync", "local-task"])
def test_each_device_runs_programs(new_client: NewClient, driver: str) -> None:
    client = new_client(num_devices=3, driver=driver)
    for device in client.devices:
        options = CompileOptions(device_assignment=DeviceAssignment(((device.id,),)))
        x = client.buffer_from_host(X, device=device)
        (out,) = client.compile(DOUBLE, options).execute([[x]])[0]
        assert out.device is device
        np.testing.assert_array_equal(np.asarray(out), 2 * X)
        np.testing.assert_array_equal(np.asarray(client.compile(NUMBERS, options)()[0]), [0, 1, 2])


def test_f64_stays_f64(client: IreeClient) -> None:
    x = np.array([0, 1, -1, 1e-9])
    (out,) = client.compile(EXP_F64)(x)
    assert out.element_type is pjrt.ElementType.F64
    np.testing.assert_allclose(np.asarray(out), np.exp(x), rtol=1e-15)


def test_portable_artifacts_and_bytecode_are_programs(client: IreeClient) -> None:
    for program in (pjrt.stablehlo.serialize(DOUBLE, "1.0.0"), pjrt.stablehlo.plain(DOUBLE)):
        np.testing.assert_array_equal(np.asarray(client.compile(program)(X)[0]), 2 * X)


def test_calls_return_before_their_work_is_done(new_client: NewClient) -> None:
    client = new_client(driver="local-task")
    x = client.buffer_from_host(np.full((1536, 1536), 0.5, np.float32))
    product = client.compile(PRODUCT)
    (warm,) = product.execute([[x, x]])[0]
    warm.ready().result()
    y, waits = x, []
    for _ in range(6):  # each enqueued behind the one before; together they take a second
        (y,) = product.execute([[y, x]])[0]
        waits.append(not y.ready().done())
    assert any(waits)  # each is only if this thread goes on in time
    np.testing.assert_allclose(np.asarray(y)[0, 0], 0.5 * (0.5 * 1536) ** 6, rtol=1e-5)


def test_what_a_program_costs_is_known(client: IreeClient) -> None:
    executable = client.compile(DOUBLE)
    assert executable.cost_analysis()["flops"] == 4
    assert executable.memory_stats().argument_size_in_bytes == 16
    assert executable.size_of_generated_code > 1000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"driver": "cpu"}, "expected one of local-sync, local-task, cuda, hip, vulkan as driver, found 'cpu'"),
        ({"target_gpu": "sm_90"}, "the option target_gpu is not for the driver 'local-sync'"),
        ({"driver": "cuda", "target_cpu": "host"}, "the option target_cpu is not for the driver 'cuda'"),
        ({"driver": "hip"}, "expected the option target_gpu for the driver 'hip'"),
        ({"target_cpu": 3}, "expected the option target_cpu as a name"),
        ({"flags": "--iree-opt-level=O3"}, "expected flags of IREE's compiler as a list"),
        ({"flags": ["O3"]}, "expected flags of IREE's compiler such as"),
        ({"compile_in": "thread"}, "expected one of subprocess, process as compile_in, found 'thread'"),
        ({"fallback": "cpu"}, "expected fallback='reference' or None"),
        ({"num_devices": 0}, "num_devices"),
        ({"threads": 2}, "has no option 'threads'"),
    ],
)
def test_wrong_options_are_refused(new_client: NewClient, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        new_client(**options)
    assert message in caught.value.message


@pytest.mark.parametrize("driver", ["cuda", "hip", "vulkan"])
def test_a_driver_without_its_library_says_so(driver: str) -> None:
    library = {"cuda": "cuda", "hip": "amdhip64", "vulkan": "vulkan"}[driver]
    if ctypes.util.find_library(library) is not None:
        pytest.skip(f"this machine has a library for {driver}")
    options = {"target_gpu": "gfx942"} if driver == "hip" else {}
    with pytest.raises(UnavailableError, match=f"driver '{driver}' cannot be used on this machine"):
        IreePlugin().client(driver=driver, **options)


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "iree.runtime", None)
    with pytest.raises(FailedPreconditionError, match=r"iree-base-runtime is needed.*pip install 'pjrt\[iree\]'"):
        IreePlugin().client()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    compiler._program.cache_clear()
    with pytest.raises(FailedPreconditionError, match=r"iree-base-compiler is needed.*pip install 'pjrt\[iree\]'"):
        compiler.in_subprocess(b"", [])
    monkeypatch.setitem(sys.modules, "iree.compiler.api", None)
    with pytest.raises(FailedPreconditionError, match=r"iree-base-compiler is needed"):
        packages.load("iree.compiler.api", "compile programs")


def test_a_missing_package_shows_in_the_list_of_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise importlib.metadata.PackageNotFoundError(package)

    assert IreePlugin().attributes["xla_version"] == 2
    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(FailedPreconditionError, match=r"needs the package iree-base-compiler.*pjrt\[iree\]"):
        assert IreePlugin().attributes


def test_a_closed_client_opens_no_devices(new_client: NewClient) -> None:
    client = new_client()
    client.close()
    with pytest.raises(FailedPreconditionError, match="closed"):
        client.open()


def run(code: str, cache: Path) -> subprocess.CompletedProcess[str]:
    head = f"import numpy as np, os, pjrt\ncache, DOUBLE = {str(cache)!r}, {DOUBLE!r}\n"
    return subprocess.run([sys.executable, "-c", head + code], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("driver", ["local-task"])
def test_the_end_of_the_process_prints_nothing(cache: Path, driver: str) -> None:
    code = f"""
client = pjrt.client("iree", driver={driver!r}, cache=cache)
executable = client.compile(DOUBLE)
x = client.buffer_from_host(np.ones(4, np.float32))
results = [executable(x) for _ in range(100)]
"""
    done = run(code, cache)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.parametrize("driver", ["local-task"])  # the one with threads, which a child lacks
def test_a_child_makes_a_client_of_its_own(cache: Path, driver: str) -> None:
    code = f"""
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of threads, which is what this is about
client = pjrt.client("iree", driver={driver!r}, cache=cache)
executable = client.compile(DOUBLE)
x = client.buffer_from_host(np.ones(4, np.float32))
np.asarray(executable(x)[0])
if os.fork() == 0:
    try:
        executable(x)
    except pjrt.FailedPreconditionError as error:
        print("forked" in error.message, flush=True)
    with pjrt.client("iree", driver={driver!r}, cache=cache) as mine:
        print(np.asarray(mine.compile(DOUBLE)(np.ones(4, np.float32))[0]), flush=True)
    os._exit(0)
os.wait()
print(np.asarray(executable(x)[0]))
"""
    done = run(code, cache)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["True", "[2. 2. 2. 2.]", "[2. 2. 2. 2.]"]
