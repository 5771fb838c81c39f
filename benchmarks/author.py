"""Time one execution of a tiny program on devices of authors: kernels, runs, memory of their own, several devices."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import pjrt
from benchmarks import author_chip
from benchmarks.side_by_side import Aim, Report, Timing, duration, main, table, take_turns

OPERATIONS = {"stablehlo.add": np.add, "stablehlo.multiply": np.multiply, "stablehlo.maximum": np.maximum}
SIZE = 8
STEPS = 12
DEVICES = 4
SLOW_KERNEL = 100e-6  # seconds

OWNERS = "Each handle that a kernel returns gets one owner, which is looked up, checked and freed at its last use."

COMMANDS = (
    "Each of its 77 kernels and 55 copies is a call of the author's Python code and, through ctypes, of the driver: "
    "these calls alone take longer."
)

PLAIN = "plain: one function"
EMPTY = "no operation"


class Handle:
    """A handle of an ``ArrayMemory``."""

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = array


class ArrayMemory(pjrt.host.Memory):
    """The cheapest memory that the runtime cannot see into: objects with a numpy array in each.

    Args:
        visible: whether the runtime may see into it, as an author allows it with ``host_view``.
    """

    def __init__(self, visible: bool) -> None:
        self._visible = visible

    def allocate(self, spec: pjrt.ShapeSpec, space: pjrt.MemorySpace) -> Handle:
        return Handle(np.empty(spec.shape, spec.element_type.dtype))

    def copy_in(self, handle: Handle, array: Any) -> None:
        handle.array[...] = array

    def copy_out(self, handle: Handle, array: Any) -> None:
        array[...] = handle.array

    def host_view(self, handle: Handle) -> Any:
        return handle.array if self._visible else None


def program(steps: int, partitions: int = 1) -> str:
    """Return a program of elementwise operations on an argument of ``SIZE`` elements for each partition."""
    type_ = f"tensor<{SIZE * partitions}xf32>"
    sharding = "" if partitions == 1 else ' {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}'
    header = "module {" if partitions == 1 else f"module attributes {{mhlo.num_partitions = {partitions} : i32}} {{"
    mesh = "" if partitions == 1 else f'sdy.mesh @mesh = <["x"={partitions}]>'
    lines, last = [], "%x"
    for number in range(steps):
        name = list(OPERATIONS)[number % len(OPERATIONS)]
        lines.append(f"%{number} = {name} {last}, %x : {type_}")
        last = f"%{number}"
    return "\n".join(
        [
            header,
            mesh,
            f"func.func @main(%x: {type_}{sharding}) -> ({type_}{sharding}) {{",
            *lines,
            f"return {last} : {type_}",
            "}}",
        ]
    )


def compile_whole(parsed: Any, options: pjrt.CompileOptions) -> Callable[..., Any]:
    """Compile a program as one function, which calls numpy for each operation."""
    entry = parsed.entry
    slots = {value: number for number, value in enumerate(entry.arguments)}
    steps = []
    for operation in entry.body.operations[:-1]:
        steps.append((OPERATIONS[operation.name], [slots[operand] for operand in operation.operands]))
        slots[operation.results[0]] = len(slots)
    outputs = [slots[value] for value in entry.body.outputs]

    def run(*arrays: Any) -> list[Any]:
        values = list(arrays)
        for function, (left, right) in steps:
            values.append(function(values[left], values[right]))
        return [values[slot] for slot in outputs]

    return run


def on_handles(compile: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``compile`` whose function takes and returns handles of an ``ArrayMemory``."""

    def compile_on_handles(parsed: Any, options: pjrt.CompileOptions) -> Callable[..., Any]:
        function = compile(parsed, options)
        return lambda *handles: [Handle(array) for array in function(*(handle.array for handle in handles))]

    return compile_on_handles


def kernels(count: int, handles: bool = False) -> dict[str, Callable[..., Any]]:
    """Return kernels of the first operations."""

    def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
        if handles:
            return lambda operation, x, y: Handle(function(x.array, y.array))
        return lambda operation, x, y: function(x, y)

    return {name: kernel(function) for name, function in list(OPERATIONS.items())[:count]}


def clients() -> dict[str, pjrt.Client]:
    """Return the devices: how an author may write the same one."""
    fallback = {"fallback": "reference"}
    hidden, visible = {"memory": ArrayMemory(False)}, {"memory": ArrayMemory(True)}
    makers: dict[str, dict[str, Any]] = {
        PLAIN: {"compile": compile_whole},
        "one run of operations": {"compile": compile_whole, "operations": OPERATIONS, **fallback},
        "kernels for all": {"kernels": kernels(3), **fallback},
        "a kernel for a third": {"kernels": kernels(1), **fallback},
        "no kernel": {"kernels": {}, **fallback},
        "memory, one function": {"compile": on_handles(compile_whole), **hidden},
        "memory, one run": {"compile": on_handles(compile_whole), "operations": OPERATIONS, **fallback, **hidden},
        "memory, kernels for all": {"kernels": kernels(3, True), **fallback, **hidden},
        "memory, a third": {"kernels": kernels(1, True), **fallback, **hidden},
        "memory with host_view, a third": {"kernels": kernels(1, True), **fallback, **visible},
    }
    return {name: pjrt.StableHloClient("benchmark", num_devices=DEVICES, **options) for name, options in makers.items()}


def call_of(client: pjrt.Client, steps: int, devices: int = 1, partitioned: bool = False) -> Callable[[], object]:
    """Return a call that executes the program and waits for it, after a check of its result."""
    options = pjrt.CompileOptions(
        num_replicas=1 if partitioned else devices, num_partitions=devices if partitioned else 1
    )
    executable = client.compile(program(steps, devices if partitioned else 1), options)
    array = np.linspace(0, 1, SIZE, dtype=np.float32)
    arguments = [[client.buffer_from_host(array, device=device)] for device in client.devices[:devices]]

    def call() -> None:
        for (result,) in executable.execute(arguments):
            result.ready().result()

    expected = array
    for number in range(steps):
        expected = list(OPERATIONS.values())[number % len(OPERATIONS)](expected, array)
    for (result,) in executable.execute(arguments):
        np.testing.assert_array_equal(np.asarray(result), expected)
    return call


def measure(quick: bool) -> Report:
    """Time all devices in turn, with programs of no and of some operations, on one and on several devices."""
    rounds = 5 if quick else 25
    all_clients = clients()
    calls = {name: call_of(client, STEPS) for name, client in all_clients.items()}
    calls[EMPTY] = call_of(all_clients[PLAIN], 0)
    timings = take_turns(calls, rounds=rounds, clock=time.process_time)
    plain = timings[PLAIN]
    rows = [
        (
            name,
            duration(timing.median),
            duration(min(timing.rounds)),
            microseconds(added(timing, plain)),
            microseconds(added(timing, plain) / STEPS),
            f"{min(timing.rounds) / min(plain.rounds):.2f}×",
        )
        for name, timing in timings.items()
    ]
    several = {}
    for name in (PLAIN, "kernels for all", "memory, kernels for all"):
        for devices, partitioned in ((1, False), (DEVICES, False), (DEVICES, True)):
            kind = "one device" if devices == 1 else "partitions" if partitioned else "replicas"
            several[name, kind] = call_of(all_clients[name], STEPS, devices, partitioned)
    together = take_turns(
        {f"{name}|{kind}": call for (name, kind), call in several.items()},
        rounds=rounds,
        clock=time.process_time,
    )
    kinds = ("one device", "replicas", "partitions")
    names = dict.fromkeys(name for name, _ in several)
    by_devices = [(name, *(duration(min(together[f"{name}|{kind}"].rounds)) for kind in kinds)) for name in names]
    for client in all_clients.values():
        client.close()
    about = (
        f"One execution of a program of {STEPS} elementwise operations on {SIZE} numbers, from the call to the end: "
        "the time that all threads of the process compute, so that other work on the machine hardly changes it. "
        "The author's code is the same numpy function for each operation. *Added* is the difference of "
        "the fastest rounds of the device and of the plain path: waits of threads for each other take time, too."
    )
    aims = [
        Aim(
            f"{name}: at most {limit} µs added{' for each operation' if per else ''}",
            added(timings[name], plain) * 1e6 / (STEPS if per else 1),
            limit,
            reason=OWNERS if name == "memory, kernels for all" else "",
        )
        for name, per, limit in (
            ("one run of operations", False, 25),
            ("kernels for all", True, 3),
            ("memory, one function", False, 10),
            ("memory, kernels for all", True, 5),
        )
    ]
    queued, seconds = measure_queue(rounds)
    aims.append(Aim("an Adam step on a chip with a queue: within 1 ms", seconds * 1e3, 1, reason=COMMANDS))
    tables = [
        table(["device", "median", "fastest", "added", "added for each operation", "ratio"], rows),
        table(["device", "one device", f"{DEVICES} replicas", f"{DEVICES} partitions"], by_devices),
        queued,
    ]
    return Report("Devices of authors", about, tables, aims)


def measure_queue(rounds: int) -> tuple[str, float]:
    """Time an Adam step on a chip with a queue: kernels for 7 kinds of operations, and the fallback for the others.

    Returns:
        The table, and the seconds of the fastest round as the author writes the chip.
    """
    rows = []
    own = 0.0
    with author_chip.chips() as (driver, all_clients), pjrt.client("reference") as reference:
        steps = {name: author_chip.step_of(client) for name, client in all_clients.items()}
        timed = steps.pop("timed")
        for kernel, delay in (("as they are", 0), (f"of {SLOW_KERNEL * 1e6:.0f} µs more", SLOW_KERNEL)):
            driver.functions.chip_delay(round(delay * 1e9))
            timings = take_turns(steps, rounds=rounds)
            processor = take_turns(steps, rounds=rounds, clock=time.process_time)
            for name, step in steps.items():
                busy, blocked = driver.functions.chip_busy(), driver.functions.chip_blocked()
                for _ in range(rounds):
                    step()
                busy = (driver.functions.chip_busy() - busy) / rounds * 1e-9
                blocked = (driver.functions.chip_blocked() - blocked) / rounds
                timing, fastest = timings[name], min(processor[name].rounds)
                if name == author_chip.ENQUEUED and not delay:
                    own = min(timing.rounds)
                rows.append(
                    (
                        f"kernels {kernel}: {name}",
                        duration(timing.median),
                        duration(min(timing.rounds)),
                        f"{timing.median / busy:.2f}×",
                        duration(fastest),
                        f"{blocked:.0f}",
                        duration(busy),
                    )
                )
        driver.functions.chip_delay(0)
        driver.seconds = 0.0
        for _ in range(rounds):
            timed()
        rows.append(("the author's own functions", duration(driver.seconds / rounds), *[""] * 5))
        alone = take_turns({"reference": author_chip.step_of(reference)}, rounds=rounds)["reference"]
        rows.append(("the reference interpreter", duration(alone.median), duration(min(alone.rounds)), *[""] * 4))
        for client in all_clients.values():
            client.close()
    header = ["an Adam step", "median", "fastest", "chip's time", "processor", "waits that block", "chip at work"]
    return table(header, rows), own


def added(timing: Timing, plain: Timing) -> float:
    """Return what the fastest round takes more than the plain path's fastest, in seconds."""
    return min(timing.rounds) - min(plain.rounds)


def microseconds(seconds: float) -> str:
    """Write a difference in microseconds."""
    return f"{seconds * 1e6:+.1f} µs"


if __name__ == "__main__":
    main(measure)
