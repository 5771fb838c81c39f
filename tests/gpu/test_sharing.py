"""Memory of the GPU that this package shares with torch, CuPy and Triton, without a copy."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.api.errors import UnimplementedError

SIZE = 1 << 20
DOUBLE = """
func.func @main(%x: tensor<1048576xf32>) -> tensor<1048576xf32> {
  %0 = stablehlo.add %x, %x : tensor<1048576xf32>
  return %0 : tensor<1048576xf32>
}"""
CALL = """
func.func @main(%x: tensor<1048576xf32>) -> tensor<1048576xf32> {{
  %0 = stablehlo.add %x, %x : tensor<1048576xf32>
  %1 = stablehlo.custom_call @{name}(%0) {{api_version = 4 : i32, backend_config = {{by = 3.0 : f64}}}}
    : (tensor<1048576xf32>) -> tensor<1048576xf32>
  %2 = stablehlo.add %1, %x : tensor<1048576xf32>
  return %2 : tensor<1048576xf32>
}}"""


def _aligned(values: np.ndarray) -> np.ndarray:
    """Return a copy whose address is a multiple of 64, as addresses on a GPU are."""
    memory = np.empty(values.nbytes + 64, np.uint8)
    aligned = memory[-memory.ctypes.data % 64 :][: values.nbytes].view(values.dtype)
    aligned[...] = values
    return aligned


class _Torch:
    """Arrays of torch."""

    def __init__(self, is_gpu: bool) -> None:
        self.torch = pytest.importorskip("torch")
        self.device = "cuda" if is_gpu else "cpu"

    def array(self, values: np.ndarray) -> Any:
        return self.torch.from_numpy(_aligned(values)).to(self.device)

    def from_dlpack(self, buffer: pjrt.Buffer) -> Any:
        return self.torch.from_dlpack(buffer)

    def address(self, array: Any) -> int:
        return array.data_ptr()

    def numpy(self, array: Any) -> np.ndarray:
        return array.cpu().numpy()

    def stream(self) -> Any:
        return contextlib.nullcontext() if self.device == "cpu" else self.torch.cuda.stream(self.torch.cuda.Stream())


class _CuPy:
    """Arrays of CuPy; numpy stands in where there is no GPU."""

    def __init__(self, is_gpu: bool) -> None:
        self.library = pytest.importorskip("cupy") if is_gpu else np
        self.is_gpu = is_gpu

    def array(self, values: np.ndarray) -> Any:
        return self.library.array(values) if self.is_gpu else _aligned(values)

    def from_dlpack(self, buffer: pjrt.Buffer) -> Any:
        return self.library.from_dlpack(buffer)

    def address(self, array: Any) -> int:
        return array.data.ptr if self.is_gpu else array.ctypes.data

    def numpy(self, array: Any) -> np.ndarray:
        return self.library.asnumpy(array) if self.is_gpu else array

    def stream(self) -> Any:
        return self.library.cuda.Stream(non_blocking=True) if self.is_gpu else contextlib.nullcontext()


@pytest.fixture(params=[_Torch, _CuPy], ids=["torch", "cupy"])
def library(request: pytest.FixtureRequest, is_gpu: bool) -> Any:
    """The library to share memory with."""
    return request.param(is_gpu)


def _numbers() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(SIZE, np.float32)


def test_a_buffer_as_an_array_of_the_library(client: pjrt.Client, library: Any) -> None:
    x = _numbers()
    (result,) = client.compile(DOUBLE)(x)
    array = library.from_dlpack(result)
    assert library.address(array) == result.external_reference().pointer
    assert np.array_equal(library.numpy(array), x + x)
    result.delete()
    assert np.array_equal(library.numpy(array), x + x)  # the array keeps the memory


def test_an_array_of_the_library_as_a_buffer(client: pjrt.Client, library: Any) -> None:
    x = _numbers()
    array = library.array(x)
    buffer = client.buffer_from_dlpack(array)
    assert buffer.external_reference().pointer == library.address(array)
    del array
    (result,) = client.compile(DOUBLE)(buffer)
    assert np.array_equal(np.asarray(result), x + x)


def test_work_of_the_library_on_another_stream_is_waited_for(client: pjrt.Client, library: Any) -> None:
    executable, x = client.compile(DOUBLE), _numbers()
    for _ in range(20):
        with library.stream():
            array = library.array(x)
            for _ in range(30):
                array += 1
            buffer = client.buffer_from_dlpack(array)
        (result,) = executable(buffer)
        expected = x.copy()
        for _ in range(30):
            expected += 1
        assert np.array_equal(np.asarray(result), expected + expected)


def test_the_library_waits_for_our_work(client: pjrt.Client, library: Any) -> None:
    executable, x = client.compile(DOUBLE), _numbers() * 1e-6
    for _ in range(20):
        value, expected = client.buffer_from_host(x), x
        for _ in range(10):
            (value,) = executable(value)
            expected = expected + expected
        with library.stream():
            assert np.array_equal(library.numpy(library.from_dlpack(value) + 1), expected + 1)


def test_a_view_of_memory_of_the_library(client: pjrt.Client, library: Any) -> None:
    x = _numbers()
    array = library.array(x)
    spec = pjrt.ShapeSpec(x.shape, pjrt.ElementType.F32)
    view = client.create_view_of_device_buffer(library.address(array), spec)
    assert np.array_equal(np.asarray(client.compile(DOUBLE)(view)[0]), x + x)


def _scaling_by_torch(is_gpu: bool) -> Any:
    torch = pytest.importorskip("torch")

    def scale(x: Any, out: Any, *, by: float) -> None:
        stream = torch.cuda.stream(torch.cuda.ExternalStream(x.stream)) if is_gpu else contextlib.nullcontext()
        with stream:
            source, target = ((torch.as_tensor(a, device="cuda") if is_gpu else torch.as_tensor(a)) for a in (x, out))
            torch.mul(source, by, out=target)

    return scale


def _scaling_by_cupy(is_gpu: bool) -> Any:
    library = pytest.importorskip("cupy") if is_gpu else np

    def scale(x: Any, out: Any, *, by: float) -> None:
        stream = library.cuda.ExternalStream(x.stream) if is_gpu else contextlib.nullcontext()
        with stream:
            library.multiply(library.asarray(x), library.float32(by), out=library.asarray(out))

    return scale


def _scaling_by_triton(is_gpu: bool) -> Any:
    if not is_gpu:
        pytest.skip("Triton's kernels need a GPU")
    triton, torch = pytest.importorskip("triton"), pytest.importorskip("torch")
    from scaling_kernel import scaling_kernel

    def scale(x: Any, out: Any, *, by: float) -> None:
        with torch.cuda.stream(torch.cuda.ExternalStream(x.stream)):
            source, target = torch.as_tensor(x, device="cuda"), torch.as_tensor(out, device="cuda")
            scaling_kernel[(triton.cdiv(SIZE, 1024),)](source, target, by, SIZE, BLOCK=1024)

    return scale


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning")
@pytest.mark.parametrize("make", [_scaling_by_torch, _scaling_by_cupy, _scaling_by_triton])
def test_kernels_of_other_libraries_in_custom_calls(client: pjrt.Client, is_gpu: bool, make: Any) -> None:
    name = f"tests.gpu{make.__name__}"
    client.register_ffi_handler(name, make(is_gpu))
    executable, x = client.compile(CALL.format(name=name)), _numbers()
    for _ in range(5):
        (result,) = executable(x)
        np.testing.assert_allclose(np.asarray(result), 7 * x, rtol=1e-6)


def test_an_error_of_a_handler(client: pjrt.Client) -> None:
    def fail(x: Any, out: Any, *, by: float) -> None:
        raise ValueError("this handler does not scale")

    client.register_ffi_handler("tests.gpu.fail", fail)
    (result,) = client.compile(CALL.format(name="tests.gpu.fail"))(_numbers())
    with pytest.raises(pjrt.PjrtError, match="does not scale"):
        result.ready().result()


def test_triton_through_the_plugin(client: pjrt.Client, is_gpu: bool) -> None:
    if not is_gpu:
        pytest.skip("Triton's kernels need a GPU")
    pytest.importorskip("triton")
    from scaling_kernel import triton_ir

    plugin = pjrt.load_plugin("cuda")
    try:
        compiled = plugin.compile_triton(triton_ir().encode(), "sm_90", num_warps=4, num_ctas=1, num_stages=3)
    except UnimplementedError as error:
        pytest.skip(f"the plugin has no Triton: {error}")
    assert compiled
