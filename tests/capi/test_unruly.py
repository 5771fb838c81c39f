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
    client = pjrt.load_plugin(unruly).client()

    def said(call):
        try:
            return repr(call())
        except pjrt.PjrtError as error:
            return f"{error.code.name}: {error.message}"
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
