"""The end of the interpreter, with work under way, with objects alive and with errors: without hang or crash."""

from __future__ import annotations

from scripts import run_python


def test_the_end_of_the_interpreter_waits_for_work_in_flight() -> None:
    done = run_python(
        """
        import threading, toys
        from pjrt.api import waits
        waits.PATIENCE_SECONDS = 100

        def run(x):
            begun.set()
            threading.Event().wait(0.3)
            print("finished", flush=True)
            return x

        begun = threading.Event()
        client = toys.client(run)
        exe = client.compile("program")
        (out,) = exe(toys.floats())
        (out,) = exe(out)
        begun.wait()
        """
    )
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, ["finished"] * 2, "")


def test_the_end_of_the_interpreter_waits_for_what_the_work_sets_going() -> None:
    done = run_python(
        """
        import threading, toys, pjrt
        from pjrt.api import waits
        waits.PATIENCE_SECONDS = 100

        def run(x):
            begun.set()
            threading.Event().wait(0.2)
            print("finished", flush=True)
            return x

        begun = threading.Event()
        client = toys.client(run, num_devices=2)
        on = [client.compile("p", pjrt.CompileOptions(device_ordinal=n)) for n in (0, 1)]
        (out,) = on[0](toys.floats())
        (out,) = on[1].execute_sharded([out.copy_to(client.devices[1])], client.devices[1])
        (out,) = on[0].execute_sharded([out.copy_to(client.devices[0])], client.devices[0])
        begun.wait()
        """
    )
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, ["finished"] * 3, "")


def test_an_error_during_the_end_of_the_interpreter_is_not_lost() -> None:
    done = run_python(
        """
        import threading, toys
        from pjrt.api import waits
        waits.PATIENCE_SECONDS = 100

        def run(x):
            begun.set()
            while not shutdown.is_exiting():
                threading.Event().wait(0.01)
            raise ValueError("too late to be seen")

        from pjrt.api import waits
        from pjrt.host import shutdown
        waits.PATIENCE_SECONDS = 100
        begun = threading.Event()
        client = toys.client(run)
        out = client.compile("program")(toys.floats())
        begun.wait()
        """
    )
    assert done.returncode == 0
    assert "ValueError: too late to be seen" in done.stderr


def test_the_end_of_the_interpreter_gives_up_on_a_device_that_hangs() -> None:
    done = run_python(
        """
        import threading, toys
        from pjrt.api import waits
        waits.PATIENCE_SECONDS = 0.3
        client, gate = toys.gated()
        (out,) = client.compile("program")(toys.floats())
        out.ready().add_done_callback(lambda future: print(future.exception(), flush=True))
        gate.wait_entered()
        """
    )
    assert done.returncode == 0
    assert "CANCELLED: the interpreter ended before the work was done" in done.stdout
    assert "gated:0 is still at work after 0.3 s" in done.stderr


_ENDS = "the interpreter ends although the %s still at work after 0.3 s; the work is abandoned\n"


def test_a_device_that_is_left_at_work_by_several_threads_is_named_once() -> None:
    done = run_python(
        """
        import threading, toys, pjrt
        from anydevice.simulated_memory import SimulatedMemory
        from pjrt.api import waits
        from pjrt.host import Enqueued

        waits.PATIENCE_SECONDS = 0.3
        memory, begun, never = SimulatedMemory(), threading.Event(), threading.Event()

        def run(x):
            if begun.is_set():
                never.wait()
            begun.set()
            return Enqueued(memory.allocate(toys.spec("f32[4]"), None), never.wait)

        client = toys.client(run, memory=memory, name="queue")
        exe = client.compile("program")
        kept = [exe(toys.floats()), exe(toys.floats())]
        """
    )
    assert (done.returncode, done.stderr) == (0, _ENDS % "device queue:0 is")


def test_devices_that_are_left_at_work_are_named_in_one_message() -> None:
    done = run_python(
        """
        import toys, pjrt
        from pjrt.api import waits

        waits.PATIENCE_SECONDS = 0.3
        gate = toys.Gate()
        client = toys.client(gate, num_devices=2, name="gated")
        kept = [client.compile("p", pjrt.CompileOptions(device_ordinal=n))(toys.floats()) for n in (0, 1)]
        gate.wait_entered()
        gate.wait_entered()
        """
    )
    assert (done.returncode, done.stderr) == (0, _ENDS % "devices gated:0, gated:1 are")


def test_a_function_that_asks_is_told_that_the_interpreter_ends() -> None:
    done = run_python(
        """
        import threading, toys, pjrt
        from pjrt.api import waits
        waits.PATIENCE_SECONDS = 100

        def run(context, x):
            begun.set()
            try:
                while True:
                    threading.Event().wait(0.01)
                    context.check()
            except pjrt.AbortedError as error:
                print(error.message, flush=True)
                raise

        begun = threading.Event()
        client = toys.client(run, facts={"takes_context": True})
        (out,) = client.compile("program")(toys.floats())
        begun.wait()
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "the launch was given up: CANCELLED: the interpreter is ending\n"


def test_closing_at_the_end_of_the_interpreter_waits_no_longer_than_that() -> None:
    done = run_python(
        """
        import atexit, toys
        from pjrt.api import waits
        waits.PATIENCE_SECONDS = 0.3
        client, gate = toys.gated()
        atexit.register(client.close)
        (out,) = client.compile("program")(toys.floats())
        gate.wait_entered()
        """
    )
    assert done.returncode == 0, done.stderr


def test_the_interpreter_ends_with_live_objects_of_every_kind() -> None:
    done = run_python(
        """
        import toys, pjrt, numpy as np
        client = toys.negate(num_devices=2)
        exe = client.compile("program")
        (out,) = exe(toys.floats())
        view = np.asarray(out)
        alias, fulfillment = client.create_alias_buffer(toys.spec("f32[4]"))
        (waits,) = exe(alias)
        manager = client.create_buffers_for_async_host_to_device([toys.spec("f32[4]")])
        pending = manager.retrieve_buffer(0)
        calls = []
        zero_copy = client.buffer_from_host(
            toys.floats(), semantics=pjrt.HostBufferSemantics.IMMUTABLE_ZERO_COPY,
            on_done_with_host_buffer=lambda: calls.append(1))
        closed = toys.negate()
        closed.compile("program")(toys.floats())
        closed.close()
        reference = out.external_reference()
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_destructors_need_no_names_of_their_modules() -> None:
    """A module that something of the interpreter's own keeps loses its names before the objects of its classes end."""
    done = run_python(
        """
        import builtins, sys
        import toys, pjrt, numpy as np
        from anydevice.simulated_memory import SimulatedMemory
        from pjrt.api.future import Promise
        from pjrt.host_memory.external import ExternalMemory

        def raises():
            raise ValueError("nobody sees it any more")

        class Careless(SimulatedMemory):
            def free(self, handle):
                raises()

        kept = [ExternalMemory.over(toys.floats(), raises), Promise()]
        for memory in (None, Careless()):
            client = toys.client(lambda x: x, memory=memory)
            (out,) = client.compile("program")(toys.floats())
            out.ready().result()
            manager = client.create_buffers_for_async_host_to_device([toys.spec("f32[4]")])
            kept += [client, out, manager, manager.retrieve_buffer(0)]
            kept += client.create_alias_buffer(toys.spec("f32[4]"))
        (counted,) = client.compile("program")(toys.floats())  # its bytes are those of an account
        sys.modules["pjrt.host.storage"].kept_to_the_last = counted
        builtins.kept = [kept, [module for name, module in sys.modules.items() if name not in ("builtins", "sys")]]
        del kept, out, counted, manager, client, memory
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
