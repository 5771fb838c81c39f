"""The backend ``pjrt`` of ``torch.compile``, with stock PyTorch, torchax and JAX."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pjrt

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:Guards may run slower"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # GPT-2, in Dynamo
]
torch = pytest.importorskip("torch")
if importlib.util.find_spec("torchax") is None:
    pytest.skip("torchax is not installed", allow_module_level=True)
from torch_tpu_job import MODELS, train  # noqa: E402 - as above

from pjrt.frameworks import _torch_compile, _torch_lowering  # noqa: E402 - it needs PyTorch


@pytest.fixture(autouse=True)
def fresh(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compile anew, and keep what was lowered for other tests of this run alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    torch._dynamo.reset()
    yield
    _torch_compile.Target.forget()


@pytest.fixture(params=["reference", "cpu"])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cpu":
        pytest.importorskip("jaxlib")
    return str(request.param)


def compiled(function: Any, device: Any = "reference", **options: Any) -> Any:
    return torch.compile(function, backend="pjrt", options={"device": device, **options})


@pytest.mark.parametrize(("name", "device"), [*((name, "reference") for name in MODELS), ("cnn", "cpu")])
def test_models_train_as_on_the_cpu(name: str, device: str) -> None:
    if name in ("llama", "gpt2"):
        pytest.importorskip("transformers")
    expected, _, _ = train(torch, MODELS[name], "cpu")
    losses, _, _ = train(torch, MODELS[name], "cpu", lambda model: compiled(model, device))
    assert losses == pytest.approx(expected, abs=2e-6)
    assert losses[-1] < losses[0]


def test_parameters_stay_on_the_device_until_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    puts: list[tuple[int, ...]] = []
    put = _torch_compile.Target._put
    monkeypatch.setattr(
        _torch_compile.Target, "_put", lambda self, each: puts.append(tuple(each.shape)) or put(self, each)
    )
    model, x = torch.nn.Linear(3, 2), torch.ones(4, 3)
    function = compiled(model)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(function(x), model(x))
        assert puts.count((2, 3)) == puts.count((2,)) == 1
        model.weight.add_(1)
        torch.testing.assert_close(function(x), model(x))
        assert (puts.count((2, 3)), puts.count((2,))) == (2, 1)


def test_sizes_that_change_are_programs_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_torch_compile, "MAX_PROGRAMS", 2)
    programs: list[Any] = []
    compile = _torch_compile.Target.compile
    monkeypatch.setattr(
        _torch_compile.Target, "compile", lambda self, program: programs.append(program) or compile(self, program)
    )
    function = compiled(lambda x: (x * x.shape[0]).sum(0))
    for size in (2, 3, 4, 5, 5, 4, 3):
        torch.testing.assert_close(function(torch.ones(size, 2)), torch.full((2,), float(size * size)))
    assert len(programs) == 5  # of size 2 alone; 3, 4 and 5; and 3 again


def test_dropout_draws_from_pytorchs_generator() -> None:
    function = compiled(lambda x: torch.nn.functional.dropout(x, 0.5) * 3)
    x = torch.ones(1000, requires_grad=True)
    torch.manual_seed(1)
    first = function(x)
    first.sum().backward()
    assert set(first.tolist()) == {0.0, 6.0}
    assert 350 < (first == 0).sum() < 650
    assert torch.equal(x.grad, first.detach())  # the same mask
    assert not torch.equal(function(x), first)
    torch.manual_seed(1)
    assert torch.equal(function(x), first)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int64", "int8", "bool", "complex64"])
def test_element_types(dtype: str, device: str) -> None:
    x = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
    function = compiled(lambda x: (x.t().contiguous(), torch.cat([x, x]), x == x[0]), device)
    for found, expected in zip(function(x), (x.t(), torch.cat([x, x]), x == x[0]), strict=True):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)


def test_what_cannot_be_lowered_runs_on_the_cpu_or_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    def function(x: Any) -> Any:
        return torch.special.airy_ai(x + 1) * 2

    x = torch.linspace(0, 1, 5)
    with caplog.at_level(logging.WARNING, _torch_compile.__name__):
        for _ in range(2):
            torch.testing.assert_close(compiled(function)(x), function(x))
    assert [record.args[0] for record in caplog.records] == ["aten.special_airy_ai.default"]
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"found aten\.special_airy_ai\.default; allow cpu_fallback"):
        compiled(function, cpu_fallback=False)(x)


def test_what_torchax_lowers_to_something_else_runs_on_the_cpu() -> None:
    a = torch.arange(16.0).reshape(4, 4).sin()
    for function in (
        lambda a: torch.linalg.eigh(a, UPLO="L").eigenvalues,
        lambda a: torch.linalg.eigh(a, UPLO="U").eigenvalues,
        lambda a: torch.linalg.pinv(a, hermitian=True),
        lambda a: torch.polygamma(1, a),
    ):
        torch.testing.assert_close(compiled(function)(a), function(a))


def test_an_operation_that_fails_to_lower_is_divided_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchax may have a lowering of an operation, but not for these arguments."""
    lower = _torch_lowering.Lowering.lower

    def refuse(self: Any, graph: _torch_lowering.Graph) -> Any:
        for number, node in enumerate(graph.nodes):
            if node.operation == "aten.sin.default":
                return _torch_lowering.NotLowered(number, "not the sine")
        return lower(self, graph)

    monkeypatch.setattr(_torch_lowering.Lowering, "lower", refuse)

    def function(x: Any) -> Any:
        return torch.cos(torch.sin(x * 2) + 1)

    x = torch.linspace(0, 1, 5)
    torch.testing.assert_close(compiled(function)(x), function(x))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="not the sine"):
        compiled(function, cpu_fallback=False)(x)


def test_graphs_break_where_they_do_elsewhere() -> None:
    def function(x: Any) -> Any:
        y = x * 2
        if y.sum() > 0:
            return y + 1
        return y - 1

    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(compiled(function)(x), function(x))


def test_results_are_the_callers_own() -> None:
    """Also those that are no more than an argument, which the device may read in place."""
    x = torch.zeros(64, 64)
    result, same = compiled(lambda x: (x + 0, x.reshape(32, 128) * 1))(x)
    result += 1
    same += 1
    assert x.sum() == 0


def test_a_client_of_ones_own_and_wrong_options() -> None:
    x = torch.ones(3)
    with pjrt.client("reference") as client:
        assert compiled(lambda x: x + 1, client)(x).tolist() == [2, 2, 2]
        with pytest.raises(Exception, match="expected no more options with a client, found num_devices"):
            compiled(lambda x: x + 2, client, num_devices=2)(x)
    with pytest.raises(Exception, match="no_such"):
        compiled(lambda x: x + 3, "no_such")(x)
    with pytest.raises(Exception, match="cpu_fallback: expected True or False, found 'no'"):
        compiled(lambda x: x + 4, cpu_fallback="no")(x)


def test_a_second_process_lowers_nothing(tmp_path: Path) -> None:
    code = """
import json, torch
from pjrt.frameworks import _torch_lowering
model = torch.nn.Linear(3, 2)
out = torch.compile(model, backend="pjrt")(torch.ones(4, 3))
out.sum().backward()
print(json.dumps([child._child is not None for child in _torch_lowering.Lowering._shared.values()]))
"""
    started = []
    for _ in range(2):
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), _torch_compile.VARIABLE: "reference"}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=250, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert "Exception ignored" not in done.stderr
        started.append(json.loads(done.stdout.splitlines()[-1]))
    assert started == [[True], [False]]


def test_the_process_that_lowers_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    function: Callable[..., Any] = compiled(lambda x: x * 5, cache=False)
    assert function(torch.ones(2)).tolist() == [5, 5]
    lowering = _torch_compile.Target.of({"device": "reference", "cache": False}).lowering
    assert lowering._child is not None
    lowering._child.kill()
    with pytest.raises(Exception, match="the process that lowers models of PyTorch ended: SIGKILL"):
        compiled(lambda x: x * 6, cache=False)(torch.ones(2))
    assert compiled(lambda x: x * 7, cache=False)(torch.ones(2)).tolist() == [7, 7]
