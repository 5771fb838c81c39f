"""A process of a job that is lost is an error with its name in the others: never a hang, never their end."""

from __future__ import annotations

import signal

import pytest
from job_fixtures import StartJob
from job_programs import ALL_REDUCE

from pjrt.stablehlo.encodings.jaxlib import version

TRANSFERS = pytest.mark.skipif(version() < (0, 10), reason="jaxlib before 0.10 cannot pull arrays from other processes")
BEGIN = (
    ALL_REDUCE
    + """
initialize(heartbeat_timeout_seconds=5)
client = pjrt.client("cpu", num_devices=2)

def run():
    rows = put(client)
    for _ in range(2):                     # the second launch waits for the first
        rows = executable.execute(rows)
    return first(rows)

def compiled():
    return client.compile(all_reduce(4), pjrt.CompileOptions(num_replicas=4))

def go_on():
    '''Do what needs no other process, and what needs one.'''
    say("alone", first([client.compile(DOUBLE)(np.ones(4, "f4"))]))
    attempt(compiled)
"""
)
STAGES = {
    "making the client": 'initialize(heartbeat_timeout_seconds=5); say("there"); hear(); attempt(pjrt.client, "cpu")',
    "before the first collective": BEGIN + 'executable = compiled(); say("there"); hear(); attempt(run); go_on()',
    "before a later collective": BEGIN + 'executable = compiled(); run(); say("there"); hear(); attempt(run); go_on()',
    "waiting for a transfer": BEGIN
    + """
client.cross_host_send_buffers([put(client)[0][0]], [2048 * (1 - rank)], [1])   # starts the server
spec = pjrt.ShapeSpec((4,), pjrt.ElementType.F32)
def receive(key):
    (buffer,) = client.cross_host_receive_buffers([spec], client.addressable_devices[0], [2048 * (1 - rank)], [key])
    return float(np.asarray(buffer)[0])
receive(1); say("there"); hear(); attempt(receive, 2); go_on()
""",
}


@pytest.mark.full
@pytest.mark.parametrize(
    ("stage", "victim", "number"),
    [
        ("making the client", 1, signal.SIGKILL),
        ("before the first collective", 0, signal.SIGKILL),
        ("before the first collective", 1, signal.SIGSTOP),
        ("before a later collective", 1, signal.SIGKILL),
        ("before a later collective", 0, signal.SIGSTOP),
        pytest.param("waiting for a transfer", 1, signal.SIGKILL, marks=TRANSFERS),
        pytest.param("waiting for a transfer", 0, signal.SIGSTOP, marks=TRANSFERS),
    ],
)
def test_a_lost_process(start_job: StartJob, stage: str, victim: int, number: int) -> None:
    job = start_job(2, STAGES[stage])
    survivor = job[1 - victim]
    for process in job.processes:
        process.hear("there")
    survivor.say()  # it waits for the other one by the time that the signal comes, or a moment later
    job[victim].kill(number)
    assert f"process {victim} (pid {job[victim].popen.pid}" in survivor.hear("UnavailableError")
    if stage != "making the client":
        survivor.hear("alone [2.0]")
        assert f"process {victim} (pid" in survivor.hear("UnavailableError")
    assert survivor.wait() == 0


def test_a_process_that_is_lost_while_all_compile(start_job: StartJob) -> None:
    job = start_job(
        2,
        BEGIN
        + """
lines = "".join(f"%{n + 1} = stablehlo.cosine %{n} : tensor<4xf32>\\n" for n in range(2000))
program = all_reduce(4).replace("return %0", lines + "return %2000")
say("there")
attempt(client.compile, program, pjrt.CompileOptions(num_replicas=4))
""",
    )
    for process in job.processes:
        process.hear("there")
    job[1].kill()
    assert "process 1 (pid" in job[0].hear("UnavailableError")
    assert job[0].wait() == 0


@pytest.mark.full
@pytest.mark.parametrize("leaver", [0, 1])
def test_a_process_that_leaves_while_others_compute(start_job: StartJob, leaver: int) -> None:
    job = start_job(2, BEGIN + f"executable = compiled(); run()\nif rank != {leaver}: attempt(run); go_on()")
    assert f"process {leaver} (pid" in (line := job[1 - leaver].hear("UnavailableError"))
    assert "has called shutdown(), so it does not take part any more" in line
    job.succeed()


@pytest.mark.full
def test_work_of_a_process_that_leaves_is_finished_first(start_job: StartJob) -> None:
    job = start_job(
        2,
        BEGIN
        + """
executable = compiled()
if rank == 0:
    hear()
rows = executable.execute(put(client))
say("there")
if rank == 0:
    say(first(rows))
distributed.shutdown()
""",
    )
    job[1].hear("there")  # its part is started, it leaves, and the other part is not even started
    job[0].say()
    assert job.succeed()[0][-1] == "[4098.0, 4098.0]"


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_what_does_not_need_a_lost_process_goes_on(start_job: StartJob, number: int) -> None:
    job = start_job(
        3,
        ALL_REDUCE
        + """
initialize(recoverable=True, heartbeat_timeout_seconds=5)
client = pjrt.client("cpu", num_devices=2)

def sum_over(ids):
    options = pjrt.CompileOptions(
        num_replicas=len(ids), device_assignment=pjrt.DeviceAssignment(tuple((id,) for id in ids))
    )
    return client.compile(all_reduce(len(ids)), options)

def run(executable):
    return first(executable.execute(put(client, executable.addressable_devices)))

of_all = sum_over([0, 1, 2048, 2049, 4096, 4097])
of_this = sum_over([2048 * rank, 2048 * rank + 1])
say(run(of_this), run(of_all))
if rank < 2:
    of_two = sum_over([0, 1, 2048, 2049])
    kept = put(client)
    say(run(of_two))
hear()
waiting = of_all.execute(put(client))
say("begun")
attempt(run, of_all)                           # it waits for the first one
attempt(first, waiting)
say(run(of_this), run(of_two), first(kept))    # over the connections of before
say(run(sum_over([2049, 1])))                  # over new ones
attempt(run, of_all)
attempt(sum_over, [2048 * rank, 4096])
distributed.shutdown()
""",
    )
    for rank in range(3):
        assert job[rank].hear("[") == f"{[4096.0 * rank + 1] * 2} {[12291.0] * 2}"
    for survivor in job.processes[:2]:
        assert survivor.hear("[") == str([4098.0] * 2)
        survivor.say()
    for survivor in job.processes[:2]:
        survivor.hear("begun")
    job[2].kill(number)
    for rank, survivor in enumerate(job.processes[:2]):
        for _ in range(2):
            assert "process 2 (pid" in survivor.hear("UnavailableError")
        local = f"{[4096.0 * rank + 1] * 2} {[4098.0] * 2} {[2048.0 * rank, 2048.0 * rank + 1]}"
        assert survivor.hear("[") == local
        assert survivor.hear("[") == "[2050.0]"
        for _ in range(2):
            assert "process 2 (pid" in survivor.hear("UnavailableError")
    assert [survivor.wait() for survivor in job.processes[:2]] == [0, 0]
