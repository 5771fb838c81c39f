"""Devices with kernels of their own, and the reference interpreter for everything else."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from anydevice.simulated_memory import SimulatedMemory
from hypothesis import given, settings
from hypothesis import strategies as st

import pjrt
from pjrt.stablehlo import Operation, ParsedProgram, lowering
from pjrt.stablehlo.ir.unparsing import unparse

Array = np.ndarray[Any, Any]


def text_of(function: Callable[..., Any], *arguments: Any) -> str:
    return str(jax.jit(function).lower(*arguments).as_text(debug_info=True))


def run(client: pjrt.Client, program: str, *arguments: Any) -> list[Array]:
    return [np.asarray(result) for result in client.compile(program)(*arguments)]


def matmul(operation: Operation, x: Array, y: Array) -> Any:
    numbers = operation.attribute("dot_dimension_numbers")
    if numbers.lhs_batching_dimensions:
        return NotImplemented
    return np.tensordot(x, y, (numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions))


X = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)

EVERYDAY: dict[str, Callable[[Any], Any]] = {
    "x + 1": lambda x: x + 1,
    "x @ x.T": lambda x: x @ x.T,
    "sum": lambda x: x.sum(),
    "x[0]": lambda x: x[0],
    "solve": lambda x: jnp.linalg.solve(x, x[0]),
    "random": lambda x: x + jax.random.normal(jax.random.key(1), x.shape),
    "grad": jax.grad(lambda x: jnp.tanh(x @ x).sum()),
    "scan": lambda x: jax.lax.scan(lambda c, _: (jnp.tanh(c @ x) + 1, c.sum()), x, None, length=3),
    "cond": lambda x: jax.lax.cond(x[0, 0] > 0, lambda: x @ x, lambda: x + 1),
    "sort": lambda x: jnp.sort(x + 1, axis=0),
    "batched": lambda x: jnp.einsum("bij,bjk->bik", x[None], x[None]),
}


@pytest.mark.parametrize("name", EVERYDAY)
def test_everyday_programs_need_two_kernels(name: str) -> None:
    kernels = {"stablehlo.dot_general": matmul, "stablehlo.add": lambda operation, x, y: x + y}
    program = text_of(EVERYDAY[name], X)
    with pjrt.StableHloClient("two", kernels=kernels, fallback="reference") as mine, pjrt.client("reference") as judge:
        for ours, theirs in zip(run(mine, program, X), run(judge, program, X), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_kernels_run_in_loops_branches_and_functions_but_not_in_reducers() -> None:
    calls: Counter[str] = Counter()

    def add(operation: Operation, x: Array, y: Array) -> Array:
        calls[str(operation.results[0].type)] += 1
        return x + y

    @jax.jit
    def inner(x: Any) -> Any:
        return x + 2

    def program(x: Any) -> Any:
        x = jax.lax.fori_loop(0, 3, lambda _, v: v + x, x)
        x = jax.lax.cond(x[0] > 100, lambda: x, lambda: inner(x))
        return x, jax.lax.reduce(x, 0.0, lambda a, b: a + b * a, (0,))

    x = np.ones(5, np.float32)
    with pjrt.StableHloClient("adds", kernels={"stablehlo.add": add}, fallback="reference") as client:
        results = run(client, text_of(program, x), x)
    np.testing.assert_array_equal(results[0], np.full(5, 6, np.float32))
    assert calls["tensor<5xf32>"] == 4  # three rounds and the function
    assert calls["tensor<f32>"] == 0  # the reducer's


def test_a_kernel_that_declines_is_asked_once() -> None:
    asked = []

    def add(operation: Operation, x: Array, y: Array) -> Any:
        asked.append(operation.results[0].type.element)
        return NotImplemented if x.dtype != np.float32 else x + y + 1

    program = """
    func.func @main(%x: tensor<2xf32>, %n: tensor<2xi32>) -> (tensor<2xf32>, tensor<2xi32>) {
      %0 = stablehlo.add %x, %x : tensor<2xf32>
      %1 = stablehlo.add %n, %n : tensor<2xi32>
      return %0, %1 : tensor<2xf32>, tensor<2xi32>
    }"""
    x, n = np.ones(2, np.float32), np.ones(2, np.int32)
    with pjrt.StableHloClient("declines", kernels={"stablehlo.add": add}, fallback="reference", profile=True) as client:
        executable = client.compile(program)
        for _ in range(2):
            assert [np.asarray(result).tolist() for result in executable(x, n)] == [[3, 3], [2, 2]]
        assert client.profile is not None
        assert {name: entry.calls for name, entry in client.profile.by_op.items()} == {
            "stablehlo.add on declines": 2,
            "stablehlo.add on reference": 2,
        }
    assert asked == [pjrt.ElementType.F32, pjrt.ElementType.S32, pjrt.ElementType.F32]


def test_without_a_fallback_other_operations_are_refused_with_their_place() -> None:
    program = text_of(lambda x: jnp.tanh(x + x), X)
    with pjrt.StableHloClient("adds", kernels={"stablehlo.add": lambda op, x, y: x + y}) as client:
        np.testing.assert_array_equal(run(client, text_of(lambda x: x + x, X), X)[0], X + X)
        with pytest.raises(
            pjrt.UnimplementedError, match=r"does not run stablehlo.tanh .*test_author.py.* no fallback"
        ):
            client.compile(program)
        assert client.supports(program).verdict is pjrt.Verdict.NO


def test_an_error_of_a_kernel_names_the_author_and_the_user() -> None:
    def broken(operation: Operation, x: Array, y: Array) -> Array:
        raise ValueError("no such unit")

    program = text_of(lambda x: x + x, X)
    with pjrt.StableHloClient("broken", kernels={"stablehlo.add": broken}, fallback="reference") as client:
        (result,) = client.compile(program)(X)
        with pytest.raises(pjrt.PjrtError) as caught:
            np.asarray(result)
    message = caught.value.message
    assert "no such unit" in message
    assert "test_author.py:" in message.partition("(in stablehlo.add")[0]  # the author's line
    assert "test_author.py:" in message.partition("(in stablehlo.add")[2]  # the user's line
    assert " in broken" in message


def broken_at(name: str, how: Callable[[Operation], None]) -> Callable[[ParsedProgram, pjrt.CompileOptions], Any]:
    """Return a ``compile`` for programs of additions and tangents, whose operation of a name fails."""

    def compile(program: ParsedProgram, _: pjrt.CompileOptions) -> Callable[..., Any]:
        def run(*arrays: Array) -> Any:
            values = dict(zip(program.entry.arguments, arrays, strict=True))
            assert program.entry.body is not None
            for operation in program.entry.body.operations[:-1]:
                if operation.name == name:
                    how(operation)
                function = {"stablehlo.add": np.add, "stablehlo.tanh": np.tanh}[operation.name]
                values[operation.results[0]] = function(*(values[operand] for operand in operation.operands))
            return [values[output] for output in program.entry.body.outputs]

        return run

    return compile


def message_of(client: pjrt.Client, function: Callable[..., Any]) -> str:
    (result,) = client.compile(text_of(function, X))(X)
    with pytest.raises(pjrt.PjrtError) as caught:
        np.asarray(result)
    return caught.value.message


def fail_by_itself(_: Operation) -> None:
    raise OSError(5, "the chip does not answer")


def fail_in_operation(operation: Operation) -> None:
    with operation.running(), operation.running():  # the innermost one counts
        fail_by_itself(operation)


def fail_by_a_driver(operation: Operation) -> None:
    raise operation.failed("chip error 0x21: the chip does not answer")


def three(x: Any) -> Any:
    y = x + x
    z = jnp.tanh(y)  # the line of the operation that fails
    return z + x


@pytest.mark.parametrize("fallback", [None, "reference"])
@pytest.mark.parametrize(
    ("how", "begin"),
    [
        (fail_in_operation, "OSError: [Errno 5] the chip does not answer (test_author.py:"),
        (fail_by_a_driver, "chip error 0x21: "),
    ],
)
def test_an_error_of_compiled_code_names_the_operation_that_failed(
    how: Callable[[Operation], None], begin: str, fallback: str | None
) -> None:
    compile = broken_at("stablehlo.tanh", how)
    with pjrt.StableHloClient("broken", compile=compile, fallback=fallback) as client:
        message = message_of(client, three)
    assert message.startswith(begin)
    line = three.__code__.co_firstlineno + 2
    (place,) = re.findall(r"\(in stablehlo\.tanh \(tensor<.*>\) -> \(tensor<.*>\) \[(.*)\]\)$", message)
    assert f"test_author.py:{line}:" in place


def test_an_error_of_compiled_code_that_names_no_operation_has_those_of_the_program() -> None:
    compile = broken_at("stablehlo.tanh", fail_by_itself)
    with pjrt.StableHloClient("broken", compile=compile) as client:
        assert re.search(r"\(in stablehlo\.tanh .*test_author.py:\d+", message_of(client, jnp.tanh))
        line = three.__code__.co_firstlineno
        first, last = f"test_author.py:{line + 1}:", f"test_author.py:{line + 3}:"
        assert re.search(rf"\(in one of 3 operations, .*{first}.* to .*{last}", message_of(client, three))


def test_an_error_of_a_fence_names_the_operation_that_failed() -> None:
    memory, spec = SimulatedMemory(), pjrt.ShapeSpec(X.shape, X.dtype)

    def compile(program: ParsedProgram, _: pjrt.CompileOptions) -> Callable[..., Any]:
        assert program.entry.body is not None
        operation = program.entry.body.operations[1]

        def run(handle: int) -> Any:
            def wait() -> None:
                raise operation.failed("chip error 0x21: the chip does not answer")

            return pjrt.host.Enqueued(memory.allocate(spec, None), wait)  # type: ignore[arg-type]

        return run

    with pjrt.StableHloClient("broken", compile=compile, memory=memory) as client:
        message = message_of(client, three)
    assert re.match(r"chip error 0x21: the chip does not answer \(in stablehlo.tanh .*test_author.py:", message)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.zeros((4, 4)), "expected a result of type tensor<4x4xf32>, found f64"),
        (np.zeros((2, 4), np.float32), "found f32[2,4]"),
        ([X, X], "expected a result of type"),
        (object(), "found an array of numpy dtype object"),
    ],
)
def test_a_wrong_result_of_a_kernel_is_an_error(value: Any, expected: str) -> None:
    kernels = {"stablehlo.add": lambda operation, x, y: value}
    with pjrt.StableHloClient("wrong", kernels=kernels, fallback="reference") as client:
        (result,) = client.compile(text_of(lambda x: x + x, X))(X)
        with pytest.raises(pjrt.InternalError) as caught:
            np.asarray(result)
    assert expected in caught.value.message
    assert "the kernel of stablehlo.add" in caught.value.message


def test_a_kernel_cannot_write_to_its_arguments() -> None:
    def add(operation: Operation, x: Array, y: Array) -> Array:
        x += y
        return x

    with pjrt.StableHloClient("writes", kernels={"stablehlo.add": add}, fallback="reference") as client:
        (result,) = client.compile(text_of(lambda x: (x * 2) + x, X))(X)
        with pytest.raises(pjrt.PjrtError, match="read-only"):
            np.asarray(result)


def test_several_results() -> None:
    def sort(operation: Operation, keys: Array, values: Array) -> Any:
        order = np.argsort(keys, axis=operation.attribute("dimension"), kind="stable")
        return keys[order], values[order]

    program = text_of(lambda k, v: jax.lax.sort((k, v), num_keys=1), X[0], X[1])
    with pjrt.StableHloClient("sorts", kernels={"stablehlo.sort": sort}, fallback="reference") as client:
        keys, values = run(client, program, X[0], X[1])
    order = np.argsort(X[0])
    np.testing.assert_array_equal(keys, X[0][order])
    np.testing.assert_array_equal(values, X[1][order])


def test_sharded_programs_and_replicas() -> None:
    calls = []

    def add(operation: Operation, x: Array, y: Array) -> Array:
        calls.append(x.shape)
        return x + y

    with pjrt.StableHloClient("adds", kernels={"stablehlo.add": add}, fallback="reference", num_devices=4) as client:
        mesh = pjrt.ifrt.Mesh(client.devices, {"z": 4})
        executable = pjrt.ifrt.Client(client).compile("""
        module attributes {mhlo.num_partitions = 4 : i32} {
          sdy.mesh @mesh = <["z"=4]>
          func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"z"}]>}) -> tensor<8xf32> {
            %0 = stablehlo.add %x, %x : tensor<8xf32>
            return %0 : tensor<8xf32>
          }
        }""")
        whole = np.arange(8, dtype=np.float32)
        (result,) = executable(pjrt.ifrt.Client(client).make_array(whole, mesh.sharding("z")))
        np.testing.assert_array_equal(np.asarray(result), whole * 2)
    assert calls == [(2,)] * 4


# Runs of operations.


def elementwise(operations: dict[str, Any], seen: list[list[str]]) -> Callable[..., Any]:
    """Return a ``compile`` of elementwise operations, which notes the operations of each program."""

    def compile(program: ParsedProgram, options: pjrt.CompileOptions) -> Any:
        main = program.entry
        assert main.body is not None
        steps = main.body.operations[:-1]
        seen.append([step.name for step in steps])

        def run(*arrays: Array) -> Sequence[Array]:
            values: dict[Any, Any] = dict(zip(main.arguments, arrays, strict=True))
            for step in steps:
                values[step.results[0]] = operations[step.name](*(values[v] for v in step.operands))
            return [values[value] for value in main.body.outputs]  # type: ignore[union-attr]

        return run

    return compile


ELEMENTWISE = {
    "stablehlo.add": np.add,
    "stablehlo.multiply": np.multiply,
    "stablehlo.subtract": np.subtract,
    "stablehlo.tanh": np.tanh,
}


def test_the_largest_runs_are_compiled() -> None:
    def program(x: Any, y: Any) -> Any:
        a = x + y
        b = jnp.sort(y)  # the run goes around it
        c = a * x
        d = b - c  # needs the sort: it moves behind it, with the next
        return jnp.tanh(c), d + a

    seen: list[list[str]] = []
    x, y = X[0], X[1]
    with pjrt.StableHloClient(
        "runs", compile=elementwise(ELEMENTWISE, seen), operations=ELEMENTWISE, fallback="reference"
    ) as client:
        results = run(client, text_of(program, x, y), x, y)
    for ours, theirs in zip(results, jax.jit(program)(x, y), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    # The sort does not need the run, so it comes first, and all others are one run.
    assert [sorted(names) for names in seen] == [
        sorted(f"stablehlo.{name}" for name in ("add", "multiply", "tanh", "subtract", "add"))
    ]


def test_a_run_ends_where_another_operation_needs_its_results() -> None:
    seen: list[list[str]] = []
    with pjrt.StableHloClient(
        "runs", compile=elementwise(ELEMENTWISE, seen), operations=ELEMENTWISE, fallback="reference", profile=True
    ) as client:
        program = text_of(lambda x: jnp.sort(x + x) * x, X[0])
        np.testing.assert_allclose(run(client, program, X[0])[0], np.sort(X[0] * 2) * X[0], rtol=1e-6)
        assert client.profile is not None
        assert "stablehlo.sort on reference" in client.profile.by_op
    assert seen == [["stablehlo.add"], ["stablehlo.multiply"]]


def test_fuse_sees_constants_once_for_each_operation() -> None:
    """The initial value of a reduction decides whether many compilers can run it."""
    asked: list[str] = []

    def fuse(operation: Operation) -> bool:
        asked.append(operation.name)
        return operation.name == "stablehlo.reduce" and lowering.constant_value(operation.operands[1]) == 0

    def compile(program: ParsedProgram, options: pjrt.CompileOptions) -> Callable[..., Any]:
        (operation,) = (each for each in program.entry.body.operations if each.name == "stablehlo.reduce")
        return lambda x, *start: x.sum(tuple(operation.attribute("dimensions")))

    with pjrt.StableHloClient("sums", compile=compile, fuse=fuse, fallback="reference") as client:
        program = text_of(lambda x: (jax.lax.reduce(x, 0.0, jax.lax.add, (0,)), x.max(0), jnp.sin(x[0])), X)
        sums, largest, _ = run(client, program, X)
    np.testing.assert_allclose(sums, X.sum(0), rtol=1e-5)
    np.testing.assert_array_equal(largest, X.max(0))
    assert asked.count("stablehlo.reduce") == 2
    assert asked.count("stablehlo.sine") == 1


def test_fuse_chooses_and_compile_declines() -> None:
    seen: list[list[str]] = []
    compile_all = elementwise(ELEMENTWISE, seen)

    def compile(program: ParsedProgram, options: pjrt.CompileOptions) -> Any:
        if len(program.entry.arguments) > 1:
            raise pjrt.UnimplementedError("one argument only")
        return compile_all(program, options)

    with pjrt.StableHloClient(
        "chooses",
        compile=compile,
        fuse=lambda operation: operation.name in ELEMENTWISE and operation.results[0].type.rank == 2,
        fallback="reference",
    ) as client:
        np.testing.assert_allclose(run(client, text_of(lambda x: jnp.tanh(x * x), X), X)[0], np.tanh(X * X), rtol=1e-6)
        assert seen == [["stablehlo.multiply", "stablehlo.tanh"]]
        both = run(client, text_of(lambda x, y: (x + y, x[0] + y[0]), X, X), X, X)
        assert len(seen) == 1
        np.testing.assert_array_equal(both[0], X + X)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_choice_of_operations_gives_the_same_results(data: st.DataObject) -> None:
    """Programs of random operations on two arguments; the author takes a random part of them."""
    names = data.draw(st.lists(st.sampled_from([*ELEMENTWISE, "stablehlo.sort"]), min_size=1, max_size=12))
    values, lines = ["%x", "%y"], []
    for number, name in enumerate(names):
        count = 1 if name in ("stablehlo.tanh", "stablehlo.sort") else 2
        operands = [data.draw(st.sampled_from(values)) for _ in range(count)]
        result = f"%{number}"
        if name == "stablehlo.sort":
            lines.append(
                f'{result} = "stablehlo.sort"({operands[0]}) ({{\n'
                f"^bb0(%a{number}: tensor<f32>, %b{number}: tensor<f32>):\n"
                f"%c{number} = stablehlo.compare LT, %a{number}, %b{number} : "
                "(tensor<f32>, tensor<f32>) -> tensor<i1>\n"
                f"stablehlo.return %c{number} : tensor<i1>\n}}) : (tensor<4xf32>) -> tensor<4xf32>"
            )
        else:
            lines.append(f"{result} = {name} {', '.join(operands)} : tensor<4xf32>")
        values.append(result)
    outputs = data.draw(st.lists(st.sampled_from(values), min_size=1, max_size=4))
    types = ", ".join(["tensor<4xf32>"] * len(outputs))
    body = "\n".join(lines)
    program = (
        f"func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> ({types}) {{\n{body}\n"
        f"return {', '.join(outputs)} : {types}\n}}"
    )
    taken = {name: ELEMENTWISE[name] for name in data.draw(st.sets(st.sampled_from(sorted(ELEMENTWISE))))}
    seen: list[list[str]] = []
    x, y = X[0], X[1]
    with (
        pjrt.StableHloClient("some", compile=elementwise(taken, seen), operations=taken, fallback="reference") as mine,
        pjrt.client("reference") as judge,
    ):
        for ours, theirs in zip(run(mine, program, x, y), run(judge, program, x, y), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert all(set(operations) <= set(taken) for operations in seen)


# Observers.


def test_a_compiler_of_whole_programs_is_observed_operation_by_operation() -> None:
    steps = []

    def trace(step: Any, inputs: Any, outputs: Any) -> None:
        steps.append((step.name, step.runner.device if step.runner else "reference"))

    seen: list[list[str]] = []
    with pjrt.StableHloClient("observed", compile=elementwise(ELEMENTWISE, seen), trace=trace) as client:
        (result,) = run(client, text_of(lambda x: jnp.tanh(x * x + x), X), X)
    np.testing.assert_allclose(result, np.tanh(X * X + X), rtol=1e-6)
    assert steps == [(f"stablehlo.{name}", "observed") for name in ("multiply", "add", "tanh")]
    assert seen == [["stablehlo.multiply"], ["stablehlo.add"], ["stablehlo.tanh"]]


def test_debug_nans_names_the_operation() -> None:
    kernels = {"stablehlo.log": lambda operation, x: np.log(x)}
    with pjrt.StableHloClient("logs", kernels=kernels, fallback="reference", debug_nans=True) as client:
        (result,) = client.compile(text_of(lambda x: jnp.log(x) + 1, X))(-np.abs(X))
        with pytest.raises(pjrt.PjrtError, match=r"the first NaN was made by stablehlo\.log"):
            np.asarray(result)


def test_a_kernel_that_returns_no_handle_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    kernels = {"stablehlo.add": lambda operation, x, y: None}
    with pjrt.StableHloClient("none", kernels=kernels, fallback="reference", memory=SimulatedMemory()) as client:
        (result,) = client.compile(text_of(lambda x: x + x, X))(X)
        with pytest.raises(pjrt.InternalError, match=r"stablehlo.add returned None, expected a handle of f32\[4,4\]"):
            result.ready().result()
    assert not [record for record in caplog.records if record.name == "pjrt"]  # nothing was freed that is no handle


def test_types_that_the_memory_lacks_are_left_to_the_fallback() -> None:
    class SmallMemory(SimulatedMemory):
        def allocate(self, spec: pjrt.ShapeSpec, space: pjrt.MemorySpace) -> int:
            if spec.element_type is not pjrt.ElementType.F32:
                raise pjrt.UnimplementedError(f"no memory for {spec}")
            return super().allocate(spec, space)

    memory = SmallMemory()

    def add(operation: Operation, x: int, y: int) -> int:
        result = memory.allocate(memory.specs[x], None)  # type: ignore[arg-type]  # it does not look at the space
        memory.copy_in(result, memory.read(x) + memory.read(y))
        return result

    program = text_of(lambda x: (x.astype(np.float16) + x.astype(np.float16)).astype(np.float32) + x, X)
    with pjrt.StableHloClient("small", kernels={"stablehlo.add": add}, fallback="reference", memory=memory) as client:
        executable = client.compile(program)
        for _ in range(2):
            np.testing.assert_allclose(np.asarray(executable(X)[0]), X * 3, rtol=1e-2)
    assert not memory.contents


@pytest.mark.parametrize("observed", [False, True])
def test_costs_are_those_of_the_reference_interpreter(observed: bool) -> None:
    program = text_of(lambda x: jnp.tanh(x @ x) * x, X)
    seen: list[list[str]] = []
    with (
        pjrt.StableHloClient(
            "costs",
            kernels={"stablehlo.dot_general": matmul},
            compile=elementwise(ELEMENTWISE, seen),
            operations=ELEMENTWISE,
            fallback="reference",
            profile=observed,
        ) as mine,
        pjrt.client("reference") as judge,
    ):
        ours, theirs = (client.compile(program).cost_analysis() for client in (mine, judge))
    assert [len(names) for names in seen] == ([1, 1] if observed else [2])
    assert ours == {**theirs, "operations": 3}
    assert ours["flops"] > 2 * 4**3


def test_costs_count_what_the_fallback_runs() -> None:
    """In a loop's body, behind a call, and after a kernel has declined in a run."""

    @jax.jit
    def inner(x: Any) -> Any:
        return jnp.sin(x) @ x

    def body(_: Any, x: Any) -> Any:
        return jnp.sort(inner(x)) + 1

    kernels = {"stablehlo.dot_general": lambda *_: NotImplemented, "stablehlo.add": lambda operation, x, y: x + y}
    with pjrt.StableHloClient("counts", kernels=kernels, fallback="reference") as client:
        executable = client.compile(text_of(lambda x: jax.lax.fori_loop(0, 2, body, x), X))
        before = executable.cost_analysis()
        np.asarray(executable(X)[0])
        after = executable.cost_analysis()
    once = dict.fromkeys((f"fallback stablehlo.{name}" for name in ("while", "sine", "sort")), 1)
    assert before.items() >= once.items()
    assert "fallback stablehlo.dot_general" not in before
    assert "fallback stablehlo.add" not in after
    assert after == before | {"fallback stablehlo.dot_general": 1}


def test_of_a_dynamic_program_the_operations_are_counted() -> None:
    program = """func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
      %0 = stablehlo.sine %x : tensor<?xf32>
      return %0 : tensor<?xf32> }"""
    with pjrt.StableHloClient("counts", kernels={}, fallback="reference") as client:
        assert client.compile(program).cost_analysis() == {"operations": 1, "fallback stablehlo.sine": 1}


def test_capabilities_tell_native_operations() -> None:
    kernels = {"stablehlo.add": lambda operation, x, y: x + y}
    with pjrt.StableHloClient("adds", kernels=kernels, fallback="reference") as client:
        assert client.capabilities.native_operations == {"stablehlo.add"}
        assert client.capabilities.operations is not None
        assert "stablehlo.sort" in client.capabilities.operations
        assert pjrt.Capabilities.from_dict(client.capabilities.as_dict()) == client.capabilities


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "expected kernels=, compile= or fallback='reference'"),
        ({"kernels": {}, "fallback": "cpu"}, "expected fallback='reference' or None, found 'cpu'"),
        ({"kernels": {}, "fuse": bool}, "fuse= chooses the operations for compile="),
        ({"kernels": {"add": np.add}}, "expected names of operations such as 'stablehlo.add', found 'add'"),
        ({"kernels": ["stablehlo.add"]}, "expected kernels as a dictionary"),
        ({"kernels": {"stablehlo.multipy": np.add}, "fallback": "reference"}, "perhaps 'stablehlo.multiply' is meant"),
        ({"compile": bool, "operations": "stablehlo.add"}, "found the string 'stablehlo.add'"),
        ({"compile": bool, "operations": ["tanh"]}, "expected names of operations such as"),
        ({"kernels": {"stablehlo.add": 3}}, "found 3 for 'stablehlo.add'"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=message):
        pjrt.StableHloClient("wrong", **arguments)


# Operations with a region that takes %k from outside; all are right in any order of their elements.
CAPTURING = {
    "reduce": """
  %r = "stablehlo.reduce"(%v, %z) ({
  ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %m = stablehlo.maximum %p, %q : tensor<f32>
    %n = stablehlo.maximum %m, %k : tensor<f32>
    stablehlo.return %n : tensor<f32>
  }) {dimensions = array<i64: 0>} : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
  %w = stablehlo.broadcast_in_dim %r, dims = [] : (tensor<f32>) -> tensor<4xf32>""",
    "sort": """
  %w = "stablehlo.sort"(%v) ({
  ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %a = stablehlo.multiply %p, %k : tensor<f32>
    %b = stablehlo.multiply %q, %k : tensor<f32>
    %c = stablehlo.compare GT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }) {dimension = 0 : i64, is_stable = true} : (tensor<4xf32>) -> tensor<4xf32>""",
    "scatter": """
  %i = stablehlo.constant dense<[[1], [3]]> : tensor<2x1xi32>
  %u = stablehlo.constant dense<[5.0, -2.0]> : tensor<2xf32>
  %w = "stablehlo.scatter"(%v, %i, %u) ({
  ^bb0(%p: tensor<f32>, %q: tensor<f32>):
    %m = stablehlo.multiply %q, %k : tensor<f32>
    stablehlo.return %m : tensor<f32>
  }) {scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0],
      index_vector_dim = 1>, unique_indices = true}
    : (tensor<4xf32>, tensor<2x1xi32>, tensor<2xf32>) -> tensor<4xf32>""",
    "a region in a region": """
  %t = stablehlo.constant dense<true> : tensor<i1>
  %w = "stablehlo.if"(%t) ({
    %r = "stablehlo.reduce"(%v, %k) ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %m = stablehlo.maximum %p, %q : tensor<f32>
      %n = stablehlo.maximum %m, %k : tensor<f32>
      stablehlo.return %n : tensor<f32>
    }) {dimensions = array<i64: 0>} : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
    %s = stablehlo.broadcast_in_dim %r, dims = [] : (tensor<f32>) -> tensor<4xf32>
    stablehlo.return %s : tensor<4xf32>
  }, {
    stablehlo.return %v : tensor<4xf32>
  }) : (tensor<i1>) -> tensor<4xf32>""",
}

CAPTURED = {
    "a constant": "%k = stablehlo.constant dense<3.0> : tensor<f32>",
    "an argument": "%k = stablehlo.slice %x [1:2] : (tensor<4xf32>) -> tensor<1xf32>",
    "a value of the run": "%k = stablehlo.add %y, %y : tensor<f32>",
    "a value of the fallback": "%k = stablehlo.tanh %y : tensor<f32>",
}


@pytest.mark.parametrize("captured", CAPTURED)
@pytest.mark.parametrize("operation", CAPTURING)
def test_regions_of_a_run_take_values_from_outside(operation: str, captured: str) -> None:
    value = CAPTURED[captured]
    if captured == "an argument":
        value = value.replace("%k", "%k1") + "\n  %k = stablehlo.reshape %k1 : (tensor<1xf32>) -> tensor<f32>"
    program = f"""
func.func @main(%x: tensor<4xf32>, %y: tensor<f32>) -> tensor<4xf32> {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  {value}
  %f = stablehlo.tanh %x : tensor<4xf32>
  %v = stablehlo.add %f, %f : tensor<4xf32>
  {CAPTURING[operation]}
  %e = stablehlo.add %w, %v : tensor<4xf32>
  return %e : tensor<4xf32>
}}"""
    arguments = np.array([0.5, -1.0, 2.0, -0.25], np.float32), np.float32(1.5)
    runs: list[str] = []
    with pjrt.client("reference") as judge:

        def compile(run: ParsedProgram, options: pjrt.CompileOptions) -> Callable[..., Any]:
            runs.append(unparse(run).replace(f"@{run.entry.name}", "@main"))
            executable = judge.compile(runs[-1])
            return lambda *arrays: [np.asarray(result) for result in executable(*arrays)]

        def takes(operation: Operation) -> bool:
            return operation.name != "stablehlo.tanh"

        with pjrt.StableHloClient("mine", compile=compile, fuse=takes, fallback="reference") as mine:
            (ours,) = run(mine, program, *arguments)
        (theirs,) = run(judge, program, *arguments)
    np.testing.assert_array_equal(ours, theirs)
    assert runs


def spin(operation: Operation, x: Array) -> Array:
    return x * operation.call_attributes["by"]


def spun(x: Any, by: float = 2.0) -> Any:
    return jax.ffi.ffi_call("mychip.spin", jax.ShapeDtypeStruct(x.shape, x.dtype))(x, by=np.float32(by)) + 1


def test_a_custom_call_reaches_the_kernel_of_its_target() -> None:
    """Also in a loop; other calls are the fallback's."""
    program = text_of(lambda x: jax.lax.fori_loop(0, 2, lambda _, v: spun(v), x) + jnp.linalg.cholesky(x @ x.T), X)
    with pjrt.StableHloClient("mychip", kernels={"mychip.spin": spin}, fallback="reference", profile=True) as client:
        (result,) = run(client, program, X)
        np.testing.assert_allclose(result, (X * 2 + 1) * 2 + 1 + np.linalg.cholesky(X @ X.T), rtol=1e-4, atol=1e-5)
        assert client.profile is not None
        assert client.profile.by_op["stablehlo.custom_call on mychip"].calls == 2
        assert client.capabilities.custom_calls is not None
        assert "mychip.spin" in client.capabilities.custom_calls
        assert client.supports(program)
        with pytest.raises(pjrt.UnimplementedError, match=r"there is no custom call 'mychip\.turn'"):
            client.compile(program.replace("mychip.spin", "mychip.turn"))


def test_a_custom_call_on_memory_of_the_devices_own() -> None:
    memory = SimulatedMemory()

    def kernel(operation: Operation, x: int) -> int:
        value = memory.read(x) * operation.call_attributes["by"]
        handle: int = memory.allocate(pjrt.ShapeSpec.of(value), None)  # type: ignore[arg-type]  # it looks at no space
        memory.copy_in(handle, value)
        return handle

    with pjrt.StableHloClient("mychip", kernels={"mychip.spin": kernel}, fallback="reference", memory=memory) as client:
        np.testing.assert_allclose(run(client, text_of(spun, X), X)[0], X * 2 + 1, rtol=1e-6)


def compile_spins(program: ParsedProgram, _: pjrt.CompileOptions) -> Callable[..., Any]:
    """Compile a program of spins and additions; each is one call of the device."""

    def run(*arguments: Array) -> list[Array]:
        values: dict[Any, Any] = dict(zip(program.entry.arguments, arguments, strict=True))
        assert program.entry.body is not None
        for operation in program.entry.body.operations[:-1]:
            operands = [values[operand] for operand in operation.operands]
            if operation.call_target:
                values[operation.results[0]] = spin(operation, *operands)
            else:
                values[operation.results[0]] = operands[0] + operands[1]
        return [values[value] for value in program.entry.body.outputs]

    runs.append([operation.name for operation in program.walk()])
    return run


runs: list[list[str]] = []


def test_a_custom_call_is_part_of_a_run() -> None:
    runs.clear()
    with pjrt.StableHloClient(
        "mychip", compile=compile_spins, operations=["mychip.spin", "stablehlo.add"], fallback="reference"
    ) as client:
        np.testing.assert_allclose(run(client, text_of(spun, X), X)[0], X * 2 + 1, rtol=1e-6)
        assert runs == [["stablehlo.custom_call", "stablehlo.add", "func.return"]]
        effect = text_of(spun, X).replace("@mychip.spin(%arg0) {", "@mychip.spin(%arg0) {has_side_effect = true, ")
        with pytest.raises(pjrt.UnimplementedError, match=r"there is no custom call 'mychip\.spin'"):
            run(client, effect, X)


def test_a_compiler_of_whole_programs_gets_custom_calls() -> None:
    text = """
    func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %0 = stablehlo.custom_call @mychip.spin(%x) {api_version = 4 : i32, backend_config = {by = 3.0 : f32}}
        : (tensor<4xf32>) -> tensor<4xf32>
      %1 = stablehlo.add %0, %x : tensor<4xf32>
      return %1 : tensor<4xf32>
    }
    """
    with pjrt.StableHloClient("mychip", compile=compile_spins, operations=["mychip.spin", "stablehlo.add"]) as client:
        np.testing.assert_allclose(run(client, text, X[0])[0], X[0] * 3 + X[0], rtol=1e-6)
        with pytest.raises(
            pjrt.UnimplementedError, match=r"does not run stablehlo.custom_call @mychip.turn .*; it runs my"
        ):
            client.compile(text.replace("mychip.spin", "mychip.turn"))


def test_an_operation_without_its_dialect_is_no_target() -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=r"names of operations such as 'stablehlo.add', found 'tanh'"):
        pjrt.StableHloClient("mychip", kernels={"tanh": spin}, fallback="reference")


UNDER_JAX = """
import numpy as np, pjrt

def spin(operation, x):
    return x * operation.call_attributes["by"]

platform = pjrt.frameworks.jax.register(
    pjrt.StableHloClient("mychip", kernels={"mychip.spin": spin}, fallback="reference"), experimental=False
)
import jax

@jax.jit
def f(x):
    return jax.ffi.ffi_call("mychip.spin", jax.ShapeDtypeStruct(x.shape, x.dtype))(x, by=np.float32(3)) + 1

x = jax.device_put(np.arange(4, dtype=np.float32), jax.devices(platform)[0])
y = f(x)
assert y.devices() == {jax.devices(platform)[0]}
np.testing.assert_array_equal(y, [1, 4, 7, 10])
"""


@pytest.mark.full
def test_a_custom_call_of_jax_reaches_the_kernel_of_its_target() -> None:
    done = subprocess.run([sys.executable, "-c", UNDER_JAX], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
