from __future__ import annotations

import io
import subprocess
import sys

import pytest

from pjrt import DataLossError, InvalidArgumentError, PjrtError, Program
from pjrt.stablehlo import inspect, parse, read, to_module, to_text, vet
from pjrt.stablehlo.encodings import safe_parse
from pjrt.stablehlo.ir import mlir_module
from pjrt.system.python_process import Ended


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program was vetted before."""
    monkeypatch.setattr(safe_parse, "_sound", {})


@pytest.fixture
def crashing(bytecode: Program) -> Program:
    """Bytecode with an operation's name that is not UTF-8, at which MLIR's bindings abort the process."""
    return Program(bytecode.code.replace(b"tanh", b"tan\xff"))


def test_the_parser_really_crashes(crashing: Program) -> None:
    """If this fails, the parser has become better: find another program for these tests."""
    script = (
        "import sys; from pjrt import Program, stablehlo;"
        "stablehlo.parse(Program(sys.stdin.buffer.read()), trusted=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=crashing.code, capture_output=True, check=False, timeout=120
    )
    assert done.returncode < 0


@pytest.mark.parametrize("look", [vet, parse, inspect, to_module, to_text])
def test_a_program_that_crashes_the_parser_is_an_error(look: object, crashing: Program) -> None:
    assert callable(look)
    with pytest.raises(DataLossError, match=r"make the native parser crash \(exit status -\d+\)"):
        look(crashing)


def test_a_refusal_in_the_other_process_is_the_same_error_here(artifact: Program) -> None:
    unknown = Program(artifact.code.replace(b"tanh_v1", b"tank_v1"))
    with pytest.raises(InvalidArgumentError, match=r"vhlo\.tank_v1") as elsewhere:
        vet(unknown)
    with pytest.raises(InvalidArgumentError) as here:
        to_module(unknown, trusted=True)
    assert elsewhere.value.message == here.value.message


def test_a_sound_program_is_vetted_once(monkeypatch: pytest.MonkeyPatch, artifact: Program, hlo: Program) -> None:
    calls = []
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: calls.append(a) or start(*a, **k))
    for _ in range(2):
        vet(artifact)
        vet(hlo)
    assert len(calls) == 2


def test_text_and_trusted_programs_start_no_process(
    monkeypatch: pytest.MonkeyPatch, text: Program, artifact: Program
) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", started)
    assert parse(text).name == "example"
    assert parse(artifact, trusted=True).name == "example"


def test_a_parser_that_does_not_end_is_an_error(artifact: Program) -> None:
    with pytest.raises(DataLossError, match=r"was not done with its .* bytes"):
        vet(artifact, time_limit=0.001)


def test_where_no_python_can_be_started_programs_are_parsed_here(
    monkeypatch: pytest.MonkeyPatch, artifact: Program
) -> None:
    monkeypatch.setattr(sys, "executable", "")
    assert parse(artifact).name == "example"
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    assert parse(artifact).name == "example"


def test_text_that_nests_without_end_is_refused() -> None:
    deep = "tuple<" * 100_000 + "tensor<f32>" + ">" * 100_000
    with pytest.raises(DataLossError, match="nested more than 400 deep"):
        to_module(read(f"func.func @main(%x: {deep}) {{ return }}"))


@pytest.mark.parametrize("sign", [">= ", "-> ", "> ", "<= "])
def test_signs_do_not_close_brackets(sign: str) -> None:
    with pytest.raises(DataLossError, match="nested more than 400 deep"):
        to_module(read(f"func.func @main() attributes {{x.y = {f'{sign}[' * 10_000}}}"), trusted=True)


def test_signs_do_not_open_brackets() -> None:
    safe_parse.check_text(b"module {" + b"(a <= b) [c < d] " * 1000 + b"}")


def test_regions_that_nest_without_end_are_refused_in_every_encoding() -> None:
    def nested(depth: int) -> str:
        opening = "".join(f'%r{i} = "stablehlo.if"(%p) ({{ ' for i in range(depth))
        given = "stablehlo.return %a : tensor<f32>"
        closing = "".join(
            f"}}, {{ {given} }}) : (tensor<i1>) -> tensor<f32> "
            + (f"stablehlo.return %r{i} : tensor<f32> " if i else "")
            for i in reversed(range(depth))
        )
        return f"func.func @main(%p: tensor<i1>, %a: tensor<f32>) {{ {opening}{given} {closing} return }}"

    assert parse(read(nested(80))).entry.name == "main"
    with pytest.raises(DataLossError, match="nested more than 100 deep"):
        parse(read(nested(150)))
    with pytest.raises(DataLossError, match="nested more than 400 deep"):
        parse(read(nested(1000)))
    with mlir_module.parse(nested(150).encode()) as module:
        code = io.BytesIO()
        module.operation.write_bytecode(code)
    with pytest.raises(DataLossError, match="nested more than 100 deep"):
        parse(read(code.getvalue()), trusted=True)


ALL_TO_ALL = """func.func @main(%%x: tensor<4x4xf32>) {
  %%0 = "%s"(%%x) {split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 2 : i64,
    replica_groups = dense<> : tensor<%sxi64>} : (tensor<4x4xf32>) -> tensor<4x4xf32>
  return }"""


@pytest.mark.parametrize(
    "text",
    [
        'func.func @main(%x: tensor<f32>) { "stablehlo.\\FF"(%x) : (tensor<f32>) -> ()\n return }',
        ALL_TO_ALL % ("stablehlo.all_to_all", "0x0"),
        ALL_TO_ALL % ("stablehlo.all_to\\5Fall", "0 x 2"),
        "#m = affine_map<(d0) -> (" + "-" * 100_000 + "d0)>\nmodule {}",
        "#m = affine_map<(d0) -> (" + "d0 + " * 200_000 + "d0)>\nmodule {}",
    ],
    ids=["a name that is not UTF-8", "no replica groups", "no replica groups, escaped", "many signs", "many sums"],
)
def test_text_that_crashes_a_parser_is_an_error_however_trusted(text: str) -> None:
    # Newer parsers survive some of it, and refuse it themselves.
    with pytest.raises(PjrtError, match=r"make the native parser crash|group size of replica_groups must be 2"):
        to_module(read(text), trusted=True)


@pytest.mark.parametrize(
    "text",
    [
        'module {}\n{-# dialect_resources: { builtin: { weights: "0x0400',
        'module {}\n{-# external_resources: { a: { b: "0x04 } } #-}',
        'module {}\n// 5"\n{-# external_resources: { a: { b: "\\"',
    ],
)
def test_resources_that_end_within_a_string(text: str) -> None:
    """MLIR's parser reads beyond the end of such text: by chance it survives, or not."""
    with pytest.raises(DataLossError, match="the last string of its resources has no end"):
        to_module(read(text), trusted=True)


def test_a_comment_after_resources_is_no_string() -> None:
    text = 'module {}\n{-# external_resources: { a: { b: "0x04000000" } } #-} // 5" wide'
    safe_parse.check_text(text.encode())
    to_module(read(text), trusted=True)


def test_a_dimension_that_no_array_has_is_an_error() -> None:
    text = """func.func @main(%x: tensor<1x2x2x1xf32>, %y: tensor<1x1x1x1xf32>) {
      %0 = stablehlo.convolution(%x, %y) dim_numbers = [b, 0, 1, f]x[0, 40000000000, i, o]->[b, 0, 1, f], window = {}
        {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
        : (tensor<1x2x2x1xf32>, tensor<1x1x1x1xf32>) -> tensor<1x2x2x1xf32>
      return }"""
    with pytest.raises(InvalidArgumentError, match="MLIR's parser gives up"):
        to_module(read(text), trusted=True)


@pytest.mark.parametrize(
    ("text", "is_delicate"),
    [
        ('module @"\\FF" {}', True),
        ('module @"\\C3\\A9" {}', False),
        ('module @"\\\\FF" {}', False),
        ('module attributes {a.b = "\\08\\FE"} {}', True),
        ("module @plain {}", False),
        ('module {}\n{-# dialect_resources: { builtin: { w: "0x04000000" } } #-}', False),
    ],
)
def test_text_with_strings_that_are_not_utf8_is_delicate(text: str, is_delicate: bool) -> None:
    assert safe_parse.is_delicate(text.encode()) is is_delicate


@pytest.mark.parametrize("k", ["-9223372036854775808", "0x8000000000000000"])
def test_top_k_of_an_unknown_size_is_an_error(k: str) -> None:
    text = f"""func.func @main(%x: tensor<4xf32>) {{
      %0, %1 = chlo.top_k(%x, k = {k}) : tensor<4xf32> -> (tensor<2xf32>, tensor<2xi32>)
      return }}"""
    with pytest.raises(InvalidArgumentError):
        inspect(read(text))


def test_brackets_in_strings_and_comments_do_not_nest() -> None:
    signs = "<([{" * 500
    program = read(f'// {signs}\nmodule attributes {{a.b = "{signs}"}} {{ }}')
    assert parse(program).attributes == {"a.b": signs}


@pytest.mark.full
@pytest.mark.parametrize("name", ["bytecode", "artifact", "hlo"])
def test_flipped_bits_never_harm_this_process(request: pytest.FixtureRequest, name: str) -> None:
    code = request.getfixturevalue(name).code
    step = max(1, len(code) * 8 // 12)
    for bit in range(3, len(code) * 8, step):
        damaged = bytearray(code)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            parse(read(bytes(damaged)))
        except PjrtError:
            continue


_VETTING = """
import subprocess, sys, threading
from pjrt import PjrtError, Program
from pjrt.stablehlo.encodings import safe_parse
from pjrt.stablehlo.reading import parser
program = Program(sys.stdin.buffer.read())
parser.vet_in_fork(program)
calls = []
start = subprocess.Popen
subprocess.Popen = lambda *a, **k: calls.append(a) or start(*a, **k)
try:
    safe_parse.vet(program)
    print("sound", len(calls))
except PjrtError as error:
    print(error.code.name, len(calls))
"""


def _vetted(program: Program, before: str = "") -> str:
    script = _VETTING.replace("parser.vet_in_fork", f"{before}\nparser.vet_in_fork", 1)
    done = subprocess.run(
        [sys.executable, "-c", script], input=program.code, capture_output=True, check=True, timeout=120
    )
    assert not done.stderr
    return done.stdout.decode().strip()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not fork")
def test_a_program_that_passes_in_a_fork_needs_no_subprocess(artifact: Program, hlo: Program) -> None:
    assert _vetted(artifact) == "sound 0"
    assert _vetted(hlo) == "sound 0"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not fork")
def test_a_large_program_is_parsed_once(artifact: Program) -> None:
    forks = "import os; os.fork = lambda: sys.exit('a fork')\n"
    assert _vetted(artifact, f"{forks}parser._LARGEST_IN_FORK = {len(artifact) - 1}") == "sound 1"


def test_a_large_program_has_time(monkeypatch: pytest.MonkeyPatch, artifact: Program) -> None:
    limits: list[float] = []

    def run(*_: str, given: bytes, time_limit: float) -> Ended:
        limits.append(time_limit)
        return Ended(0, b"", "")

    monkeypatch.setattr(safe_parse, "run_module", run)
    for size in (len(artifact), 30_000_000):
        safe_parse.run("module", given=bytes(size), time_limit=None)
    assert limits[0] < 61
    # 3,000,000 operations, each of which takes 40 μs on a machine that does nothing else, and five times that here
    assert limits[1] > 3_000_000 * 40e-6 * 5


def test_a_program_that_crashes_a_fork_is_vetted_in_a_subprocess(crashing: Program) -> None:
    assert _vetted(crashing) == "DATA_LOSS 1"


@pytest.mark.parametrize(
    "before",
    ["import jaxlib._jax", "threading.Thread(target=threading.Event().wait, daemon=True).start()"],
)
def test_a_process_with_threads_makes_no_fork(artifact: Program, before: str) -> None:
    assert _vetted(artifact, before) == "sound 1"


@pytest.mark.skipif(sys.platform == "win32", reason="the limits of a process are those of POSIX")
@pytest.mark.parametrize("format_", ["bytecode", "text", "hlo"])
def test_what_cannot_be_vetted_is_refused(crashing: Program, hlo: Program, format_: str) -> None:
    """Strangers may use up the file descriptors of a server: its next program is not parsed unseen."""
    delicate = Program(b'func.func @main() attributes {x.y = "\\FF"} { return }')
    program = {"bytecode": crashing, "text": delicate, "hlo": hlo}[format_]
    script = (
        "import os, resource, sys\n"
        "from pjrt import PjrtError, Program, stablehlo\n"
        "stablehlo.vet(Program(b'func.func @main() attributes {x.y = affine_map<() -> ()>} { return }'))\n"
        "code = sys.stdin.buffer.read()\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir('/dev/fd'))), 4096))\n"
        "try:\n"
        f"    stablehlo.vet(Program(code, {str(program.format.value)!r}))\n"
        "except PjrtError as error:\n"
        "    print(error.code.name, error.message)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], input=program.code, capture_output=True, check=False, timeout=120
    )
    assert done.stdout.startswith(b"RESOURCE_EXHAUSTED cannot start the subprocess"), done.stderr
