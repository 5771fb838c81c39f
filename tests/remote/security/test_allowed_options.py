"""The compile options that servers take from clients, in each of the ways in which a client can send them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from message_client import MessageClient

import pjrt
from pjrt import remote
from pjrt.remote.protocol.messages import wire
from pjrt.remote.security._gen_debug_options import DEFAULTS, NAMES
from pjrt.remote.security.allowed_options import ALLOWED_OPTIONS, taken_options
from pjrt.stablehlo import serialize
from pjrt.stablehlo.encodings.hlo_proto import fields
from pjrt.stablehlo.encodings.jaxlib import load

PAGE = Path(__file__).parents[3] / "docs" / "remote.md"
ADD = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}"""
NUMBERS = {name: number for number, name in NAMES.items()}


def field(number: int, value: int | bytes) -> bytes:
    """A field of a protobuf message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def debug(name: str, value: int | bytes) -> bytes:
    """Compile options with a debug option."""
    return field(3, field(3, field(NUMBERS[name], value)))


def override(name: str, value: bytes) -> bytes:
    return field(7, field(1, name.encode()) + field(2, field(1, value)))


HERE = b"/nowhere/pjrt"
REFUSED: dict[str, tuple[bytes, str]] = {
    "an override": (override("xla_dump_to", HERE), "xla_dump_to"),
    "an override after an allowed one": (
        override("xla_cpu_enable_fast_math", b"true") + override("xla_gpu_dump_autotune_results_to", HERE),
        "xla_gpu_dump_autotune_results_to",
    ),
    "an unknown override": (override("my_option", b"1"), "my_option"),
    "a debug option": (debug("xla_dump_to", HERE), "xla_dump_to"),
    "a number": (debug("xla_dump_hlo_as_text", 1), "xla_dump_hlo_as_text"),
    "a file that is read": (debug("xla_gpu_load_autotune_results_from", HERE), "xla_gpu_load_autotune_results_from"),
    "one of a list": (debug("xla_gpu_ptx_file", HERE), "xla_gpu_ptx_file"),
    "a map": (debug("xla_backend_extra_options", field(1, b"x") + field(2, b"y")), "xla_backend_extra_options"),
    "left out passes": (debug("xla_disable_hlo_passes", b"dynamic-padder"), "xla_disable_hlo_passes"),
    "the end of the process": (
        debug("xla_unsupported_crash_on_hlo_pass_noop_change", 1), "xla_unsupported_crash_on_hlo_pass_noop_change"
    ),
    "a second message": (debug("xla_cpu_enable_fast_math", 1) + debug("xla_dump_to", HERE), "xla_dump_to"),
    "a second message inside": (
        field(3, field(3, b"") + field(3, field(NUMBERS["xla_dump_to"], HERE))), "xla_dump_to"
    ),
    "a second value": (
        field(3, field(3, field(NUMBERS["xla_dump_to"], b"") + field(NUMBERS["xla_dump_to"], HERE))), "xla_dump_to"
    ),
    "an unknown debug option": (field(3, field(3, field(9999, 1))), "debug_options.9999"),
    "an unknown text": (field(3, field(3, field(9998, HERE))), "debug_options.9998"),
    "an unknown build option": (field(3, field(99, HERE)), "executable_build_options.99"),
    "an unknown option": (field(99, HERE), "compile_options.99"),
    "no passes": (field(3, field(11, 1)), "run_backend_only"),
    "environments": (field(3, field(13, field(1, b"x"))), "comp_envs"),
    "a target": (field(8, field(1, b"x")), "target_config"),
    "a variant": (field(11, b"x"), "compiler_variant"),
}  # fmt: skip


@pytest.fixture(scope="module")
def client() -> Iterator[pjrt.Client]:
    with pjrt.client("reference") as client:
        yield client


@pytest.fixture(scope="module")
def server(client: pjrt.Client) -> Iterator[remote.Server]:
    with remote.serve(client, save_executables=True) as server:
        yield server


def request(options: bytes) -> dict[str, Any]:
    proto = wire.XlaCompileOptionsProto(compile_options=options).SerializeToString()
    return {
        "program": wire.Serialized(type_name="xla::ifrt::XlaProgram", data=serialize(ADD, "1.0.0").code),
        "compile_options": wire.Serialized(type_name="xla::ifrt::XlaCompileOptions", data=proto),
    }


@pytest.mark.parametrize("way", REFUSED)
def test_an_option_that_concerns_the_server_is_refused_by_name(server: remote.Server, way: str) -> None:
    options, name = REFUSED[way]
    with MessageClient(server.address) as speaker:
        with pytest.raises(pjrt.PermissionDeniedError, match=f"takes no compile option '{name}' from its clients"):
            speaker.ask("compile", **request(options))
        with pytest.raises(pjrt.PermissionDeniedError, match=f"'{name}'"):
            speaker.ask("load_executable", serialized_executable=b"x", **request(options))
        assert speaker.ask("compile", **request(b"")).loaded_executable_handle


@pytest.mark.parametrize("form", ["override", "base"])
def test_no_client_writes_files_with_the_server(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "dump"
    dumping = {
        "override": pjrt.CompileOptions(option_overrides={"xla_dump_to": str(folder), "xla_dump_hlo_as_text": True}),
        "base": pjrt.CompileOptions.from_proto(
            load("_jax", "see what JAX sends").CompileOptions().SerializeAsString()
            + debug("xla_dump_to", str(folder).encode())
        ),
    }[form]
    with pjrt.client("cpu") as cpu:
        with remote.serve(cpu) as server, pjrt.client("remote", address=server.address) as client:
            with pytest.raises(pjrt.PermissionDeniedError, match="'xla_dump_to'"):
                client.compile(ADD, dumping)
            assert not folder.exists()
        with (
            remote.serve(cpu, allow_options=["xla_dump_to", "xla_dump_hlo_as_text"]) as server,
            pjrt.client("remote", address=server.address) as client,
        ):
            client.compile(ADD, dumping)
            assert list(folder.iterdir())


def test_allowed_options_pass(server: remote.Server) -> None:
    with pjrt.client("remote", address=server.address) as client:
        for name in ALLOWED_OPTIONS:
            client.compile(ADD, pjrt.CompileOptions(option_overrides={name: 1}))
            client.compile(ADD, pjrt.CompileOptions.from_proto(debug(name, 3)))
        options = pjrt.CompileOptions(
            deduplicate_hlo=True, alias_passthrough_params=True, device_memory_size=1 << 30, profile_version=3
        )
        executable = client.compile(ADD, options)
        assert np.asarray(executable(np.ones(4, np.float32))[0]).tolist() == [2.0] * 4


def test_what_jax_sends_passes() -> None:
    """JAX sends all its debug options; here those of the jaxlib that is installed, and recorded ones of others."""
    sent = load("_jax", "see what JAX sends").CompileOptions().SerializeAsString()
    taken_options(pjrt.CompileOptions.from_proto(sent))
    recorded = b"".join(
        field(number, value) for number, values in DEFAULTS.items() for value in values if number != 225
    )
    taken_options(pjrt.CompileOptions.from_proto(field(3, field(3, recorded))))


@pytest.mark.parametrize(
    "name", ["xla_gpu_cuda_data_dir", "xla_gpu_kernel_cache_file", "xla_gpu_per_fusion_autotune_cache_dir"]
)
def test_paths_that_jax_sets_by_itself_are_left_out(name: str) -> None:
    """JAX does so where it has CUDA, and with a compilation cache."""
    given = pjrt.CompileOptions.from_proto(debug("xla_cpu_enable_fast_math", 1) + debug(name, HERE))
    taken = taken_options(given).to_proto()
    values = [
        taken[first:last]
        for build, _, begin, end in fields(taken)
        if build == 3
        for options, _, start, stop in fields(taken, begin, end)
        if options == 3
        for number, _, first, last in fields(taken, start, stop)
        if number == NUMBERS[name]
    ]
    assert values[-1] in (b"", b"./cuda_sdk_lib")
    assert taken_options(given, [name]) == given
    with pytest.raises(pjrt.PermissionDeniedError, match=name):
        taken_options(pjrt.CompileOptions(option_overrides={name: "/nowhere"}))


def test_settings_of_jax() -> None:
    taken_options(pjrt.CompileOptions.from_proto(debug("xla_disable_hlo_passes", b"rematerialization")))
    taken_options(pjrt.CompileOptions.from_proto(debug("xla_gpu_experimental_autotune_cache_mode", 2)))


def test_zeros_and_empty_texts_state_nothing() -> None:
    for name in ("xla_dump_hlo_as_text", "xla_gpu_autotune_gemm_rtol"):
        taken_options(pjrt.CompileOptions.from_proto(debug(name, 0)))
    taken_options(pjrt.CompileOptions.from_proto(debug("xla_dump_to", b"")))


def test_further_options_by_their_names() -> None:
    taken_options(pjrt.CompileOptions(option_overrides={"my_option": 1}), ["my_option"])
    taken_options(pjrt.CompileOptions(run_backend_only=True), ["run_backend_only"])
    taken_options(pjrt.CompileOptions.from_proto(field(3, field(3, field(9999, 1)))), ["debug_options.9999"])
    with pytest.raises(pjrt.PermissionDeniedError, match="'my_option', 'run_backend_only' from"):
        taken_options(pjrt.CompileOptions(option_overrides={"my_option": 1}, run_backend_only=True), ["other"])


@pytest.mark.parametrize("wrong", ["xla_dump_to", [3]])
def test_what_is_no_list_of_names(client: pjrt.Client, wrong: Any) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="the name of a compile option"):
        remote.serve(client, allow_options=wrong)


def test_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pjrt", "serve", "reference", "--allow-option", "my_option"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[-1]
            with pjrt.client("remote", address=address) as client:
                client.compile(ADD, pjrt.CompileOptions(option_overrides={"my_option": 1}))
                with pytest.raises(pjrt.PermissionDeniedError, match="'other_option'"):
                    client.compile(ADD, pjrt.CompileOptions(option_overrides={"other_option": 1}))
        finally:
            process.terminate()


def test_the_page_lists_them() -> None:
    section = PAGE.read_text("utf-8").partition("## Compile options")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(xla_\w+)`", section.partition("refused")[0])) == ALLOWED_OPTIONS
