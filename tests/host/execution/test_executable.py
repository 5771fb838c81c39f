"""Executables: what their authors declare, what is told by default, and their way through bytes."""

from __future__ import annotations

import numpy as np
import pytest
import toys

import pjrt
from pjrt.host import Compiled, HostClient


def test_declared_facts() -> None:
    facts = {
        "name": "step",
        "cost": lambda: {"flops": 4.0},
        "code_size": 12,
        "output_memory_kinds": ["pinned_host"],
        "parameter_memory_kinds": ["unpinned_host"],
        "output_shardings": [b"o"],
        "parameter_shardings": [b"p"],
        "optimized": lambda: pjrt.Program(b"better"),
        "fingerprint": b"finger",
        "memory": pjrt.CompiledMemoryStats(temp_size_in_bytes=5),
    }
    client = toys.client(lambda x: -x, facts=facts, num_devices=2)
    exe = client.compile("program", toys.replicas(2))
    for it in (exe, exe.executable):
        assert (it.name, it.platform_name, it.num_replicas, it.num_partitions) == ("step", "toy", 2, 1)
        assert (it.num_outputs, it.size_of_generated_code) == (1, 12)
        assert list(it.output_element_types) == [pjrt.ElementType.F32]
        assert list(it.output_shapes) == [(4,)]
        assert list(it.output_memory_kinds) == ["pinned_host"]
        assert list(it.parameter_memory_kinds) == ["unpinned_host"]
        assert list(it.output_layouts) == list(it.parameter_layouts) == [pjrt.TiledLayout((0,))]
        assert (it.output_shardings, it.parameter_shardings) == ([b"o"], [b"p"])
        assert it.cost_analysis() == {"flops": 4.0}
        assert it.memory_stats().temp_size_in_bytes == 5
        assert it.optimized_program().code == b"better"
        assert it.fingerprint() == b"finger"
        assert it.compile_options().num_replicas == 2
    assert list(exe.addressable_device_logical_ids) == [(0, 0), (1, 0)]
    assert exe.device_assignment.device_ids == ((0,), (1,))
    unpinned = [d.memory_space("unpinned_host") for d in client.devices]
    outs = exe.execute([[client.buffer_from_host(toys.floats(), memory_space=space)] for space in unpinned])
    assert [out.memory_space.kind for (out,) in outs] == ["pinned_host"] * 2
    client.close()


def test_each_output_goes_to_its_own_kind_of_memory() -> None:
    kinds = ["unpinned_host", None, "pinned_host"]
    facts = {"output_memory_kinds": kinds}
    with toys.client(lambda x: (x + 1, x + 2, x + 3), outputs="f32[4] f32[4] f32[4]", facts=facts) as client:
        outs = client.compile("program")(toys.floats())
        assert [out.memory_space.kind for out in outs] == ["unpinned_host", "device", "pinned_host"]
        for out in outs:
            out.ready().result(toys.TIMEOUT)
        assert [space.account.in_use for space in client.memory_spaces] == [16, 16, 16]
    for facts in ({"output_memory_kinds": ["hbm"]}, {"parameter_memory_kinds": ["hbm"]}):
        with toys.client(lambda x: x, facts=facts) as client:
            with pytest.raises(pjrt.InvalidArgumentError, match=r"memory that is not there: .*'hbm'"):
                client.compile("program")


def test_defaults() -> None:
    client = toys.client(lambda x: -x, "f32[4] s8[2]", "f32[4]", facts={"aliases": {0: 0}})
    exe = client.compile("the program")
    assert exe.optimized_program() == pjrt.Program(b"the program")
    assert list(exe.output_memory_kinds) == ["device"]
    assert list(exe.parameter_memory_kinds) == ["device", "device"]
    assert exe.output_shardings is None
    stats = exe.memory_stats()
    assert (stats.argument_size_in_bytes, stats.output_size_in_bytes, stats.alias_size_in_bytes) == (18, 16, 16)
    assert stats.peak_memory_in_bytes == 18
    with pytest.raises(pjrt.UnimplementedError, match="cost_analysis"):
        exe.cost_analysis()
    assert exe.fingerprint() == client.compile("the program").fingerprint()
    assert exe.fingerprint() != client.compile("another program").fingerprint()
    first, second = b"\xfa\x7f\x01a", b"\xfa\x7f\x01b"  # entries of a map, which XLA writes in any order
    orders = [pjrt.CompileOptions.from_proto(entries) for entries in (first + second, second + first)]
    assert len({client.compile("the program", options).fingerprint() for options in orders}) == 1
    assert exe.fingerprint() != client.compile("the program", pjrt.CompileOptions(profile_version=1)).fingerprint()


def test_serialized_executables_are_compiled_again_by_default() -> None:
    compiled = []

    def compile_it(program: pjrt.Program, options: pjrt.CompileOptions) -> Compiled:
        compiled.append((program, options.num_replicas))
        return toys.compiled(lambda x: x * len(program.code))

    client = HostClient("length", compile=compile_it, num_devices=2)
    blob = client.compile(pjrt.Program(b"12345", "hlo"), toys.replicas(2)).serialize()
    loaded = client.deserialize(blob)
    assert compiled == [(pjrt.Program(b"12345", "hlo"), 2)] * 2
    outs = loaded.execute([[client.buffer_from_host(toys.floats(), device=d)] for d in client.devices])
    np.testing.assert_array_equal(np.asarray(outs[0][0]), 5 * toys.floats())
    one = client.deserialize(blob, pjrt.CompileOptions())
    np.testing.assert_array_equal(np.asarray(one(toys.floats())[0]), 5 * toys.floats())


def test_an_author_can_serialize_what_was_compiled() -> None:
    def compile_it(program: pjrt.Program, options: pjrt.CompileOptions) -> Compiled:
        return toys.compiled(lambda x: x * 2, serialize=lambda: b"object code")

    def deserialize(payload: bytes, program: pjrt.Program, options: pjrt.CompileOptions) -> Compiled:
        assert (payload, program.code) == (b"object code", b"source")
        return toys.compiled(lambda x: x * 3)

    client = HostClient("objects", compile=compile_it, deserialize=deserialize)
    loaded = client.deserialize(client.compile("source").serialize())
    np.testing.assert_array_equal(np.asarray(loaded(toys.floats())[0]), 3 * toys.floats())


def test_bytes_that_are_no_executable_are_refused_with_the_reason() -> None:
    client = toys.negate()
    blob = client.compile("program").serialize()
    start = blob.index(b"{")
    for wrong, message in (
        (b"", "0 bytes"),
        (b"ELF", "begin with b'ELF'"),
        (blob[:-1], "incomplete"),
        (blob + b"x", "incomplete"),
        (blob[:start] + b"{}\n", "damaged"),
        (blob[:start] + b"\xff", "damaged"),
        (blob[:start] + b"[" * 100_000 + b"\n", "damaged"),
        (blob.replace(b'"payload_size": null', b'"payload_size": "many"'), "damaged"),
        (blob.replace(b'"program_size": 7', b'"program_size": Infinity'), "damaged"),
        (blob.replace(b'"program_size": 7', b'"program_size": -7'), "incomplete"),
        (toys.gated()[0].compile("program").serialize(), "for 'gated'"),
    ):
        with pytest.raises(pjrt.InvalidArgumentError, match=message):
            client.deserialize(wrong)


def test_compiled_takes_functions_only() -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="must be a function"):
        Compiled(run=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 0, 2), (0, 2, 1), (2, 1, 0)])
def test_results_lie_as_they_are_declared_to(order: tuple[int, ...]) -> None:
    layout = pjrt.TiledLayout(order)
    spec = pjrt.ShapeSpec((2, 3, 4), pjrt.ElementType.F32, layout)

    def compile(_: pjrt.Program, __: pjrt.CompileOptions) -> Compiled:
        return Compiled(run=lambda x: [x + 1, x], outputs=[spec, spec], parameters=[spec])

    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    with HostClient("toy", compile=compile) as client:
        executable = client.compile("program")
        assert list(executable.output_layouts) == [layout, layout]
        assert list(executable.parameter_layouts) == [layout]
        for argument in (client.buffer_from_host(x), client.buffer_from_host(x, layout=layout)):
            for buffer, expected in zip(executable(argument), (x + 1, x), strict=True):
                assert buffer.layout == layout
                np.testing.assert_array_equal(buffer.to_host().result(), expected)
                raw = np.empty(24, np.float32)
                buffer.copy_raw_to_host(raw).result()
                np.testing.assert_array_equal(raw, expected.transpose(order[::-1]).reshape(-1))
                np.testing.assert_array_equal(executable(buffer)[1], expected)


def test_a_layout_that_host_memory_cannot_have_is_refused_when_compiled() -> None:
    spec = pjrt.ShapeSpec((8, 128), pjrt.ElementType.F32, pjrt.TiledLayout((1, 0), ((8, 128),)))
    with (
        HostClient("toy", compile=lambda *_: Compiled(run=lambda x: x, outputs=[spec], parameters=[spec])) as client,
        pytest.raises(pjrt.UnimplementedError, match="without tiles"),
    ):
        client.compile("program")
