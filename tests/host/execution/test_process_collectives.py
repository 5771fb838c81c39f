"""Collectives between processes, with an author's own exchange of values. Two clients play two processes here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import pjrt
from pjrt.host import Collectives, Compiled, HostClient, ProcessGroup
from pjrt.host.processes import pack, unpack

COUNTS = (2, 1)


class Exchange:
    """The part of the network: messages by group and round."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.messages: dict[Any, dict[int, Any]] = {}
        self.error: pjrt.PjrtError | None = None


class ThreadCollectives(Collectives):
    """Messages through memory; nothing but what is required."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange, self._rounds = exchange, {}

    def gather(self, group: ProcessGroup, message: Any) -> list[Any]:
        number = self._rounds[group.members] = self._rounds.get(group.members, 0) + 1
        exchange = self._exchange
        with exchange.changed:
            box = exchange.messages.setdefault((group.members, number), {})
            box[group.index] = message.copy()
            exchange.changed.notify_all()
            exchange.changed.wait_for(lambda: exchange.error is not None or len(box) == len(group.members))
            if exchange.error is not None:
                raise exchange.error
            return [box[n] for n in range(len(group.members))]

    def fail(self, error: pjrt.PjrtError) -> None:
        with self._exchange.changed:
            self._exchange.error = self._exchange.error or error
            self._exchange.changed.notify_all()

    def close(self) -> None:
        pass


Run = Callable[..., Any]


class Processes:
    """Two clients that play the processes of a job; ``run`` runs a function on all of their devices."""

    def __init__(self, **options: Any) -> None:
        self.function: Run = lambda context, x: x
        self.programs: Sequence[bytes | str] = ("any", "any")
        store, exchange = pjrt.InMemoryKeyValueStore(), Exchange()
        own = {"collectives": lambda *arguments: ThreadCollectives(exchange), **options}

        def make(index: int) -> HostClient:
            return HostClient(
                "toy",
                compile=self.compile,
                num_devices=COUNTS[index],
                process_index=index,
                process_count=2,
                key_value_store=store,
                **own,
            )

        self.pool = ThreadPoolExecutor(2)
        self.clients = list(self.pool.map(make, range(2)))

    def compile(self, program: pjrt.Program, options: pjrt.CompileOptions) -> Compiled:
        spec = pjrt.ShapeSpec((), pjrt.ElementType.F32)
        return Compiled(run=lambda *a: self.function(*a), takes_context=True, parameters=[spec])

    def run(self, function: Run, devices: Sequence[int] = (0, 1, 2)) -> list[list[Any]]:
        """Return the results of each process: one for each of its devices, or an error."""
        return list(self.pool.map(lambda client: self.execute(client, function, devices), self.clients))

    def execute(self, client: HostClient, function: Run, devices: Sequence[int]) -> list[Any]:
        self.function = function
        assignment = pjrt.DeviceAssignment(tuple((n,) for n in devices))
        options = pjrt.CompileOptions(num_replicas=len(devices), device_assignment=assignment)
        executable = client.compile(self.programs[client.process_index], options)
        rows = [[client.buffer_from_host(np.float32(0), device=d)] for d in executable.addressable_devices]
        try:
            return [np.asarray(row[0]) for row in executable.execute(rows)]
        except pjrt.PjrtError as error:
            return [error]

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.pool.shutdown()


@pytest.fixture
def processes() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.close()


def test_the_devices_of_all_processes_are_listed(processes: Processes) -> None:
    for index, client in enumerate(processes.clients):
        assert [(d.id, d.process_index) for d in client.devices] == [(0, 0), (1, 0), (2, 1)]
        assert [d.id for d in client.addressable_devices] == [[0, 1], [2]][index]
        assert [d.local_hardware_id for d in client.addressable_devices] == [[0, 1], [0]][index]
        assert client.process_index == index
        assert client.default_device_assignment(3, 1).device_ids == ((0,), (1,), (2,))


def test_each_method_gives_what_it_gives_among_devices_of_one_process(processes: Processes) -> None:
    seen: list[Any] = []

    def function(context: Any, x: Any) -> Any:
        me = context.replica_id
        long = np.full(500, me + 1.0)
        gathered = context.rendezvous("values", {"me": me, "list": [1.5, None, (b"b", "s", 2j)], "long": long})
        everyone = [(0, 0), (1, 0), (2, 0)]
        backwards = context.rendezvous("order", me, participants=everyone[::-1])

        def add(rows: Any) -> Any:
            return [sum(column) for column in zip(*rows, strict=True)]

        def collective(key: str) -> Any:
            return context.collective(key, participants=everyone)

        parts = [long[:1] * 10 + n for n in range(3)]
        seen.append(
            (
                [(g["me"], g["list"], g["long"][0]) for g in gathered],
                backwards,
                collective("sum").all_reduce([long], add, "add")[0][0],
                collective("scatter").reduce_scatter(parts, add, "add").tolist(),
                [part.tolist() for part in collective("all").all_to_all(parts)],
                collective("first").broadcast(long)[0],
                None if (sent := collective("permute").permute(long, [(0, 2), (2, 1)])) is None else sent[0],
            )
        )
        return x

    results = processes.run(function)
    assert len(seen) == 3, results
    kept = [1.5, None, (b"b", "s", 2j)]
    for each in seen:
        assert each[0] == [(n, kept, n + 1.0) for n in range(3)]
        assert each[1] == [2, 1, 0]
        assert each[2] == 6.0
        assert each[5] == 1.0
    assert sorted(each[3] for each in seen) == [[60.0 + 3 * n] for n in range(3)]
    assert sorted(each[4] for each in seen) == [[[10.0 + n], [20.0 + n], [30.0 + n]] for n in range(3)]
    assert sorted(str(each[6]) for each in seen) == ["1.0", "3.0", "None"]


def test_a_failure_reaches_the_other_process(processes: Processes) -> None:
    def function(context: Any, x: Any) -> Any:
        if context.replica_id == 2:
            raise ValueError("a defect")
        context.rendezvous("never")
        return x

    (first,), (second,) = processes.run(function)
    assert "a defect" in first.message
    assert "a defect" in second.message


@pytest.mark.parametrize(
    ("programs", "are_told"), [(("one", "other"), True), ((b"ML\xefR one", b"ML\xefR other"), False)]
)
def test_processes_with_other_programs_are_told_so(
    processes: Processes, programs: Sequence[bytes | str], are_told: bool
) -> None:
    """Bytecode has source locations, so its bytes may differ in the processes."""
    processes.programs = programs
    for result, *_ in processes.run(lambda context, x: len(context.rendezvous("here"))):
        if are_told:
            assert "the processes do not run the same program" in result.message
            assert "with the fingerprint" in result.message
        else:
            assert result == 3


def test_a_client_may_say_what_makes_programs_equal() -> None:
    processes = Processes(fingerprint=lambda program: program.code.lower())
    try:
        for programs, are_told in ((("one", "ONE"), False), (("one", "other"), True)):
            processes.programs = programs
            for result, *_ in processes.run(lambda context, x: len(context.rendezvous("here"))):
                assert (result == 3) is not are_told
    finally:
        processes.close()


def test_processes_with_other_keys_are_told_so(processes: Processes) -> None:
    results = processes.run(lambda context, x: context.rendezvous("here" if context.replica_id < 2 else "there")[0])
    for result in results:
        assert "the processes do not run the same program" in result[0].message
        assert "'here'" in result[0].message
        assert "'there'" in result[0].message


def test_a_value_of_another_kind_is_refused(processes: Processes) -> None:
    results = processes.run(lambda context, x: context.rendezvous("object", object()))
    assert all("expected arrays, numbers" in result[0].message for result in results)


def test_without_an_exchange_a_collective_of_several_processes_is_refused() -> None:
    processes = Processes(collectives=None)
    try:
        (first,), (second,) = processes.run(lambda context, x: context.rendezvous("never"))
        assert isinstance(first, pjrt.UnimplementedError)
        assert "needs the devices [2] of other processes" in first.message
        assert "collectives=pjrt.xla_collectives" in first.message
        assert "needs the devices [0, 1] of other processes" in second.message
    finally:
        processes.close()


@pytest.mark.full
def test_an_exchange_that_takes_too_long_is_an_error() -> None:
    """The thread that waits cannot be interrupted; the results fail all the same."""
    processes, late = Processes(collective_timeout=2), threading.Event()

    def function(context: Any, x: Any) -> Any:
        if context.replica_id == 2:
            late.wait(30)
        return context.rendezvous("late")[0]

    try:
        first = processes.pool.submit(processes.execute, processes.clients[0], function, (0, 1, 2))
        second = processes.pool.submit(processes.execute, processes.clients[1], function, (0, 1, 2))
        (error,) = first.result()
        assert isinstance(error, pjrt.DeadlineExceededError)
        assert "not all of the processes [1] came to a collective within 2 s" in error.message
        late.set()
        (error,) = second.result()
        assert "not all of the processes [1]" in error.message
    finally:
        late.set()
        processes.close()


def test_a_missing_client_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pjrt.host.processes._PATIENCE_SECONDS", 0.05)
    with pytest.raises(pjrt.FailedPreconditionError, match="process 1 of 2 has made no client of 'missing'"):
        HostClient(
            "missing",
            compile=lambda program, options: lambda x: x,
            process_index=0,
            process_count=2,
            key_value_store=pjrt.InMemoryKeyValueStore(),
        )


DTYPES = st.sampled_from(["f4", "f8", "?", "i1", "u8", "c8", ">f4", ml_dtypes.bfloat16, ml_dtypes.int4])
ARRAYS = DTYPES.flatmap(
    lambda dtype: npst.arrays(np.uint8, npst.array_shapes(min_dims=0, min_side=0, max_dims=3)).map(
        lambda array: array.astype(dtype)
    )
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | ARRAYS,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


@given(VALUES)
def test_values_survive_a_message(value: Any) -> None:
    same(unpack(pack(value)), value)


def same(left: Any, right: Any) -> None:
    if isinstance(right, np.ndarray):
        assert left.shape == right.shape
        assert left.dtype == right.dtype.newbyteorder("=")
        np.testing.assert_array_equal(left.astype("c16"), right.astype("c16"))
        return
    assert type(left) is type(right)
    if isinstance(right, list | tuple):
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            same(a, b)
    elif isinstance(right, dict):
        assert left.keys() == right.keys()
        for key in right:
            same(left[key], right[key])
    else:
        assert left == right


def test_a_damaged_message_is_an_error() -> None:
    packed = pack(np.arange(100))
    with pytest.raises(pjrt.DataLossError, match=r"damaged|expected"):
        unpack(packed[:-50])
