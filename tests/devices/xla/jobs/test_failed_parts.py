"""A process of a job that fails its part of a program is an error in the others, which would wait for its data."""

from __future__ import annotations

import pytest
from job_fixtures import StartJob
from job_programs import ALL_REDUCE

pytestmark = pytest.mark.full

BEGIN = (
    ALL_REDUCE
    + '''
initialize()
client = pjrt.client("cpu")

def broken(x, y):
    if rank == 1:
        raise ValueError("out of paper")
    y[...] = x

client.register_ffi_handler("broken", broken)
PRINT = """%x = stablehlo.custom_call @broken(%in) {api_version = 4 : i32} : (tensor<4xf32>) -> tensor<4xf32>
      %0"""
error = pjrt.ResourceExhaustedError("out of paper")
failed = client.create_error_buffer(error, pjrt.ShapeSpec((4,), pjrt.ElementType.F32))

def sum_over(*processes, program=None):
    assignment = pjrt.DeviceAssignment(tuple((2048 * process,) for process in processes))
    program = program or all_reduce(len(processes))
    return client.compile(program, pjrt.CompileOptions(num_replicas=len(processes), device_assignment=assignment))

def run(executable):
    return first(executable.execute(put(client)))
'''
)


@pytest.mark.parametrize("kind", ["an argument", "a function"])
def test_the_others_do_not_wait(start_job: StartJob, kind: str) -> None:
    job = start_job(
        4,
        BEGIN
        + f"""
of_all = sum_over(0, 1, 2, 3)
say(run(of_all), run(of_all))
if {kind == "an argument"}:
    rows = of_all.execute([[failed]] if rank == 1 else put(client))
else:
    failing = all_reduce(4).replace("%x:", "%in:").replace("%0", PRINT, 1)
    rows = sum_over(0, 1, 2, 3, program=failing).execute(put(client))
attempt(first, rows)
attempt(run, of_all)                     # its data could be taken for that of the part which failed
attempt(sum_over, 3, 2, 1, 0)
say("alone", first([client.compile(DOUBLE)(np.ones(4, "f4"))]))
distributed.shutdown()
""",
    )
    for rank, process in enumerate(job.processes):
        assert process.hear("[") == "[12288.0] [12288.0]"
        error = process.hear("Error")
        assert "out of paper" in error
        if rank != 1:
            assert "process 1 has failed its part of a program" in error
        for _ in range(2):
            error = process.hear("Error")
            assert "process 1 has failed its part of a program" in error
            assert "the processes 0, 1, 2, 3 exchange no data any more" in error
        assert process.hear("alone") == "alone [2.0]"
    job.succeed()


def test_what_does_not_need_the_program_s_processes_goes_on(start_job: StartJob) -> None:
    job = start_job(
        3,
        BEGIN
        + """
pairs = {pair: sum_over(*pair) for pair in ((0, 1), (1, 2), (0, 2)) if rank in pair}
for executable in pairs.values():
    say(run(executable))
if rank < 2:
    attempt(first, pairs[0, 1].execute([[failed]] if rank == 1 else put(client)))
for pair in ((1, 2), (0, 2)):
    if rank in pair:
        say(run(pairs[pair]))
distributed.shutdown()
""",
    )
    sums = {0: [2048.0, 4096.0], 1: [2048.0, 6144.0], 2: [6144.0, 4096.0]}
    for rank, process in enumerate(job.processes):
        for number in sums[rank]:
            assert process.hear("[") == f"[{number}]"
        if rank < 2:
            assert "out of paper" in process.hear("ResourceExhaustedError")
        for number in sums[rank][1 if rank < 2 else 0 :]:
            assert process.hear("[") == f"[{number}]"
    job.succeed()


def test_a_program_that_exchanges_no_data_holds_nobody_up(start_job: StartJob) -> None:
    job = start_job(
        2,
        BEGIN
        + """
apart = sum_over(0, 1, program=DOUBLE)
attempt(first, apart.execute([[failed]] if rank == 1 else put(client)))
say(run(sum_over(0, 1)), run(apart))
distributed.barrier("done")
distributed.shutdown()
""",
    )
    assert job[0].hear("result") == "result [0.0]"
    assert "out of paper" in job[1].hear("ResourceExhaustedError")
    assert job[0].hear("[") == "[2048.0] [0.0]"
    assert job[1].hear("[") == "[2048.0] [4096.0]"
    job.succeed()
