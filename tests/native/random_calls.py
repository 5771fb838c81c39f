"""Random calls of the C API on the runtime in C, under the compiler's sanitizers: a job by hand.

    python tests/native/random_calls.py --calls 1000000 --sanitizer address,undefined
    python tests/native/random_calls.py --ends 200
    python tests/native/random_calls.py --executions 1000000

A round is a process of ten thousand calls with a seed of its own, on the example's chip or on emitted code. The chip's
functions and work fail in some rounds, and in some of them fences are held back until the watchdog gives the work up.
The job ends at the first round that crashes, hangs, leaks or reads a wrong value, and prints its command. With `--ends`
each process ends, or is forked, somewhere in the middle while its threads call. With `--executions` a process runs each
program so often, and the job fails where it has more memory, files or threads then.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import numpy as np

import pjrt
from pjrt import native
from pjrt.api.client import Client
from pjrt.api.device import Device
from pjrt.api.loaded_executable import LoadedExecutable
from pjrt.native import library

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
SOURCES = Path(library.__file__).parent / "library"
SANITIZERS = ("address,undefined", "thread")
ROUND = 10_000
FLAT_BYTES = 16.0
"""By how many bytes an execution may make the process larger: the allocator's own changes stay within this."""
LIMIT = 300.0
"""The seconds that a round may take."""

_TYPE = "tensor<3x40xf32>"
_HALVES = f"""
  %a = stablehlo.constant dense<0.5> : {_TYPE}
  %b = stablehlo.constant dense<0.25> : {_TYPE}
  %0 = stablehlo.multiply %x, %a : {_TYPE}
  %1 = stablehlo.multiply %y, %b : {_TYPE}
  %2 = stablehlo.add %0, %1 : {_TYPE}
  return %2 : {_TYPE}
}}"""
_MEETS = f"""
  %2 = "stablehlo.all_reduce"(%1) ({{
    ^bb0(%l: tensor<f32>, %r: tensor<f32>):
      %3 = stablehlo.add %l, %r : tensor<f32>
      stablehlo.return %3 : tensor<f32>
  }}) {{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}} : ({_TYPE}) -> {_TYPE}
  return %2 : {_TYPE}
}}"""
PROGRAMS = {
    "halves": f"func.func @main(%x: {_TYPE}, %y: {_TYPE}) -> {_TYPE} {{{_HALVES}",
    "donates": f"""func.func @main(%x: {_TYPE} {{tf.aliasing_output = 0 : i32}}) -> {_TYPE} {{
  %a = stablehlo.constant dense<1.0> : {_TYPE}
  %0 = stablehlo.subtract %a, %x : {_TYPE}
  return %0 : {_TYPE}
}}""",
    "on_two": f"func.func @main(%x: {_TYPE}, %y: {_TYPE}) -> {_TYPE} {{{_HALVES}",
    "in_steps": f"""func.func @main(%x: {_TYPE}, %y: {_TYPE}) -> {_TYPE} {{
  %a = stablehlo.constant dense<0.5> : {_TYPE}
  %0 = stablehlo.multiply %y, %a : {_TYPE}
  %1 = stablehlo.add %x, %0 : {_TYPE}
  %2 = stablehlo.custom_call @halve(%1) {{api_version = 4 : i32}} : ({_TYPE}) -> {_TYPE}
  return %2 : {_TYPE}
}}""",
    "meets": f"""func.func @main(%x: {_TYPE}) -> {_TYPE} {{
  %a = stablehlo.constant dense<0.25> : {_TYPE}
  %1 = stablehlo.multiply %x, %a : {_TYPE}{_MEETS}""",
    "meets_in_steps": f"""func.func @main(%x: {_TYPE}) -> {_TYPE} {{
  %1 = stablehlo.custom_call @halve(%x) {{api_version = 4 : i32}} : ({_TYPE}) -> {_TYPE}{_MEETS}""",
}
ON_TWO = ("on_two", "meets", "meets_in_steps")


@dataclass(frozen=True)
class Round:
    """Facts of one process: how it runs.

    Attributes:
        example: the example whose plugin it loads.
        threads: how many threads call.
        watchdog: the milliseconds of the watchdog; 0 for none.
        faults: the environment of the driver.
        end: what happens in the middle: ``exit``, ``fork`` or nothing.
    """

    example: str = "native_chip"
    threads: int = 3
    watchdog: int = 0
    faults: dict[str, str] = field(default_factory=dict)
    end: str = ""


ROUNDS = [
    Round(),
    Round(faults={"FAULTS": "30"}),
    Round("emitted_c"),
    Round(faults={"HOLDS": "5"}, watchdog=20),
    Round(threads=1, faults={"FAULTS": "200"}),
    Round(faults={"HOLDS": "5", "FAULTS": "30"}, watchdog=20),
    Round("emitted_c", threads=1),
    Round(faults={"TWICE": "50", "FAULTS": "30"}),
]
ENDS = [Round(example, end=end) for end in ("exit", "fork") for example in ("native_chip", "emitted_c")]
ENDS_AFTER = 3000
"""The calls of a process that ends or is forked before the last of them."""
TOLD_TWICE = "pjrt: the driver called the function of on_done twice for one fence; the second call is ignored"


def build(folder: Path, sanitizer: str, *arguments: str) -> None:
    """Compile C with the headers of the C API and of drivers, under a sanitizer."""
    headers = [
        f"-I{place}"
        for place in (Path(pjrt.__file__).parent / "abi", native.get_include(), SOURCES, EXAMPLES / "native_chip")
    ]
    compiler = [
        *shlex.split(os.environ.get("CC", "gcc")),
        "-std=c11",
        "-D_GNU_SOURCE",
        "-g",
        "-O1",
        "-ffp-contract=off",
    ]
    command = [*compiler, *headers, f"-fsanitize={sanitizer}", *arguments, "-lm", "-ldl", "-lpthread"]
    subprocess.run(command, cwd=folder, check=True, timeout=240)


def sanitized(folder: Path, **more: str) -> dict[str, str]:
    """Return the environment of a process under a sanitizer.

    A thread that has ended gives the memory of its thread-local variables back to the C library, whose loader another
    thread asks for such memory. The loader has a lock that the sanitizer does not see.
    """
    suppressed = folder / "suppressed.txt"
    suppressed.write_text("race:_dl_deallocate_tls\n")
    return {**os.environ, "TSAN_OPTIONS": f"halt_on_error=1:suppressions={suppressed}", **more}


def prepare(folder: Path, sanitizer: str) -> None:
    """Write the plugins, their executables and the program that calls into a folder."""
    shared = ["-fPIC", "-shared", "-fvisibility=hidden"]
    build(folder, sanitizer, *shared, *map(str, sorted(SOURCES.glob("*.c"))), "-o", "runtime.so")
    build(folder, sanitizer, "-fPIC", "-shared", str(HERE / "faulty_chip.c"), "-o", "driver.so")
    build(folder, sanitizer, str(HERE / "random_calls.c"), "-o", "random_calls")
    plain = folder / "plain"
    plain.mkdir()
    build(plain, "undefined", "-fPIC", "-shared", str(HERE / "faulty_chip.c"), "-o", "driver.so")
    build(plain, "undefined", str(HERE / "random_calls.c"), "-o", "random_calls")
    for example, num_devices in (("native_chip", 2), ("emitted_c", 1)):
        spec = f"{EXAMPLES / example / 'compiler.py'}:compile"
        chip = example == "native_chip"
        plugin = native.write_library(plain / f"{example}.so", spec, driver=plain / "driver.so" if chip else "host")
        with mock.patch.object(library, "library_of", return_value=folder / "runtime.so"):
            native.write_library(folder / f"{example}.so", spec, driver=folder / "driver.so" if chip else "host")
        with pjrt.load_plugin(plugin).client() as client:
            for name, text in PROGRAMS.items():
                replicas = 2 if name in ON_TWO else 1
                if replicas <= num_devices and (chip or name != "in_steps"):
                    executable = client.compile(text, pjrt.CompileOptions(num_replicas=replicas))
                    (folder / f"{example}.{name}").write_bytes(executable.executable.serialize())


def command_of(folder: Path, each: Round, seed: int, calls: int) -> list[str]:
    """Return the command of a round, without its environment.

    A fork is made without sanitizers: in it their allocator may wait for a thread of the parent.
    """
    executables = [path for name in PROGRAMS if (path := folder / f"{each.example}.{name}").exists()]
    numbers = (seed, calls, each.threads, each.watchdog)
    built = folder / "plain" if each.end == "fork" else folder
    plugin = built / f"{each.example}.so"
    return [str(built / "random_calls"), str(plugin), *map(str, numbers), *map(str, executables)]


def failure(folder: Path, each: Round, seed: int, calls: int = ROUND) -> str:
    """Run a round; return what went wrong, or nothing."""
    command = command_of(folder, each, seed, calls)
    # A client with late work is closed by another thread, perhaps while the process ends.
    leaks = f"detect_leaks={int(each.watchdog == 0 and not each.end)}"
    environment = sanitized(folder, **each.faults, ASAN_OPTIONS=leaks)
    if each.end:
        environment |= {"END": each.end, "TSAN_OPTIONS": f"{environment['TSAN_OPTIONS']}:report_thread_leaks=0"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{each}: not done after {LIMIT:.0f} s: {shlex.join(command)}"
    said = done.stderr.splitlines()
    if done.returncode == 0 and not any(line != TOLD_TWICE for line in said) and bool(said) == ("TWICE" in each.faults):
        return ""
    return f"{each}: exit status {done.returncode}: {shlex.join(command)}\n{done.stdout}{done.stderr}"


@dataclass(frozen=True)
class Held:
    """The resident bytes, files and threads of a process."""

    resident: int
    files: int
    threads: int

    @classmethod
    def now(cls) -> Held:
        """Return what this process has."""
        threads, files = (len(os.listdir(f"/proc/self/{each}")) for each in ("task", "fd"))
        return cls(_resident(), files, threads)


def held_after(executions: int) -> Iterator[tuple[str, list[Held]]]:
    """Yield each example with a program, and what this process has at the begin, in the middle and at the end."""
    folder = Path(tempfile.mkdtemp(prefix="pjrt-executions-"))
    build(folder, "undefined", "-fPIC", "-shared", str(HERE / "faulty_chip.c"), "-o", "driver.so")
    for example, driver in (("native_chip", folder / "driver.so"), ("emitted_c", "host")):
        spec = f"{EXAMPLES / example / 'compiler.py'}:compile"
        plugin = native.write_library(folder / f"{example}.so", spec, driver=driver)
        with pjrt.load_plugin(plugin).client() as client:
            client.register_ffi_handler("halve", lambda x, result: np.multiply(x, np.float32(0.5), out=result))
            for name, text in PROGRAMS.items():
                devices = client.devices[: 2 if name in ON_TWO else 1]
                if example != "native_chip" and name in ON_TWO:
                    continue
                executable = client.compile(text, pjrt.CompileOptions(num_replicas=len(devices)))
                count = 1 if name in ("donates", "meets", "meets_in_steps") else 2
                yield (
                    f"{example} {name}",
                    [
                        _held_after(client, executable, devices, count, times)
                        for times in (max(executions // 10, 100), executions // 2, executions - executions // 2)
                    ],
                )


def _held_after(
    client: Client, executable: LoadedExecutable, devices: Sequence[Device], count: int, times: int
) -> Held:
    x = np.ones((3, 40), np.float32)
    for _ in range(times):
        arguments = [[client.buffer_from_host(x, device=device)] * count for device in devices]
        for (result,) in executable.execute(arguments):
            np.asarray(result)
    return Held.now()


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def rounds(calls: int, ends: int, seed: int) -> Iterator[tuple[Round, int, int]]:
    """Return rounds, their seeds and calls: for so many calls, or for so many processes of each end."""
    for number in range(ends * len(ENDS)):
        yield ENDS[number % len(ENDS)], seed + number, ENDS_AFTER
    for number in range(0 if ends else (calls + ROUND - 1) // ROUND):
        yield ROUNDS[number % len(ROUNDS)], seed + number, ROUND


def main() -> int:
    """Run rounds until all calls are made, or one goes wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sanitizer", choices=SANITIZERS, default=SANITIZERS[0])
    parser.add_argument("--ends", type=int, default=0)
    parser.add_argument("--executions", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.executions:
        is_flat = True
        print("| program | resident MB: begin, middle, end | bytes an execution | files | threads |")
        print("| --- | --- | ---: | --- | --- |", flush=True)
        for name, held in held_after(arguments.executions):
            growth = (held[-1].resident - held[0].resident) / arguments.executions
            resident = ", ".join(f"{each.resident / 1e6:.1f}" for each in held)
            files = ", ".join(str(each.files) for each in held)
            threads = ", ".join(str(each.threads) for each in held)
            print(f"| {name} | {resident} | {growth:+.2f} | {files} | {threads} |", flush=True)
            is_flat = is_flat and growth <= FLAT_BYTES
            is_flat = is_flat and held[-1].files <= held[0].files and held[-1].threads <= held[0].threads
        return int(not is_flat)
    begin = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="pjrt-random-calls-"))  # stays: the command of a failure names its files
    prepare(folder, arguments.sanitizer)
    all_rounds = rounds(arguments.calls, arguments.ends, arguments.seed)
    for made, (each, seed, calls) in enumerate(all_rounds, 1):
        if message := failure(folder, each, seed, calls):
            print(message, file=sys.stderr)
            return 1
        print(f"\r{made:,} processes in {time.monotonic() - begin:.0f} s", end="", flush=True)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
