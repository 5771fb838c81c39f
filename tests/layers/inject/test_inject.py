"""Faults by rule: the layer ``inject``."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny.control import Control
from tiny.program import TinyProgram

import pjrt
from pjrt.api.client import Client
from pjrt.capi import LoadedPlugin
from pjrt.layers import findings, inject, injections, wrap

X = np.arange(4, dtype=np.float32)
TO_DEVICE = "PJRT_Client_BufferFromHostBuffer"
TO_HOST = "PJRT_Buffer_ToHostBuffer"


@pytest.fixture(scope="module")
def plugin(tiny_library: Path) -> LoadedPlugin:
    return wrap(tiny_library, ["validate", "inject"], validate="limit=1000")


@pytest.fixture(scope="module")
def reference() -> LoadedPlugin:
    return wrap("reference", ["inject"])


@pytest.fixture
def client(plugin: LoadedPlugin) -> Iterator[Client]:
    """A client of the tiny plugin; faults are no breach of a rule, by nobody."""
    before = len(findings(plugin))
    with plugin.client(num_devices=2) as client:
        yield client
    inject(plugin, "")
    assert findings(plugin)[before:] == []


def compiled(client: Client, *, donated: bool = False) -> pjrt.LoadedExecutable:
    program = TinyProgram("double")
    x = program.parameter("f32[4]")
    result = program.let("add", x, x)
    program.result(result, alias=x) if donated else program.result(result)
    return client.compile(pjrt.Program(program.code, format="tiny"))


def outcome(step: Callable[[], object]) -> str:
    try:
        step()
    except pjrt.PjrtError as error:
        return error.code.name
    return "OK"


# ---- when ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "failing"),
    [
        ("nth=3", {3}),
        ("from=4", {4, 5, 6, 7, 8}),
        ("every=3", {3, 6}),
        ("from=2,every=3", {2, 5, 8}),
        ("from=3,times=2", {3, 4}),
        ("times=1", {1}),
        ("chance=1", set(range(1, 9))),
        ("client=99", set()),
        ("thread=others", set()),
        ("thread=main,nth=2", {2}),
    ],
)
def test_which_calls_fail(plugin: LoadedPlugin, client: Client, when: str, failing: set[int]) -> None:
    inject(plugin, f"call={TO_DEVICE},{when},error=ABORTED")
    results = [outcome(lambda: client.buffer_from_host(X)) for _ in range(8)]
    assert {number for number, result in enumerate(results, 1) if result == "ABORTED"} == failing
    (rule,) = injections(plugin)
    assert rule.faults == len(failing)
    assert rule.calls == (8 if failing else 0)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**64 - 1), chance=st.floats(0.01, 1))
def test_chance_repeats_with_its_seed(reference: LoadedPlugin, seed: int, chance: float) -> None:
    rule = {"call": "Client_PlatformName", "chance": chance, "seed": seed, "error": "ABORTED"}
    runs = []
    with reference.client() as client:
        for _ in range(2):
            inject(reference, rule)
            runs.append([outcome(lambda: client.platform_name) for _ in range(30)])
            inject(reference, "")
    assert runs[0] == runs[1]


def test_a_thread_other_than_the_main_one(plugin: LoadedPlugin, client: Client) -> None:
    inject(plugin, f"call={TO_DEVICE},thread=others,error=ABORTED")
    results: list[str] = []
    thread = threading.Thread(target=lambda: results.append(outcome(lambda: client.buffer_from_host(X))))
    thread.start()
    thread.join()
    assert [*results, outcome(lambda: client.buffer_from_host(X))] == ["ABORTED", "OK"]


def test_one_client_of_several(tiny_library: Path) -> None:
    plugin = wrap(tiny_library, ["inject"], inject=f"call={TO_DEVICE},client=1,error=ABORTED,message=of one client")
    with plugin.client() as first, plugin.client() as second:
        results = [outcome(lambda client=each: client.buffer_from_host(X)) for each in (first, second)]  # type: ignore[misc]
    assert results == ["OK", "ABORTED"]


def test_several_rules_with_names_and_patterns(plugin: LoadedPlugin, client: Client) -> None:
    inject(
        plugin,
        [
            {"call": f"{TO_DEVICE}|{TO_HOST}", "nth": 2, "error": "DATA_LOSS", "message": "a, b"},
            {"call": "Buffer_Unpadded*", "error": 12},
        ],
    )
    buffer = client.buffer_from_host(X)
    with pytest.raises(pjrt.DataLossError, match="a, b"):
        buffer.to_host().result()
    assert outcome(lambda: buffer.unpadded_shape) == "UNIMPLEMENTED"
    first, second = injections(plugin)
    assert (first.text, first.calls, first.faults) == (
        f"call={TO_DEVICE}|{TO_HOST},nth=2,error=DATA_LOSS,message=a, b",
        2,
        1,
    )
    assert second.calls == second.faults > 0


# ---- what ------------------------------------------------------------------------------------------------------------


def test_an_error_names_its_rule(plugin: LoadedPlugin, client: Client) -> None:
    inject(plugin, "call=Client_BufferFromHostBuffer,nth=1,error=UNAVAILABLE")
    with pytest.raises(pjrt.PjrtError) as caught:
        client.buffer_from_host(X)
    assert caught.value.code == pjrt.StatusCode.UNAVAILABLE
    assert (
        "injected into call 1 of PJRT_Client_BufferFromHostBuffer by rule 1 "
        "(call=Client_BufferFromHostBuffer,nth=1,error=UNAVAILABLE)" in str(caught.value)
    )


def test_a_call_is_slow(plugin: LoadedPlugin, client: Client) -> None:
    inject(plugin, f"call={TO_DEVICE},slow=20ms,nth=2")
    client.buffer_from_host(X)
    before = time.monotonic()
    client.buffer_from_host(X)
    assert time.monotonic() - before >= 0.02


def test_a_donated_buffer_stays_the_callers(plugin: LoadedPlugin, client: Client) -> None:
    loaded, buffer = compiled(client, donated=True), client.buffer_from_host(X)
    inject(plugin, "call=LoadedExecutable_Execute,nth=1,error=INTERNAL")
    assert outcome(lambda: loaded(buffer)) == "INTERNAL"
    np.testing.assert_array_equal(np.asarray(buffer), X)
    np.testing.assert_array_equal(np.asarray(loaded(buffer)[0]), 2 * X)


def test_events_end_with_an_error(plugin: LoadedPlugin, client: Client) -> None:
    inject(plugin, "call=LoadedExecutable_Execute,nth=1,ready=DATA_LOSS,message=lost")
    loaded = compiled(client)
    (result,) = loaded(X)
    error = result.ready().exception(60)
    assert isinstance(error, pjrt.DataLossError)
    assert "lost" in str(error)
    with pytest.raises(pjrt.DataLossError, match="lost"):
        np.asarray(result)
    with pytest.raises(pjrt.DataLossError, match="lost"):
        np.asarray(loaded(result)[0])  # errors travel through results
    with pytest.raises(pjrt.DataLossError, match="lost"):
        np.asarray(result.copy_to(client.devices[1]))
    np.testing.assert_array_equal(np.asarray(loaded(X)[0]), 2 * X)


@pytest.mark.parametrize("name", ["plugin", "reference"])
def test_what_is_never_ready_ends_with_its_client(name: str, request: pytest.FixtureRequest) -> None:
    plugin = request.getfixturevalue(name)
    client = plugin.client()
    inject(plugin, f"call={TO_DEVICE},ready=never,nth=1")
    buffer = client.buffer_from_host(X)
    inject(plugin, "")
    futures = [buffer.ready(), buffer.to_host()]
    called: list[object] = []
    futures[0].add_done_callback(called.append)
    with pytest.raises(pjrt.DeadlineExceededError):
        futures[1].result(0.05)
    assert [future.done() for future in futures] == [False, False]
    client.close()
    errors = [future.exception(60) for future in futures]
    assert all(isinstance(error, pjrt.PjrtError) and error.code == pjrt.StatusCode.CANCELLED for error in errors)
    assert "ended with its client" in str(errors[1])
    assert len(called) == 1


def test_a_thread_that_awaits_ends_with_the_client(tiny_copy: Callable[..., Control]) -> None:
    """A plugin without OnReady: the loader waits in Event_Await."""
    plugin = wrap(tiny_copy(null="PJRT_Event_OnReady").path, ["inject"], inject=f"call={TO_DEVICE},ready=never")
    client = plugin.client()
    future = client.buffer_from_host(X).to_host()
    with pytest.raises(pjrt.DeadlineExceededError):
        future.result(0.05)
    client.close()
    error = future.exception(60)
    assert isinstance(error, pjrt.PjrtError)
    assert error.code == pjrt.StatusCode.CANCELLED


@settings(max_examples=25, deadline=None)
@given(size=st.integers(1, 9), bit=st.integers(0, 2**40))
def test_a_read_is_wrong_by_a_bit(reference: LoadedPlugin, size: int, bit: int) -> None:
    data = np.arange(size, dtype=np.uint8)
    inject(reference, {"call": TO_HOST, "nth": 1, "flip": bit})
    with reference.client() as client:
        buffer = client.buffer_from_host(data)
        wrong = buffer.to_host().result(60) ^ data
        np.testing.assert_array_equal(buffer.to_host().result(60), data)
    assert np.flatnonzero(wrong).tolist() == [bit // 8 % size]
    assert wrong.sum() == 1 << bit % 8


def test_memory_is_full_until_buffers_go(plugin: LoadedPlugin, client: Client) -> None:
    spec = pjrt.ShapeSpec((4,), pjrt.ElementType.F32)
    loaded = compiled(client)  # needs 16 bytes for its result, and as many for temporary values
    inject(plugin, "memory=48")
    buffers = [client.buffer_from_host(X) for _ in range(3)]
    with pytest.raises(pjrt.ResourceExhaustedError, match="needs 16 bytes, and 48 of 48 are in use"):
        client.buffer_from_host(X)
    assert outcome(lambda: loaded(buffers[0])) == "RESOURCE_EXHAUSTED"
    assert outcome(lambda: client.create_uninitialized_buffer(spec)) == "RESOURCE_EXHAUSTED"
    assert outcome(lambda: client.create_buffers_for_async_host_to_device([spec])) == "RESOURCE_EXHAUSTED"
    other = buffers[2].copy_to(client.devices[1])  # each device has its own memory
    assert outcome(lambda: other.copy_to(client.devices[0])) == "RESOURCE_EXHAUSTED"
    buffers[2].delete()
    assert outcome(lambda: loaded(buffers[0])) == "RESOURCE_EXHAUSTED"
    del buffers[1:]
    (result,) = loaded(buffers[0])
    np.testing.assert_array_equal(np.asarray(result), 2 * X)
    assert injections(plugin)[0].faults == 6


def test_a_donated_argument_gives_its_memory(plugin: LoadedPlugin, client: Client) -> None:
    loaded = compiled(client, donated=True)
    inject(plugin, "memory=32")
    buffer = client.buffer_from_host(X)
    for _ in range(3):
        (buffer,) = loaded(buffer)
    np.testing.assert_array_equal(np.asarray(buffer), 8 * X)


# ---- rules -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ("call=Client_Compil,error=INTERNAL", "no function Client_Compil; near are Client_Compile, "),
        ("call=ToHostBuffer,error=INTERNAL", "no function ToHostBuffer; near are Buffer_ToHostBuffer, "),
        ("call=Buffer_X*,error=INTERNAL", r"no function Buffer_X\*"),
        (
            "call=Client_Compile,error=internal",
            "expected error to be one of CANCELLED .* UNAUTHENTICATED, found internal",
        ),
        ("call=Client_Compile,error=0", "expected error to be one of"),
        ("call=Client_Compile,ready=later", "one of .*, or never, found later"),
        ("call=Error_Destroy,error=INTERNAL", "error is impossible for PJRT_Error_Destroy: it returns no PJRT_Error"),
        ("call=Client_Compile,ready=never", "PJRT_Client_Compile: it makes no event and no buffer"),
        ("call=Client_Compile,flip=0", "PJRT_Client_Compile: it reads no data of a buffer"),
        ("call=Client_Compile", "expected a fault: error, slow, ready or flip"),
        ("call=Client_Compile,error=INTERNAL,nth=2,every=3", "nth and every contradict each other"),
        ("call=Buffer_ToHostBuffer,error=INTERNAL,flip=3", "error and flip contradict each other"),
        ("call=Client_Compile,error=INTERNAL,nth=2,nth=3", "rule 1 has nth twice"),
        ("call=Client_Compile,error=INTERNAL,nth=0", "expected nth to be a whole number from 1 on, found 0"),
        ("call=Client_Compile,error=INTERNAL,every=-1", "expected every to be a whole number from 1 on, found -1"),
        ("call=Client_Compile,error=INTERNAL,chance=2", "expected chance to be a probability .*, found 2"),
        ("call=Client_Compile,error=INTERNAL,chance=nan", "expected chance to be a probability .*, found nan"),
        ("call=Client_Compile,error=INTERNAL,seed=2", "seed needs chance"),
        ("call=Client_Compile,error=INTERNAL,thread=7", "expected thread to be main or others, found 7"),
        ("call=Client_Compile,slow=10", "expected slow to be a time with a unit .*, found 10"),
        ("call=Client_Compile,slow=1s,message=x", "message needs error"),
        ("memory=1x", "expected memory to be a size, such as 64m .*, found 1x"),
        ("memory=1k,nth=2", "a limit of memory has no nth"),
        ("nth=2,call=Client_Compile,error=INTERNAL", "expected call or memory, which begin a rule, before nth"),
        ("colour=red", "there is no option colour; the options are call, memory, nth"),
        (",".join(["call=Client_Compile,slow=1s"] * 33), "expected at most 32 rules"),
    ],
)
def test_wrong_rules_are_explained(reference: LoadedPlugin, rules: str, problem: str) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=problem):
        inject(reference, rules)


@given(rules=st.text(st.sampled_from("call=memory,nth=*|\\0123456789 errorINTERNAL"), max_size=60))
def test_any_text_is_taken_or_explained(reference: LoadedPlugin, rules: str) -> None:
    with contextlib.suppress(pjrt.InvalidArgumentError):
        inject(reference, rules)
    inject(reference, "")


def test_wrong_rules_wrap_nothing(tiny_library: Path) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="no function Compil"):
        wrap(tiny_library, ["inject"], inject={"call": "Compil", "error": "INTERNAL"})


def test_a_plugin_without_the_layer(tiny_library: Path) -> None:
    plugin = wrap(tiny_library, ["pass"])
    for step in (lambda: injections(plugin), lambda: inject(plugin, "")):
        with pytest.raises(
            pjrt.InvalidArgumentError, match=r"expected a layer of this plugin \(pass\), found 'inject'"
        ):
            step()
