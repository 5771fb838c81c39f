"""The ``cpu`` device in a job of several processes."""

from __future__ import annotations

import pytest
from job_fixtures import StartJob
from job_programs import ALL_REDUCE

import pjrt

IDS = [0, 1, 2048, 2049]
SUM = float(sum(IDS))


def test_a_client_has_the_devices_of_all_processes(start_job: StartJob) -> None:
    lines = start_job(
        2,
        ALL_REDUCE
        + """
initialize()
client = pjrt.client("cpu", num_devices=2)
say([device.id for device in client.devices], [device.process_index for device in client.devices])
say([device.id for device in client.addressable_devices], client.process_index, client.lookup_device(2049))
say([device.local_hardware_id for device in client.devices], [len(device.memory_spaces) for device in client.devices])
say(client.default_device_assignment(2, 1).device_ids, client.default_device_assignment(1, 4).device_ids)
say([(each.id, each.process_index) for each in client.topology.device_descriptions])
again = pjrt.topology("cpu", "1").deserialize(client.topology.serialize())
say([each.id for each in again.device_descriptions], client.topology.fingerprint() == again.fingerprint())
attempt(again.compile, DOUBLE)
attempt(client.default_device_assignment, 5, 1)
(far, *_) = [device for device in client.devices if not device.is_addressable]
attempt(lambda: far.default_memory_space)
attempt(far.memory_stats)
attempt(put(client)[0][0].copy_to, far)
attempt(client.buffer_from_host, np.zeros(4, "f4"), device=far)
attempt(client.compile, DOUBLE, pjrt.CompileOptions(device_assignment=pjrt.DeviceAssignment(((far.id,),))))
distributed.shutdown()
""",
    ).succeed()
    for rank, output in enumerate(lines):
        local, other = IDS[2 * rank :][:2], 1 - rank
        far = IDS[2 * other]
        assert output == [
            f"{IDS} [0, 0, 1, 1]",
            f"{local} {rank} cpu:2049",
            f"{[0, 1, -1, -1] if rank == 0 else [-1, -1, 0, 1]} {[3, 3, 0, 0] if rank == 0 else [0, 0, 3, 3]}",
            f"{tuple((number,) for number in local)} ((0, 1, 2048, 2049),)",
            "[(0, 0), (1, 0), (2048, 1), (2049, 1)]",
            f"{IDS} True",
            "UnimplementedError UNIMPLEMENTED: the device 'cpu' cannot compile for the devices of 2 processes outside "
            "of a job; use client.topology or client.compile in a process of the job",
            "InvalidArgumentError INVALID_ARGUMENT: 5 replicas × 1 partitions need 5 devices, the client has 4; make "
            "it with pjrt.client('cpu', num_devices=5)",
            f"FailedPreconditionError FAILED_PRECONDITION: cpu:{far} belongs to process {other}: its memory cannot be "
            f"reached from process {rank}; use one of client.addressable_devices",
            f"FailedPreconditionError FAILED_PRECONDITION: cpu:{far} belongs to process {other}: the state of its "
            f"memory cannot be reached from process {rank}; use one of client.addressable_devices",
            f"UnimplementedError UNIMPLEMENTED: cpu:{far} belongs to process {other}, which has to take part in a copy "
            "to its memory: use client.cross_host_send_buffers here and client.cross_host_receive_buffers there, or "
            "pjrt.ifrt.Client.copy_arrays in both",
            f"InvalidArgumentError INVALID_ARGUMENT: cpu:{far} belongs to process {other}; use one of "
            "client.addressable_devices",
            f"InvalidArgumentError INVALID_ARGUMENT: the program is for devices of process {other} alone, and this is "
            f"process {rank}; compile it only in the processes that have its devices",
        ]


@pytest.mark.full
def test_more_collectives_than_xla_keeps_in_flight(start_job: StartJob) -> None:
    lines = start_job(
        2,
        ALL_REDUCE
        + """
initialize()
client = pjrt.client("cpu", num_devices=2)
executable = client.compile(all_reduce(4), pjrt.CompileOptions(num_replicas=4))
rows = [[client.buffer_from_host(np.full(4, 0.0, "f4"), device=device)] for device in client.addressable_devices]
for _ in range(100):
    rows = executable.execute(rows)
say(first(rows), "PJRT_NPROC" in os.environ)
distributed.shutdown()
""",
    ).succeed()
    assert lines == [["[0.0, 0.0] False"]] * 2


@pytest.mark.full
def test_programs_run_on_all_devices_or_some(start_job: StartJob) -> None:
    lines = start_job(
        2,
        ALL_REDUCE
        + """
job = initialize()
client = pjrt.client("cpu", num_devices=2)
executable = client.compile(all_reduce(4), pjrt.CompileOptions(num_replicas=4))
say(executable.addressable_device_logical_ids, len(executable.cost_analysis()) > 0)
rows, futures = put(client), []
results = executable.execute(rows, returned_futures=futures)
say(first(results), [future.result() for future in futures])
say(first(executable.execute(results)))                                      # results are arguments as they are

one = executable.execute_sharded
parts = [one(row, device) for row, device in zip(rows, executable.addressable_devices)]
say(first(parts))

local = client.compile(all_reduce(2), pjrt.CompileOptions(num_replicas=2))  # the same parts, in this process alone
say(first(local.execute(results)))
double = client.compile(DOUBLE)
say(double.device_assignment.device_ids, first([double(results[0][0])]))

pair = pjrt.DeviceAssignment(((2049,), (0,)))                                # in another order than the client's
both = client.compile(all_reduce(2), pjrt.CompileOptions(num_replicas=2, device_assignment=pair))
(mine,) = both.addressable_devices
say(mine.id, both.addressable_device_logical_ids, first(both.execute(put(client, [mine]))))
say(first([both(np.ones(4, "f4"))]))  # one device of this process
attempt(both.execute, [])

donating = client.compile(all_reduce(4, donated=True), pjrt.CompileOptions(num_replicas=4))
rows = put(client)
say(first(donating.execute(rows)), [row[0].is_deleted for row in rows])
attempt(donating.execute, rows)
rows = put(client)
donating.execute(rows, pjrt.ExecuteOptions(non_donatable_input_indices={0}))
say([row[0].is_deleted for row in rows])

job.store.put(f"executable/{rank}", executable.serialize())
loaded = client.deserialize(job.store.get(f"executable/{1 - rank}", 30))
say(first(loaded.execute(put(client))))
odd = client.compile(
    all_reduce(4).replace("return %0", "%2 = stablehlo.create_token : !stablehlo.token\\n return %0"),
    pjrt.CompileOptions(num_replicas=4),
)                                                                            # this one is compiled on trial first
say(first(odd.execute(put(client))))
distributed.shutdown()
say(first([double(np.ones(4, "f4"))]))                                        # this process alone goes on
""",
    ).succeed()
    for rank, output in enumerate(lines):
        local = IDS[2 * rank :][:2]
        assert output == [
            f"{[(2 * rank, 0), (2 * rank + 1, 0)]} True",
            f"[{SUM}, {SUM}] [None, None]",
            f"[{4 * SUM}, {4 * SUM}]",
            f"[{SUM}, {SUM}]",
            f"[{2 * SUM}, {2 * SUM}]",
            f"(({local[0]},),) [{2 * SUM}]",
            f"{(0, 2049)[rank]} [({1 - rank}, 0)] [2049.0]",
            "[2.0]",
            "InvalidArgumentError INVALID_ARGUMENT: the program 'main' runs on 1 devices: expected one list of "
            "arguments for each, found 0",
            f"[{SUM}, {SUM}] [True, True]",
            "FailedPreconditionError FAILED_PRECONDITION: the buffer f32[4] on cpu:"
            f"{local[0]} was donated to an execution and has no value any more",
            "[False, False]",
            f"[{SUM}, {SUM}]",
            f"[{SUM}, {SUM}]",
            "[2.0]",
        ]


@pytest.mark.full
def test_processes_with_different_numbers_of_devices(start_job: StartJob) -> None:
    lines = start_job(
        3,
        ALL_REDUCE
        + """
initialize()
client = pjrt.client("cpu", num_devices=(1, 3, 2)[rank], asynchronous=rank != 1)
executable = client.compile(all_reduce(6), pjrt.CompileOptions(num_replicas=6))
say([device.id for device in client.devices], set(first(executable.execute(put(client)))))
distributed.shutdown()
""",
    ).succeed()
    ids = [0, 2048, 2049, 2050, 4096, 4097]
    assert [output[-1] for output in lines] == [f"{ids} {{{float(sum(ids))}}}"] * 3


@pytest.mark.full
def test_further_clients_of_a_job(start_job: StartJob) -> None:
    lines = start_job(
        2,
        ALL_REDUCE
        + """
initialize()
clients = [pjrt.client("cpu", num_devices=number) for number in (2, 1)]
for client in reversed(clients):                                             # both are there at a time
    count = len(client.devices)
    executable = client.compile(all_reduce(count), pjrt.CompileOptions(num_replicas=count))
    say(count, first(executable.execute(put(client)))[0])
clients[rank].close()
alone = pjrt.client("cpu", num_devices=3, process_count=1)
say([device.id for device in alone.devices], alone.process_index)
third = pjrt.client("cpu")
say([device.id for device in third.devices])
attempt(pjrt.client, "cpu", process_count=3)
attempt(pjrt.client, "cpu", num_devices=2049)
distributed.shutdown()
""",
    ).succeed()
    for rank, output in enumerate(lines):
        assert output == [
            "2 2048.0",
            f"4 {SUM}",
            "[0, 1, 2] 0",
            "[0, 2048]",
            f"InvalidArgumentError INVALID_ARGUMENT: this process is process {rank} of 2 of a job; found "
            "process_index=None and process_count=3 for the device 'cpu'; leave them out, or pass process_count=1 for "
            "a client of this process alone",
            "InvalidArgumentError INVALID_ARGUMENT: the device 'cpu' has at most 2048 devices in each process of a "
            "job, found num_devices=2049",
        ]


@pytest.mark.full
@pytest.mark.parametrize(
    ("end", "leader_first"),
    [
        ("client.close(); distributed.shutdown()", True),
        ("distributed.shutdown(); client.close()", False),
        ("del client", True),
        ("pass", True),
        ("pass", False),
    ],
)
def test_a_job_ends_in_any_order(start_job: StartJob, end: str, leader_first: bool) -> None:
    job = start_job(
        2,
        ALL_REDUCE
        + f"""
initialize()
client = pjrt.client("cpu")
executable = client.compile(all_reduce(2), pjrt.CompileOptions(num_replicas=2))
results = executable.execute(put(client))
if bool(rank) is {leader_first}:
    hear()
say("ending")
{end}
""",
    )
    order = (0, 1) if leader_first else (1, 0)
    job[order[0]].hear("ending")
    job[order[1]].say()
    job.succeed()
    assert not any(process.errors for process in job.processes)


@pytest.mark.full
def test_a_job_keeps_no_client_alive(start_job: StartJob) -> None:
    lines = start_job(
        2,
        ALL_REDUCE
        + """
import gc, weakref
initialize()
client = pjrt.client("cpu")
executable = client.compile(all_reduce(2), pjrt.CompileOptions(num_replicas=2))
first(executable.execute(put(client)))
seen = weakref.ref(client)
del client, executable
while seen() is not None:  # a thread that has told a result may hold the last reference for a moment longer
    gc.collect()
say(seen())
distributed.shutdown()
""",
    ).succeed()
    assert [output[-1] for output in lines] == ["None", "None"]


def test_several_processes_need_a_job() -> None:
    for options in ({"process_count": 2, "process_index": 0}, {"process_index": 1}):
        with pytest.raises(pjrt.FailedPreconditionError, match=r"need a job: call pjrt.distributed.initialize\(\)"):
            pjrt.client("cpu", **options)
    with pytest.raises(pjrt.InvalidArgumentError, match="process_count of the device 'cpu' is a number from 0 on"):
        pjrt.client("cpu", process_count="two")
    with pytest.raises(pjrt.InvalidArgumentError, match="collectives of the device 'cpu' is one of gloo, mpi, found"):
        pjrt.client("cpu", collectives="nccl")
    with pjrt.client("cpu", process_count=1) as client:
        assert len(client.devices) == 1
        (buffer,) = [client.buffer_from_host([1.0])]
        with pytest.raises(pjrt.UnimplementedError, match="cross-host transfers of a client of one process"):
            client.cross_host_send_buffers([buffer], [0], [0])


@pytest.mark.full
def test_collectives_are_chosen_alike(start_job: StartJob) -> None:
    lines = start_job(
        2,
        """
initialize()
attempt(pjrt.client, "cpu", collectives="mpi")                                # there is no MPI here
os.environ["MPITRAMPOLINE_LIB"] = "/nowhere/libmpiwrapper.so"
attempt(pjrt.client, "cpu", collectives="mpi")
from pjrt.devices.xla import _jaxlib
make = _jaxlib.make_collectives
_jaxlib.make_collectives = lambda kind, *others: make("gloo", *others)
os.environ["MPITRAMPOLINE_LIB"] = sys.executable
attempt(pjrt.client, "cpu", collectives=("gloo", "mpi")[rank])
distributed.shutdown()
""",
    ).succeed()
    for rank, output in enumerate(lines):
        nothing, missing, different = output
        start = "FailedPreconditionError FAILED_PRECONDITION: expected the path of MPIwrapper's library"
        assert nothing.startswith(start)
        assert "found 'nothing'; build MPIwrapper" in nothing
        assert "found '/nowhere/libmpiwrapper.so'" in missing
        own, other = ("gloo", "mpi") if rank == 0 else ("mpi", "gloo")
        assert f"process {rank} has {own!r}, process {1 - rank} has {other!r}" in different
