"""Executables in files: they come back as they were, and are refused with the reason where they do not fit."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import TinyProgram
from tiny.control import Control

import pjrt
from pjrt.artifacts.file_format import FORMAT_VERSION
from pjrt.artifacts.saved_executable import SavedExecutable

ADD = """
module @adder {
  func.func @main(%x: tensor<4xf32> loc("x"), %y: tensor<4xf32> loc("y")) -> tensor<4xf32> {
    %0 = stablehlo.add %x, %y : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
"""
X = np.arange(4, dtype=np.float32)


def adder() -> pjrt.Program:
    program = TinyProgram("adder")
    x, y = program.parameter("f32[4]"), program.parameter("f32[4]")
    return pjrt.Program(program.result(program.let("add", x, y)).code, format="tiny")


@pytest.fixture
def tiny(tiny_library: Path) -> Iterator[pjrt.Client]:
    with pjrt.client(tiny_library, num_devices=2) as client:
        yield client


@pytest.fixture
def saved(tiny: pjrt.Client, tmp_path: Path) -> Path:
    """The adder of the tiny plugin, in a file."""
    pjrt.save_executable(tiny.compile(adder()), tmp_path / "adder.executable")
    return tmp_path / "adder.executable"


def test_it_runs_as_before(tiny: pjrt.Client, saved: Path) -> None:
    executable = pjrt.load_executable(tiny, saved)
    (z,) = executable(X, X)
    np.testing.assert_array_equal(np.asarray(z), 2 * X)


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_devices_in_the_box_save_and_load(name: str, tmp_path: Path) -> None:
    path = tmp_path / "adder"
    with pjrt.client(name) as client:
        pjrt.save_executable(client.compile(ADD), path, program=ADD)
    with pjrt.client(name) as client:
        np.testing.assert_array_equal(np.asarray(pjrt.load_executable(client, path)(X, X)[0]), 2 * X)
    assert list(map(str, SavedExecutable.read(path).parameters)) == ["argument 0 (x): f32[4]", "argument 1 (y): f32[4]"]
    assert SavedExecutable.read(path).parameter_names == ("x", "y")


def test_a_program_of_many_devices_comes_back_to_many_devices(tmp_path: Path) -> None:
    options = pjrt.CompileOptions(num_replicas=2)
    with pjrt.client("cpu", num_devices=2) as client:
        pjrt.save_executable(client.compile(ADD, options), tmp_path / "adder")
        again = pjrt.load_executable(client, tmp_path / "adder")
        assert [device.id for device in again.addressable_devices] == [0, 1]
    with (
        pjrt.client("cpu") as client,
        pytest.raises(pjrt.FailedPreconditionError, match=r"'adder' .* runs on 2 devices, the client has 1; compile"),
    ):
        pjrt.load_executable(client, tmp_path / "adder")


def test_weights_come_back(tiny: pjrt.Client, saved: Path, tmp_path: Path) -> None:
    weights = {2: np.float32([[1, 2, 3]]), 0: np.int8(4), 1: np.zeros((0, 3), np.float32), 3: ml_dtypes.bfloat16(2)}
    weights = {position: np.asarray(array) for position, array in weights.items()}
    pjrt.save_executable(SavedExecutable.read(saved), tmp_path / "heavy", weights=weights)
    read = SavedExecutable.read(tmp_path / "heavy")
    assert read.serialize() == SavedExecutable.read(saved).serialize()
    assert sorted(read.weights) == [0, 1, 2, 3]
    for position, array in weights.items():
        assert read.weights[position].dtype == array.dtype
        np.testing.assert_array_equal(read.weights[position], array)
    again = SavedExecutable.of(read)
    assert again.to_bytes() == read.to_bytes()
    assert SavedExecutable.of(read, weights={}).to_bytes() == saved.read_bytes()


@pytest.mark.parametrize(
    ("weights", "code_size"),
    [
        ([[0, "F32", [2]]], 4),
        ([[0, "F32", [1]]], 1),
        ([[0, "S8", [1]]], 9),
        ([[0, "S8", [2]], [0, "S8", [2]]], 0),
        ([[0, "F32", [1 << 61]]], 0),
        ([[0, "TOKEN", []]], 4),
        ([[0, "F32", [-1]]], 8),
        ([[0, "F32"]], 0),
    ],
)
def test_weights_of_other_sizes(weights: list[object], code_size: int) -> None:
    header = {name: fact for name, fact in GOOD.items() if name != "signature"}
    header |= {"weights": weights, "code_size": code_size}
    with pytest.raises(pjrt.DataLossError, match="x: the saved executable is damaged"):
        SavedExecutable.from_bytes(sealed(json.dumps(header).encode(), b"code"), "x")


def test_support_is_found_by_loading(tiny: pjrt.Client, tiny_library: Path, saved: Path, tmp_path: Path) -> None:
    read = SavedExecutable.read(saved)
    assert read.support_by(tiny).verdict is pjrt.Verdict.YES
    assert read.support_by(pjrt.topology(tiny_library, "2")).verdict is pjrt.Verdict.YES
    with pjrt.client("cpu") as client:
        support = read.support_by(client)
    assert support.verdict is pjrt.Verdict.NO
    assert "compiled for platform name 'tiny', the client has 'cpu'" in support.reasons[0].message
    damaged = SavedExecutable(read._header, b"nonsense").support_by(tiny)
    assert (damaged.verdict, damaged.effort) == (pjrt.Verdict.NO, pjrt.Effort.COMPILE)


def test_what_was_known_is_known(tiny: pjrt.Client, saved: Path) -> None:
    compiled, read = tiny.compile(adder()), SavedExecutable.read(saved)
    for name in ("name", "num_replicas", "num_partitions", "num_outputs", "size_of_generated_code", "platform_name"):
        assert getattr(read, name) == getattr(compiled, name), name
    for name in ("output_element_types", "output_shapes", "output_memory_kinds", "parameter_memory_kinds"):
        assert list(getattr(read, name)) == list(getattr(compiled, name)), name
    assert list(read.output_specs) == list(compiled.output_specs)
    for name in ("memory_stats", "cost_analysis", "fingerprint", "serialize"):
        assert getattr(read, name)() == getattr(compiled, name)(), name
    assert read.compile_options().num_partitions == 1
    assert (read.platform_version, read.device_kind) == (tiny.platform_version, tiny.devices[0].kind)
    with pytest.raises(pjrt.UnimplementedError, match=r"Executable\.signature; it was saved without its program"):
        _ = read.parameters
    with pytest.raises(pjrt.UnimplementedError):
        read.optimized_program()


def test_what_the_plugin_does_not_say_is_left_out(tiny: pjrt.Client, tiny_control: Control) -> None:
    compiled = tiny.compile(adder())
    tiny_control.fault("Executable_GetCompiledMemoryStats", 12, "not here")
    with pytest.raises(pjrt.UnimplementedError, match="memory_stats"):
        SavedExecutable.of(compiled).memory_stats()


def test_an_executable_for_a_topology_says_what_it_is_for(
    tiny: pjrt.Client, tiny_library: Path, tmp_path: Path
) -> None:
    topology = pjrt.topology(tiny_library, "2")
    compiled = topology.compile(adder())
    with pytest.raises(pjrt.InvalidArgumentError, match="give its client or topology as compiled_for"):
        pjrt.save_executable(compiled, tmp_path / "x")
    pjrt.save_executable(compiled, tmp_path / "x", compiled_for=topology)
    np.testing.assert_array_equal(np.asarray(pjrt.load_executable(tiny, tmp_path / "x")(X, X)[0]), 2 * X)
    again = SavedExecutable.of(SavedExecutable.read(tmp_path / "x"))
    assert again.to_bytes() == (tmp_path / "x").read_bytes()


def changed(path: Path, **facts: object) -> Path:
    """A copy of a saved executable that says something else of itself."""
    read = SavedExecutable.read(path)
    copy = path.with_name("changed")
    copy.write_bytes(SavedExecutable({**read._header, **facts}, read.serialize()).to_bytes())
    return copy


@pytest.mark.parametrize(
    ("fact", "reason"),
    [
        ({"platform_name": "abacus"}, "compiled for platform name 'abacus', the client has 'tiny'"),
        ({"platform_version": "0.0"}, "compiled for platform version '0.0', the client has "),
        ({"device_kind": "bead"}, "compiled for device kind 'bead', the client has "),
    ],
    ids=["platform", "version", "kind"],
)
def test_one_that_does_not_fit_is_refused_with_the_reason(
    tiny: pjrt.Client, saved: Path, fact: dict[str, str], reason: str
) -> None:
    path = changed(saved, **fact)
    with pytest.raises(pjrt.FailedPreconditionError, match=reason) as caught:
        pjrt.load_executable(tiny, path)
    assert str(path) in caught.value.message
    assert "compile it again" in caught.value.message


def test_the_plugin_is_asked_whether_its_runtime_fits(tiny: pjrt.Client, saved: Path) -> None:
    platform_id, proto = SavedExecutable.read(saved)._header["abi_version"]
    other = base64.b64encode(base64.b64decode(proto)[:-1] + b"\x01").decode()
    with pytest.raises(pjrt.FailedPreconditionError, match="another runtime: Version 1 does not fit a runtime of"):
        pjrt.load_executable(tiny, changed(saved, abi_version=[platform_id, other]))


def test_a_topologys_version_is_compared_with_a_topologys(tiny: pjrt.Client, saved: Path) -> None:
    found = changed(saved, compiled_for="topology", platform_version=tiny.topology.platform_version)
    assert pjrt.load_executable(tiny, found).name == "adder"
    with pytest.raises(pjrt.FailedPreconditionError, match=r"platform version '0\.0'"):
        pjrt.load_executable(tiny, changed(saved, compiled_for="topology", platform_version="0.0"))


def test_another_version_may_be_tried(tiny: pjrt.Client, saved: Path) -> None:
    assert pjrt.load_executable(tiny, changed(saved, platform_version="0.0"), any_version=True).name == "adder"


def test_a_damaged_file_is_refused(tiny: pjrt.Client, saved: Path) -> None:
    whole = saved.read_bytes()
    for damaged in (whole[:-1], whole[: len(whole) // 2], whole[:40], whole[:-50] + b"\0" + whole[-49:]):
        saved.write_bytes(damaged)
        with pytest.raises(pjrt.DataLossError, match="damaged or cut off"):
            pjrt.load_executable(tiny, saved)


def test_other_files_are_refused(tiny: pjrt.Client, tmp_path: Path) -> None:
    with pytest.raises(pjrt.NotFoundError, match="nowhere: there is no such file"):
        pjrt.load_executable(tiny, tmp_path / "nowhere")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(pjrt.InvalidArgumentError, match="expected a saved executable, found 5 bytes"):
        pjrt.load_executable(tiny, tmp_path / "text")
    with pytest.raises(pjrt.InvalidArgumentError, match="cannot be read"):
        pjrt.load_executable(tiny, tmp_path)


@pytest.mark.timeout(20)
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_is_not_waited_for(tiny: pjrt.Client, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(pjrt.InvalidArgumentError, match="pipe: cannot be read: it is not a regular file"):
        pjrt.load_executable(tiny, tmp_path / "pipe")


def sealed(header: bytes, code: bytes = b"", length: int | None = None) -> bytes:
    """A file with this header, and with the checksum that belongs to it."""
    size = len(header) if length is None else length
    content = b"pjrt executable\n" + size.to_bytes(4, "little") + header + code
    return content + hashlib.sha256(content).digest()


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"", "its header is not written in JSON"),
        (b"\xff", "its header is not written in JSON"),
        (b"[" * 100_000, "its header is not written in JSON"),
        (b"9" * 5000, "its header is not written in JSON"),
        (b"[1]", r"its header is \[1\], which is no table"),
        (b'{"format_version": 1}', "its header does not say name"),
    ],
    ids=["empty", "no text", "deep", "long number", "no table", "nothing said"],
)
def test_a_header_that_says_nothing(header: bytes, reason: str) -> None:
    with pytest.raises(pjrt.DataLossError, match=f"x: the saved executable is damaged: {reason}"):
        SavedExecutable.from_bytes(sealed(header), "x")


def test_a_header_that_is_longer_than_its_file() -> None:
    with pytest.raises(pjrt.DataLossError, match="its header is not written in JSON"):
        SavedExecutable.from_bytes(sealed(b"{", length=2**32 - 1), "x")


GOOD: dict[str, Any] = {
    "format_version": FORMAT_VERSION,
    "name": "adder",
    "num_replicas": 1,
    "num_partitions": 1,
    "num_outputs": 1,
    "compiled_for": "client",
    "platform_name": "tiny",
    "platform_version": "1",
    "device_kind": "abacus",
    "size_of_generated_code": 3,
    "output_element_types": ["F32"],
    "output_shapes": [[4]],
    "output_memory_kinds": ["device"],
    "parameter_memory_kinds": ["device"],
    "cost_analysis": {"flops": 4.0},
    "memory_stats": {"argument_size_in_bytes": 16},
    "fingerprint": "AAAA",
    "abi_version": [7, "AAAA"],
    "compile_options": "",
    "parameter_shardings": ["CAA="],
    "output_shardings": ["CAA="],
    "signature": {
        "parameters": [
            {"name": "x", "element_type": "F32", "shape": [4], "sharding": "", "donated": False, "argument": 0},
            {"name": "y", "element_type": "S8", "shape": ["b"], "sharding": "", "donated": False, "argument": None},
        ],
        "results": [{"name": "", "element_type": "F32", "shape": [4], "sharding": ""}],
        "input_tree": {"kind": "dict", "keys": ["x", "y"], "children": [{"kind": "leaf"}, {"kind": "leaf"}]},
        "output_tree": None,
    },
    "weights": [],
    "code_size": 4,
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["F32", "AAA="]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)


@given(
    st.dictionaries(st.sampled_from(sorted(GOOD)), JSON, max_size=2), st.sets(st.sampled_from(sorted(GOOD)), max_size=1)
)
def test_a_header_is_refused_whole_or_answers_everything(changes: dict[str, Any], left_out: set[str]) -> None:
    header = {name: value for name, value in {**GOOD, **changes}.items() if name not in left_out}
    try:
        read = SavedExecutable.from_bytes(sealed(json.dumps(header).encode(), b"code"), "x")
    except (pjrt.DataLossError, pjrt.FailedPreconditionError):
        assert header != GOOD
        return
    for name in dir(SavedExecutable):
        if name.startswith("_") or name in ("read", "from_bytes", "of", "load", "misfits", "support_by", "delete"):
            continue
        with contextlib.suppress(pjrt.UnimplementedError):
            found = getattr(read, name)
            if callable(found):
                found()
    assert SavedExecutable.from_bytes(read.to_bytes()).serialize() == b"code"


@given(st.data())
def test_a_signature_is_refused_whole_or_read(data: st.DataObject) -> None:
    """One place in the signature has another value."""
    header = json.loads(json.dumps(GOOD))
    place = header["signature"]
    while True:
        key = data.draw(st.sampled_from(sorted(place)) if isinstance(place, dict) else st.integers(0, len(place) - 1))
        if not place[key] or not isinstance(place[key], dict | list) or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(JSON)
    try:
        read = SavedExecutable.from_bytes(sealed(json.dumps(header).encode(), b"code"), "x")
    except pjrt.DataLossError:
        return
    assert SavedExecutable.from_bytes(read.to_bytes()).signature == read.signature


@given(st.binary(max_size=100))
def test_any_header_is_refused_or_read(header: bytes) -> None:
    with contextlib.suppress(pjrt.PjrtError):
        SavedExecutable.from_bytes(sealed(header), "x")


def test_a_newer_format_is_refused_with_both_versions(tiny: pjrt.Client, saved: Path) -> None:
    content = saved.read_bytes()[:-32].replace(b'"format_version": 1', b'"format_version": 9')
    saved.write_bytes(content + hashlib.sha256(content).digest())
    with pytest.raises(pjrt.FailedPreconditionError, match=f"expected format {FORMAT_VERSION} .* found 9"):
        pjrt.load_executable(tiny, saved)


def test_a_place_that_cannot_be_written(tiny: pjrt.Client, tmp_path: Path) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="cannot be written"):
        pjrt.save_executable(tiny.compile(adder()), tmp_path / "no" / "adder")
    (tmp_path / "folder").mkdir()
    with pytest.raises(pjrt.InvalidArgumentError, match="cannot be written"):
        pjrt.save_executable(tiny.compile(adder()), tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
