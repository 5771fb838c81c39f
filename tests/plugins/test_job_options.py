"""A vendor's plugin in a job: it gets the job's key-value store, and the place of the process."""

from __future__ import annotations

from pathlib import Path

from job_fixtures import StartJob


def test_a_plugin_becomes_one_of_the_job(start_job: StartJob, tiny_library: Path) -> None:
    lines = start_job(
        2,
        f"""
from pjrt.plugins.declaration import ProcessOptions
library = {str(tiny_library)!r}
names = ProcessOptions(count="num_devices", index="process_index", total="num_processes")
pjrt.plugins.register(name="tiny", library=library, processes=names)
job = initialize()

def show(client):
    facts = client.addressable_devices[0].attributes
    say(client.process_index, [device.process_index for device in client.devices],
        repr(facts["kv_get"]), sorted(job.store.directory("pjrt/plugins/tiny")))
    client.close()

show(pjrt.client("tiny", num_devices=2, kv_exercise=True))
job.barrier("first")
show(pjrt.client("tiny", num_devices=2, kv_exercise=True))                    # with keys of its own
job.barrier("second")
own = pjrt.InMemoryKeyValueStore()
show(pjrt.client("tiny", kv_exercise=True, key_value_store=own))              # a client of this process alone
with pjrt.client(library, kv_exercise=True) as undeclared:                    # the store alone
    say(undeclared.process_index, len(undeclared.devices), undeclared.devices[0].attributes["kv_put"])
attempt(pjrt.client, "tiny", kv_exercise=True, key_value_store=None)
distributed.shutdown()
with pjrt.client("tiny", num_devices=2) as alone:
    say(len(alone.devices))
""",
    ).succeed()
    first, second = (f"pjrt/plugins/tiny/{number}/tiny/greeting" for number in (0, 1))
    greeting = repr("hello\0world")
    for rank, output in enumerate(lines):
        assert "kv_exercise needs a key-value store, and there is none" in output.pop(4)
        assert output == [
            f"{rank} [0, 0, 1, 1] {greeting} {[first]}",
            f"{rank} [0, 0, 1, 1] {greeting} {[first, second]}",
            f"0 [0] {greeting} {[first, second]}",
            "0 1 OK",
            "2",
        ]
