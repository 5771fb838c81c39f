"""Devices of several processes: what they list, the order of their programs, and what happens when one fails."""

from __future__ import annotations

import pytest
from job_fixtures import StartJob

pytestmark = pytest.mark.full

SUM = """
import numpy as np

def program(count, size=4, operation="add", name="sum"):
    groups = f"replica_groups = dense<{[list(range(count))]}> : tensor<1x{count}xi64>"
    return f'''module @{name} {{ func.func @main(%a: tensor<{size}xf32>) -> tensor<{size}xf32> {{
      %0 = "stablehlo.all_reduce"(%a) ({{ ^bb0(%x: tensor<f32>, %y: tensor<f32>):
        %z = stablehlo.{operation} %x, %y : tensor<f32> stablehlo.return %z : tensor<f32> }}) {{{groups}}}
        : (tensor<{size}xf32>) -> tensor<{size}xf32>
      return %0 : tensor<{size}xf32> }} }}'''

def compiled(client, text, devices=None):
    devices = devices or [d.id for d in client.devices]
    assignment = pjrt.DeviceAssignment(tuple((d,) for d in devices))
    return client.compile(text, pjrt.CompileOptions(num_replicas=len(devices), device_assignment=assignment))

def buffers(client, executable, size=4):
    return [[client.buffer_from_host(np.full(size, d.id + 1, np.float32), device=d)]
            for d in executable.addressable_devices]

def outcome(rows):
    try:
        return [float(np.asarray(row[0])[0]) for row in rows]
    except pjrt.PjrtError as error:
        return f"{type(error).__name__}: {error.message}"
"""


def test_each_failure_is_an_error_in_all_processes(start_job: StartJob) -> None:
    """The clients of one job are independent: each case has its own."""
    source = (
        SUM
        + """
initialize()

# A program fails in one process, before its devices come to the collective.
client = pjrt.client("reference", num_devices=2)
executable = compiled(client, program(4))
say("sum", outcome(executable.execute(buffers(client, executable))))
distributed.barrier("summed")  # the failure below ends collectives that the other process still finishes
rows = buffers(client, executable)
if rank == 1:
    spec = pjrt.ShapeSpec((4,), pjrt.ElementType.F32)
    rows = [[client.create_error_buffer(pjrt.InternalError("no value"), spec, memory_space=d.default_memory_space)]
            for d in executable.addressable_devices]
say("fails", outcome(executable.execute(rows)))
say("again", outcome(executable.execute(buffers(client, executable))))
client.close()

# The processes run different programs.
client = pjrt.client("reference", num_devices=2)
own = program(4, 4, "add", "first") if rank == 0 else program(4, 300, "maximum", "second")
executable = compiled(client, own)
say("differs", outcome(executable.execute(buffers(client, executable, 4 if rank == 0 else 300))))
client.close()

# A process does not come.
client = pjrt.client("reference", num_devices=2, collective_timeout=2)
executable = compiled(client, program(4))
if rank == 1:
    distributed.barrier("late")
say("late", outcome(executable.execute(buffers(client, executable))))
if rank == 0:
    distributed.barrier("late")
    # Programs of this process alone still run.
    alone = compiled(client, program(2), [0, 1])
    say("alone", outcome(alone.execute(buffers(client, alone))))
client.close()
distributed.shutdown()
"""
    )
    first, second = start_job(2, source).succeed()

    def said(lines: list[str], word: str) -> str:
        return next(line.partition(f"{word} ")[2] for line in lines if f"{word} " in line)

    assert said(first, "sum") == said(second, "sum") == "[10.0, 10.0]"
    assert said(first, "fails").startswith("AbortedError: process 1 failed: no value")
    assert said(second, "fails") == "InternalError: no value"
    assert said(first, "again").startswith("AbortedError: process 1 failed: no value")
    assert "no value" in said(second, "again")
    for lines in (first, second):  # the one that sees it last may get it from the other
        difference = said(lines, "differs")
        assert "the processes do not run the same program in the same order" in difference
        assert "in the program 'first'" in difference
        assert "in the program 'second'" in difference
    assert said(first, "late").startswith("DeadlineExceededError: not all of the processes [1] came")
    assert said(second, "late").startswith("AbortedError: process 0 failed: not all of the processes [1]")
    assert said(first, "alone") == "[3.0, 3.0]"


def test_programs_of_one_name_that_differ_are_an_error(start_job: StartJob) -> None:
    """Each case has its own client."""
    source = (
        SUM
        + """
import contextlib
initialize()

def scaled(factor):
    return program(4).replace("return %0", f"%c = stablehlo.constant dense<{factor}.0> : tensor<4xf32>\\n"
        "%1 = stablehlo.multiply %0, %c : tensor<4xf32> return %1")

def run(word, *texts, overrides={}, make=lambda: pjrt.client("reference", num_devices=2)):
    with contextlib.closing(make()) as client:
        assignment = pjrt.DeviceAssignment(tuple((d.id,) for d in client.devices))
        options = pjrt.CompileOptions(num_replicas=4, device_assignment=assignment, option_overrides=overrides)
        for text in texts:
            executable = client.compile(text, options)
            say(word, outcome(executable.execute(buffers(client, executable))))
        distributed.barrier(word)  # the other one may still read its results

class Own(pjrt.StableHloClient):
    def __init__(self):
        def kernel(operation, x, y):
            return x * y
        super().__init__("own", kernels={"stablehlo.multiply": kernel}, fallback="reference", num_devices=2)

run("alike", program(4), scaled(2))
run("constant", scaled(2 + rank))
run("operation", program(4, operation="maximum" if rank else "add"))
run("order", *[scaled(2), scaled(3)][:: 1 - 2 * rank])
run("options", program(4), overrides={"xla_cpu_enable_fast_math": bool(rank)})
run("dump", program(4), overrides={"xla_dump_to": f"/nowhere/{rank}"})
run("author", scaled(2 + rank), make=Own)
distributed.shutdown()
"""
    )
    for lines in start_job(2, source).succeed():
        said = [line.partition(" ")[::2] for line in lines if " " in line]
        for word, outcome in said:
            if word in ("constant", "operation", "order", "options", "author"):
                assert "the processes do not run the same program in the same order" in outcome, word
                assert outcome.count("in the program 'sum' with the fingerprint") == 2, word
        assert [outcome for word, outcome in said if word == "alike"] == ["[10.0, 10.0]", "[20.0, 20.0]"]
        assert [outcome for word, outcome in said if word == "dump"] == ["[10.0, 10.0]"]
        assert {"constant", "operation", "order", "options", "author"} < {word for word, _ in said}


def test_a_process_that_is_killed_in_a_collective_is_named_by_all_others(start_job: StartJob) -> None:
    job = start_job(
        3,
        SUM
        + """
initialize()
client = pjrt.client("reference", num_devices=2)
executable = compiled(client, program(6))
say("sum", outcome(executable.execute(buffers(client, executable))))
if rank == 1:
    hear()
rows = executable.execute(buffers(client, executable))
say("waits")
say("lost", outcome(rows))
say("lost", outcome(executable.execute(buffers(client, executable))))
""",
    )
    for process in job.processes:
        process.hear("sum [21.0, 21.0]")
    for rank in (0, 2):
        job[rank].hear("waits")
    job[1].kill()
    for rank in (0, 2):
        for _ in range(2):
            assert "lost UnavailableError: process 1 (pid" in job[rank].hear("lost")
    for rank in (0, 2):
        job[rank].wait()


def test_programs_in_flight_do_not_wait_for_each_other(start_job: StartJob) -> None:
    source = (
        SUM
        + """
initialize()
client = pjrt.client("reference", num_devices=2)
say([d.process_index for d in client.devices], [d.id for d in client.addressable_devices], client.process_index)

# Two programs on different devices, begun in another order in each process.
programs = [compiled(client, program(3), [0, 2, 4]), compiled(client, program(3), [1, 3, 5])]
results = []
for turn in range(20):
    for n in ((0, 1) if (rank + turn) % 2 else (1, 0)):
        results.append((n, programs[n].execute(buffers(client, programs[n]))))
say(all(outcome(rows) == ([9.0], [12.0])[n] for n, rows in results))

# Two programs on the same devices. In one process the argument of the first comes late.
total, most = compiled(client, program(6)), compiled(client, program(6, 4, "maximum", "most"))
first, promises = buffers(client, total), []
if rank == 0:
    spec = pjrt.ShapeSpec((4,), pjrt.ElementType.F32)
    pairs = [client.create_alias_buffer(spec, memory_space=d.default_memory_space) for d in total.addressable_devices]
    first, promises = [[buffer] for buffer, _ in pairs], list(zip([p for _, p in pairs], first))
early, late = total.execute(first), most.execute(buffers(client, most))
for fulfillment, (buffer,) in promises:
    fulfillment.fulfill(buffer)
say(outcome(early), outcome(late))

# The processes of a program are not all of the job, and this one may have no device of it.
if rank != 1:
    pair = compiled(client, program(2, 500), [1, 5])
    say(outcome(pair.execute(buffers(client, pair, 500))))
elsewhere = compiled(client, program(2), [4, 5] if rank != 2 else [0, 1])
say(list(elsewhere.addressable_devices))
client.close()
distributed.shutdown()
"""
    )
    lines = start_job(3, source).succeed()
    for rank, output in enumerate(lines):
        own = [line for line in output if "Gloo" not in line]
        assert own[0] == f"[0, 0, 1, 1, 2, 2] [{2 * rank}, {2 * rank + 1}] {rank}"
        assert own[1] == "True"
        assert own[2] == "[21.0, 21.0] [6.0, 6.0]"
        assert own[3:] == ([] if rank == 1 else ["[8.0]"]) + ["[]"]


def test_a_process_that_has_left_is_named(start_job: StartJob) -> None:
    """It waits for the others when it ends, so its connections are still open."""
    start = (
        SUM
        + """
initialize()
from pjrt.devices.collectives import engine
engine._LEAVING_SECONDS = 0.5
client = pjrt.client("reference", num_devices=1)
executable = compiled(client, program(2))
say("sum", outcome(executable.execute(buffers(client, executable))))
"""
    )
    wait = 'say("left", outcome(executable.execute(buffers(client, executable))))'
    lines = start_job([start, start + wait]).succeed()
    (error,) = [line for line in lines[1] if "left " in line and "Gloo" not in line]
    assert error.startswith("left UnavailableError: process 0 (pid")
    assert "has called shutdown()" in error
