"""A program: threads use clients whose calls, events and memory fail by chance. Everything ends with the clients."""

from __future__ import annotations

import faulthandler
import json
import sys
import threading

import numpy as np
from tiny.control import Control
from tiny.program import TinyProgram

import pjrt
from pjrt.layers import findings, inject, injections, wrap

faulthandler.dump_traceback_later(250, exit=True)
X = np.arange(4, dtype=np.float32)
RULES = [
    {"call": "Client_BufferFromHostBuffer", "chance": 0.2, "seed": 1, "ready": "never"},
    {"call": "LoadedExecutable_Execute", "chance": 0.2, "seed": 2, "ready": "INTERNAL"},
    {"call": "Buffer_*|Event_*", "chance": 0.1, "seed": 3, "error": "ABORTED"},
    {"call": "Buffer_ToHostBuffer", "chance": 0.2, "seed": 4, "flip": 5},
    {"memory": 100},
]

control = Control(sys.argv[1])
plugin = wrap(sys.argv[1], ["validate", "inject"], inject=RULES, validate="limit=10000")
double = TinyProgram("double")
x = double.parameter("f32[4]")
program = pjrt.Program(double.result(double.let("add", x, x)).code, format="tiny")


def work(client: pjrt.Client, futures: list[pjrt.Future[np.ndarray]]) -> None:
    """Compute and read, and keep what is not there yet."""
    loaded = client.compile(program)
    for _ in range(60):
        try:
            (result,) = loaded(X)
            futures.append(result.to_host())
        except pjrt.PjrtError as error:
            assert error.code.name in ("ABORTED", "RESOURCE_EXHAUSTED", "INTERNAL"), error  # noqa: PT017


futures: list[pjrt.Future[np.ndarray]] = []
clients = [plugin.client() for _ in range(2)]
threads = [threading.Thread(target=work, args=(client, futures)) for client in clients for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
faults = [rule.faults for rule in injections(plugin)]
inject(plugin, [{"call": "Client_BufferFromHostBuffer", "ready": "never"}])  # whatever has happened by chance
futures += [client.buffer_from_host(X).to_host() for client in clients]
inject(plugin, "")
futures.append(clients[0].buffer_from_host(X).to_host())
futures[-1].exception(60)
for client in clients:
    client.close()
codes = set()
for future in futures:
    error = future.exception(60)
    codes.add("OK" if error is None else error.code.name)  # type: ignore[attr-defined]
del future, error
futures.clear()
print(json.dumps([min(faults) > 0, sorted(codes), control.left_over({}), [str(each) for each in findings(plugin)]]))
