"""Executions: results, asynchrony, order and errors."""

from __future__ import annotations

import math
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import toys
from waiting import wait_until_freed

import pjrt
from pjrt.host import Compiled, Enqueued, HostClient, execution


def test_the_short_form_takes_numpy_and_gives_buffers() -> None:
    with toys.negate() as client:
        (out,) = client.compile("program")(toys.floats())
        assert isinstance(out, pjrt.Buffer)
        np.testing.assert_array_equal(np.asarray(out), -toys.floats())


def test_execute_takes_one_list_a_device() -> None:
    with toys.negate(num_devices=3) as client:
        exe = client.compile("program", toys.replicas(3))
        rows = [
            [client.buffer_from_host(toys.floats(n, n, n, n), device=device)] for n, device in enumerate(client.devices)
        ]
        futures: list[pjrt.Future[None]] = []
        outs = exe.execute(rows, returned_futures=futures)
        assert [float(np.asarray(out)[0]) for (out,) in outs] == [0, -1, -2]
        assert [out.device for (out,) in outs] == list(client.devices)
        assert [future.result(toys.TIMEOUT) for future in futures] == [None, None, None]


def test_execution_is_enqueued_and_returns() -> None:
    client, gate = toys.gated()
    exe = client.compile("program")
    (out,) = exe(toys.floats())
    gate.wait_entered()
    assert not out.ready().done()
    assert out.shape == (4,)
    assert out.element_type is pjrt.ElementType.F32
    gate.open()
    assert out.ready().result(toys.TIMEOUT) is None
    np.testing.assert_array_equal(np.asarray(out), toys.floats() + 1)
    client.close()


def test_inputs_that_are_not_ready_are_waited_for_without_blocking_the_caller() -> None:
    client, gate = toys.gated()
    exe = client.compile("program")
    x = client.buffer_from_host(toys.floats())
    for _ in range(5):
        (x,) = exe.execute_sharded([x], client.devices[0])
    gate.wait_entered()
    gate.open(5)
    np.testing.assert_array_equal(np.asarray(x), toys.floats() + 5)
    client.close()


def test_one_device_waits_for_another_without_holding_up_its_queue() -> None:
    client, gate = toys.gated(num_devices=2)
    first, second = client.devices
    here = client.compile("program", pjrt.CompileOptions(device_assignment=pjrt.DeviceAssignment(((0,),))))
    there = client.compile("program", pjrt.CompileOptions(device_assignment=pjrt.DeviceAssignment(((1,),))))
    (slow,) = here.execute_sharded([client.buffer_from_host(toys.floats(), device=first)], first)
    gate.wait_entered()
    (waits,) = there.execute_sharded([slow.copy_to(second)], second)
    (quick,) = there.execute_sharded([client.buffer_from_host(toys.floats(), device=second)], second)
    gate.wait_entered()  # the second device is at work on `quick`, which was enqueued after `waits`
    gate.open(1)
    gate.open(2)
    np.testing.assert_array_equal(np.asarray(quick), toys.floats() + 1)
    np.testing.assert_array_equal(np.asarray(waits), toys.floats() + 2)
    client.close()


def test_an_exception_becomes_the_error_of_the_outputs() -> None:
    with toys.failing(KeyError("no such thing")) as client:
        futures: list[pjrt.Future[None]] = []
        x = client.buffer_from_host(toys.floats())
        (out,) = client.compile("program").execute_sharded([x], client.devices[0], returned_futures=futures)
        with pytest.raises(pjrt.InternalError, match="KeyError: 'no such thing'"):
            np.asarray(out)
        assert isinstance(out.ready().exception(), pjrt.InternalError)
        assert isinstance(futures[0].exception(), pjrt.InternalError)
        np.testing.assert_array_equal(np.asarray(x), toys.floats())


def test_a_pjrt_error_passes_through_with_code_and_payloads() -> None:
    raised = pjrt.ResourceExhaustedError("no tiles left", payloads={"type.url/x": b"\x00\x01"})
    with toys.failing(raised) as client:
        (out,) = client.compile("program")(toys.floats())
        error = out.ready().exception(toys.TIMEOUT)
        assert error is not None
        assert (error.code, error.message, dict(error.payloads)) == (raised.code, raised.message, dict(raised.payloads))


def test_the_traceback_of_the_device_is_kept_as_text_and_its_frames_are_not() -> None:
    held: list[weakref.ref[object]] = []

    class Thing:
        pass

    def run(x: object) -> None:
        thing = Thing()
        held.append(weakref.ref(thing))
        try:
            raise LookupError("inner")
        except LookupError as inner:
            raise ValueError("outer") from inner

    with toys.client(run) as client:
        (out,) = client.compile("program")(toys.floats())
        error = out.ready().exception(toys.TIMEOUT)
        assert error is not None
        assert "raise LookupError" in "".join(error.__notes__)
        wait_until_freed(*held)


def test_even_a_system_exit_of_the_device_is_an_error_and_the_device_lives_on() -> None:
    answers = iter([SystemExit(3), None])

    def run(x: np.ndarray) -> np.ndarray:
        error = next(answers)
        if error is not None:
            raise error
        return x

    with toys.client(run) as client:
        exe = client.compile("program")
        with pytest.raises(pjrt.InternalError, match="SystemExit"):
            np.asarray(exe(toys.floats())[0])
        np.testing.assert_array_equal(np.asarray(exe(toys.floats())[0]), toys.floats())


def test_a_failed_input_poisons_all_that_depends_on_it() -> None:
    calls = []
    client = toys.client(lambda x: calls.append(x) or x, num_devices=2)
    bad = client.create_error_buffer(pjrt.DataLossError("gone"), toys.spec("f32[4]"))
    exe = client.compile("program")
    (out,) = exe(bad)
    (again,) = exe(out)
    copy = again.copy_to(client.devices[1])
    for buffer in (out, again, copy):
        with pytest.raises(pjrt.DataLossError, match="gone"):
            np.asarray(buffer)
    assert not calls
    client.close()


def test_outputs_that_are_not_as_declared_are_an_error_that_says_so() -> None:
    with toys.client(lambda x: x.astype(np.float64)) as client:
        with pytest.raises(pjrt.InternalError, match=r"gave float64\[4\] for output 0, it declared f32\[4\]"):
            np.asarray(client.compile("program")(toys.floats())[0])
    with toys.client(lambda x: (x, x)) as client:
        with pytest.raises(pjrt.InternalError, match="gave 2 results, it declared 1"):
            np.asarray(client.compile("program")(toys.floats())[0])


def test_without_declared_outputs_the_results_are_waited_for_and_their_errors_raised() -> None:
    def run(x: np.ndarray) -> object:
        if x[0] < 0:
            raise ValueError("negative")
        return [x + 1, np.int32(7), x.astype(">f4")]

    with HostClient("bare", compile=lambda program, options: run) as client:
        exe = client.compile("program")
        a, b, c = exe(toys.floats())
        assert a.ready().done()
        assert (b.shape, b.element_type, c.element_type) == ((), pjrt.ElementType.S32, pjrt.ElementType.F32)
        np.testing.assert_array_equal(np.asarray(c), toys.floats())
        with pytest.raises(pjrt.InvalidArgumentError, match="ValueError: negative"):
            exe(-1 - toys.floats())
        assert exe.name == "run"
        with pytest.raises(pjrt.UnimplementedError, match="output_specs"):
            _ = exe.num_outputs


def test_results_are_taken_over_without_a_copy_when_nobody_else_has_them() -> None:
    addresses = []

    def run(x: np.ndarray) -> tuple[np.ndarray, ...]:
        plain, shaped = x + 1, (x + 2).reshape(2, 2)
        addresses[:] = [plain.ctypes.data, shaped.ctypes.data]
        return plain, shaped

    with toys.client(run, outputs="f32[4] f32[2,2]") as client:
        outs = client.compile("program")(toys.floats())
        assert [out.unsafe_pointer() for out in outs] == addresses


@pytest.mark.parametrize("kept", ["array", "tuple", "base", "twice", "input", "view_of_input", "fortran", "swapped"])
def test_results_that_somebody_else_can_see_are_copied(kept: str) -> None:
    held = np.zeros((4,), np.float32)
    held_tuple = (np.zeros((4,), np.float32),)
    base = np.zeros((8,), np.float32)
    fortran = np.asfortranarray(np.zeros((2, 2), np.float32))

    def run(x: np.ndarray) -> object:
        once = x + 1
        return {
            "array": held,
            "tuple": held_tuple,
            "base": base[:4],
            "twice": (once, once),
            "input": x,
            "view_of_input": x[::-1],
            "fortran": fortran,
            "swapped": x.astype(">f4"),
        }[kept]

    outputs = {"twice": "f32[4] f32[4]", "fortran": "f32[2,2]"}.get(kept, "f32[4]")
    with toys.client(run, outputs=outputs) as client:
        x = client.buffer_from_host(toys.floats())
        outs = client.compile("program").execute_sharded([x], client.devices[0])
        values = [np.array(out) for out in outs]
        pointers = {out.unsafe_pointer() for out in outs} | {x.unsafe_pointer()}
        assert len(pointers) == len(outs) + 1
        assert held.ctypes.data not in pointers
        assert held_tuple[0].ctypes.data not in pointers
        for array in (held, held_tuple[0], base):
            array += 5  # still writable, and nobody else's business
        for out, value in zip(outs, values, strict=True):
            np.testing.assert_array_equal(np.asarray(out), value)


def test_arguments_are_read_only_for_the_device() -> None:
    def run(x: np.ndarray) -> np.ndarray:
        x += 1
        return x

    with toys.client(run) as client:
        with pytest.raises(pjrt.InvalidArgumentError, match="read-only"):
            np.asarray(client.compile("program")(toys.floats())[0])


def test_tokens_are_none_both_ways() -> None:
    seen = []

    def run(token: object, x: np.ndarray) -> object:
        seen.append(token)
        return None, x + 1

    with toys.client(run, "token[] f32[4]", "token[] f32[4]") as client:
        token = client.create_uninitialized_buffer(toys.spec("token[]"))
        exe = client.compile("program")
        out, x = exe(token, toys.floats())
        out, x = exe(out, x)
        np.testing.assert_array_equal(np.asarray(x), toys.floats() + 2)
        exe(np.empty(0, np.bool_), toys.floats())[1].ready().result(toys.TIMEOUT)  # as frameworks begin a chain
        assert seen == [None, None, None]
        assert out.on_device_size == 0
        failed = client.create_error_buffer(pjrt.DataLossError("gone"), toys.spec("pred[0]"))
        assert isinstance(exe(failed, toys.floats())[1].ready().exception(toys.TIMEOUT), pjrt.DataLossError)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "takes 1 arguments, found 0"),
        ([toys.floats(), toys.floats()], "takes 1 arguments, found 2"),
        ([np.zeros(3, np.float32)], r"must be f32\[4\], found f32\[3\]"),
        ([np.zeros(4, np.int32)], r"must be f32\[4\], found a numpy array of s32\[4\]"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments: list[np.ndarray], message: str) -> None:
    with toys.negate() as client:
        with pytest.raises(pjrt.InvalidArgumentError, match=message):
            client.compile("program")(*arguments)


def test_arguments_of_other_places_and_clients_are_refused() -> None:
    with toys.negate(num_devices=2) as client, toys.negate() as other:
        exe = client.compile("program")
        first, second = client.devices
        with pytest.raises(pjrt.InvalidArgumentError, match="copy_to"):
            exe.execute_sharded([client.buffer_from_host(toys.floats(), device=second)], first)
        with pytest.raises(pjrt.InvalidArgumentError, match="another client"):
            exe.execute_sharded([other.buffer_from_host(toys.floats())], first)
        with pytest.raises(pjrt.InvalidArgumentError, match="does not run on"):
            exe.execute_sharded([client.buffer_from_host(toys.floats(), device=second)], second)
        with pytest.raises(pjrt.InvalidArgumentError, match="buffer_from_host"):
            exe.execute_sharded([toys.floats()], first)  # type: ignore[list-item]
        with pytest.raises(pjrt.InvalidArgumentError, match="one list of arguments for each"):
            exe.execute([])
        with pytest.raises(pjrt.InvalidArgumentError, match="compile_portable_executable"):
            exe.execute_portable([client.buffer_from_host(toys.floats())], first)


def test_portable_executables_run_where_they_are_told() -> None:
    with toys.negate(num_devices=3) as client:
        exe = client.compile("program", pjrt.CompileOptions(compile_portable_executable=True))
        assert list(exe.addressable_devices) == []
        for device in client.devices:
            (out,) = exe.execute_portable([client.buffer_from_host(toys.floats(), device=device)], device)
            assert out.device is device
            np.testing.assert_array_equal(np.asarray(out), -toys.floats())
        (out,) = exe(toys.floats())
        assert out.device is client.devices[0]


def test_poison_fails_the_launch_under_way_and_no_other() -> None:
    client, gate = toys.gated()
    (device,) = client.devices
    exe = client.compile("program")
    x = client.buffer_from_host(toys.floats())
    (first,) = exe.execute_sharded([x], device, pjrt.ExecuteOptions(launch_id=7))
    (second,) = exe.execute_sharded([x], device, pjrt.ExecuteOptions(launch_id=8))
    gate.wait_entered()
    assert not device.poison_execution(9, pjrt.AbortedError("nobody"))
    assert device.poison_execution(7, pjrt.AbortedError("stop it"))
    with pytest.raises(pjrt.AbortedError, match="stop it"):
        first.ready().result(toys.TIMEOUT)
    assert device.poison_execution(8, pjrt.CancelledError("nor this"))
    gate.open()
    with pytest.raises(pjrt.CancelledError, match="nor this"):
        second.ready().result(toys.TIMEOUT)
    client.close()
    assert not gate.entered.acquire(blocking=False)  # the second was never begun
    assert not device.poison_execution(7, pjrt.AbortedError("too late"))


def test_a_context_lets_long_work_see_that_it_was_poisoned() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def run(context: pjrt.host.RunContext, x: np.ndarray) -> np.ndarray:
        begun.set()
        assert go_on.wait(toys.TIMEOUT)
        try:
            context.check()
        except pjrt.AbortedError:
            seen.append(context.launch_id)
            raise
        return x

    seen: list[int] = []
    with toys.client(run, facts={"takes_context": True}) as client:
        (out,) = client.compile("program").execute_sharded(
            [client.buffer_from_host(toys.floats())], client.devices[0], pjrt.ExecuteOptions(launch_id=5)
        )
        assert begun.wait(toys.TIMEOUT)
        assert client.devices[0].poison_execution(5, pjrt.DataLossError("power cut"))
        go_on.set()
        with pytest.raises(pjrt.DataLossError, match="power cut"):
            np.asarray(out)
    assert seen == [5]


def test_deleting_an_executable_lets_executions_under_way_finish() -> None:
    client, gate = toys.gated()
    exe = client.compile("program")
    (out,) = exe(toys.floats())
    exe.delete()
    exe.delete()
    assert exe.is_deleted
    gate.open()
    np.testing.assert_array_equal(np.asarray(out), toys.floats() + 1)
    with pytest.raises(pjrt.FailedPreconditionError, match="deleted"):
        exe(toys.floats())
    client.close()


def test_an_exception_in_compile_reaches_the_caller_as_a_pjrt_error() -> None:
    def compile_nothing(program: pjrt.Program, options: pjrt.CompileOptions) -> Compiled:
        raise {b"a": NotImplementedError("op x"), b"b": pjrt.AbortedError("b")}[program.code]

    client = HostClient("fussy", compile=compile_nothing, formats=("mlir",))
    with pytest.raises(pjrt.UnimplementedError, match="NotImplementedError: op x"):
        client.compile("a")
    with pytest.raises(pjrt.AbortedError, match="b"):
        client.compile("b")
    with pytest.raises(pjrt.InvalidArgumentError, match="formats mlir, found 'hlo'"):
        client.compile(pjrt.Program(b"a", "hlo"))
    with pytest.raises(pjrt.InvalidArgumentError, match="must return a function"):
        HostClient("empty", compile=lambda program, options: None).compile("a")  # type: ignore[arg-type,return-value]
    client.close()


def test_two_threads_share_one_client() -> None:
    failures: list[BaseException] = []

    def work(client: HostClient, seed: int) -> None:
        try:
            exe = client.compile("program")
            for n in range(100):
                x = toys.floats(seed, n, 0, 1)
                np.testing.assert_array_equal(np.asarray(exe(x)[0]), -x)
        except BaseException as error:
            failures.append(error)

    with toys.negate() as client:
        threads = [threading.Thread(target=work, args=(client, seed)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(toys.TIMEOUT)
    assert not failures


def test_the_earliest_execution_with_a_launch_id_is_poisoned() -> None:
    client, gate = toys.gated()
    (device,) = client.devices
    exe = client.compile("program")
    x = client.buffer_from_host(toys.floats())
    first, second, third = (exe.execute_sharded([x], device, pjrt.ExecuteOptions(launch_id=7))[0] for _ in range(3))
    gate.wait_entered()
    for poisoned in (first, second):
        assert device.poison_execution(7, pjrt.AbortedError("stop it"))
        with pytest.raises(pjrt.AbortedError, match="stop it"):
            poisoned.ready().result(toys.TIMEOUT)
    gate.open(2)  # the first runs on
    assert third.ready().result(toys.TIMEOUT) is None
    client.close()


@pytest.mark.parametrize("outputs", ["f32[4]", None])
def test_enqueued_results_in_numpys_memory(outputs: str | None) -> None:
    """The device waits for the fence: for its results, and before its next program. Its error is the results' error."""
    gate = toys.Gate()
    with ThreadPoolExecutor(1) as pool:

        def run(x: np.ndarray[Any, Any]) -> Enqueued:
            result = np.empty_like(x)

            def work() -> None:
                result[...] = gate(x)
                if x[0] < 0:
                    raise ValueError("negative")

            return Enqueued([result], pool.submit(work))

        with toys.client(run, outputs=outputs) as client:
            executable = client.compile("program")
            gate.open(3)
            (y,) = executable(*executable(toys.floats()))
            np.testing.assert_array_equal(np.asarray(y), toys.floats() + 2)
            if outputs is not None:
                (failed,) = executable(toys.floats(-1, 0, 0, 0))
                with pytest.raises(pjrt.InvalidArgumentError, match="negative"):
                    np.asarray(failed)


def test_enqueued_results_of_a_program_that_runs_on_the_caller() -> None:
    with ThreadPoolExecutor(1) as pool:

        def run(x: np.ndarray[Any, Any]) -> Enqueued:
            result = np.empty_like(x)
            return Enqueued(result, pool.submit(np.negative, x, out=result))

        with toys.client(run, facts={"runs_on_caller": True}) as client:
            executable = client.compile("program")
            np.testing.assert_array_equal(np.asarray(executable(toys.floats())[0]), -toys.floats())
            path = executable.value_path()
            assert path is not None
            (value,) = path.run([path.value(client.buffer_from_host(toys.floats()))], 0, []) or [None]
            np.testing.assert_array_equal(np.asarray(path.makers[0](value)), -toys.floats())


@pytest.fixture
def all_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every function count as quick from its second call on, however busy the machine is."""
    monkeypatch.setattr(execution, "_QUICK_SECONDS", math.inf)


def threads_of(calls: int, **options: Any) -> list[bool]:
    """Return for each call of a program whether its function ran on the caller's thread."""
    here: list[bool] = []

    def run(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        here.append(threading.current_thread() is threading.main_thread())
        return x + 1

    with toys.client(run, **options) as client:
        executable = client.compile("program")
        for _ in range(calls):
            (y,) = executable(toys.floats())
            np.testing.assert_array_equal(np.asarray(y), toys.floats() + 1)
    return here


@pytest.mark.usefixtures("all_quick")
def test_a_quick_function_runs_on_the_thread_of_the_caller() -> None:
    assert threads_of(3) == [False, True, True]
    assert threads_of(2, facts={"runs_on_caller": False}) == [False, False]
    assert threads_of(2, memory_limit=2**20) == [False, False]


def test_a_function_that_takes_long_runs_on_the_thread_of_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "_QUICK_SECONDS", 0.0)
    assert threads_of(3) == [False] * 3


def test_one_slow_run_in_many_does_not_make_a_function_slow() -> None:
    pace = execution.Pace()
    assert not pace.is_quick
    for seconds, is_quick in ((1e-5, True), (1.0, True), (1e-5, True), (1.0, True), (1.0, True), (1.0, False)):
        pace.note(seconds)
        assert pace.is_quick is is_quick


@pytest.mark.usefixtures("all_quick")
def test_quick_functions_run_one_at_a_time() -> None:
    """A function of the caller's thread, and one that another thread gives to the device's thread meanwhile."""
    gate, inside = toys.Gate(), []

    def run(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        inside.append("begin")
        y = gate(x)
        inside.append("end")
        return y

    with toys.client(run) as client, ThreadPoolExecutor(1) as pool:
        executable = client.compile("program")
        gate.open()
        executable(toys.floats())[0].ready().result(toys.TIMEOUT)
        gate.wait_entered()
        first = pool.submit(executable, toys.floats())  # on the thread of the pool
        gate.wait_entered()
        (second,) = executable(toys.floats())  # on the device's
        assert not second.ready().done()
        gate.open(2)
        for (y,) in (first.result(toys.TIMEOUT), (second,)):
            np.testing.assert_array_equal(np.asarray(y), toys.floats() + 1)
    assert inside == ["begin", "end"] * 3


@pytest.mark.usefixtures("all_quick")
@pytest.mark.parametrize("kind", ["array", "buffer"])
def test_the_results_of_a_quick_function_are_its_own(kind: str) -> None:
    """It returns its argument, and keeps it: neither changes with the caller's array."""
    kept = []

    def run(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        kept.append(x)
        return x[:]

    with toys.client(run) as client:
        executable = client.compile("program")
        for _ in range(2):
            x = toys.floats()
            argument: Any = x.copy() if kind == "array" else client.buffer_from_host(x)
            (y,) = executable(argument)
            if kind == "array":
                argument[:] = -1
            np.testing.assert_array_equal(np.asarray(y), x)
            np.testing.assert_array_equal(kept[-1], x)
            assert not kept[-1].flags.writeable


@pytest.mark.usefixtures("all_quick")
def test_errors_of_a_quick_function_are_values_of_its_results() -> None:
    def run(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if x[0] < 0:
            raise ValueError("negative")
        return x

    with toys.client(run) as client:
        executable = client.compile("program")
        executable(toys.floats())[0].ready().result(toys.TIMEOUT)
        bad = toys.floats(-1, 0, 0, 0)
        done: list[pjrt.Future[None]] = []
        results = [
            executable(bad)[0],
            executable(client.buffer_from_host(bad))[0],
            *executable.execute_sharded([client.buffer_from_host(bad)], client.devices[0], returned_futures=done),
        ]
        for each in (*[result.ready() for result in results], *done):
            with pytest.raises(pjrt.InvalidArgumentError, match="negative"):
                each.result(toys.TIMEOUT)
        with pytest.raises(pjrt.InvalidArgumentError, match=r"f32\[4\]"):
            executable(np.zeros(5, np.float32))
        with pytest.raises(pjrt.FailedPreconditionError, match="deleted"):
            executable(_deleted(client))


def _deleted(client: HostClient) -> pjrt.Buffer:
    buffer = client.buffer_from_host(toys.floats())
    buffer.delete()
    return buffer


@pytest.mark.usefixtures("all_quick")
def test_ctrl_c_in_a_quick_function_ends_the_call() -> None:
    interrupts = [False, True, False]

    def run(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if interrupts.pop(0):
            raise KeyboardInterrupt
        return x

    with toys.client(run) as client:
        executable = client.compile("program")
        executable(toys.floats())[0].ready().result(toys.TIMEOUT)
        with pytest.raises(KeyboardInterrupt):
            executable(toys.floats())
        np.testing.assert_array_equal(np.asarray(executable(toys.floats())[0]), toys.floats())
