"""``pjrt launch`` as a user calls it: output by process, the first failure, and no process left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import os, signal, sys, time
rank, mode = int(os.environ["PJRT_PROCESS_INDEX"]), sys.argv[1]
if mode == "show":
    print("first\\nsecond", sys.argv[2:], os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"])
    print("no end of line", end="", file=sys.stderr)
elif mode == "read":
    print(sys.stdin.read().strip() or "nothing")
elif mode == "job":
    from pjrt import distributed
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it prints its error, although the launcher ends it
    job = distributed.initialize()
    if rank == 1:
        raise ValueError("spoilt")
    job.store.get("never", 300)
elif mode == "absent" and rank != int(sys.argv[2]):
    from pjrt import distributed
    distributed.initialize()
elif mode == "absent from JAX" and rank != int(sys.argv[2]):
    import jax
    import pjrt
    pjrt.frameworks.jax.register("cpu")
    names = ("PJRT_COORDINATOR_ADDRESS", "PJRT_PROCESS_COUNT", "PJRT_PROCESS_INDEX")
    address, count, index = map(os.environ.get, names)
    jax.distributed.initialize(address, int(count), int(index))
elif mode == "JAX":
    import jax
    if len(sys.argv) > 2:
        import pjrt
        jax.config.update("jax_platforms", pjrt.frameworks.jax.register(sys.argv[2], num_devices=2))
    jax.distributed.initialize()
    print(jax.process_index(), jax.process_count(), len(jax.devices()))
    jax.distributed.shutdown()
elif mode == "slow end":
    from pathlib import Path
    failures = Path(os.environ["PJRT_LAUNCH_NOTES"])
    if rank == 1:
        (failures / "1").touch()
        while not (failures / "0 has ended").exists():
            signal.sigtimedwait([], 0.01)
        signal.sigtimedwait([], 2)
        sys.exit(7)
    while not (failures / "1").exists():
        signal.sigtimedwait([], 0.01)
    (failures / "0 has ended").touch()
    sys.exit(1)
elif mode == "wait":
    if len(sys.argv) > 2:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("pid", os.getpid())
    sys.stdin.read() if rank == 0 else signal.pause()
    sys.exit(int(sys.argv[3]))
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    (tmp_path / "program.py").write_text(PROGRAM)
    return str(tmp_path / "program.py")


def start(*arguments: str, folder: Path | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "pjrt", "launch", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )


def launch(*arguments: str, folder: Path | None = None, content: str = "") -> tuple[int, list[str], list[str]]:
    process = start(*arguments, folder=folder)
    output, errors = process.communicate(content, timeout=120)
    return process.returncode, sorted(output.splitlines()), sorted(errors.splitlines())


def test_lines_are_labelled(program: str) -> None:
    status, output, errors = launch("-n", "2", program, "show", "-n", "--x=1")
    assert status == 0
    assert output == [
        "[0] first",
        "[0] second ['-n', '--x=1'] 0 2",
        "[1] first",
        "[1] second ['-n', '--x=1'] 1 2",
    ]
    assert errors == ["[0] no end of line", "[1] no end of line"]


@pytest.mark.parametrize("command", ["python", "path", "script"])
def test_a_command(program: str, command: str) -> None:
    """People write the interpreter before the program, as for other launchers."""
    start = Path(program).with_name("start.sh")
    start.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    start.chmod(0o755)
    first = {"python": "python3", "path": sys.executable, "script": str(start)}[command]
    status, output, _ = launch("-n", "2", first, program, "show")
    assert status == 0
    assert "[1] second [] 1 2" in output


def test_a_program_that_is_executable_has_this_python(program: str) -> None:
    Path(program).write_text("#!/no/python\nimport sys; print(sys.executable)\n")
    Path(program).chmod(0o755)
    assert launch("-n", "1", program)[1] == [f"[0] {sys.executable}"]


def test_a_module_and_the_standard_input(program: str) -> None:
    folder = Path(program).parent
    _, output, _ = launch("-n", "2", "-m", "program", "--", "read", folder=folder, content="hello")
    assert output == ["[0] hello", "[1] nothing"]
    _, output, _ = launch("-n", "2", "--stdin", "none", program, "read", content="hello")
    assert output == ["[0] nothing", "[1] nothing"]


def test_the_first_failure_is_shown_and_all_are_ended(program: str) -> None:
    status, _, errors = launch("-n", "2", "--grace", "100", program, "job")
    assert status == 1
    assert "[1] ValueError: spoilt" in errors
    assert any(line.startswith("[0] pjrt.api.errors.UnavailableError") and "spoilt" in line for line in errors)
    (own,) = (line for line in errors if line.startswith("pjrt launch"))
    assert own.startswith("pjrt launch: process 1 failed: exit code 1")


@pytest.mark.full
@pytest.mark.parametrize("absent", ["0", "1"])
@pytest.mark.parametrize("mode", ["absent", "absent from JAX"])
def test_a_process_that_ends_before_the_job_begins_ends_it(program: str, mode: str, absent: str) -> None:
    """It ends without an error; the others would wait for the whole initialization timeout."""
    status, _, errors = launch("-n", "3", program, mode, absent)
    assert status == 1
    (own,) = (line for line in errors if line.startswith("pjrt launch"))
    assert own.startswith(f"pjrt launch: process {absent} ended without an error, but the others wait for it in")


@pytest.mark.full
def test_jax_takes_its_place_without_arguments(program: str) -> None:
    status, output, errors = launch("-n", "2", program, "JAX", "cpu")
    assert (status, sorted(output)) == (0, ["[0] 0 2 4", "[1] 1 2 4"]), errors


@pytest.mark.full
def test_jax_without_a_device_of_ours_is_told_how_it_finds_its_place(program: str) -> None:
    status, _, errors = launch("-n", "2", program, "JAX")
    assert status == 1
    (own,) = (line for line in errors if line.startswith("pjrt launch"))
    assert "JAX reads no variables of pjrt launch: register a device before, by pjrt.frameworks.jax.register" in own


@pytest.mark.full
def test_the_process_that_failed_first_may_end_last(program: str) -> None:
    """The others learn of its error before it ends, and fail by it."""
    status, _, errors = launch("-n", "2", program, "slow end")
    assert status == 7
    (own,) = (line for line in errors if line.startswith("pjrt launch"))
    assert own.startswith("pjrt launch: process 1 failed: exit code 7")


def pids(process: subprocess.Popen[str], count: int) -> list[int]:
    assert process.stdout is not None
    return [int(process.stdout.readline().rpartition(" ")[2]) for _ in range(count)]


def test_stubborn_processes_are_killed(program: str) -> None:
    with start("-n", "2", "--grace", "0.2", program, "wait", "stubborn", "7") as process:
        running = pids(process, 2)
        assert process.stdin is not None
        process.stdin.close()  # process 0 fails
        assert process.wait(120) == 7
        assert_ended(running)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_all(program: str, number: signal.Signals) -> None:
    with start("-n", "2", program, "wait") as process:
        running = pids(process, 2)
        process.send_signal(number)
        assert process.wait(120) == 128 + number
        assert_ended(running)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends processes with their parent")
def test_no_process_outlives_a_killed_launcher(program: str) -> None:
    with start("-n", "2", program, "wait", "stubborn", "0") as process:
        running = pids(process, 2)
        process.kill()
        process.wait(120)
        assert_ended(running)


def assert_ended(running: list[int]) -> None:
    for pid in running:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            signal.pidfd_send_signal(descriptor, 0)
            import select

            assert select.select([descriptor], [], [], 120)[0], f"process {pid} still runs"
        except ProcessLookupError:
            pass
        finally:
            os.close(descriptor)


def test_bad_input(program: str) -> None:
    status, _, errors = launch("-n", "2")
    assert status == 2
    assert any("expected a program" in line for line in errors)
    status, _, errors = launch("-n", "2", "--device", "nonesuch", program, "show")
    assert status == 2
    assert any("nonesuch" in line for line in errors)


ONLY_IPV6 = "ip link set lo up && ip address delete 127.0.0.1/8 dev lo"
MEETING = """
from pjrt import distributed
job = distributed.initialize()
distributed.barrier("met")
print(job.process_count)
distributed.shutdown()
"""


def launched_in_a_network(folder: Path, setup: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(MEETING)
    in_namespace = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", f'{setup} && exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*in_namespace, "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("this system lets nobody make a network")
    command = [*in_namespace, sys.executable, "-m", "pjrt", "launch", "-n", "2", str(folder / "program.py")]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_a_machine_whose_only_loopback_address_is_that_of_ipv6(tmp_path: Path) -> None:
    done = launched_in_a_network(tmp_path, ONLY_IPV6)
    assert sorted(done.stdout.splitlines()) == ["[0] 2", "[1] 2"], done.stderr


def test_a_machine_without_a_loopback_address(tmp_path: Path) -> None:
    """Linux lets sockets be bound to 127.0.0.1 all the same, and the processes would wait for each other."""
    done = launched_in_a_network(tmp_path, "true")
    assert done.returncode == 2
    assert "found none that is up (Network is unreachable); bring the interface up, as with: ip link set" in done.stderr
    assert "Traceback" not in done.stderr
