"""``pjrt doctor``: what works on this machine, and what to install for what does not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

import pjrt
from pjrt import plugins, system
from pjrt.api.errors import PjrtError
from pjrt.api.printable import readable_bytes
from pjrt.cli._console import echo, print_facts, print_json, print_table, progress, readable, single_line
from pjrt.cli._options import json_option, time_limit_option
from pjrt.plugins.discovery import wheels
from pjrt.plugins.registry import default_options
from pjrt.system import confinement
from pjrt.system.processes import loopback_host, reserved_port
from pjrt.system.python_process import NoAnswerError, ask

OK, MISSING, BROKEN, IDLE = "ok", "missing", "broken", "not used"
"""The states: it works; it is not installed; it is installed and does not work; it needs hardware or options."""

_TIME_LIMIT = 120.0
_EXTRAS = ("xla", "safetensors", "iree", "remote", "http", "cluster", "ray")
_FRAMEWORKS = {"jax": ("jax",), "torch": ("torch", "torchax", "jax")}
"""The frameworks that are tried, and the packages that each needs."""

_ADD = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}"""

_EXAMPLES = """
\b
Examples:
  pjrt doctor
  pjrt doctor --json > machine.json
"""


@click.command(epilog=_EXAMPLES)
@time_limit_option(_TIME_LIMIT, "a device, and a program of a framework on it, may")
@json_option
def doctor(time_limit: float, as_json: bool) -> None:
    """Show what works on this machine: packages, devices, and which framework runs on which device.

    Each device is opened, and each framework runs a small program on it, in a process of its own. The exit code is 0
    unless something that is installed is broken; then it is 1.
    """
    with progress("asking the machine"):
        machine = dict(_machine(time_limit))
        packages = {extra: _package_state(names) for extra, names in _extras().items()}
    devices = _devices(time_limit)
    advice = list(dict.fromkeys(filter(None, _advice(machine, packages, devices))))
    states = [
        *machine.values(),
        *devices.values(),
        *(each for one in devices.values() for each in one["runs"].values()),
    ]
    is_broken = any(each["state"] == BROKEN for each in states)
    if as_json:
        print_json(
            {"ok": not is_broken, "machine": machine, "packages": packages, "devices": devices, "advice": advice}
        )
    else:
        _print(machine, packages, devices, advice)
    sys.exit(1 if is_broken else 0)


def _found(state: str, text: str, advice: str = "") -> dict[str, Any]:
    return {"state": state, "found": text, **({"advice": advice} if advice else {})}


# The machine.


def _machine(time_limit: float) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "pjrt", _found(OK, f"{pjrt.__version__} in {Path(pjrt.__file__).parent}")
    yield "python", _found(OK, f"{platform.python_version()} ({platform.python_implementation()}), {sys.executable}")
    yield (
        "system",
        _found(OK, f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} processors"),
    )
    yield "memory", _found(OK, _memory())
    yield "ports", _ports()
    yield "compiler", _compiler()
    yield "clients of pjrt serve", _confinement(time_limit)


def _memory() -> str:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        sizes = {name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines)}
        parts = [f"{readable_bytes(sizes['MemAvailable'])} free of {readable_bytes(sizes['MemTotal'])}"]
    except (OSError, LookupError, ValueError):  # another system than Linux
        parts = ["unknown"]
    if Path("/dev/shm").is_dir():
        parts.append(f"{readable_bytes(shutil.disk_usage('/dev/shm').free)} free to share among processes")
    return ", ".join(parts)


def _ports() -> dict[str, Any]:
    host = loopback_host()
    try:
        with reserved_port(host) as port:
            return _found(OK, f"{host}, such as port {port}")
    except OSError as error:
        advice = "jobs and servers need a loopback address that is up: ip link set lo up"
        return _found(BROKEN, f"no port of {host} can be used: {error.strerror or error}", advice)


def _compiler() -> dict[str, Any]:
    names = (os.environ.get("CC", "").split(" ")[0], "cc", "gcc", "clang")
    path = next(filter(None, map(shutil.which, filter(None, names))), None)
    if path is None:
        return _found(MISSING, "none, which devices in C need", "a C compiler builds devices in C: apt-get install gcc")
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return _found(BROKEN, f"{path}: {error}")
    return _found(OK, f"{path}, {done.stdout.partition(chr(10))[0]}")


def _confinement(time_limit: float) -> dict[str, Any]:
    if not confinement.CAN_CONFINE:
        return _found(IDLE, f"share one process: {platform.system()} confines none")
    try:
        kept = confinement.kept_rights(time_limit)
    except OSError as error:
        return _found(IDLE, f"cannot be confined: {error}")
    return _found(OK, f"are confined, but may {', '.join(kept)}" if kept else "are confined, by all that is known")


# The packages.


def _extras() -> dict[str, tuple[str, ...]]:
    """Return the packages of each extra of this package, and of each framework."""
    extras: dict[str, tuple[str, ...]] = {}
    for line in importlib.metadata.requires("pjrt") or ():
        requirement, _, marker = line.partition(";")
        name, extra = re.match(r"[\w.-]+", requirement), re.search(r"extra == ['\"]([\w-]+)", marker)
        if name and extra and extra[1] in _EXTRAS and name[0] != "pjrt":
            extras[extra[1]] = (*extras.get(extra[1], ()), name[0])
    return {**{each: extras[each] for each in _EXTRAS if each in extras}, **_FRAMEWORKS}


def _package_state(names: tuple[str, ...]) -> dict[str, Any]:
    versions = {name: _version(name) for name in names}
    is_missing = None in versions.values()
    return {
        "state": MISSING if is_missing else OK,
        "found": ", ".join(f"{name} {version or '(not installed)'}" for name, version in versions.items()),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


# The devices, each in processes of its own.


def _devices(time_limit: float) -> dict[str, dict[str, Any]]:
    declared = {each.name: each for each in plugins.declarations()}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        with progress(f"opening {', '.join(declared)}"):
            opened = pool.map(lambda each: _opened(each, time_limit), declared.values())
            found = dict(zip(declared, opened, strict=True))
        usable = [name for name, facts in found.items() if facts["state"] == OK]
        here = [framework for framework, packages in _FRAMEWORKS.items() if all(map(_version, packages))]
        questions = [(framework, name) for framework in here for name in usable]
        with progress(f"running programs of {', '.join(here)} on each device"):
            answers = pool.map(lambda question: _asked(question, time_limit), questions)
            for (framework, name), answer in zip(questions, answers, strict=True):
                found[name]["runs"][framework] = answer
    return found


def _opened(plugin: plugins.Declaration, time_limit: float) -> dict[str, Any]:
    facts: dict[str, Any] = {"from": plugin.origin, "version": plugin.version, "runs": {}}
    if plugin.disabled:
        return {**facts, **_found(IDLE, plugin.problem)}
    if plugin.problem:
        return {**facts, **_found(BROKEN, single_line(plugin.problem))}
    if not plugin.has_hardware:
        return {**facts, **_found(IDLE, "its hardware is not here")}
    open_ones = {name: of for name, of in plugin.required_options.items() if not os.environ.get(of)}
    try:
        needed = [
            f"the option {name}, or {of}" for name, of in open_ones.items() if name not in default_options(plugin)
        ]
    except PjrtError as error:  # the variable with the options has another form
        return {**facts, **_found(BROKEN, error.message)}
    if needed:
        return {**facts, **_found(IDLE, f"needs {' and '.join(needed)}")}
    return {**facts, **_asked(("pjrt", plugin.name), time_limit)}


def _asked(question: tuple[str, str], time_limit: float) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = ask(answer_in_subprocess, question, time_limit)
    except NoAnswerError as lost:
        how = f"no answer within {time_limit:g} seconds" if lost.end is None else f"the process ended: {lost.end}"
        return _found(BROKEN, how)
    return answer


def answer_in_subprocess(question: tuple[str, str]) -> dict[str, Any]:
    """Run the program of a framework, or of this package, on a device; called in the subprocess."""
    framework, device = question
    begin = time.perf_counter()
    try:
        text = _PROGRAMS[framework](device)
    except Exception as error:
        wrapped = PjrtError.wrap(error)
        return _found(_state_of(error), single_line(wrapped.message))
    return {**_found(OK, text), "seconds": time.perf_counter() - begin}


def _state_of(error: BaseException | None) -> str:
    """Return whether an error comes from a package that is not there, from a device's limits, or from a fault."""
    while error is not None:
        if isinstance(error, pjrt.UnimplementedError):
            return IDLE
        module = error.name if isinstance(error, ModuleNotFoundError) else None
        if module and importlib.util.find_spec(module.partition(".")[0]) is None:
            return MISSING
        error = error.__cause__ or error.__context__
    return BROKEN


def _run_directly(device: str) -> str:
    import numpy as np

    with pjrt.client(device) as client:
        _check(pjrt.load_model(_ADD, client)(np.ones(4, np.float32)))
        first = client.devices[0]
        return ", ".join(filter(None, (f"{len(client.devices)} × {first.kind}", client.platform_version)))


def _run_jax(device: str) -> str:
    import jax
    import numpy as np

    platform_name = pjrt.frameworks.jax.register(device)
    jax.config.update("jax_platforms", platform_name)
    _check(jax.jit(lambda x: x + x)(np.ones(4, np.float32)))
    return f"JAX {jax.__version__}"


def _run_torch(device: str) -> str:
    has_torch_tpu = importlib.util.find_spec("torch_tpu") is not None
    place = (pjrt.frameworks.torch.register if has_torch_tpu else pjrt.frameworks.torch.register_torchax)(device)
    import torch

    _check((torch.ones(4).to(place) * 2).cpu())
    return f"PyTorch {torch.__version__}"


_PROGRAMS: Mapping[str, Callable[[str], str]] = {"pjrt": _run_directly, "jax": _run_jax, "torch": _run_torch}


def _check(result: Any) -> None:
    import numpy as np

    values = np.asarray(result).reshape(-1).tolist()
    if values != [2.0] * 4:
        raise pjrt.InternalError(f"1 + 1 is {values}")


# What to do, and the screen.


def _advice(
    machine: Mapping[str, dict[str, Any]], packages: Mapping[str, dict[str, Any]], devices: Mapping[str, dict[str, Any]]
) -> Iterator[str]:
    """Yield a line for each thing that is missing, with the command that installs it."""
    for each in machine.values():
        yield each.get("advice", "")
    for name, each in packages.items():
        if each["state"] == MISSING:
            what = " ".join(_FRAMEWORKS[name]) if name in _FRAMEWORKS else f"'pjrt[{name}]'"
            yield f"for {name}: pip install {what}"
    for name, vendor in wheels.vendors().items():
        if name not in devices and system.any_file(vendor.facts.get("hardware", ())):
            yield f"this machine has hardware for {name}: {wheels.advice(name).replace(chr(39), '')}"


def _print(
    machine: Mapping[str, dict[str, Any]],
    packages: Mapping[str, dict[str, Any]],
    devices: Mapping[str, dict[str, Any]],
    advice: list[str],
) -> None:
    print_facts([(name, _line(each)) for name, each in (*machine.items(), *packages.items())])
    frameworks = list(dict.fromkeys(framework for each in devices.values() for framework in each["runs"]))
    rows = []
    for name, each in devices.items():
        runs = [_run_cell(each["runs"].get(framework)) for framework in frameworks]
        rows.append([name, each["state"], *runs, each["found"]])
    print_table(["device", "state", *frameworks, "found"], rows)
    for name, each in devices.items():
        for framework, run in each["runs"].items():
            if run["state"] != OK:
                echo(f"{name} with {framework}: {run['found']}")
    for line in advice:
        echo(line)


def _line(each: Mapping[str, Any]) -> str:
    return each["found"] if each["state"] == OK else f"{each['state']}: {each['found']}"


def _run_cell(run: Mapping[str, Any] | None) -> str:
    if run is None:
        return ""
    return readable(run["seconds"]) if run["state"] == OK else run["state"]
