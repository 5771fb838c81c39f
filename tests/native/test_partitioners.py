"""Functions of the framework's process that divide custom calls, in a worker and on a driver in C: the extension
Custom_Partitioner."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt import native
from pjrt.api.client import Client
from pjrt.capi import load_capsule
from pjrt.stablehlo.encodings import hlo_proto
from pjrt.stablehlo.ir.sharding import Sharding
from pjrt.stablehlo.ir.sharding_parser import parse_gspmd

CUSTOM_PARTITIONER = 2

# The extension as a framework uses it: see pjrt_abi/extensions/custom_partitioner.h.


class String(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t)]

    def __bytes__(self) -> bytes:
        return ctypes.string_at(self.data, self.size)


class Value(ctypes.Structure):
    _fields_ = [("shape", String), ("has_sharding", ctypes.c_bool), ("sharding", String)]


Cleanup = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Header(ctypes.Structure):
    _fields_ = [
        ("api_version", ctypes.c_int64),
        ("data", ctypes.c_void_p),
        ("cleanup_fn", Cleanup),
        ("has_error", ctypes.c_bool),
        ("code", ctypes.c_int),
        ("error_msg", String),
    ]


class Partition(ctypes.Structure):
    _fields_ = [
        ("header", Header),
        ("num_args", ctypes.c_size_t),
        ("op_args", ctypes.POINTER(Value)),
        ("op_result", Value),
        ("backend_config", String),
        ("mlir_module", String),
        ("args_sharding", ctypes.POINTER(String)),
        ("result_sharding", String),
    ]


class Infer(ctypes.Structure):
    _fields_ = [
        ("header", Header),
        ("num_args", ctypes.c_size_t),
        ("op_args", ctypes.POINTER(Value)),
        ("result_shape", String),
        ("backend_config", String),
        ("has_result_sharding", ctypes.c_bool),
        ("result_sharding", String),
    ]


class Propagate(ctypes.Structure):
    _fields_ = [("header", Header), ("backend_config", String), ("result_shape", String), ("result_sharding", String)]


class Callbacks(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_int64),
        ("private_data", ctypes.c_void_p),
        ("dtor", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("partition", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Partition))),
        ("infer_sharding", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Infer))),
        ("propagate_user_sharding", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Propagate))),
        ("can_side_effecting_have_replicated_sharding", ctypes.c_bool),
    ]


class Registration(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("name_size", ctypes.c_size_t),
        ("callbacks", ctypes.POINTER(Callbacks)),
    ]


class Extension(ctypes.Structure):
    pass


Register = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(Registration))
Extension._fields_ = [
    ("struct_size", ctypes.c_size_t),
    ("type", ctypes.c_int),
    ("next", ctypes.POINTER(Extension)),
    ("register_custom_partitioner", Register),
    ("register_batch_partitionable", Register),
]


class Table(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("extension_start", ctypes.POINTER(Extension))]


def extension_of(library: Path) -> Extension | None:
    """Return the extension of a library; ``None`` where it has none."""
    get = ctypes.CDLL(str(library)).GetPjrtApi
    get.restype = ctypes.POINTER(Table)
    link = get().contents.extension_start
    while link:
        if link.contents.type == CUSTOM_PARTITIONER:
            found: Extension = link.contents
            return found
        link = link.contents.next
    return None


_REGISTERED: list[Functions] = []


class Functions:
    """Functions in Python that divide a custom call; by default as its first operand is divided.

    Args:
        module: what each device does, as text.
        divide: called with what ``partition`` is given; returns the shardings of the operands and that of the result.
        infer: called with the operands; returns the sharding of the result.
        propagate: called with the sharding that is wanted; returns one.
    """

    def __init__(
        self,
        module: str = "",
        divide: Callable[..., tuple[Sequence[bytes], bytes]] | None = None,
        infer: Callable[..., bytes | None] | None = None,
        propagate: Callable[[bytes], bytes] | None = None,
    ) -> None:
        self._module = module
        self._divide = divide or (lambda operands, result, config: ([operands[0][1]] * len(operands), operands[0][1]))
        self._infer = infer or (lambda operands: operands[0][1])
        self._propagate = propagate or (lambda wanted: wanted)
        self._held: dict[int, list[Any]] = {}  # what was returned and not cleaned up yet
        self._cleanup = Cleanup(lambda number: self._held.__delitem__(number))
        self.calls: list[str] = []
        self.num_freed = 0
        types = dict(Callbacks._fields_)
        self._callbacks = Callbacks(
            dtor=types["dtor"](self._free),
            partition=types["partition"](lambda _, args: self._guarded("divide", args.contents, self._partition)),
            infer_sharding=types["infer_sharding"](
                lambda _, args: self._guarded("infer", args.contents, self._infer_sharding)
            ),
            propagate_user_sharding=types["propagate_user_sharding"](
                lambda _, args: self._guarded("propagate", args.contents, self._propagate_sharding)
            ),
            can_side_effecting_have_replicated_sharding=True,
        )

    @property
    def is_clean(self) -> bool:
        """Whether all that was returned was given back."""
        return not self._held

    def register(self, library: Path, name: str) -> None:
        """Have a library ask the functions about the calls of a name, as long as this process lives."""
        _REGISTERED.append(self)
        extension = extension_of(library)
        assert extension is not None
        target = name.encode()
        given = Registration(
            ctypes.sizeof(Registration), target, len(target), ctypes.POINTER(Callbacks)(self._callbacks)
        )
        assert not extension.register_custom_partitioner(given)

    def _free(self, _: int) -> None:
        self.num_freed += 1

    def _guarded(self, name: str, args: Any, function: Callable[[Any, Callable[[bytes], String]], None]) -> None:
        self.calls.append(name)
        held: list[Any] = []
        number = len(self.calls)
        self._held[number] = held
        args.header.data, args.header.cleanup_fn = number, self._cleanup

        def hold(value: bytes) -> String:
            held.append(ctypes.create_string_buffer(value, len(value) + 1))
            return String(ctypes.addressof(held[-1]), len(value))

        try:
            function(args, hold)
        except Exception as error:
            args.header.has_error, args.header.code = True, 5
            args.header.error_msg = hold(f"{type(error).__name__}: {error}".encode())

    def _operands(self, args: Any) -> list[tuple[str, bytes | None]]:
        return [_value(args.op_args[n]) for n in range(args.num_args)]

    def _partition(self, args: Any, hold: Callable[[bytes], String]) -> None:
        shardings, result = self._divide(self._operands(args), _value(args.op_result), bytes(args.backend_config))
        listed = (String * len(shardings))(*map(hold, shardings))
        self._held[len(self.calls)].append(listed)
        args.mlir_module = hold(self._module.encode())
        args.args_sharding = ctypes.cast(listed, ctypes.POINTER(String))
        args.result_sharding = hold(result)

    def _infer_sharding(self, args: Any, hold: Callable[[bytes], String]) -> None:
        inferred = self._infer(self._operands(args))
        args.has_result_sharding = inferred is not None
        if inferred is not None:
            args.result_sharding = hold(inferred)

    def _propagate_sharding(self, args: Any, hold: Callable[[bytes], String]) -> None:
        args.result_sharding = hold(self._propagate(bytes(args.result_sharding)))


def _value(value: Value) -> tuple[str, bytes | None]:
    return _spelled(hlo_proto.parse_message("ShapeProto", bytes(value.shape))), (
        bytes(value.sharding) if value.has_sharding else None
    )


def _spelled(shape: Any) -> str:
    if shape.tuple_shapes:
        return f"({', '.join(map(_spelled, shape.tuple_shapes))})"
    return f"{shape.element_type}{list(shape.dimensions)}"


# Programs of two devices. XLA's number of f32 is 11.

SPLIT = parse_gspmd("{devices=[2]<=[2]}", 1).to_proto()
WHOLE = b""
F8, F4 = "tensor<8xf32>", "tensor<4xf32>"
X, Y = np.arange(8, dtype=np.float32), 10 * np.ones(8, np.float32)
ADD = f"""func.func @main(%x: {F4}, %y: {F4}) -> {F4} {{
  %0 = stablehlo.add %x, %y : {F4}
  return %0 : {F4}
}}"""


def program(target: str, results: int = 1, *, split: bool = True, wanted: bool = False) -> str:
    """Return a program with a call of two operands.

    Args:
        target: the call's target.
        results: how many results the call has.
        split: whether the operands are.
        wanted: whether it is negated by an operation that is split.
    """
    divided, whole = (f' {{mhlo.sharding = "{{{each}}}"}}' for each in ("devices=[2]<=[2]", "replicated"))
    types = ", ".join([F8] * results)
    values = ", ".join(f"%0#{n}" for n in range(results)) if results > 1 else "%0"
    wish = f"%1 = stablehlo.negate %0{divided} : {F8}"
    given = divided if split else whole
    return f"""module attributes {{mhlo.num_partitions = 2 : i32}} {{
      func.func @main(%x: {F8}{given}, %y: {F8}{given}) -> ({", ".join([F8 + divided] * results)}) {{
        %0{f":{results}" if results > 1 else ""} = stablehlo.custom_call @{target}(%x, %y)
          {{backend_config = "for \\00 it"}} : ({F8}, {F8}) -> ({types})
        {wish if wanted else ""}
        return {"%1" if wanted else values} : {types}
      }}
    }}"""


def run(client: Client, text: str, *, split: bool = True) -> list[list[Any]]:
    """Return the results of a program on each device."""
    executable = client.compile(text)
    rows = [[x[4 * n : 4 * n + 4] if split else x for x in (X, Y)] for n in (0, 1)]
    placed = [
        [client.buffer_from_host(x, device=device) for x in row]
        for row, device in zip(rows, client.devices, strict=True)
    ]
    return [[np.asarray(each) for each in row] for row in executable.execute(placed)]


@pytest.fixture(
    scope="module", params=["reference", *(pytest.param(each, marks=pytest.mark.full) for each in ("cpu", "chip"))]
)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "chip":
        path: Path = request.getfixturevalue("chip_library")
        return path
    spec = {
        "reference": "pjrt.devices.reference.plugin:ReferencePlugin",
        "cpu": "pjrt.devices.xla.plugin:XlaPlugin",
    }[request.param]
    return native.write_library(tmp_path_factory.mktemp("worker") / "library.so", spec, driver="worker", name="worker")


@pytest.fixture(scope="module")
def client(library: Path) -> Iterator[Client]:
    with pjrt.load_plugin(library).client(num_devices=2) as made:
        yield made


@pytest.fixture
def target(request: pytest.FixtureRequest) -> str:
    """A target that no other test has."""
    return f"{request.node.originalname}_call"


def test_a_call_of_two_operands(client: Client, library: Path, target: str) -> None:
    seen: list[Any] = []

    def divide(*given: Any) -> tuple[list[bytes], bytes]:
        seen.append(given)
        return [SPLIT, SPLIT], SPLIT

    functions = Functions(ADD, divide)
    functions.register(library, target)
    (first,), (second,) = run(client, program(target))
    np.testing.assert_array_equal(np.concatenate([first, second]), X + Y)
    operands, result, config = seen[0]
    assert [shape for shape, _ in (*operands, result)] == ["11[8]"] * 3
    assert {Sharding.from_proto(each).to_proto() for _, each in operands} == {SPLIT}
    assert config == b"for \0 it"
    assert functions.is_clean
    assert "infer" in functions.calls


def test_several_results(client: Client, library: Path, target: str) -> None:
    both = hlo_proto.new_message("OpSharding", type=2, tuple_shardings=[SPLIT, SPLIT]).SerializeToString()
    seen: list[Any] = []

    def divide(operands: Any, result: Any, config: bytes) -> tuple[list[bytes], bytes]:
        seen.append(result[0])
        return [SPLIT, SPLIT], both

    text = f"""func.func @main(%x: {F4}, %y: {F4}) -> ({F4}, {F4}) {{
      %0 = stablehlo.add %x, %y : {F4}
      %1 = stablehlo.subtract %x, %y : {F4}
      return %0, %1 : {F4}, {F4}
    }}"""
    functions = Functions(text, divide, infer=lambda operands: both)
    functions.register(library, target)
    parts = run(client, program(target, 2))
    np.testing.assert_array_equal(np.concatenate([row[0] for row in parts]), X + Y)
    np.testing.assert_array_equal(np.concatenate([row[1] for row in parts]), X - Y)
    assert seen == ["(11[8], 11[8])"]
    assert functions.is_clean


def test_other_shardings_than_the_operands_have(client: Client, library: Path, target: str) -> None:
    """All devices have all of the values then, and nothing was inferred."""
    text = ADD.replace(F4, F8)
    functions = Functions(text, lambda *_: ([WHOLE, WHOLE], WHOLE), infer=lambda operands: None)
    functions.register(library, target)
    for row in run(client, program(target)):
        assert row[0].shape in ((8,), (4,))
    assert functions.is_clean


def test_what_users_of_the_result_want(client: Client, library: Path, target: str) -> None:
    wanted: list[bytes] = []
    given: list[bytes | None] = []

    def divide(operands: Any, *_: Any) -> tuple[list[bytes], bytes]:
        given.extend(sharding for _, sharding in operands)
        return [SPLIT, SPLIT], SPLIT

    def propagate(sharding: bytes) -> bytes:
        wanted.append(sharding)
        return sharding

    functions = Functions(ADD, divide, infer=lambda operands: None, propagate=propagate)
    functions.register(library, target)
    (first,), (second,) = run(client, program(target, split=False, wanted=True), split=False)
    np.testing.assert_array_equal(np.concatenate([first, second]), -(X + Y))
    assert wanted
    assert given == [WHOLE, WHOLE]
    assert functions.is_clean


def fail(*_: Any) -> Any:
    raise ValueError("it is on fire")


@pytest.mark.parametrize("function", ["divide", "infer", "propagate"])
def test_an_error_is_that_of_the_compilation(client: Client, library: Path, target: str, function: str) -> None:
    """XLA ends the process over one of a function that infers or propagates; here it goes on."""
    client.compile(ADD)
    before = _children()
    given: dict[str, Any] = {function: fail}
    if function == "propagate":
        given |= {"infer": lambda operands: None, "divide": lambda *_: ([SPLIT, SPLIT], SPLIT)}
    functions = Functions(ADD, **given)
    functions.register(library, target)
    with pytest.raises(pjrt.NotFoundError, match=r"^NOT_FOUND: ValueError: it is on fire$"):
        client.compile(program(target, split=function != "propagate", wanted=function == "propagate"))
    assert function in functions.calls
    assert functions.is_clean
    Functions(ADD).register(library, target)
    (first,), (second,) = run(client, program(target))
    np.testing.assert_array_equal(np.concatenate([first, second]), X + Y)
    assert _children() == before


def _children() -> set[int]:
    return {int(pid) for each in Path("/proc/self/task").glob("*/children") for pid in each.read_text().split()}


def test_others_take_the_place_of_functions(client: Client, library: Path, target: str) -> None:
    subtract = ADD.replace("stablehlo.add", "stablehlo.subtract")
    first, second = Functions(ADD), Functions(subtract)
    first.register(library, target)
    (result, _) = run(client, program(target))
    np.testing.assert_array_equal(result[0], (X + Y)[:4])
    assert first.num_freed == 0
    second.register(library, target)
    assert first.num_freed == 1
    calls = list(first.calls)
    (result, _) = run(client, program(target))
    np.testing.assert_array_equal(result[0], (X - Y)[:4])
    assert first.calls == calls
    assert second.num_freed == 0


def test_functions_that_run_are_freed_later(client: Client, library: Path, target: str) -> None:
    running, goes_on = threading.Event(), threading.Event()

    def divide(*_: Any) -> tuple[list[bytes], bytes]:
        running.set()
        assert goes_on.wait(60)
        return [SPLIT, SPLIT], SPLIT

    first, second, third = Functions(ADD, divide), Functions(ADD), Functions(ADD)
    first.register(library, target)
    compiling = threading.Thread(target=client.compile, args=(program(target),))
    compiling.start()
    assert running.wait(60)
    second.register(library, target)
    assert first.num_freed == 0
    goes_on.set()
    compiling.join()
    assert first.is_clean
    third.register(library, target)
    assert (first.num_freed, second.num_freed, third.num_freed) == (1, 1, 0)


def test_a_function_that_has_the_device_compile(client: Client, library: Path, target: str) -> None:
    """The process that would compile waits for the function."""
    errors: list[str] = []

    def divide(*_: Any) -> tuple[list[bytes], bytes]:
        try:
            client.compile(ADD)
        except pjrt.FailedPreconditionError as error:
            errors.append(str(error))
        return [SPLIT, SPLIT], SPLIT

    Functions(ADD, divide).register(library, target)
    (first, _) = run(client, program(target))
    np.testing.assert_array_equal(first[0], (X + Y)[:4])
    (message,) = errors
    assert "compile nothing for the device that compiles the call" in message


def test_names_that_come_before_a_client_and_after(library: Path, target: str) -> None:
    Functions(ADD).register(library, f"{target}_before")
    with pjrt.load_plugin(library).client(num_devices=2) as another:
        Functions(ADD).register(library, f"{target}_after")
        gc.collect()  # nobody here holds the functions
        for name in ("before", "after"):
            (first, _) = run(another, program(f"{target}_{name}"))
            np.testing.assert_array_equal(first[0], (X + Y)[:4])


BATCHES = """module attributes {{mhlo.num_partitions = 2 : i32}} {{
  func.func @main(%x: tensor<4x2xf32> {{mhlo.sharding = "{{devices=[2,1]<=[2]}}"}})
      -> (tensor<4x2xf32> {{mhlo.sharding = "{{devices=[2,1]<=[2]}}"}}) {{
    %0 = stablehlo.custom_call @{}(%x) {{
      api_version = 4 : i32, mhlo.frontend_attributes = {{num_batch_dims = "1"}},
      operand_layouts = [dense<[1, 0]> : tensor<2xindex>], result_layouts = [dense<[1, 0]> : tensor<2xindex>]
    }} : (tensor<4x2xf32>) -> tensor<4x2xf32>
    return %0 : tensor<4x2xf32>
  }}
}}"""


@pytest.mark.parametrize("is_registered", [True, False])
def test_calls_that_are_divided_in_batches(client: Client, library: Path, target: str, is_registered: bool) -> None:
    """Each device calls for its own rows; where nobody says that it may, for all."""
    target = f"{target}_{is_registered}"
    extension = extension_of(library)
    assert extension is not None
    if is_registered:
        name = target.encode()
        assert not extension.register_batch_partitionable(Registration(24, name, len(name), None))
    if "chip" in library.name:
        pytest.skip("the chip's compiler knows the operations of its programs")
    shapes: list[tuple[int, ...]] = []

    def handle(x: Any, result: Any) -> None:
        shapes.append(x.shape)
        np.negative(x, out=result)

    client.register_ffi_handler(target, handle)
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    rows = [[client.buffer_from_host(x[2 * n : 2 * n + 2], device=client.devices[n])] for n in (0, 1)]
    ((first,), (second,)) = client.compile(BATCHES.format(target)).execute(rows)
    np.testing.assert_array_equal(np.concatenate([first, second]), -x)
    assert shapes == [(2, 2) if is_registered else (4, 2)] * 2


def test_what_cannot_be_registered(library: Path) -> None:
    extension = extension_of(library)
    assert extension is not None
    functions = Functions(ADD)
    newer = Callbacks.from_buffer_copy(functions._callbacks)
    newer.version = 1
    lacking = Callbacks()
    pointer = ctypes.POINTER(Callbacks)
    refused = [
        Registration(8, b"name", 4, pointer(functions._callbacks)),
        Registration(32, b"", 0, pointer(functions._callbacks)),
        Registration(32, None, 4, pointer(functions._callbacks)),
        Registration(32, b"name", 4, None),
        Registration(32, b"name", 4, pointer(newer)),
        Registration(32, b"name", 4, pointer(lacking)),
    ]
    assert all(extension.register_custom_partitioner(each) for each in refused)
    assert extension.register_batch_partitionable(refused[1])
    assert functions.num_freed == 0


def test_a_library_without_a_compiler_has_no_extension(tmp_path: Path) -> None:
    """Nobody would ask the functions. In the framework's process XLA asks those that the framework gave it."""
    alone = native.write_library(tmp_path / "alone.so", "", name="alone")
    assert extension_of(alone) is None
    here = pjrt.export(lambda: pjrt.client("reference"), name="here")
    assert "Custom_Partitioner" not in load_capsule(here.capsule, "here").extensions


GARBAGE = """
import os, random, socket
import pjrt
from pjrt.native import questions

def make_client():
    # Each compilation asks with some bytes of right questions changed.
    noise, connection = random.Random(7), socket.socket(fileno=os.dup(4))
    shape = bytes.fromhex("100b1a0108")  # f32[8]

    def compile(program, options):
        for n in range(300):
            values = [questions._Value(shape=shape, sharding=b"") for _ in range(3)]
            asked = questions._Partitioner(
                name="fine", function=1 + n % 3, operands=values[:2], result=values[2], config=b"config")
            changed = bytearray(questions._Call(partitioner=asked, number=1 << 62).SerializeToString())
            for _ in range(noise.randrange(1, 8)):
                changed[noise.randrange(len(changed) - 10)] = noise.randrange(256)
            questions.send(connection, bytes(changed))
        return lambda x: x

    return pjrt.host.HostClient("garbage", compile=compile)
"""

ASKED = """
import sys
from pathlib import Path
import numpy as np
import pjrt
from test_partitioners import ADD, Functions

library, functions = Path(sys.argv[1]), Functions(ADD, lambda *_: ([b"", b""], b""))
with pjrt.load_plugin(library).client() as client:
    functions.register(library, "fine")
    for _ in range(10):
        client.compile("func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }")
assert len(functions.calls) > 100, functions.calls
print("survived")
"""


@pytest.mark.full
def test_the_host_survives_what_a_worker_asks(tmp_path: Path) -> None:
    """Bytes of a question are changed by chance: the host refuses it, or asks something else."""
    (tmp_path / "garbage.py").write_text(GARBAGE)
    library = native.write_library(
        tmp_path / "garbage.so", f"{tmp_path / 'garbage.py'}:make_client", driver="worker", name="garbage"
    )
    ended = subprocess.run(
        [sys.executable, "-c", ASKED, str(library)],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.stdout.strip().endswith("survived"), ended.stderr[-3000:]
