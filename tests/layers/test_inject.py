"""Faults by rule: the inject layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pjrt

X = np.arange(4, dtype=np.float32)


def test_the_second_call_of_a_function_fails(tiny_library: Path) -> None:
    rules = "call=Client_BufferFromHostBuffer,nth=2,error=DATA_LOSS,message=a bit\\, or two"
    with pjrt.layers.wrap(tiny_library, ["inject"], inject=rules).client() as client:
        client.buffer_from_host(X)
        with pytest.raises(pjrt.PjrtError, match="a bit, or two") as caught:
            client.buffer_from_host(X)
        assert caught.value.code == pjrt.StatusCode.DATA_LOSS
        np.testing.assert_array_equal(np.asarray(client.buffer_from_host(X)), X)
