"""Clusters whose workers Ray places, on a Ray cluster of this machine: ``pytest -m ray`` where Ray is installed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.clusters.client.client import ClusterClient

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")]

SUM = """
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %sum = "stablehlo.all_reduce"(%x) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %c : tensor<f32>
  }) {replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>} : (tensor<2xf32>) -> tensor<2xf32>
  return %sum : tensor<2xf32>
}"""
CPUS = 8
PATIENCE = 120


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """The package, in a Ray cluster of one node."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=CPUS, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    yield ray
    ray.shutdown()


def cluster(**options: Any) -> ClusterClient:
    return pjrt.cluster(2, "cpu", num_devices=2, launcher="ray", progress=False, **options)


def sums(client: pjrt.Client) -> list[list[float]]:
    executable = client.compile(SUM, pjrt.CompileOptions(num_replicas=4))
    rows = [[client.buffer_from_host(np.full(2, i, np.float32), device=d)] for i, d in enumerate(client.devices)]
    return [np.asarray(out).tolist() for (out,) in executable.execute(rows)]


def sums_until_failure(client: pjrt.Client) -> None:
    while True:
        sums(client)


def free_cpus(ray: Any, count: float) -> None:
    """Wait until Ray has so many free processors."""
    while ray.available_resources().get("CPU", 0) != count:
        threading.Event().wait(0.05)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_end(pid: int) -> None:
    while is_running(pid):
        threading.Event().wait(0.05)


def pids(client: ClusterClient) -> list[int]:
    """Return the processes of the workers, which are children of Ray's actors."""
    return client.call_on_hosts(os.getpid)


@pytest.mark.timeout(PATIENCE)
def test_a_cluster_under_ray(ray: Any, tmp_path: Path) -> None:
    with cluster(cpus=2, logs=tmp_path) as client:
        assert len(client.devices) == 4
        assert sums(client) == [[6.0, 6.0]] * 4
        free_cpus(ray, CPUS - 4)
        client.call_on_hosts(os.write, 1, b"a line of the worker\n")
        workers = pids(client)
    logs = [file.read_text() for file in tmp_path.iterdir()]
    assert len(logs) == 2
    assert all("a line of the worker\n" in log for log in logs)
    for pid in workers:
        wait_for_end(pid)
    free_cpus(ray, CPUS)
    assert ray.is_initialized()


@pytest.mark.timeout(PATIENCE)
def test_a_killed_worker_is_named(ray: Any) -> None:
    with cluster() as client:
        os.kill(pids(client)[1], signal.SIGKILL)
        with pytest.raises(pjrt.UnavailableError, match=r"worker 1 on .*SIGKILL"):
            sums_until_failure(client)
        x = client.buffer_from_host(np.float32(3), device=client.devices[0])
        assert float(np.asarray(x)) == 3.0
    free_cpus(ray, CPUS)


@pytest.mark.timeout(PATIENCE)
def test_a_worker_ends_with_its_actor(ray: Any) -> None:
    from ray.util import list_named_actors

    with cluster() as client:
        workers = pids(client)
        name = next(name for name in list_named_actors() if name.startswith("pjrt worker 0 "))
        ray.kill(ray.get_actor(name))
        wait_for_end(workers[0])
        with pytest.raises(pjrt.UnavailableError, match="worker 0 on "):
            sums_until_failure(client)
        assert is_running(workers[1])
    wait_for_end(workers[1])


@pytest.mark.timeout(PATIENCE)
def test_nodes_are_chosen_by_name(ray: Any) -> None:
    node = ray.nodes()[0]["NodeManagerAddress"]
    with pjrt.cluster([f"{node}:2"], "cpu", launcher="ray", progress=False) as client:
        assert len(client.devices) == 2
        assert len({str(device) for device in client.devices}) == 2
    with pytest.raises(pjrt.InvalidArgumentError, match=f"Ray has no node 'nowhere'; its nodes are .*{node}"):
        pjrt.cluster(["nowhere"], "cpu", launcher="ray", progress=False)


@pytest.mark.timeout(PATIENCE)
def test_resources_that_no_node_has(ray: Any) -> None:
    with pytest.raises(pjrt.DeadlineExceededError, match=r"2 workers with 1 CPU, 4 TPU each .* its nodes have 8 CPU"):
        cluster(resources="TPU:4", placement_timeout=0.5)
    free_cpus(ray, CPUS)


@pytest.mark.timeout(PATIENCE)
def test_another_ray_cluster_than_that_of_the_process(ray: Any) -> None:
    with pytest.raises(pjrt.FailedPreconditionError, match=r"in the Ray cluster .* already"):
        cluster(address="192.0.2.99:6379")


CONTROLLER = """
import os, pjrt
client = pjrt.cluster(2, "cpu", launcher="ray", address="auto", progress=False)
print(*client.call_on_hosts(os.getpid), flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.timeout(PATIENCE)
def test_a_controller_that_is_killed_leaves_nothing_behind(ray: Any) -> None:
    done = subprocess.run([sys.executable, "-c", CONTROLLER], stdout=subprocess.PIPE, text=True, timeout=PATIENCE)
    assert done.returncode == -signal.SIGKILL
    for pid in done.stdout.split():
        wait_for_end(int(pid))
    free_cpus(ray, CPUS)


LOST_NODE = """
import os
import numpy as np
import ray
from ray.cluster_utils import Cluster
import pjrt

nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
second = nodes.add_node(num_cpus=1)
ray.init(address=nodes.address, log_to_driver=False)
with pjrt.cluster(2, "cpu", launcher="ray", strategy="STRICT_SPREAD", progress=False) as client:
    nodes.remove_node(second, allow_graceful=False)
    lost = 0
    while not lost:
        for device in client.devices:
            try:
                client.buffer_from_host(np.float32(1), device=device).to_host().result()
            except pjrt.UnavailableError as error:
                lost += 1
                print(error.message)
ray.shutdown()
nodes.shutdown()
"""


@pytest.mark.timeout(PATIENCE)
def test_a_node_that_is_lost() -> None:
    done = subprocess.run([sys.executable, "-c", LOST_NODE], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "worker" in done.stdout


OWN_RAY = """
import ray, pjrt
with pjrt.cluster(4, "cpu", launcher="ray", progress=False) as client:
    print(ray.is_initialized(), len(client.devices))
print(ray.is_initialized())
"""


@pytest.mark.timeout(PATIENCE)
def test_a_ray_cluster_of_its_own_ends_with_it() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, "-c", OWN_RAY], capture_output=True, text=True, timeout=PATIENCE, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["True", "4", "False"]
