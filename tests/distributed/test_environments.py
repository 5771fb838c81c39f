"""The place of a process in the environments of launchers."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import pjrt
from pjrt.distributed.environments import KubernetesEnvironment, Place, detect, first_host

SLURM = {
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_NODELIST": "node[003-006,9],login",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "2",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
}
OPEN_MPI_5 = {
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "PMIX_NAMESPACE": "prterun-host-77@1",
}
LAUNCH = {"PJRT_COORDINATOR_ADDRESS": "h:1", "PJRT_PROCESS_COUNT": "3", "PJRT_PROCESS_INDEX": "1"}
PMI = {"PMI_SIZE": "4", "PMI_RANK": "2"}


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        (LAUNCH, Place("h:1", 3, 1)),
        (SLURM, Place("node003:62674", 4, 2)),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_ID": "1"}, Place("node003:62775", 3, 2)),
        (OPEN_MPI, Place("10.96.0.1:62624", 8, 5)),
        (
            OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": "1314521088.0;tcp6://[fe80::b9b,2620:10d::2]:43370"},
            Place("[fe80::b9b]:62880", 8, 5),
        ),
        (OPEN_MPI | SLURM, Place("10.96.0.1:62624", 8, 5)),  # mpirun in a Slurm job
        (PMI | SLURM, Place("node003:62674", 4, 2)),  # srun --mpi=pmi2
        (PMI | {"PJRT_COORDINATOR_ADDRESS": "h:7"}, Place("h:7", 4, 2)),
        (LAUNCH | SLURM | OPEN_MPI, Place("h:1", 3, 1)),
    ],
)
def test_places(variables: dict[str, str], place: Place) -> None:
    assert detect(variables=variables) == place


def test_open_mpi_5_on_one_host() -> None:
    place = detect(variables=OPEN_MPI_5)
    assert place.coordinator_address is not None
    assert place.coordinator_address.startswith("127.0.0.1:6")
    assert place == detect(variables=OPEN_MPI_5)
    with pytest.raises(pjrt.FailedPreconditionError, match=r"coordinator_address.*openmpi"):
        detect(variables=OPEN_MPI_5 | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"})


def test_arguments_come_first() -> None:
    assert detect("h:9", None, None, variables=SLURM) == Place("h:9", 4, 2)
    assert detect("h:9", 7, 6, variables=SLURM) == Place("h:9", 7, 6)
    assert detect(None, None, None, "slurm", SLURM | OPEN_MPI) == Place("node003:62674", 4, 2)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "expected coordinator_address, num_processes, process_id .* no known environment"),
        ({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}, "start the program with srun"),
        (PMI, "expected coordinator_address as arguments .* the environment is of pmi"),
        ({"PJRT_PROCESS_INDEX": "1"}, "expected coordinator_address, num_processes"),
    ],
)
def test_nothing_to_go_by(variables: dict[str, str], message: str) -> None:
    with pytest.raises(pjrt.FailedPreconditionError, match=message):
        detect(variables=variables)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "n1"}, "SLURM_NTASKS.*slurm; it is not set"),
        (SLURM | {"SLURM_PROCID": "x"}, "SLURM_PROCID.*found 'x'"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_RANK.*not set"),
        (PMI | SLURM | {"SLURM_PROCID": "1"}, "process 2 of 4.*process 1 of 4.*cluster_detection_method='pmi'"),
        (LAUNCH | {"PJRT_PROCESS_COUNT": "many"}, "PJRT_PROCESS_COUNT.*found 'many'"),
    ],
)
def test_wrong_and_contradicting_variables(variables: dict[str, str], message: str) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=message):
        detect(variables=variables)


def test_the_method() -> None:
    with pytest.raises(pjrt.FailedPreconditionError):
        detect(method="deactivate", variables=LAUNCH)
    with pytest.raises(pjrt.InvalidArgumentError, match=r"'slurm', 'kubernetes'.*found 'lsf'"):
        detect(method="lsf", variables=LAUNCH)
    with pytest.raises(pjrt.FailedPreconditionError, match="pip install mpi4py"):
        detect(method="mpi4py", variables={})


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("n1", "n1"),
        ("n1,m2", "n1"),
        ("n[1-3]", "n1"),
        ("n[007,9-12],m", "n007"),
        ("rack[1-2]n[03,07]-ib,login", "rack1n03-ib"),
    ],
)
def test_the_first_host_of_slurms_lists(nodes: str, first: str) -> None:
    assert first_host(nodes) == first


KUBERNETES = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "JOB_COMPLETION_INDEX": "2"}
POD = "train-2.pods.default.svc.cluster.local"


def test_a_pod(tmp_path: Path) -> None:
    variables = KUBERNETES | {"PJRT_PROCESS_COUNT": "4"}
    environment = KubernetesEnvironment(variables, POD)
    assert environment.is_present()
    assert environment.place() == Place("train-0.pods.default.svc.cluster.local:55527", 4, 2)
    with pytest.raises(pjrt.InvalidArgumentError, match="headless service"):
        KubernetesEnvironment(variables, "train-2").place()
    with pytest.raises(pjrt.UnavailableError, match="set PJRT_PROCESS_COUNT in the job's pod template"):
        KubernetesEnvironment(KUBERNETES, POD, tmp_path).place()


class _ApiServer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        allowed = self.headers["Authorization"] == "Bearer secret"
        self.send_response(200 if allowed else 403)
        self.end_headers()
        if allowed and self.path == "/apis/batch/v1/namespaces/team/jobs/train":
            self.wfile.write(json.dumps({"spec": {"completions": 3}}).encode())

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def api_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A server that answers as the API server does, but without TLS, whose certificates no standard module makes."""
    server = http.server.HTTPServer(("127.0.0.1", 0), _ApiServer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setattr("pjrt.distributed.environments.SCHEME", "http")
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_number_of_pods_is_asked_for(api_server: int, tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("team\n")
    (tmp_path / "token").write_text("secret\n")
    variables = KUBERNETES | {"KUBERNETES_SERVICE_PORT": str(api_server)}
    assert KubernetesEnvironment(variables, POD, tmp_path).place().process_count == 3
    (tmp_path / "token").write_text("stolen")
    with pytest.raises(pjrt.UnavailableError, match="refused it \\(403 Forbidden\\)"):
        KubernetesEnvironment(variables, POD, tmp_path).place()
