"""Plugins that break the rules of the C API: each is survived, and what cannot be used is an error of this package."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny import TinyProgram, build
from tiny.control import Control
from waiting import wait_until

import pjrt

X = np.arange(4, dtype=np.float32)

PRELUDE = """
    import ctypes, sys, threading
    import numpy as np
    import pjrt

    X = np.arange(4, dtype=np.float32)
    SPEC = pjrt.ShapeSpec((4,), pjrt.ElementType.F32)
    unruly, tiny, rule = sys.argv[1:]
    configure = ctypes.CDLL(unruly).unruly_configure
    configure.restype, configure.argtypes = ctypes.c_bool, [ctypes.c_char_p, ctypes.c_char_p]
    assert configure(tiny.encode(), rule.encode())
    library = ctypes.CDLL(unruly)
    client = pjrt.load_plugin(unruly).client(num_devices=2 if rule == "fragile" else 1)

    def said(call):
        try:
            return repr(call())
        except pjrt.PjrtError as error:
            return f"{error.code.name}: {error.message}"

    def refused(*calls):
        library.unruly_arm(ctypes.c_bool(True))  # whoever reaches the plugin now ends the process
        for call in calls:
            print(said(call))
        library.unruly_arm(ctypes.c_bool(False))

    def module(lines, *arguments, options=""):
        text = "".join(line + r"\\0A" for line in ["tiny 1", "name sum", *lines])
        return (
            f'module attributes {{mhlo.frontend_attributes = {{tiny = "{text}"}}{options}}} {{'
            f"func.func @main({', '.join(arguments)}) -> tensor<4xf32> {{ return %x : tensor<4xf32> }} }}"
        )

    ADD = ["in x f32[4]", "in y f32[4]", "let z = add x y", "out z"]
    IN_PLACE = [*ADD[:3], "out z alias=x"]
    X_TYPE, Y_TYPE = "%x: tensor<4xf32>", "%y: tensor<4xf32>"
    DONATED = "%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}"
"""


@pytest.fixture
def run(tiny_library: Path, tiny_cache: Path) -> Callable[[str, str], list[str]]:
    """Run a script with a client of the tiny plugin that breaks a rule, in a process of its own; return its lines."""
    unruly = build.build_other("unruly", tiny_cache)

    def run(rule: str, source: str) -> list[str]:
        script = textwrap.dedent(PRELUDE) + textwrap.dedent(source)
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", script, str(unruly), str(tiny_library), rule],
            capture_output=True,
            text=True,
            timeout=120,
            env={"MALLOC_PERTURB_": "165", "PATH": "/usr/bin:/bin"},  # freed memory does not keep what was in it
        )
        assert (done.returncode, done.stderr) == (0, ""), (done.returncode, done.stderr[-3000:])
        return done.stdout.splitlines()

    return run


@pytest.mark.full
def test_a_plugin_that_calls_back_twice_is_heard_once(run: Callable[[str, str], list[str]]) -> None:
    lines = run(
        "on_ready_twice",
        """
        calls = []
        for round in range(300):
            future = client.buffer_from_host(X).to_host()
            future.add_done_callback(lambda done: calls.append(float(done.result()[3])))
            assert future.result(60)[1] == 1
        while len(calls) < 300:  # the thread that completes a future calls back after whoever waits goes on
            threading.Event().wait(0.001)
        print(calls == [3.0] * 300)
        """,
    )
    assert lines == ["True"]


def test_a_view_whose_end_is_told_twice_ends_once(run: Callable[[str, str], list[str]]) -> None:
    lines = run(
        "view_deleted_twice",
        """
        told = []
        for round in range(300):
            view = client.create_view_of_device_buffer(X.ctypes.data, SPEC, on_delete=lambda: told.append(round))
            view.ready().result(60)
            view.delete()
            del view
            while len(told) <= round:  # the plugin's thread may be the last that lets go of it
                threading.Event().wait(0.001)
        print(told == list(range(300)))
        """,
    )
    assert lines == ["True"]


def test_a_client_without_addressable_devices(run: Callable[[str, str], list[str]]) -> None:
    lines = run(
        "no_addressable_devices",
        """
        print(client.addressable_devices)
        uses = [
            lambda: client.buffer_from_host(X),
            lambda: client.buffer_from_dlpack(X),
            lambda: client.create_uninitialized_buffer(SPEC),
            lambda: client.create_error_buffer(pjrt.AbortedError("x"), SPEC),
            lambda: client.create_alias_buffer(SPEC),
            lambda: client.create_view_of_device_buffer(X.ctypes.data, SPEC),
            lambda: client.create_buffers_for_async_host_to_device([SPEC]),
        ]
        for use in uses:
            print(said(use)[:60])
        """,
    )
    told = "FAILED_PRECONDITION: this process can address none of the 1 devices"
    assert lines == ["()"] + [told[:60]] * 7


@pytest.mark.parametrize("rule", ["negative_dimensions", "endless_dimensions", "huge_dimensions"])
def test_dimensions_that_no_array_has(run: Callable[[str, str], list[str]], rule: str) -> None:
    lines = run(
        rule,
        """
        buffer = client.buffer_from_host(X)
        print(said(lambda: buffer.to_host().result(60)))
        print(said(lambda: np.asarray(buffer)))
        """,
    )
    expected = {
        "negative_dimensions": "INTERNAL: the plugin gave the answer of PJRT_Buffer_Dimensions as (4, -1), which can",
        "endless_dimensions": "INTERNAL: the plugin gave the answer of PJRT_Buffer_Dimensions as (1099511627776, 1099",
        "huge_dimensions": "RESOURCE_EXHAUSTED: no memory of the host for an array of float32[36028797018963968]",
    }
    assert [line.startswith(expected[rule]) for line in lines] == [True, True], lines


def test_a_layout_of_dimensions_that_are_not_there(run: Callable[[str, str], list[str]]) -> None:
    (line,) = run("strange_layout", "print(said(lambda: client.buffer_from_host(X).__dlpack__()))")
    assert line.startswith("INTERNAL: the plugin gave the layout {2,1,0}"), line


def test_strides_for_other_dimensions_are_refused(tiny_library: Path) -> None:
    with pjrt.load_plugin(tiny_library).client() as client:
        buffer = client.buffer_from_host(np.zeros((2, 3), np.float32))
        with pytest.raises(pjrt.InvalidArgumentError, match="has 2 strides"):
            buffer.to_host(layout=pjrt.StridedLayout((4,)))


def starts(lines: list[str], *expected: str) -> None:
    """Check that there are as many lines, and how each begins."""
    assert len(lines) == len(expected), lines
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start), line


def test_arguments_are_checked_before_the_call(run: Callable[[str, str], list[str]]) -> None:
    lines = run(
        "fragile",
        """
        executable = client.compile(module(ADD, X_TYPE, Y_TYPE))
        here, there = client.devices
        x, gone = client.buffer_from_host(X), client.buffer_from_host(X)
        gone.delete()
        strange = pjrt.load_plugin(unruly).client().buffer_from_host(X)
        wrong = [
            client.buffer_from_host(X.astype(np.int32)),
            client.buffer_from_host(X[:3]),
            client.buffer_from_host(X.reshape(2, 2)),
            client.buffer_from_host(X, device=there),
            client.buffer_from_host(X, memory_space=here.memory_spaces[1]),
            gone,
            strange,
            X,
        ]
        run = lambda *row: executable.execute_sharded(row, here)
        refused(lambda: run(x), lambda: run(x, x, x), *[lambda each=each: run(x, each) for each in wrong])
        refused(
            lambda: executable.execute_sharded([x, x], there),
            lambda: executable.execute_sharded([x, x], here, pjrt.ExecuteOptions(non_donatable_input_indices={2})),
            lambda: executable.execute_sharded([x, x], here, pjrt.ExecuteOptions(call_location="a\\0b")),
        )
        (z,) = run(x, x)
        print(np.asarray(run(z, x)[0]).tolist())
        executable.delete()
        refused(lambda: run(x, x))
        """,
    )
    starts(
        lines,
        "INVALID_ARGUMENT: the program 'sum' takes 2 arguments, found 1",
        "INVALID_ARGUMENT: the program 'sum' takes 2 arguments, found 3",
        "INVALID_ARGUMENT: argument 1 of device 0 must be f32[4], found a buffer of s32[4]; convert it",
        "INVALID_ARGUMENT: argument 1 of device 0 must be f32[4], found a buffer of f32[3]",
        "INVALID_ARGUMENT: argument 1 of device 0 must be f32[4], found a buffer of f32[2,2]",
        "INVALID_ARGUMENT: argument 1 of device 0 must be on TinyDevice(id=0), found a buffer on TinyDevice(id=1)",
        "INVALID_ARGUMENT: argument 1 of device 0 must be in the memory ",
        "FAILED_PRECONDITION: argument 1 of device 0 was deleted or donated; make a new buffer",
        "INVALID_ARGUMENT: argument 1 of device 0 must be a buffer of this executable's client",
        "INVALID_ARGUMENT: argument 1 of device 0 must be a buffer of this executable's client",
        "INVALID_ARGUMENT: the program 'sum' was not compiled for TinyDevice(id=1); it runs on TinyDevice(id=0)",
        "INVALID_ARGUMENT: ExecuteOptions.non_donatable_input_indices names [2], there are 2 arguments",
        "INVALID_ARGUMENT: expected ExecuteOptions.call_location without null characters",
        "[0.0, 3.0, 6.0, 9.0]",
        "FAILED_PRECONDITION: the executable was deleted; compile it again",
    )


def test_donated_arguments_are_checked_before_the_call(run: Callable[[str, str], list[str]]) -> None:
    lines = run(
        "fragile",
        """
        here = client.devices[0]
        told = client.compile(module(IN_PLACE, DONATED, Y_TYPE))
        untold = client.compile(module(IN_PLACE, X_TYPE, Y_TYPE))
        for executable in (told, untold):
            x, y = client.buffer_from_host(X), client.buffer_from_host(X)
            run = lambda *row: executable.execute_sharded(row, here)
            if executable is told:
                refused(lambda: run(y, y))
            print(np.asarray(run(x, y)[0]).tolist(), x.is_deleted, y.is_deleted)
            refused(lambda: run(x, y), lambda: run(y, x), lambda: run(y, y))
            refused(lambda: x.to_host(), lambda: x.bitcast("i4", (4,)))
            kept = pjrt.ExecuteOptions(non_donatable_input_indices={0})
            print(np.asarray(executable.execute_sharded([y, y], here, kept)[0]).tolist(), y.is_deleted)
            print(np.asarray(run(y, client.buffer_from_host(X))[0]).tolist(), y.is_deleted)
        """,
    )
    used = "FAILED_PRECONDITION: argument {} of device 0 was deleted or donated; make a new buffer"
    twice = "INVALID_ARGUMENT: argument 1 of device 0 is the same buffer as argument 0, and the program donates it"
    gone = "FAILED_PRECONDITION: the buffer was deleted or donated; make a new one"
    each = [
        "[0.0, 2.0, 4.0, 6.0] True False",
        used.format(0),
        used.format(1),
        twice,
        gone,
        gone,
        "[0.0, 2.0, 4.0, 6.0] False",
        "[0.0, 2.0, 4.0, 6.0] True",
    ]
    starts(lines, twice, *each, *each)


def test_programs_whose_parameters_nobody_tells(run: Callable[[str, str], list[str]]) -> None:
    lines = run(
        "fragile",
        """
        program = pjrt.Program("\\n".join(["tiny 1", "name sum", *ADD, ""]).encode(), format="tiny")
        executable = client.compile(program, pjrt.CompileOptions(num_replicas=2))
        rows = [[client.buffer_from_host(X, device=device) for _ in range(2)] for device in client.devices]
        refused(
            lambda: executable.execute([rows[1], rows[0]]),
            lambda: executable.execute([rows[0][:1], rows[1][:1]]),
        )
        print([np.asarray(row[0]).tolist() for row in executable.execute(rows)])
        """,
    )
    starts(
        lines,
        "INVALID_ARGUMENT: argument 0 of device 0 must be on TinyDevice(id=0), found a buffer on TinyDevice(id=1)",
        "INVALID_ARGUMENT: the program 'sum' takes 2 arguments, found 1",
        "[[0.0, 2.0, 4.0, 6.0], [0.0, 2.0, 4.0, 6.0]]",
    )


def test_ranges_are_checked_before_the_call(run: Callable[[str, str], list[str]]) -> None:
    lines = run(
        "fragile",
        """
        buffer, later = client.buffer_from_host(X), pjrt.Future.completed(bytearray(16))
        refused(
            lambda: buffer.copy_raw_to_host(bytearray(16), 4),
            lambda: buffer.copy_raw_to_host(bytearray(16), -1, 4),
            lambda: buffer.copy_raw_to_host(bytearray(16), 0, -1),
            lambda: buffer.copy_raw_to_host(bytearray(4), 2**63 - 1),
            lambda: buffer.copy_raw_to_host_future(later, 17),
            lambda: buffer.copy_raw_to_host_future(later, 4, 16),
            lambda: buffer.copy_raw_to_host_future(later, -4),
            lambda: buffer.raw().copy_to_host(bytearray(16), 1),
            lambda: buffer.raw().copy_from_host(bytes(16), -1),
            lambda: buffer.bitcast("f4", (5,)),
        )
        manager = client.create_buffers_for_async_host_to_device([SPEC, SPEC])
        manager.retrieve_buffer(0)
        manager.set_buffer_error(1, pjrt.AbortedError("x"))
        refused(
            lambda: manager.buffer_size(2),
            lambda: manager.buffer_size(-1),
            lambda: manager.retrieve_buffer(2),
            lambda: manager.retrieve_buffer(0),
            lambda: manager.transfer_data(2, X),
            lambda: manager.transfer_data(1, X),
            lambda: manager.transfer_data(0, X, -1),
            lambda: manager.transfer_literal(0, X[:3]),
            lambda: manager.transfer_literal(0, X.astype(np.int32)),
            lambda: manager.transfer_literal(1, X),
            lambda: manager.set_buffer_error(1, pjrt.AbortedError("y")),
        )
        refused(lambda: manager.transfer_data(0, X, 1))
        manager.transfer_data(0, X)
        refused(lambda: manager.transfer_data(0, X))
        manager.close()
        refused(lambda: manager.buffer_size(0))
        """,
    )
    full = "FAILED_PRECONDITION: buffer {} had its last transfer, or its error"
    starts(
        lines,
        "OUT_OF_RANGE: bytes 4 to 20 were asked for, and the buffer has 16",
        "OUT_OF_RANGE: bytes -1 to 3 were asked for, and the buffer has 16",
        "OUT_OF_RANGE: bytes 0 to -1 were asked for",
        "OUT_OF_RANGE: bytes 9223372036854775807 to 9223372036854775811 were asked for",
        "OUT_OF_RANGE: bytes 17 to 16 were asked for",
        "OUT_OF_RANGE: bytes 4 to 20 were asked for",
        "OUT_OF_RANGE: bytes -4 to 16 were asked for",
        "OUT_OF_RANGE: bytes 1 to 17 were asked for",
        "OUT_OF_RANGE: bytes -1 to 15 were asked for",
        "INVALID_ARGUMENT: expected a shape and type of as many bits as f32[4] has, found f32[5]",
        "OUT_OF_RANGE: there is no buffer 2 among 2",
        "OUT_OF_RANGE: there is no buffer -1 among 2",
        "OUT_OF_RANGE: there is no buffer 2 among 2",
        "FAILED_PRECONDITION: buffer 0 was retrieved already, which is done once",
        "OUT_OF_RANGE: there is no buffer 2 among 2",
        full.format(1),
        "OUT_OF_RANGE: bytes -1 to 15 are to be written",
        "INVALID_ARGUMENT: buffer 0 is for an array of f32[4], found one of f32[3]",
        "INVALID_ARGUMENT: buffer 0 is for an array of f32[4], found one of s32[4]",
        full.format(1),
        full.format(1),
        "OUT_OF_RANGE: bytes 1 to 17 are to be written, and buffer 0 has 16",
        full.format(0),
        "FAILED_PRECONDITION: this PluginTransferManager was closed, or its client was",
    )


def test_shapes_and_layouts_are_checked_before_the_call(run: Callable[[str, str], list[str]]) -> None:
    lines = run(
        "fragile",
        """
        F32, row, tiled = pjrt.ElementType.F32, pjrt.TiledLayout((1, 0)), pjrt.TiledLayout((0,), ((0,),))
        topology, buffer = client.topology, client.buffer_from_host(X)
        flat = pjrt.ShapeSpec((4,), F32, row)
        refused(
            lambda: client.buffer_from_host(X, layout=row),
            lambda: client.buffer_from_host(X, layout=tiled),
            lambda: client.buffer_from_host(X, layout=pjrt.StridedLayout((16, 4))),
            lambda: client.create_uninitialized_buffer(flat),
            lambda: client.create_error_buffer(pjrt.AbortedError("x"), flat),
            lambda: client.create_alias_buffer(flat),
            lambda: client.create_view_of_device_buffer(X.ctypes.data, flat),
            lambda: client.create_buffers_for_async_host_to_device([SPEC, flat]),
            lambda: buffer.bitcast(F32, (4,), row),
            lambda: topology.make_canonical_shape(F32, (4,), row, memory_space_kind_id=0),
        )
        refused(
            lambda: client.create_uninitialized_buffer(pjrt.ShapeSpec((1 << 40, 1 << 40), F32)),
            lambda: client.create_uninitialized_buffer(pjrt.ShapeSpec((1,) * 65, F32)),
            lambda: client.create_uninitialized_buffer(pjrt.ShapeSpec((4,), pjrt.ElementType.INVALID)),
            lambda: client.create_view_of_device_buffer(0, SPEC),
            lambda: client.create_view_of_device_buffer(-8, SPEC),
        )
        """,
    )
    layout = "INVALID_ARGUMENT: expected a layout of 1 dimensions, as many as the array has, found {1,0} of 2"
    array = "INVALID_ARGUMENT: expected an array of at most 64 dimensions and 2**63 bytes, found "
    starts(
        lines,
        layout,
        "INVALID_ARGUMENT: expected tiles with sizes from 1 up (-1 joins two dimensions), found {0:T(0)}",
        "INVALID_ARGUMENT: expected a layout of 1 dimensions, as many as the array has, found StridedLayout",
        *[layout] * 7,
        f"{array}f32[1099511627776,1099511627776]",
        f"{array}f32[1,1,",
        f"{array}invalid[4]",
        "INVALID_ARGUMENT: expected the address of memory as a whole number, from 1 up and of at most 64 bits, found 0",
        "INVALID_ARGUMENT: expected the address of memory as a whole number, from 1 up and of at most 64 bits, found -",
    )


def test_numbers_and_names_are_checked_before_the_call(run: Callable[[str, str], list[str]]) -> None:
    lines = run(
        "fragile",
        """
        plugin, memory, mapped = pjrt.load_plugin(unruly), bytearray(64), bytearray(64)
        client.dma_map(mapped)
        assigned = pjrt.CompileOptions(device_assignment=pjrt.DeviceAssignment(((7,),)))
        refused(
            lambda: client.lookup_device(2),
            lambda: client.lookup_device(-1),
            lambda: client.lookup_addressable_device(9),
            lambda: client.default_device_assignment(2**31 - 1, 2**31 - 1),
            lambda: client.compile(module(ADD, X_TYPE, Y_TYPE), assigned),
            lambda: client.dma_map(mapped),
            lambda: client.dma_map(b""),
            lambda: client.dma_unmap(memory),
            lambda: plugin.topology("2x2\\0"),
            lambda: plugin.topology("2x2", **{"a\\0b": 1}),
            lambda: plugin.topology("2x2", a="b\\0"),
            lambda: plugin.topology("2x2", a="\\ud800"),
            lambda: client.devices[0].create_async_tracking_event("a\\0b"),
            lambda: client.register_ffi_type("a\\0b"),
            lambda: client.cross_host_send_buffers([client], [-1], [0]),
        )
        client.dma_unmap(mapped)
        """,
    )
    starts(
        lines,
        "NOT_FOUND: no device has the id 2; they are [0, 1]",
        "NOT_FOUND: no device has the id -1",
        "NOT_FOUND: no device has the local number 9; they are [0, 1]",
        "INVALID_ARGUMENT: expected a device assignment of at most 16777216 places, found 2147483647 replicas × 21474",
        "INVALID_ARGUMENT: the device assignment names [7], which are no devices of this client; its devices are",
        "INVALID_ARGUMENT: expected memory that is not mapped yet, found 64 bytes",
        "INVALID_ARGUMENT: expected memory that is not mapped yet, found 0 bytes",
        "FAILED_PRECONDITION: the memory at ",
        "INVALID_ARGUMENT: expected the name of a topology as a str without null characters, found '2x2\\x00'",
        "INVALID_ARGUMENT: expected the names of the options of a topology as strings without null characters",
        "INVALID_ARGUMENT: expected the options of a topology: the value of 'a' as a str without null characters",
        "INVALID_ARGUMENT: expected the options of a topology: the value of 'a' as a str that UTF-8 can spell",
        "INVALID_ARGUMENT: expected a description as a str without null characters",
        "INVALID_ARGUMENT: expected the name of an FFI type as a str without null characters",
        "INVALID_ARGUMENT: the ids of devices are 0 or more, found -1; see client.devices",
    )


def test_what_was_deleted_stays_so_whatever_the_plugin_says(run: Callable[[str, str], list[str]]) -> None:
    lines = run(
        "never_deleted",
        """
        executable = client.compile(module(ADD, X_TYPE, Y_TYPE))
        buffer, alias = client.buffer_from_host(X), client.create_alias_buffer(SPEC)[1]
        buffer.delete()
        executable.delete()
        uses = [
            lambda: buffer.to_host(),
            lambda: buffer.copy_raw_to_host(bytearray(16)),
            lambda: buffer.copy_to(client.memory_spaces[0]),
            lambda: buffer.ready(),
            lambda: buffer.unsafe_pointer(),
            lambda: buffer.external_reference(),
            lambda: buffer.donate_with_control_dependency(pjrt.Future.completed(None)),
            lambda: buffer.raw(),
            lambda: alias.fulfill(buffer),
            lambda: executable(buffer, buffer),
        ]
        refused(*uses, lambda: buffer.delete(), lambda: executable.delete())
        print(buffer.is_deleted, executable.is_deleted)
        """,
    )
    starts(lines, *["FAILED_PRECONDITION: the "] * 10, "None", "None", "True True")


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("latin_text", "'d�vice'"),
        ("null_text", "INTERNAL: the plugin gave the answer of PJRT_DeviceDescription_DebugString as 5 bytes at 0x0"),
        (
            "endless_text",
            "INTERNAL: the plugin gave the answer of PJRT_DeviceDescription_DebugString as 134217728 byte",
        ),
    ],
)
def test_texts_that_cannot_be_read(run: Callable[[str, str], list[str]], rule: str, told: str) -> None:
    starts(run(rule, "print(said(lambda: client.devices[0].description.debug_string))"), told)


def test_an_attribute_of_an_unknown_type_is_left_out(run: Callable[[str, str], list[str]]) -> None:
    lines = run(
        "unknown_attribute",
        """
        import logging
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        print(dict(client.devices[0].description.attributes))
        """,
    )
    assert lines[0].endswith("left out are values of types that this package does not know: odd (of type 99)")
    assert lines[1] == "{'n': 5}"


def test_a_program_with_more_results_than_there_can_be(run: Callable[[str, str], list[str]]) -> None:
    lines = run("endless_results", "print(said(lambda: client.compile(module(ADD, X_TYPE, Y_TYPE))))")
    starts(lines, "INTERNAL: the plugin gave 1099511627776 as the number of a program's results")


def test_an_executable_lives_until_another_client_has_loaded_it(run: Callable[[str, str], list[str]]) -> None:
    lines = run(
        "watched_load",
        """
        first = pjrt.load_plugin(unruly).client()
        executable = first.compile(module(ADD, X_TYPE, Y_TYPE)).executable
        closer = threading.Thread(target=first.close)

        @ctypes.CFUNCTYPE(None)
        def close():
            closer.start()
            while not first.is_closed:
                threading.Event().wait(0.001)
            closer.join(0.1)
            print(closer.is_alive())

        library.unruly_during_load(close)
        loaded = client.load(executable)
        closer.join(60)
        print(np.asarray(loaded(X, X)[0]).tolist(), said(lambda: executable.name)[:19])
        """,
    )
    assert lines == ["True", "[0.0, 2.0, 4.0, 6.0] FAILED_PRECONDITION"]


@pytest.fixture
def untold(tiny_copy: Callable[..., Control]) -> Control:
    """A plugin that leaves OnReady out, so that only Await tells."""
    return tiny_copy(null="PJRT_Event_OnReady")


def later() -> pjrt.Program:
    """A program whose result comes when the plugin is not held any more."""
    program = TinyProgram("later")
    return pjrt.Program(program.result(program.let("fill", "f32[4]", 1)).code, format="tiny")


def test_a_wait_with_a_limit_ends_where_only_await_tells(untold: Control) -> None:
    with pjrt.load_plugin(untold.path).client() as client:
        executable = client.compile(later())
        others = set(threading.enumerate())
        with untold.held():
            (out,) = executable()
            ready, value = out.ready(), out.to_host()
            told: list[bool] = []
            ready.add_done_callback(lambda done: told.append(done.exception() is None))
            for future in (ready, value):
                for _ in range(2):
                    with pytest.raises(pjrt.DeadlineExceededError):
                        future.result(0.01)
            started = [thread.name for thread in set(threading.enumerate()) - others]
            assert started.count("pjrt event") == 2  # one an event, no more
            assert told == []
        np.testing.assert_array_equal(value.result(60), np.ones(4, np.float32))
        assert ready.result(60) is None
        pjrt.Future.all([ready]).result(60)
        wait_until(lambda: told)  # the thread that was told calls back
        assert told == [True]


def test_an_error_that_only_await_tells(untold: Control) -> None:
    with pjrt.load_plugin(untold.path).client() as client:
        executable = client.compile(later())
        with untold.held():
            untold.event_fault("Buffer_ToHostBuffer", int(pjrt.StatusCode.DATA_LOSS), "gone", count=1)
            future = executable()[0].to_host()
            with pytest.raises(pjrt.DeadlineExceededError):
                future.result(0.01)
        with pytest.raises(pjrt.DataLossError, match="gone"):
            future.result(60)


def test_a_plugin_that_tells_in_no_way(tiny_copy: Callable[..., Control]) -> None:
    control = tiny_copy(null=["PJRT_Event_OnReady", "PJRT_Event_Await"])
    with pjrt.load_plugin(control.path).client() as client:
        executable = client.compile(later())
        with control.held():
            future = executable()[0].ready()
            with pytest.raises(pjrt.UnimplementedError, match="PJRT_Event_Await"):
                future.result(60)
