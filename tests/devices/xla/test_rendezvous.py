"""Launches whose shares are given one by one: where they meet."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import pjrt

ALL_REDUCE = """
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = "stablehlo.all_reduce"(%x) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %c : tensor<f32>
  }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<2xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}"""
TWO = pjrt.CompileOptions(num_replicas=2)


@pytest.fixture
def client() -> Iterator[pjrt.Client]:
    with pjrt.client("cpu", num_devices=2) as made:
        yield made


def share(executable: pjrt.LoadedExecutable, number: int) -> pjrt.Buffer:
    """Gives one device's share; the result is promised."""
    client = executable.client
    device = client.devices[number]
    (result,) = executable.execute_sharded(
        [client.buffer_from_host(np.full(2, number + 1, np.float32), device=device)], device
    )
    return result


@pytest.mark.timeout(60)
def test_executables_of_the_same_program_meet(client: pjrt.Client) -> None:
    """Threads that each compile for themselves, as those of PyTorch/XLA do."""
    found: dict[int, list[float]] = {}

    def work(number: int) -> None:
        executable = client.compile(ALL_REDUCE, TWO)
        found[number] = [float(np.asarray(share(executable, number))[0]) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {0: [3.0] * 5, 1: [3.0] * 5}


def test_executables_of_other_programs_do_not(client: pjrt.Client) -> None:
    one = client.compile(ALL_REDUCE, TWO)
    other = client.compile(ALL_REDUCE.replace("stablehlo.add", "stablehlo.multiply"), TWO)
    results = [share(one, 0), share(other, 1), share(other, 0), share(one, 1)]
    assert [np.asarray(result)[0] for result in results] == [3.0, 2.0, 2.0, 3.0]


def test_deleting_one_ends_the_launches_that_it_has_a_share_of(client: pjrt.Client) -> None:
    executables = [client.compile(ALL_REDUCE, TWO) for _ in range(2)]
    lost = share(executables[0], 0)
    executables[0].delete()
    with pytest.raises(pjrt.CancelledError, match="deleted before all of its devices"):
        lost.ready().result()
    results = [share(client.compile(ALL_REDUCE, TWO), 0), share(executables[1], 1)]
    gc.collect()
    assert [np.asarray(result)[0] for result in results] == [3.0, 3.0]
