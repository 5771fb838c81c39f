"""The life of clients: closing, dropping and forks, each without hang or crash."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest
import toys
from scripts import run_python
from waiting import wait_until_freed

import pjrt


def pjrt_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("pjrt ")]


def test_close_waits_for_work_in_flight_and_may_be_called_again() -> None:
    client, gate = toys.gated()
    exe = client.compile("program")
    (first,) = exe(toys.floats())
    (second,) = exe(first)
    ready = second.ready()
    gate.wait_entered()
    closing = threading.Thread(target=client.close)
    closing.start()
    assert not ready.done()
    gate.open(2)
    closing.join(toys.TIMEOUT)
    assert not closing.is_alive()
    assert ready.result(toys.TIMEOUT) is None
    client.close()
    assert client.is_closed
    assert repr(client) == "<HostClient gated, closed>"


def test_everything_of_a_closed_client_says_that_it_is_closed() -> None:
    client = toys.negate()
    exe = client.compile("program")
    x = client.buffer_from_host(toys.floats())
    client.close()
    uses = [
        lambda: exe.execute_sharded([x], client.devices[0]),
        lambda: exe(toys.floats()),
        lambda: client.compile("program"),
        lambda: client.deserialize(b""),
        lambda: client.load(exe.executable),
        lambda: client.buffer_from_host(toys.floats()),
        lambda: client.buffer_from_dlpack(toys.floats()),
        lambda: client.create_uninitialized_buffer(toys.spec("f32[4]")),
        lambda: client.create_alias_buffer(toys.spec("f32[4]")),
        lambda: np.asarray(x),
        x.ready,
        lambda: x.copy_to(client.devices[0]),
    ]
    for use in uses:
        with pytest.raises(pjrt.FailedPreconditionError, match="closed"):
            use()
    assert x.shape == (4,)
    x.delete()


def test_a_hundred_clients_leave_nothing_behind() -> None:
    gc.collect()
    before = set(pjrt_threads())
    references = []
    for _ in range(100):
        with toys.negate(num_devices=2) as client:
            outs = client.compile("program", toys.replicas(2)).execute(
                [[client.buffer_from_host(toys.floats(), device=d)] for d in client.devices]
            )
            np.testing.assert_array_equal(np.asarray(outs[1][0]), -toys.floats())
        references.append(weakref.ref(client))
    del client, outs
    wait_until_freed(*references)
    for thread in set(pjrt_threads()) - before:
        thread.join(toys.TIMEOUT)
        assert not thread.is_alive()


def test_a_client_that_is_dropped_finishes_its_work_and_ends_its_threads() -> None:
    gc.collect()
    before = set(pjrt_threads())
    client, gate = toys.gated()
    (out,) = client.compile("program")(toys.floats())
    gate.wait_entered()
    (thread,) = set(pjrt_threads()) - before
    ready = out.ready()
    reference = weakref.ref(client)
    del client, out
    gc.collect()
    assert reference() is not None  # its work is under way
    gate.open()
    ready.result(toys.TIMEOUT)
    del gate
    wait_until_freed(reference)  # the thread may still be letting go of what it did
    thread.join(toys.TIMEOUT)
    assert not thread.is_alive()


def test_buffers_and_executables_keep_their_client_alive() -> None:
    client = toys.negate()
    exe = client.compile("program")
    reference = weakref.ref(client)
    del client
    gc.collect()
    (out,) = exe(toys.floats())
    np.testing.assert_array_equal(np.asarray(out), -toys.floats())
    del exe
    gc.collect()
    assert reference() is out.client
    del out
    wait_until_freed(reference)


def test_a_client_that_never_ran_has_no_threads() -> None:
    gc.collect()
    before = set(pjrt_threads())
    client = toys.negate(num_devices=8)
    client.compile("program")
    np.asarray(client.buffer_from_host(toys.floats()))
    assert set(pjrt_threads()) <= before  # those of tests before this one may end meanwhile


def test_work_after_a_fork_is_a_clear_error_in_the_child_and_goes_on_in_the_parent() -> None:
    done = run_python(
        """
        import os, sys, warnings, toys, pjrt, numpy as np
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks with threads
        client, gate = toys.gated()
        exe = client.compile("program")
        x = client.buffer_from_host(toys.floats())
        (under_way,) = exe(x)
        (queued,) = exe(x)
        (waiting,) = exe(client.create_alias_buffer(toys.spec("f32[4]"))[0])
        gate.wait_entered()
        child = os.fork()
        if child == 0:
            def expect(use):
                try:
                    use()
                except pjrt.FailedPreconditionError as error:
                    assert "fork" in error.message, error
                else:
                    raise AssertionError(use)
            expect(lambda: under_way.ready().result(60))
            expect(lambda: queued.ready().result(60))
            expect(lambda: exe(x))
            expect(lambda: client.buffer_from_host(toys.floats()))
            expect(lambda: client.compile("program"))
            np.testing.assert_array_equal(np.asarray(x), toys.floats())  # the memory is there
            client.close()
            with toys.negate() as fresh:
                np.testing.assert_array_equal(np.asarray(fresh.compile("p")(toys.floats())[0]), -toys.floats())
            print("child is well", flush=True)
            sys.exit(0)
        _, status = os.waitpid(child, 0)
        gate.open(2)
        for out in (under_way, queued):
            np.testing.assert_array_equal(np.asarray(out), toys.floats() + 1)
        print("parent is well", os.waitstatus_to_exitcode(status))
        """
    )
    assert done.stdout.splitlines() == ["child is well", "parent is well 0"], done.stderr
    assert done.returncode == 0, done.stderr


def test_ten_thousand_executions_keep_memory_flat() -> None:
    done = run_python(
        """
        import gc, resource, threading, toys, numpy as np
        client = toys.client(lambda x: x + 1, "f32[1024]", "f32[1024]")
        exe = client.compile("program")
        device = client.devices[0]
        x = client.buffer_from_host(np.zeros(1024, np.float32))

        def one_round():
            global x
            for number in range(2000):
                (x,) = exe.execute_sharded([x], device)
                if number % 100 == 99:  # how many are waiting, and take memory, differs with the threads' pace
                    x.ready().result()
            gc.collect()

        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * resource.getpagesize()

        memory, objects = [], []
        for _ in range(6):
            one_round()
            memory.append(resident())
            objects.append(len(gc.get_objects()))
        assert float(np.asarray(x)[0]) == 12000
        # A leak adds to each round; what an allocator or a thread takes at times does not.
        steps = lambda values: [after - before for before, after in zip(values, values[1:])]
        assert min(steps(objects)) < 20, objects
        assert min(steps(memory)) < 1 << 20, memory
        assert threading.active_count() == 2
        """
    )
    assert done.returncode == 0, done.stderr


def test_a_wait_with_a_limit_ends() -> None:
    client, gate = toys.gated()
    (out,) = client.compile("program")(toys.floats())
    with pytest.raises(pjrt.DeadlineExceededError, match="goes on"):
        out.ready().result(0.01)
    gate.open()
    out.ready().result(toys.TIMEOUT)
    client.close()
