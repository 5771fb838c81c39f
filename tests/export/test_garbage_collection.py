"""The garbage collector may run anything in the middle of a function of an exported plugin, as another thread may."""

from __future__ import annotations

import subprocess
import sys

REFERENCES = """
import gc
import numpy as np
import pjrt
from pjrt.capi import load_capsule

exported = pjrt.export(lambda **options: pjrt.client("reference", **options), name="device")
client = load_capsule(exported.capsule).client()
unused = [[] for _ in range(1000)]  # Python keeps no list at hand, so that to make one lets the collector in
references, is_armed = [], False

def take_one_more(phase, info):
    if phase == "start" and is_armed:
        references.append(buffer.external_reference())

gc.callbacks.append(take_one_more)
most = 0
for threshold in range(1, 60):  # so that the collector comes at one place after the other
    buffer = client.buffer_from_host(np.ones(3))
    gc.collect()
    is_armed = True
    gc.set_threshold(threshold)
    references.append(buffer.external_reference())
    gc.set_threshold(0)
    is_armed = False
    most = max(most, len(references))
    while references:
        references.pop().release()
gc.callbacks.remove(take_one_more)
print(most > 1)
"""


def test_external_references_are_counted_when_the_collector_takes_some() -> None:
    done = subprocess.run([sys.executable, "-c", REFERENCES], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
