"""Processes that run different programs on devices of both: an error in both, before anything wrong is added up."""

from __future__ import annotations

import signal

import pytest
from job_fixtures import StartJob
from job_programs import ALL_REDUCE

BEGIN = (
    ALL_REDUCE
    + '''
initialize()
client = pjrt.client("cpu")

def scaled(factor):
    """Return the text of a program that multiplies the sum over both devices."""
    return all_reduce(2).replace("return %0 :", f"""%c = stablehlo.constant dense<{factor}.0> : tensor<4xf32>
      %1 = stablehlo.multiply %0, %c : tensor<4xf32>
      return %1 :""")

def compiled(text, devices=(0, 2048), **overrides):
    assignment = pjrt.DeviceAssignment(tuple((device,) for device in devices))
    options = pjrt.CompileOptions(num_replicas=2, device_assignment=assignment, option_overrides=overrides)
    return client.compile(text, options)

def run(executable):
    return first(executable.execute(put(client)))

say("sum", run(compiled(all_reduce(2))))
'''
)
TOLD = "the processes do not run the same program in the same order: this process runs the program "


def check_told(start_job: StartJob, source: str) -> None:
    """Check that both processes get the error, and that one of them does before it starts."""
    job = start_job(2, BEGIN + source + '\nbarrier = distributed.barrier("told")\n')
    for process in job.processes:
        assert process.hear("sum") == "sum [2048.0]"
        assert TOLD in process.hear("FailedPreconditionError")
    job.succeed()


def test_another_constant(start_job: StartJob) -> None:
    check_told(start_job, "attempt(lambda: run(compiled(scaled(2 + rank))))")


@pytest.mark.full
def test_another_order(start_job: StartJob) -> None:
    check_told(
        start_job,
        """
two, three = compiled(scaled(2)), compiled(scaled(3))
attempt(lambda: [run(each) for each in ((three, two) if rank else (two, three))])
""",
    )


@pytest.mark.full
def test_other_options(start_job: StartJob) -> None:
    check_told(start_job, "attempt(lambda: run(compiled(scaled(2), xla_cpu_enable_fast_math=bool(rank))))")


@pytest.mark.full
def test_what_may_differ(start_job: StartJob) -> None:
    """Compiling once more, locations, paths, programs without collectives, and executables that were serialized."""
    job = start_job(
        2,
        BEGIN
        + """
say("dumped", run(compiled(scaled(2), xla_dump_hlo_pass_re="x" if rank else "")))
if rank:
    say("alone", run(compiled(DOUBLE)))
again = compiled(scaled(2).replace("return %1 : tensor<4xf32>", f"return %1 : tensor<4xf32> loc(\\"here{rank}\\")"))
say("again", run(again))
say("three", run(compiled(scaled(3))))
executable = compiled(scaled(4))
loaded = client.deserialize(executable.executable.serialize()) if rank else executable
say("loaded", run(loaded))
say("after", run(compiled(scaled(5))))
distributed.barrier("done")
distributed.shutdown()
""",
    )
    for process in job.processes:
        for word, value in (("dumped", 4096), ("again", 4096), ("three", 6144), ("loaded", 8192), ("after", 10240)):
            assert process.hear(word) == f"{word} [{value}.0]"
    job.succeed()


WAITS = (
    ALL_REDUCE
    + """
job = initialize(recoverable=True, heartbeat_timeout_seconds=5)
client = pjrt.client("cpu")
executable = client.compile(all_reduce(2), pjrt.CompileOptions(num_replicas=2))
double = client.compile(DOUBLE)
say("there")
if rank == 1:
    hear()
rows = [executable.execute(put(client)) for _ in range(2)]
say("alone", np.asarray(double(client.buffer_from_host(np.ones(4, "f4")))[0])[0])
"""
)


def test_the_first_run_waits_for_who_compiles_longer_and_other_programs_run(start_job: StartJob) -> None:
    """XLA, which gives the others 30 seconds, does not begin before all are there."""
    job = start_job(
        2,
        WAITS
        + """
if rank == 0:
    say("XLA has begun:", bool(job.store.directory("cpu:gloo")))
say("sums", [first(each) for each in rows])
distributed.shutdown()
""",
    )
    assert job[0].hear("alone") == "alone 2.0"
    assert job[0].hear("XLA") == "XLA has begun: False"
    job[1].say()
    assert [process.hear("sums") for process in job.processes] == ["sums [[2048.0], [2048.0]]"] * 2
    job.succeed()


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_who_is_lost_before_the_first_run_holds_nobody_up(start_job: StartJob, number: int) -> None:
    job = start_job(2, WAITS + "attempt(lambda: [first(each) for each in rows])\nos._exit(0)\n")
    job[1].hear("there")
    assert job[0].hear("alone") == "alone 2.0"
    job[1].kill(number)
    line = job[0].hear("UnavailableError")
    assert f"process 1 (pid {job[1].popen.pid} on " in line
    assert "Gloo" not in line
    assert job[0].wait() == 0


@pytest.mark.full
def test_who_leaves_waits_for_its_first_runs(start_job: StartJob) -> None:
    """One process has started its part when it leaves, and the others have not come to theirs."""
    job = start_job(2, WAITS + "distributed.shutdown()\nsay('sums', [first(each) for each in rows])\n")
    job[0].hear("alone")
    job[1].say()
    assert [process.hear("sums") for process in job.processes] == ["sums [[2048.0], [2048.0]]"] * 2
    job.succeed()
