"""Exporting: many plugins of one process, topologies, and clients that exist already."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def run_python(source: str) -> list[str]:
    """Run a script in a subprocess, because tables live as long as their process; return its lines."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "error", "-c", textwrap.dedent(source)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, ""), (done.returncode, done.stderr[-3000:])
    return done.stdout.splitlines()


BARE = """
    import pjrt
    from pjrt.api.plugin import Profiler
    from pjrt.capi import load_capsule
    from pjrt.host import HostClient

    def export(number):
        def make(**options):
            return HostClient(f"device {number}", compile=lambda program, options: lambda x: x + number)
        return pjrt.export(
            make, name=f"device{number}", attributes={"number": number}, profiler=lambda options: None
        )
"""


def test_many_plugins_are_exported_and_each_makes_its_own_clients() -> None:
    lines = run_python(
        BARE
        + """
    exported = [export(number) for number in range(100)]
    assert len({each.address for each in exported}) == 100
    for number in (0, 9, 63, 64, 99):
        plugin = load_capsule(exported[number].capsule)
        assert plugin.attributes["number"] == number, plugin.attributes
        with plugin.client() as client:
            assert client.platform_name == f"device {number}", client
    print("each is itself")
    """
    )
    assert lines == ["each is itself"]


def test_topologies_come_from_the_function_that_describes_them_without_a_client() -> None:
    lines = run_python(
        BARE
        + """
    def make(**options):
        raise AssertionError("a client is made")

    def named_topology(name, **options):
        if name != "8":
            raise pjrt.NotFoundError(f"no {name}")
        return pjrt.topology("reference", name)

    make.named_topology = named_topology
    plugin = load_capsule(pjrt.export(make, name="described").capsule)
    print(len(plugin.topology("8").device_descriptions))
    try:
        plugin.topology("9")
    except pjrt.NotFoundError as error:
        print(error.message)
    """
    )
    assert lines == ["8", "no 9"]


def test_a_client_that_is_exported_itself() -> None:
    lines = run_python(
        """
    import pjrt
    from pjrt.capi import load_capsule

    client = pjrt.client("reference", num_devices=2)
    exported = pjrt.export(client, name="mine")
    plugin = load_capsule(exported.capsule)
    with plugin.client() as first, plugin.client() as second:
        print(len(first.devices), len(second.devices), len(plugin.topology().device_descriptions))
    print(client.is_closed)

    def refused(call):
        try:
            call()
        except pjrt.PjrtError as error:
            print(type(error).__name__, error.message.partition(";")[2].split(";")[0].strip())

    refused(lambda: plugin.client(num_devices=3))
    refused(lambda: exported.write_library("libmine.so"))
    refused(lambda: plugin.topology("8"))
    client.close()
    refused(plugin.client)
    refused(lambda: pjrt.export(3, name="mine"))
    """
    )
    assert lines == [
        "2 2 2",
        "False",
        "InvalidArgumentError give options where the client is made",
        "InvalidArgumentError export a function that makes such a client",
        "UnimplementedError its one topology has no name",
        "FailedPreconditionError export or register an open client",
        "InvalidArgumentError ",
    ]
