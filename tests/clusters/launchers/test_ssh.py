"""The launcher ``ssh``: with a command in place of ssh, and with a real server where there is one."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from waiting import wait_until

import pjrt
from pjrt.clusters.launchers import WorkerHandle, WorkerStart
from pjrt.clusters.launchers.launcher import SshLauncher
from pjrt.system.processes import reserved_port

SOURCES = str(Path(pjrt.__file__).parents[1])

# Like ssh: the last argument is for the shell of the other machine, where this one's environment does not count.
STAND_IN = """
import os, sys
host, command = sys.argv[-2:]
print(f"stand-in for {host}: {command}", file=sys.stderr, flush=True)
if host == "unreachable":
    sys.exit("no route to host")
os.execve("/bin/sh", ["sh", "-c", command], {"PATH": os.environ["PATH"], "PYTHONPATH": sys.argv[1]})
"""


@pytest.fixture
def ssh_command(tmp_path: Path) -> list[str]:
    path = tmp_path / "stand_in.py"
    path.write_text(STAND_IN)
    return [sys.executable, str(path), SOURCES]


def await_end(pid: int) -> None:
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), f"the end of the process {pid}")


class RecordingLauncher(SshLauncher):
    """The launcher, and the handles of its workers."""

    handles: Sequence[WorkerHandle] = ()

    def start(self, starts: Sequence[WorkerStart]) -> Sequence[WorkerHandle]:
        self.handles = super().start(starts)
        return self.handles


@pytest.mark.full
def test_workers_start_on_their_hosts_and_end_with_the_command(
    ssh_command: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """All connections have TLS. A worker that stands still ends, too, when the command is killed."""
    launcher = RecordingLauncher(["one", "two", "two"], {"ssh_command": ssh_command, "python": sys.executable})
    with pjrt.cluster(device="reference", launcher=launcher, environment={"WORD": "hello"}, progress=False) as client:
        assert [device.description.attributes["host"] for device in client.devices] == ["one", "two", "two"]
        assert client.call_on_hosts("os:getenv", "WORD") == ["hello"] * 3
        assert all(member.client.connection.address.startswith("grpcs://") for member in client.members)  # type: ignore[attr-defined]
        pids = client.call_on_hosts("os:getpid")
        os.kill(pids[2], signal.SIGSTOP)
        launcher.handles[2].kill()
        await_end(pids[2])
    assert [handle.poll() for handle in launcher.handles[:2]] == ["exit code 0"] * 2
    for pid in pids:
        await_end(pid)
    errors = capfd.readouterr().err
    assert "[one] stand-in for one: exec " in errors
    assert "[two/1] stand-in for two: exec " in errors


def test_a_host_that_cannot_be_reached_is_named(ssh_command: list[str]) -> None:
    with pytest.raises(pjrt.UnavailableError) as raised:
        pjrt.cluster(["unreachable"], launcher="ssh", ssh_command=ssh_command, logs="hide", progress=False)
    assert raised.value.message.startswith("worker 0 on unreachable could not start: its process ended: exit code 1")
    assert raised.value.message.endswith("\n  no route to host")


def test_a_command_that_does_not_exist_is_named() -> None:
    with pytest.raises(pjrt.FailedPreconditionError, match=r"cannot start worker 0 on node1: No such file.*'/no/ssh'"):
        pjrt.cluster(["node1"], launcher="ssh", ssh_command="/no/ssh", progress=False)


@pytest.mark.parametrize("command", ["", [], [1], 3, "'"])
def test_a_wrong_command_is_an_error(command: object) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="expected a command as ssh_command"):
        SshLauncher(["node1"], {"ssh_command": command})


def test_hosts_need_names() -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="needs the names of the hosts"):
        SshLauncher(2, {})


def test_ssh_asks_no_questions(tmp_path: Path) -> None:
    """A command that is ssh itself gets the options for that; the program is one argument."""
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nfor word in "$@"; do echo "<$word>"; done\nexit 3\n')
    ssh.chmod(0o700)
    with pytest.raises(pjrt.UnavailableError) as raised:
        pjrt.cluster(["me@node1"], launcher="ssh", ssh_command=f"{ssh} -p 22", python=["/a b/python"], progress=False,
                     logs="hide")  # fmt: skip
    words = [line.strip() for line in raised.value.message.splitlines()[1:]]
    remote = "<exec '/a b/python' -u -P -m pjrt.clusters.workers --guard>"
    assert words == ["<-p>", "<22>", "<-T>", "<-o>", "<BatchMode=yes>", "<me@node1>", remote]


SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as port:
        yield port


@pytest.fixture
def sshd(tmp_path: Path, port: int) -> Iterator[str]:
    """The command for a server of ssh on this machine."""
    if not Path(SSHD).exists() or not shutil.which("ssh-keygen"):
        pytest.skip("there is no server of ssh here")
    for name in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    shutil.copy(tmp_path / "key.pub", tmp_path / "authorized_keys")
    (tmp_path / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host_key\nPidFile none\nStrictModes no\n"
        f"AuthorizedKeysFile {tmp_path}/authorized_keys\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    command = [SSHD, "-D", "-e", "-f", str(tmp_path / "config")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        for line in server.stderr:
            if "listening" in line:
                break
        yield (
            f"ssh -p {port} -i {tmp_path}/key -o StrictHostKeyChecking=accept-new "
            f"-o UserKnownHostsFile={tmp_path}/known_hosts -o LogLevel=ERROR"
        )
        server.terminate()


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="a server of ssh is root's")
def test_a_real_server_of_ssh(sshd: str) -> None:
    with pjrt.cluster(
        ["127.0.0.1"], "reference", launcher="ssh", ssh_command=sshd, python=sys.executable, logs="hide", progress=False
    ) as client:
        (pid,) = client.call_on_hosts("os:getpid")
        (guard,) = client.call_on_hosts("os:getppid")
        assert client.call_on_hosts("os:getenv", "SSH_CONNECTION") != [None]
    await_end(pid)
    await_end(guard)
