"""Collectives among devices of two processes, beside the same programs on as many devices of one process."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running_job import RunningJob

import pjrt

pytestmark = pytest.mark.full

COUNTS = (2, 3)
"""The devices of each process: uneven, so that processes have different shares of a group."""

DEVICES = sum(COUNTS)

WORKER = """
import base64, json
import numpy as np
initialize()
client = pjrt.client("reference", num_devices=(2, 3)[rank])
say("ready", [d.id for d in client.addressable_devices], [d.process_index for d in client.devices])
while (line := hear()) != "end":
    case = json.loads(line)
    try:
        options = pjrt.CompileOptions(num_replicas=case["replicas"], num_partitions=case["partitions"],
            use_spmd_partitioning=False if case["partitions"] > 1 else None)
        executable = client.compile(case["text"], options)
        dtype = pjrt.ElementType.from_mlir(case["element"]).dtype
        rows = []
        for device, (replica, partition) in zip(
            executable.addressable_devices, executable.addressable_device_logical_ids, strict=True
        ):
            bytes_ = base64.b64decode(case["values"][replica * case["partitions"] + partition])
            array = np.frombuffer(bytes_, dtype).reshape(case["shape"])
            rows.append([client.buffer_from_host(array, device=device)])
        results = [base64.b64encode(np.asarray(row[0]).tobytes()).decode() for row in executable.execute(rows)]
        say("reply", json.dumps(results))
    except Exception as error:
        say("reply", type(error).__name__, str(error).replace("\\n", " "))
client.close()
distributed.shutdown()
"""


@pytest.fixture(scope="module")
def job() -> Iterator[RunningJob]:
    job = RunningJob([WORKER] * 2).start_all()
    try:
        for rank, process in enumerate(job.processes):
            ids = list(range(2)) if rank == 0 else [2, 3, 4]
            assert process.hear("ready") == f"ready {ids} [0, 0, 1, 1, 1]"
        yield job
        for process in job.processes:
            process.say("end")
        job.succeed()
    finally:
        job.end()


@pytest.fixture(scope="module")
def here() -> Iterator[pjrt.Client]:
    """A client whose devices are all in this process."""
    with pjrt.client("reference", num_devices=DEVICES) as client:
        yield client


def in_job(job: RunningJob, case: dict[str, Any]) -> list[bytes]:
    for process in job.processes:
        process.say(json.dumps(case))
    # Gloo writes lines of its own.
    replies = [process.hear("reply ").partition("reply ")[2] for process in job.processes]
    assert all(reply.startswith("[") for reply in replies), replies
    return [base64.b64decode(each) for reply in replies for each in json.loads(reply)]


def in_process(client: pjrt.Client, case: dict[str, Any]) -> list[bytes]:
    options = pjrt.CompileOptions(
        num_replicas=case["replicas"],
        num_partitions=case["partitions"],
        use_spmd_partitioning=False if case["partitions"] > 1 else None,
    )
    executable = client.compile(case["text"], options)
    dtype = pjrt.ElementType.from_mlir(case["element"]).dtype
    rows = [
        [client.buffer_from_host(np.frombuffer(base64.b64decode(v), dtype).reshape(case["shape"]), device=device)]
        for v, device in zip(case["values"], executable.addressable_devices, strict=True)
    ]
    return [np.asarray(row[0]).tobytes() for row in executable.execute(rows)]


def region(element: str, body: str) -> str:
    scalar = f"tensor<{element}>"
    if body == "select":  # a maximum that is not written as one
        code = f"%c = stablehlo.compare GT, %x, %y : ({scalar}, {scalar}) -> tensor<i1> "
        code += f"%z = stablehlo.select %c, %x, %y : tensor<i1>, {scalar}"
    else:
        code = f"%z = stablehlo.{body} %x, %y : {scalar}"
    return f"({{ ^bb0(%x: {scalar}, %y: {scalar}): {code} stablehlo.return %z : {scalar} }})"


OPERATIONS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "collective_broadcast",
    "collective_permute",
)
REAL = ("f32", "f64", "bf16", "f16", "i8", "ui16", "i64", "ui64", "f8E4M3FN", "i4")
ELEMENTS = (*REAL, "i1", "complex<f32>", "complex<f64>")
BODIES = {"i1": ("and", "or", "xor"), "complex<f32>": ("add",), "complex<f64>": ("add", "multiply")}


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """Return a program of one collective over all five devices, or over four, and a value for each."""
    operation = draw(st.sampled_from(OPERATIONS))
    element = draw(st.sampled_from(ELEMENTS))
    replicas, partitions = draw(st.sampled_from([(5, 1), (1, 5), (4, 1), (2, 2)]))
    by_partition = partitions > 1 and (replicas == 1 or draw(st.booleans()))
    count = partitions if by_partition else replicas
    # Groups of equal size, as gathers need them; each device is in one of them.
    size = draw(st.sampled_from([n for n in range(1, count + 1) if count % n == 0]))
    order = draw(st.permutations(range(count)))
    table = [list(order[n : n + size]) for n in range(0, count, size)]
    rows = draw(st.sampled_from([1, 3, 200]))
    columns = size * draw(st.integers(1, 2))
    shape, result = [rows, columns], [rows, columns]
    if operation == "all_gather":
        result = [rows, columns * size]
    elif operation == "reduce_scatter":
        result = [rows, columns // size]
    elif operation == "all_to_all":
        result = [rows * size, columns // size]
    channel = ", channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>" if by_partition else ""
    if by_partition and operation in ("all_reduce", "all_gather", "reduce_scatter"):
        channel += ", use_global_device_ids"
        table = [[replica * partitions + p for p in group] for replica in range(replicas) for group in table]
    attributes = f"replica_groups = dense<{table}> : tensor<{len(table)}x{size}xi64>{channel}"
    body = ""
    if operation in ("all_reduce", "reduce_scatter"):
        bodies = BODIES.get(element, ("add", "maximum", "minimum", "select"))
        body = region(element, draw(st.sampled_from(bodies)))
    if operation == "all_gather":
        attributes += ", all_gather_dim = 1 : i64"
    elif operation == "reduce_scatter":
        attributes += ", scatter_dimension = 1 : i64"
    elif operation == "all_to_all":
        attributes += f", split_dimension = 1 : i64, concat_dimension = 0 : i64, split_count = {size} : i64"
    elif operation == "collective_permute":
        targets = draw(st.permutations(range(count)))
        pairs = [[n, t] for n, t in enumerate(targets)][: draw(st.integers(1, count))]
        attributes = f"source_target_pairs = dense<{pairs}> : tensor<{len(pairs)}x2xi64>{channel}"
    argument, returned = (f"tensor<{'x'.join(map(str, s))}x{element}>" for s in (shape, result))
    text = (
        f"module @{operation} {{ func.func @main(%a: {argument}) -> {returned} {{ "
        f'%0 = "stablehlo.{operation}"(%a) {body} {{{attributes}}} : ({argument}) -> {returned} '
        f"return %0 : {returned} }} }}"
    )
    seed = draw(st.integers(0, 2**32 - 1))
    dtype = pjrt.ElementType.from_mlir(element).dtype
    # Small whole numbers: their sums are exact in every order.
    values = np.random.default_rng(seed).integers(0, 2, (replicas * partitions, *shape)).astype(dtype)
    return {
        "text": text,
        "replicas": replicas,
        "partitions": partitions,
        "element": element,
        "shape": shape,
        "values": [base64.b64encode(value.tobytes()).decode() for value in values],
    }


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(case=cases())
def test_the_results_are_those_of_one_process(job: RunningJob, here: pjrt.Client, case: dict[str, Any]) -> None:
    assert in_job(job, case) == in_process(here, case)
