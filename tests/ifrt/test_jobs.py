"""Arrays over the devices of all processes of a job."""

from __future__ import annotations

from pathlib import Path

import pytest
from job_fixtures import StartJob
from job_programs import QUIET

from pjrt.stablehlo.encodings.jaxlib import version

BEGIN = (
    QUIET
    + """
import numpy as np
from pjrt import ifrt
job = initialize()
client = ifrt.Client(pjrt.client("cpu", num_devices=2))
X = np.arange(32, dtype="f4").reshape(8, 4)

def check(array):
    '''Return whether each shard here has its part of X.'''
    return len(array.shards), all(np.array_equal(shard.buffer, X[shard.domain.slices]) for shard in array.shards)
"""
)

ARRAYS = (
    BEGIN
    + """
mesh = ifrt.Mesh(client.devices, {"x": 2, "y": 2})
array = client.make_array(X, mesh.sharding("x", "y"))
say(check(array), array.sharding.devices.is_fully_addressable, client.addressable_devices.is_fully_addressable)
attempt(np.asarray, array)
again = client.make_array_from_host_buffer_shards(array.spec, [np.asarray(shard.buffer) for shard in array.shards])
say(check(again))

tiles, whole = '{mhlo.sharding = "{devices=[2,2]0,1,2,3}"}', '{mhlo.sharding = "{replicated}"}'
executable = client.compile(f'''
func.func @main(%x: tensor<8x4xf32> {tiles}) -> (tensor<8x4xf32> {whole}, tensor<f32> {whole}) {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %sum = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0, 1]
    : (tensor<8x4xf32>, tensor<f32>) -> tensor<f32>
  return %x, %sum : tensor<8x4xf32>, tensor<f32>
}}''', pjrt.CompileOptions(num_partitions=4))
copies, total = executable(array)
say(check(copies), float(total), np.array_equal(copies, X))

for target in (mesh.sharding("y", "x"), mesh.sharding(), ifrt.Mesh(client.devices[::-1], {"x": 4}).sharding("x")):
    (moved,) = client.reshard_arrays([array], [target])
    say(check(moved))

one, other = (ifrt.Mesh(client.devices[2 * n :][:2], {"x": 2}) for n in (0, 1))
(first,) = client.reshard_arrays([array], [one.sharding("x")])                 # from both processes to one
(second,) = client.reshard_arrays([first], [other.sharding(None, "x")])        # from there to the other
(third,) = client.reshard_arrays([second], [mesh.sharding("y")])               # and to both
say([check(each) for each in (first, second, third)])

(mirrored,) = client.copy_arrays([array], client.devices[::-1], memory_kind="pinned_host")
say(check(mirrored), {buffer.memory_space.kind for buffer in mirrored.buffers})
(given,) = client.copy_arrays([mirrored], client.devices, "device", ifrt.ArrayCopySemantics.DONATE_INPUT)
say(check(given), mirrored.is_deleted)
distributed.shutdown()
"""
)


@pytest.mark.full
@pytest.mark.skipif(version() < (0, 10), reason="jaxlib before 0.10 cannot pull arrays from other processes")
def test_arrays_span_the_job(start_job: StartJob) -> None:
    for rank, lines in enumerate(start_job(2, ARRAYS).succeed()):
        missing = lines.pop(1)
        assert "expected all parts of the array f32[8,4]" in missing
        one, other = ("(2, True)", "(0, True)") if rank == 0 else ("(0, True)", "(2, True)")
        assert lines == [
            "(2, True) False True",
            "(2, True)",
            "(2, True) 496.0 True",
            *["(2, True)"] * 3,
            f"[{one}, {other}, (2, True)]",
            "(2, True) {'pinned_host'}",
            "(2, True) True",
        ]


# A checkpoint in plain files: each process writes the shards that no process before it has, and reads what it needs.
SAVE = (
    BEGIN
    + """
mesh = ifrt.Mesh(client.devices, {"x": 2, "y": count})
for name, cut in (("w", ("x", "y")), ("b", ("y",))):
    value = X if name == "w" else X[:, 0]
    array = client.make_array(value, mesh.sharding(*cut))
    owners = {}
    for device, domain in zip(array.sharding.devices, array.sharding.index_domains(array.shape, ALL)):
        owners.setdefault(domain, device)
    for shard in array.shards:
        if owners[shard.domain] is shard.device:
            np.save(f"{FOLDER}/{name} {shard.domain}.npy", np.asarray(shard.buffer))
job.barrier("saved")
say(len(os.listdir(FOLDER)))
distributed.shutdown()
"""
)

RESTORE = (
    BEGIN
    + """
import re

def restored(name, shape, sharding):
    '''Return an array from the parts in the files: each process reads those that overlap its shards.'''
    parts = []
    for domain in sharding.index_domains(shape):
        part = np.full(domain.shape, np.nan, "f4")
        for path in os.listdir(FOLDER):
            if path.startswith(name + " "):
                spans = [tuple(map(int, span.split(":"))) for span in re.findall(r"\\d+:\\d+", path)]
                common = [(max(a, b), min(c, d)) for (a, c), (b, d) in zip(spans, spans_of(domain))]
                if all(begin < end for begin, end in common):
                    mine = tuple(slice(b - o, e - o) for (b, e), (o, _) in zip(common, spans_of(domain)))
                    file = tuple(slice(b - o, e - o) for (b, e), (o, _) in zip(common, spans))
                    part[mine] = np.load(f"{FOLDER}/{path}", mmap_mode="r")[file]
        parts.append(part)
    return client.make_array_from_host_buffer_shards(ifrt.ArraySpec(shape, pjrt.ElementType.F32, sharding), parts)

def spans_of(domain):
    return [(each.start, each.stop) for each in domain.slices]

devices = client.devices
mesh = ifrt.Mesh(devices, {"x": len(devices)})
w, b = restored("w", (8, 4), mesh.sharding("x")), restored("b", (8,), mesh.sharding("x"))
say(check(w)[1], all(np.array_equal(s.buffer, X[:, 0][s.domain.slices]) for s in b.shards))
distributed.shutdown()
"""
)


@pytest.mark.full
def test_a_checkpoint_is_restored_by_another_number_of_processes(start_job: StartJob, tmp_path: Path) -> None:
    folder = f"FOLDER = {str(tmp_path)!r}\n"
    every = "from pjrt.ifrt import SingleDeviceShardSemantics\nALL = SingleDeviceShardSemantics.ALL_SHARDS\n"
    assert start_job(2, folder + every + SAVE).succeed() == [["6"], ["6"]]
    for count in (1, 4):
        assert start_job(count, folder + RESTORE).succeed() == [["True True"]] * count
