"""Programs that XLA's compiler does not survive, and the ordinary ones, which must not pay for them."""

from __future__ import annotations

import functools
import subprocess
import sys
from types import ModuleType
from typing import Any

import jax
import jax.export
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pjrt
from pjrt.api.program import from_caller
from pjrt.devices.xla import compilation, trial_compilation
from pjrt.stablehlo import read, to_module
from pjrt.stablehlo.encodings import safe_parse
from pjrt.stablehlo.facts.outline import MANY, Outline
from pjrt.stablehlo.ir.types import TensorType

SIX = """func.func @main(%x: tensor<3xf6E2M3FN>) -> tensor<3xf6E2M3FN> {
  %0 = stablehlo.exponential %x : tensor<3xf6E2M3FN>
  %1 = stablehlo.constant dense<[1.0, 2.0, 3.0]> : tensor<3xf6E2M3FN>
  %2 = stablehlo.add %0, %1 : tensor<3xf6E2M3FN>
  return %2 : tensor<3xf6E2M3FN> }"""


def calls(depth: int) -> str:
    kind = "(tensor<f32>) -> tensor<f32>"
    head = "(%a: tensor<f32>) -> tensor<f32>"
    functions = [
        f"func.func {'private @f' + str(i) if i else '@main'}{head} {{ %0 = func.call @f{i + 1}(%a) : {kind}\n"
        "return %0 : tensor<f32> }\n"
        for i in range(depth)
    ]
    return "".join(functions) + f"func.func private @f{depth}{head} {{ return %a : tensor<f32> }}"


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program was tried before."""
    monkeypatch.setattr(safe_parse, "_sound", {})


@pytest.mark.full
def test_what_ends_the_compiler_is_an_error(client: pjrt.Client) -> None:
    text = calls(3000)
    with pytest.raises(pjrt.UnimplementedError, match=r"XLA's compiler ends its process over it \(SIG"):
        client.compile(text)
    support = client.supports(text)
    assert support.verdict is pjrt.Verdict.NO


CUSTOM_CALL = """func.func @main(%%x: tensor<4xf32>) -> tensor<4xf32> {
  %%0 = stablehlo.custom_call @%s(%%x) {%s} : (tensor<4xf32>) -> tensor<4xf32>
  return %%0 : tensor<4xf32> }"""
TOP_K = """func.func @main(%%x: tensor<4xf32>) -> tensor<2xf32> {
  %%0:2 = stablehlo.custom_call @%s(%%x) {mhlo.attributes = {%s}} : (tensor<4xf32>) -> (tensor<2xf32>, tensor<2xi32>)
  return %%0#0 : tensor<2xf32> }"""


@pytest.mark.full
@pytest.mark.parametrize(
    "text",
    [
        TOP_K % ("mhlo.topk", "k = 2.0 : f32, largest = 3 : i64"),
        CUSTOM_CALL % ("__onednn$matmul", 'backend_config = "not JSON"'),
        CUSTOM_CALL % ("xla.sdy.FuncResultSharding", ""),
        CUSTOM_CALL % ("SliceToDynamic", ""),
    ],
    ids=["topk", "onednn", "sdy", "dynamic"],
)
def test_custom_calls_that_end_the_compiler_are_an_error(client: pjrt.Client, text: str) -> None:
    with pytest.raises(pjrt.UnimplementedError, match=r"XLA's compiler ends its process over it \(SIG"):
        client.compile(text)


@pytest.mark.full
def test_a_sharding_that_nobody_can_inspect_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """From JAX in this process the address may be that of a function of it; any other program is refused."""
    monkeypatch.setitem(sys.modules, "jax", ModuleType("jax"))
    attributes = 'mhlo.sharding = "{devices=[2]<=[2]}", backend_config = "0123456789abcdef"'
    with (
        pjrt.client("cpu", num_devices=2) as two,
        from_caller(framework=True),
        pytest.raises(pjrt.UnimplementedError, match="ends its process"),
    ):
        two.compile(
            CUSTOM_CALL % ("InspectSharding", attributes),
            pjrt.CompileOptions(num_partitions=2, use_spmd_partitioning=True),
        )


@pytest.mark.parametrize(
    "text",
    [
        CUSTOM_CALL % ("Sharding", 'mhlo.sharding = "{replicated}"'),
        CUSTOM_CALL % ("annotate_device_placement", ""),
        CUSTOM_CALL % ("lapack_spotrf_ffi", "api_version = 4 : i32"),
        CUSTOM_CALL % ("mhlo.erf", "mhlo.attributes = {}, mhlo.version = 1 : i64"),
        TOP_K % ("mhlo.topk", "k = 2 : i64, largest = true"),
    ],
    ids=["Sharding", "placement", "LAPACK", "erf", "topk"],
)
def test_usual_custom_calls_are_ordinary(client: pjrt.Client, text: str) -> None:
    compilation.register_handlers(text.encode())
    assert trial_compilation.is_ordinary(Outline.of(to_module(read(text))))


COMPOSITE = """func.func private @implementation(%x: tensor<4xELEMENT>) -> (tensor<2xELEMENT>, tensor<2xi32>) {
      %0 = stablehlo.slice %x [0:2] : (tensor<4xELEMENT>) -> tensor<2xELEMENT>
      %1 = stablehlo.iota dim = 0 : tensor<2xi32>
      return %0, %1 : tensor<2xELEMENT>, tensor<2xi32> }
    func.func @main(%x: tensor<4xELEMENT>) -> (tensor<2xELEMENT>, tensor<2xi32>) {
      %0:2 = stablehlo.composite "NAME" %x {ATTRIBUTES decomposition = @implementation}
        : (tensor<4xELEMENT>) -> (tensor<2xELEMENT>, tensor<2xi32>)
      return %0#0, %0#1 : tensor<2xELEMENT>, tensor<2xi32> }"""


@pytest.mark.parametrize(
    ("name", "attributes", "element", "is_ordinary"),
    [
        ("chlo.top_k", "{is_stable = true, k = 2 : i64}", "f32", True),
        ("chlo.top_k", "{k = 2 : i64}", "i32", True),
        ("chlo.erf", "{}", "f32", True),  # XLA refuses what is no erf
        ("chlo.top_k", "{k = 2 : i64}", "complex<f32>", False),
        ("chlo.top_k", '{k = "two"}', "f32", False),  # XLA ends the process over it
        ("chlo.erf", "{k = 2 : i64}", "f32", False),
        ("chlo.unheard_of", "{}", "f32", False),
        ("mine.own", "{}", "f32", True),
        ("mine.own", "{k = 2 : i64}", "f32", False),
    ],
)
def test_composites_that_xla_survives_are_ordinary(name: str, attributes: str, element: str, is_ordinary: bool) -> None:
    text = COMPOSITE.replace("NAME", name).replace("ELEMENT", element)
    text = text.replace("ATTRIBUTES", f"composite_attributes = {attributes},")
    assert trial_compilation.is_ordinary(Outline.of(to_module(read(text)))) is is_ordinary


@pytest.mark.parametrize("function", [jax.nn.gelu, jax.lax.erf_inv, lambda x: jax.lax.top_k(x, 2)])
def test_what_jax_exports_of_common_functions_is_ordinary(function: Any) -> None:
    """From 0.12 on, JAX writes operations of CHLO as composites."""
    exported = jax.export.export(jax.jit(function))(jax.ShapeDtypeStruct((4,), np.float32))
    module = to_module(pjrt.Program(exported.mlir_module_serialized))
    assert trial_compilation.is_ordinary(Outline.of(module))


def constants(operation: str, element: str, values: tuple[str, str], result: str = "") -> str:
    given, made = f"tensor<2x{element}>", f"tensor<2x{result or element}>"
    return f"""func.func @main() -> {made} {{
      %x = stablehlo.constant dense<{values[0]}> : {given}
      %y = stablehlo.constant dense<{values[1]}> : {given}
      %r = {operation} : ({given}, {given}) -> {made}
      return %r : {made} }}"""


def compare(direction: str, kind: str = "") -> str:
    more = f", compare_type = #stablehlo<comparison_type {kind}>" if kind else ""
    return f'"stablehlo.compare"(%x, %y) {{comparison_direction = #stablehlo<comparison_direction {direction}>{more}}}'


NUMBERS = ("[1, 2]", "[2, 2]")
COMPLEX = ("[(1.0,2.0),(3.0,4.0)]", "[(1.0,3.0),(7.0,8.0)]")
ENDING = {
    "divide": constants('"stablehlo.divide"(%x, %y)', "i32", ("[1, -2147483648]", "[0, -1]")),
    "remainder": constants('"stablehlo.remainder"(%x, %y)', "ui8", ("[1, 2]", "[0, 3]")),
    "complex remainder": constants('"stablehlo.remainder"(%x, %y)', "complex<f32>", COMPLEX),
    "complex order": constants(compare("LT"), "complex<f64>", COMPLEX, "i1"),
    "floats for integers": constants(compare("EQ", "FLOAT"), "i32", NUMBERS, "i1"),
    "total order of integers": constants(compare("GE", "TOTALORDER"), "ui8", NUMBERS, "i1"),
    "top_k": """func.func @main() -> tensor<1xcomplex<f32>> {
      %x = stablehlo.constant dense<[(1.0,2.0),(3.0,4.0)]> : tensor<2xcomplex<f32>>
      %0:2 = chlo.top_k(%x, k = 1) : tensor<2xcomplex<f32>> -> (tensor<1xcomplex<f32>>, tensor<1xi32>)
      return %0#0 : tensor<1xcomplex<f32>> }""",
    "sort": """func.func @main(%x: tensor<2xcomplex<f32>>) -> tensor<2xcomplex<f32>> {
      %0 = "stablehlo.sort"(%x) ({ ^bb0(%a: tensor<complex<f32>>, %b: tensor<complex<f32>>):
        %1 = stablehlo.compare GT, %a, %b : (tensor<complex<f32>>, tensor<complex<f32>>) -> tensor<i1>
        stablehlo.return %1 : tensor<i1>
      }) {dimension = 0 : i64} : (tensor<2xcomplex<f32>>) -> tensor<2xcomplex<f32>>
      return %0 : tensor<2xcomplex<f32>> }""",
}


@pytest.mark.full
@pytest.mark.parametrize("name", list(ENDING))
def test_operations_on_constants_that_may_end_the_compiler_are_tried_first(name: str) -> None:
    """Some versions of XLA end the process; others refuse the program, or give a result."""
    script = f"""
import numpy as np, pjrt
try:
    results = pjrt.client("cpu").compile({ENDING[name]!r})(*[np.ones(2, np.complex64)] * {int(name == "sort")})
    print("ran", np.asarray(results[0]).tolist())
except pjrt.PjrtError as error:
    print("refused", error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("ran", "refused"))
    assert not trial_compilation.is_ordinary(Outline.of(to_module(read(ENDING[name]))))


@pytest.mark.parametrize(
    ("operation", "element", "values", "result"),
    [
        ('"stablehlo.divide"(%x, %y)', "i32", NUMBERS, ""),
        ('"stablehlo.divide"(%x, %y)', "complex<f32>", COMPLEX, ""),
        ('"stablehlo.divide"(%x, %y)', "f32", ("[1.0, 2.0]", "[0.0, 0.0]"), ""),
        (compare("LT", "SIGNED"), "i32", NUMBERS, "i1"),
        (compare("LT", "UNSIGNED"), "ui8", NUMBERS, "i1"),
        (compare("LT", "UNSIGNED"), "i1", ("[true, false]", "[true, true]"), "i1"),
        (compare("LT", "TOTALORDER"), "f32", ("[1.0, 2.0]", "[0.0, 0.0]"), "i1"),
        (compare("EQ", "FLOAT"), "complex<f32>", COMPLEX, "i1"),
    ],
)
def test_operations_that_xla_has_for_constants_are_ordinary(
    operation: str, element: str, values: tuple[str, str], result: str
) -> None:
    text = constants(operation, element, values, result)
    assert trial_compilation.is_ordinary(Outline.of(to_module(read(text))))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("func.func private @main(%x: tensor<f32>)", "main is to be run and has no body"),
        ("func.func @main() { func.call @main() : () -> ()\n return }", "main calls itself"),
        ("func.func @main(%x: tensor<9223372036854775807xf32>) { return }", "more bytes than can be counted"),
    ],
)
def test_what_no_device_runs_is_refused_without_a_trial(
    client: pjrt.Client, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(pjrt.InvalidArgumentError, match=message):
        client.compile(text)
    assert client.supports(text).verdict is pjrt.Verdict.NO


@pytest.mark.full
def test_an_unusual_program_is_tried_once_and_runs(client: pjrt.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(a) or start(*a, **k))
    for _ in range(2):
        (result,) = client.compile(calls(60))(np.float32(3))
        assert float(np.asarray(result)) == 3
    assert len(started) == 1


@pytest.mark.full
def test_a_program_that_the_compiler_refuses_is_refused_in_its_words(client: pjrt.Client) -> None:
    text = """func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
      %0 = stablehlo.custom_call @nobody_has_this(%x) : (tensor<?xf32>) -> tensor<?xf32>
      return %0 : tensor<?xf32> }"""
    with pytest.raises(pjrt.PjrtError) as caught:
        client.compile(text)
    assert "ends its process" not in caught.value.message


def test_where_no_python_can_be_started_unusual_programs_are_compiled_at_once(
    client: pjrt.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "")
    assert float(np.asarray(client.compile(calls(60))(np.float32(3))[0])) == 3


ELEMENTS = st.sampled_from(("f32", "f64", "bf16", "f16", "i32", "i64", "i8", "ui8", "i1", "complex<f32>", "i4"))
SIZES = st.lists(st.integers(0, 2**20), max_size=2)


@given(ELEMENTS, SIZES)
@settings(max_examples=50, deadline=None)
def test_ordinary_types_are_ordinary(element: str, sizes: list[int]) -> None:
    kind = f"tensor<{''.join(f'{size}x' for size in sizes)}{element}>"
    text = f"func.func @main(%x: {kind}) -> {kind} {{ return %x : {kind} }}"
    outline = Outline.of(to_module(read(text)))
    fits = all(
        isinstance(each, TensorType) and each.nbytes <= trial_compilation._most_bytes() for each in outline.types
    )
    assert trial_compilation.is_ordinary(outline) is fits


MUTATIONS = st.sampled_from(
    (("4", "9223372036854775807"), ("4", "0"), ("4", "?"), ("f32", "f64"), ("f32", "i1"), ("add", "dot"), ("%y", "%x"))
)


@pytest.mark.full
@given(st.lists(MUTATIONS, max_size=3), st.integers(0, 300), st.characters(max_codepoint=127))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_mutated_text_gives_our_errors_only(
    device: str, mutations: list[tuple[str, str]], place: int, sign: str
) -> None:
    """A little of what ``python -m benchmarks.fuzz`` does a million times."""
    text = """func.func public @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<4xf32> {
      %0 = stablehlo.add %x, %y : tensor<4xf32> loc("sum")
      return %0 : tensor<4xf32> }"""
    for old, new in mutations:
        text = text.replace(old, new)
    if place < len(text):
        text = text[:place] + sign + text[place + 1 :]
    try:
        device_named(device).compile(text).delete()
    except pjrt.PjrtError:
        return


@functools.cache
def device_named(name: str) -> pjrt.Client:
    return pjrt.client(name)


DEEP = "[" * 100_000


@pytest.mark.full
@pytest.mark.parametrize(
    "text",
    [
        f'''module attributes {{mhlo.frontend_attributes = {{xla.sdy.meshes = "{DEEP}"}}}} {{
          func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{ return %x : tensor<4xf32> }} }}''',
        f'''module attributes {{"mhlo.frontend\\5Fattributes" = {{"xl\\61.sdy.meshes" = "{DEEP}"}}}} {{
          func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{ return %x : tensor<4xf32> }} }}''',
    ],
    ids=["plain", "escaped"],
)
def test_strings_that_xla_parses_and_that_nest_deeply_are_tried_first(text: str) -> None:
    options = pjrt.CompileOptions(num_partitions=2, use_spmd_partitioning=True, use_shardy_partitioner=True)
    with pjrt.client("cpu", num_devices=2) as client, pytest.raises(pjrt.UnimplementedError, match="ends its process"):
        client.compile(text, options)


@pytest.mark.full
@pytest.mark.parametrize(
    ("module", "argument"),
    [
        ('mhlo.spmd_output_sharding = "{nonsense}"', ""),
        ('mhlo.spmd_output_sharding = "{devices=[1,2]<=[2]}"', ""),
        (r'"mhlo.spmd_\6Futput_sharding" = "{nonsense}"', ""),
        ("mhlo.input_output_alias = [1 : i32]", ""),
        ("mhlo.xla_entry_computation_parameter_layouts = [[dense<[0]> : tensor<1xindex>]]", ""),
        ("", 'mhlo.layout_mode = "{0,1:T(-1)}"'),
    ],
)
def test_what_xla_trusts_is_tried_first(client: pjrt.Client, module: str, argument: str) -> None:
    """XLA ends the process where these do not fit the program."""
    text = f"""
    module attributes {{{module}}} {{
      func.func @main(%x: tensor<2x2xf32> {{{argument}}}) -> tensor<2x2xf32> {{
        return %x : tensor<2x2xf32> }} }}"""
    with pytest.raises(pjrt.UnimplementedError, match="ends its process"):
        client.compile(text)


@pytest.mark.full
@pytest.mark.parametrize("name", ["inlineable", r'"inl\69neable"'], ids=["plain", "escaped"])
def test_calls_that_xla_is_told_not_to_inline_are_tried_first(client: pjrt.Client, name: str) -> None:
    """Another part of XLA compiles such calls, and ends the process over empty arrays."""
    types = "tensor<0xi32>, tensor<i32>"
    attributes = f'{{mhlo.frontend_attributes = {{{name} = "false", "xla\\5Fcpu_small_call" = "true"}}}}'
    text = f"""
    func.func @main(%x: tensor<0xi32>, %y: tensor<i32>) -> ({types}) {{
      %0:2 = call @f(%x, %y) {attributes} : ({types}) -> ({types})
      return %0#0, %0#1 : {types} }}
    func.func private @f(%x: tensor<0xi32>, %y: tensor<i32>) -> ({types}) {{
      %c = stablehlo.constant dense<1> : tensor<i32>
      %0 = stablehlo.clamp %y, %x, %c : (tensor<i32>, tensor<0xi32>, tensor<i32>) -> tensor<0xi32>
      return %0, %c : {types} }}"""
    with pytest.raises(pjrt.UnimplementedError, match="ends its process"):
        client.compile(text)


def test_strings_that_do_not_nest_are_ordinary(client: pjrt.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    text = """module attributes {mhlo.frontend_attributes = {xla.sdy.meshes = "{mesh = #sdy.mesh<[\\22x\\22=2]>}"}} {
      func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> } }"""
    client.compile(text)


@pytest.mark.full
def test_the_executable_of_a_trial_is_used(client: pjrt.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of long chains take XLA minutes: none is compiled twice."""
    monkeypatch.setattr(trial_compilation, "_LONGEST_CHAIN", 100)
    kind = "tensor<4xf32>"
    steps = [f"%v{i + 1} = stablehlo.sine %v{i} : {kind}\n" for i in range(MANY)]
    text = f"func.func @main(%v0: {kind}) -> {kind} {{ {''.join(steps)} return %v{MANY} : {kind} }}"
    serialized: list[bytes] = []

    def compile_here(runtime: Any, program: Any, options: Any, inspect: Any) -> Any:
        executable = compilation.compile_program(runtime, program, options, inspect)
        serialized.append(executable.code or b"")
        return executable

    monkeypatch.setattr(trial_compilation, "compile_program", compile_here)
    second = client.addressable_devices[1]
    chosen = pjrt.CompileOptions(device_assignment=pjrt.DeviceAssignment.of([second.id]))
    x = np.arange(4, dtype=np.float32)
    expected = x.copy()
    for _ in range(MANY):
        expected = np.sin(expected)
    for options in (None, chosen):
        (result,) = client.compile(text, options)(x)
        assert result.device is (client.addressable_devices[0] if options is None else second)
        np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-4)
    assert all(serialized)


def test_types_larger_than_the_memory_are_not_ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA's compiler computes some values itself."""
    text = """func.func @main(%x: tensor<256xf32>) -> tensor<256xf32> {
      %0 = stablehlo.negate %x : tensor<256xf32>
      return %0 : tensor<256xf32> }"""
    outline = Outline.of(to_module(read(text)))
    assert trial_compilation._most_bytes() > 1 << 20
    for memory, is_ordinary in ((1024, True), (1023, False)):
        monkeypatch.setattr(trial_compilation, "_most_bytes", lambda memory=memory: memory)
        assert trial_compilation.is_ordinary(outline) is is_ordinary


@pytest.mark.full
@pytest.mark.skipif(sys.platform == "win32", reason="the limits of a process are those of POSIX")
def test_what_cannot_be_tried_is_refused() -> None:
    script = f"""
import os, resource, pjrt
client = pjrt.client("cpu")
try:
    client.compile({SIX!r}.replace("2.0", "1.0"))  # nothing is left to import
except pjrt.PjrtError:
    pass
resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/dev/fd"))), 4096))
try:
    client.compile({SIX!r})
except pjrt.PjrtError as error:
    print(error.code.name, error.message)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=200)
    assert done.stdout.startswith("RESOURCE_EXHAUSTED cannot start the subprocess"), done.stderr


def test_a_trial_that_ends_with_an_exception_is_none(monkeypatch: pytest.MonkeyPatch, client: pjrt.Client) -> None:
    """The subprocess may have too little memory to begin, or the compiler may raise what is no error of a program."""
    monkeypatch.setenv("PYTHONMALLOC", "no such allocator")
    with pytest.raises(pjrt.UnimplementedError, match="exit code 1"):
        client.compile(SIX)
