"""HLO text: it becomes the proto that XLA makes of it, and each error names its line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pjrt
from pjrt import DataLossError, InvalidArgumentError, PjrtError, Program, ProgramFormat, stablehlo
from pjrt.stablehlo import parse_hlo_text
from pjrt.stablehlo.encodings import jaxlib
from pjrt.stablehlo.encodings.format import looks_like_hlo_text
from pjrt.stablehlo.files import hlo_text

TEXT = b"""/* a dump
of XLA */
// and a comment
HloModule jit_f, entry_computation_layout={(f32[8]{0}, f32[8]{0})->f32[8]{0}}

double.1 {
  x.1 = f32[8]{0} parameter(0)
  ROOT sum.1 = f32[8]{0} add(x.1, x.1)
}

ENTRY main.4 {
  Arg_0.1 = f32[8]{0} parameter(0), sharding={devices=[8]<=[8]}
  Arg_1.1 = f32[8]{0} parameter(1), metadata={op_name="weights"}
  sine.2 = f32[8]{0} sine(Arg_0.1)
  sum.2 = f32[8]{0} call(sine.2), to_apply=double.1
  ROOT product.3 = f32[8]{0} multiply(sum.2, Arg_1.1)
}
"""


def text_of(program: Program) -> bytes:
    """Return XLA's text of an HLO proto."""
    module = jaxlib.load("_jax", "test")
    module = module if hasattr(module, "HloModule") else jaxlib.load("_hlo", "test")
    text: str = module.HloModule.from_serialized_hlo_module_proto(program.code).to_string()
    return text.encode()


def test_the_proto_is_that_of_the_text(hlo: Program, tmp_path: Path) -> None:
    path = tmp_path / "module_0001.jit_f.before_optimizations.txt"
    path.write_bytes(text_of(hlo))
    program = stablehlo.read_file(path)
    assert program.format == ProgramFormat.HLO
    assert stablehlo.to_text(program) == stablehlo.to_text(hlo)


OPTIMIZED: dict[str, Callable[..., Any]] = {
    "a fusion": lambda x, y: jnp.tanh(x @ y + 1).sum(0),
    "a loop": lambda x, y: jax.lax.scan(lambda c, row: (jnp.sin(c) + row, c * 2), x[0], x),
    "another order in memory": lambda x, y: (x.T.reshape(2, 3, 4) * 2).transpose(2, 0, 1) + y[0, 0],
    "a sort": lambda x, y: jnp.sort(x, axis=0),
    "bits": lambda x, y: jax.lax.bitcast_convert_type(x.reshape(3, 8), jnp.int32).T,
    "indices": lambda x, y: x[jnp.array([2, 0])].T * 3,
    "LAPACK": lambda x, y: jnp.linalg.cholesky(x @ x.T + 9 * jnp.eye(4)),
    "selected elements": lambda x, y: jax.lax.top_k(x, 3),
}


@pytest.mark.full
@pytest.mark.parametrize("name", OPTIMIZED)
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_optimized_programs_run(name: str, device: str) -> None:
    function = OPTIMIZED[name]
    x, y = (np.random.default_rng(seed).normal(size=(4, 6)).astype(np.float32) for seed in range(2))
    arguments = (jnp.asarray(x), jnp.asarray(y.T))
    compiled = jax.jit(function, keep_unused=True).lower(*arguments).compile()
    with pjrt.load_model(compiled.as_text(), device) as model:
        assert model.file.kind == "HLO text"
        results = [np.asarray(each) for each in model(*map(np.asarray, arguments))]
    expected = jax.tree.leaves(compiled(*arguments))
    for result, right in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, right, rtol=1e-5, atol=1e-6)


def test_an_operation_of_one_device_is_refused_by_name() -> None:
    text = b"""HloModule f

ENTRY main {
  x = f32[8] parameter(0)
  ROOT y = f32[2,8] bitcast(x)
}
"""
    with pytest.raises(InvalidArgumentError, match=r"found the operation bitcast, .* before_optimizations\.txt$"):
        stablehlo.signature(stablehlo.read(text))


@pytest.mark.parametrize("change", ["a byte order mark", "no module", "no percent signs", "the entry alone"])
def test_text_that_begins_in_another_way(change: str) -> None:
    code = b"""HloModule m

%twice (x: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  ROOT %sum = f32[] add(%x, %x)
}

ENTRY %main (y: f32[3]) -> f32[3] {
  %y = f32[3] parameter(0)
  ROOT %z = f32[3] map(%y), dimensions={0}, to_apply=%twice
}
"""
    if change == "a byte order mark":
        code = b"\xef\xbb\xbf" + code
    elif change == "no module":
        code = b"// a comment\n" + code.partition(b"\n")[2]
    elif change == "no percent signs":  # and the types of parameters and results, which XLA leaves out with them
        code = re.sub(rb" \(.*\) -> \S+", b"", code.partition(b"\n")[2].replace(b"%", b""))
    else:
        code = code[code.index(b"ENTRY") :].replace(b"map(%y), dimensions={0}, to_apply=%twice", b"add(%y, %y)")
    with pjrt.load_model(code, "reference") as model:
        assert model.file.kind == "HLO text"
        np.testing.assert_array_equal(model([1, 2, 3])[0], [2, 4, 6])
    with pytest.raises(InvalidArgumentError, match=f"line {code[: code.index(b'z = f32[3]')].count(10) + 1}, "):
        stablehlo.read(code.replace(b"z = f32[3]", b"z = f33[3]"))


def test_comments_computations_and_shardings() -> None:
    parsed = stablehlo.parse(stablehlo.read(TEXT))
    names = [operation.name for operation in parsed.walk()]
    assert names.count("stablehlo.sine") == names.count("stablehlo.add") == names.count("stablehlo.multiply") == 1
    assert parsed.entry.argument_attributes[0]["mhlo.sharding"] == "{devices=[8]<=[8]}"


def test_a_text_for_several_devices_keeps_their_number() -> None:
    several = TEXT.replace(b"->f32[8]{0}}\n", b"->f32[8]{0}}, replica_count=2, num_partitions=8\n")
    program = stablehlo.read(several.decode())
    assert program.format == ProgramFormat.HLO_WITH_CONFIG
    partitioning = stablehlo.partitioning_of(program)
    assert (partitioning.num_replicas, partitioning.num_partitions) == (2, 8)
    assert stablehlo.read(TEXT).format == ProgramFormat.HLO


def test_missing_values_are_a_warning() -> None:
    elided = TEXT.replace(b"sine(Arg_0.1)", b"constant({...})")
    with pytest.warns(UserWarning, match=r"values of 1 constants \(the first in line 14\)"):
        stablehlo.read(elided)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"sine(Arg_0.1)", b"sine(Arg_9)", r"line 14, column 27: .*instruction does not exist: Arg_9.*in: sine\.2 ="),
        (b"sine(Arg_0.1)", b"sinus(Arg_0.1)", "line 14, column 22: .*Unknown opcode: sinus"),
        (b"f32[8]{0} add", b"f99[8]{0} add", "line 8, column 16: .*Unknown opcode: f99"),
        (TEXT[-30:], b"", "line 16, column"),
        (TEXT[TEXT.index(b"jit_f") :], b"", "line 4, column 11: expects name"),
    ],
)
def test_a_syntax_error_names_its_line(old: bytes, new: bytes, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        hlo_text.parse_here(TEXT.replace(old, new))


def test_errors_of_the_subprocess_are_the_same() -> None:
    with pytest.raises(InvalidArgumentError, match="cannot read the HLO text: line 14, column 27"):
        stablehlo.read(TEXT.replace(b"sine(Arg_0.1)", b"sine(Arg_9)"))


def test_several_modules_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="found 2, in the lines 4, 10: write each into a file"):
        stablehlo.read(TEXT.replace(b"}\n\nENTRY", b"}\nHloModule second\nENTRY"))


def test_an_operation_on_wrong_shapes_is_refused() -> None:
    wrong = TEXT.replace(b"f32[8]{0} sine", b"f32[5]{0} sine")
    with pytest.raises(InvalidArgumentError, match="compatible types"):
        stablehlo.inspect(stablehlo.read(wrong))


def test_what_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "dump.txt").write_bytes(TEXT + b"\xff")
    with pytest.raises(DataLossError, match=r"dump\.txt: corrupt HLO text: expected UTF-8, found b'\\xff'"):
        stablehlo.read_file(tmp_path / "dump.txt")


def test_comments_that_do_not_end_cost_no_time() -> None:
    for text in (b"\n" * 100_000, b"/*" * 100_000, b"// " * 100_000, b"/* */" * 50_000, b"/*" + b"* /" * 50_000):
        assert not looks_like_hlo_text(text)
        with pytest.raises(PjrtError):
            stablehlo.read(text)
    with pytest.raises(InvalidArgumentError):
        parse_hlo_text(b"HloModule m " + b"/*" * 500_000)


def test_a_parser_that_hangs_or_crashes() -> None:
    with pytest.raises(DataLossError, match="not done with its"):
        parse_hlo_text(TEXT, time_limit=0.01)
    deep = b"HloModule m\nENTRY e {\n  ROOT x = " + b"(" * 200_000
    with pytest.raises(PjrtError):
        parse_hlo_text(deep)


def test_without_subprocesses_it_is_parsed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = stablehlo.read(TEXT)
    with monkeypatch.context() as patch:
        patch.setattr("sys.executable", "")
        program = parse_hlo_text(TEXT)
        with pytest.raises(InvalidArgumentError, match="line 14"):
            parse_hlo_text(TEXT.replace(b"sine(Arg_0.1)", b"sine(Arg_9)"))
    assert stablehlo.to_text(program) == stablehlo.to_text(expected)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.integers(0, len(TEXT) - 1), st.binary(min_size=1, max_size=2))
def test_errors_of_damaged_text_are_ours(position: int, insertion: bytes) -> None:
    damaged = TEXT[:position] + insertion + TEXT[position:]
    try:
        damaged.decode()
        hlo_text.parse_here(damaged)
    except (UnicodeDecodeError, InvalidArgumentError):
        pass
