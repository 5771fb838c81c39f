"""Time arrays over eight devices of the CPU: making, cutting, resharding, executing; and XLA's partitioner."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"  # before jax

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P  # the name that all of JAX's users know it by

import pjrt
from benchmarks.models import transformer
from benchmarks.side_by_side import Aim, Call, Report, Timing, duration, main, table, take_turns
from pjrt import ifrt, stablehlo

DEVICES = 8
AXES = {"x": 4, "y": 2}
Spec = tuple[Any, ...]
TILES: Spec = ("x", "y")
RESHARDINGS: dict[str, tuple[Spec, Spec]] = {
    "rows to columns": (("x", None), (None, "x")),
    "tiles to rows": (TILES, (("x", "y"), None)),
    "tiles to replicas": (TILES, ()),
}
OURS, THEIRS = "pjrt.ifrt", "jax"
PARTITION, COMPILE = "stablehlo.partition", "reference compile"

Case = dict[str, Call]


class Pair:
    """Eight devices of ours and eight of JAX's, in meshes of the same axes."""

    def __init__(self) -> None:
        self.client = ifrt.Client(pjrt.client("cpu", num_devices=DEVICES))
        self.our_mesh = ifrt.Mesh(self.client.devices, AXES)
        self.their_mesh = Mesh(np.array(jax.devices()).reshape(tuple(AXES.values())), tuple(AXES))

    def shardings(self, spec: Spec) -> tuple[ifrt.HloSharding, NamedSharding]:
        return self.our_mesh.sharding(*spec), NamedSharding(self.their_mesh, P(*spec))

    def arrays(self, value: np.ndarray, spec: Spec) -> tuple[ifrt.Array, jax.Array]:
        ours, theirs = self.shardings(spec)
        pair = self.client.make_array(value, ours), jax.device_put(value, theirs)
        pair[0].ready().result()
        pair[1].block_until_ready()
        return pair


def making(pair: Pair, value: np.ndarray) -> Case:
    """Return the calls that put an array on the devices in tiles; they wait for the end of the transfers."""
    ours, theirs = pair.shardings(TILES)

    def make() -> ifrt.Array:
        array = pair.client.make_array(value, ours)
        array.ready().result()
        return array

    return {OURS: make, THEIRS: lambda: jax.device_put(value, theirs).block_until_ready()}


def cutting(pair: Pair, value: np.ndarray) -> Case:
    """Return the calls that make an array of each shard and one array of those, without a copy."""
    ours, theirs = pair.arrays(value, TILES)

    def disassemble_and_assemble() -> ifrt.Array:
        return pair.client.assemble_array_from_single_device_arrays(ours.shape, ours.sharding, ours.disassemble())

    def their_way() -> jax.Array:
        theirs.__dict__.pop("addressable_shards", None)  # jax keeps the list that the last call made
        shards = [shard.data for shard in theirs.addressable_shards]
        return jax.make_array_from_single_device_arrays(theirs.shape, theirs.sharding, shards)

    return {OURS: disassemble_and_assemble, THEIRS: their_way}


def executing(pair: Pair) -> tuple[Case, Case]:
    """Return the calls of a tiny sharded program as they return, and with a wait for the result."""
    ours, theirs = pair.arrays(np.ones((8, 16), np.float32), TILES)
    jitted = jax.jit(lambda x: x + 1, out_shardings=theirs.sharding)
    executable = pair.client.compile(str(jitted.lower(theirs).compiler_ir("stablehlo")))
    returning: Case = {OURS: lambda: executable(ours)[0], THEIRS: lambda: jitted(theirs)}
    waiting: Case = {
        OURS: lambda: executable(ours)[0].ready().result(),
        THEIRS: lambda: jitted(theirs).block_until_ready(),
    }
    for name, call in returning.items():
        if not np.array_equal(np.asarray(call()), np.full((8, 16), 2, np.float32)):
            raise RuntimeError(f"{name}: the tiny program gives wrong numbers")
    return returning, waiting


def resharding(pair: Pair, value: np.ndarray, source: Spec, target: Spec) -> Case:
    """Return the calls that copy an array into another sharding; they wait for the end."""
    ours, theirs = pair.arrays(value, source)
    our_target, their_target = pair.shardings(target)

    def reshard() -> ifrt.Array:
        (array,) = pair.client.reshard_arrays([ours], [our_target])
        array.ready().result()
        return array

    shards = [shard.data for shard in theirs.addressable_shards]

    def their_way() -> jax.Array:
        # jax reads the whole array, and keeps what it read; a new array of the same shards has nothing to reuse.
        unread = jax.make_array_from_single_device_arrays(theirs.shape, theirs.sharding, shards)
        return jax.device_put(unread, their_target).block_until_ready()

    return {OURS: reshard, THEIRS: their_way}


def check(what: str, case: Case, value: np.ndarray) -> None:
    """Check that both give the whole value, in shards of the same shapes."""
    results = {name: call() for name, call in case.items()}
    for name, result in results.items():
        if not np.array_equal(np.asarray(result), value):
            raise RuntimeError(f"{name}, {what}: wrong numbers")
    ours, theirs = results[OURS], results[THEIRS]
    shapes = [shard.buffer.shape for shard in ours.shards], [shard.data.shape for shard in theirs.addressable_shards]
    if shapes[0] != shapes[1]:
        raise RuntimeError(f"{what}: shards of the shapes {shapes[0]}, expected {shapes[1]}")


def training_step() -> str:
    """Return a transformer's training step whose batch is cut along one axis and whose weights along the other."""
    mesh = Mesh(np.array(jax.devices()).reshape(tuple(AXES.values())), tuple(AXES))

    def described(value: np.ndarray, *spec: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=NamedSharding(mesh, P(*spec)))

    state = jax.tree.map(lambda v: described(v, *((None, "y") if v.ndim == 2 else ())), transformer.state())
    text = described(transformer.tokens(8), "x")
    return str(jax.jit(transformer.train_step).lower(state, text).compiler_ir("stablehlo"))


def partitioning(quick: bool) -> dict[str, Timing]:
    """Time the partitioner alone, and the whole compilation of the reference device, which calls it."""
    program = training_step()
    client = ifrt.Client(pjrt.client("reference", num_devices=DEVICES))
    calls: dict[str, Callable[[], object]] = {
        PARTITION: lambda: stablehlo.partition(program),
        COMPILE: lambda: client.compile(program),
    }
    return take_turns(calls, rounds=3 if quick else 11)


def measure(quick: bool) -> Report:
    """Compare arrays over eight CPU devices with JAX's, and show the partitioner's share of a compilation."""
    rounds = 3 if quick else 15
    pair, side = Pair(), 1024 if quick else 4096
    value = np.arange(side * side, dtype=np.float32).reshape(side, side)
    size = f"{value.nbytes >> 20} MiB"

    transfers = {f"make {size}": making(pair, value), "disassemble and assemble": cutting(pair, value)}
    for name, (source, target) in RESHARDINGS.items():
        transfers[f"reshard {size}, {name}"] = resharding(pair, value, source, target)
    for name, case in transfers.items():
        check(name, case, value)
    returning, waiting = executing(pair)
    cases = {"execute a tiny program, returning": returning, "execute it, waiting": waiting, **transfers}
    timings = {name: take_turns(case, rounds=rounds) for name, case in cases.items()}
    return _report(timings, partitioning(quick))


def _report(timings: dict[str, dict[str, Timing]], partitioner: dict[str, Timing]) -> Report:
    rows = [
        (name, pair[OURS], pair[THEIRS], f"{pair[OURS].ratio_to(pair[THEIRS]):.2f}×") for name, pair in timings.items()
    ]
    share = partitioner[PARTITION].ratio_to(partitioner[COMPILE])
    report = Report(
        "Arrays over many devices",
        f"Medians and quartiles on {DEVICES} devices of the CPU, in a mesh of 4 × 2, ours and JAX's in one process. "
        "The tiny program is `x + 1` in 4 × 2 tiles. JAX makes and reshards arrays with `jax.device_put`; those that "
        "it reshards have not been read before, because it would use again what it read. The second table is a "
        "transformer's training step for the `reference` device: XLA's partitioner alone, and the whole compilation, "
        "of which it is a part.",
        [
            table(["", OURS, THEIRS, f"{OURS} takes"], rows),
            table(
                ["", "median", "share"],
                [
                    (PARTITION, duration(partitioner[PARTITION].median), f"{share:.0%}"),
                    (COMPILE, duration(partitioner[COMPILE].median), "100%"),
                ],
            ),
        ],
    )
    for name, pair in timings.items():
        if name.startswith("execute"):
            report.aims.append(Aim(f"{name}: within 1.3× of jax", pair[OURS].ratio_to(pair[THEIRS]), 1.3))
        elif name.startswith("reshard"):
            text = f"{name}: at least 0.8 of jax's speed"
            report.aims.append(Aim(text, pair[THEIRS].ratio_to(pair[OURS]), 0.8, at_least=True))
    return report


if __name__ == "__main__":
    main(measure)
