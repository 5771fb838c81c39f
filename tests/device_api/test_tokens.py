"""Tokens among the arguments and results of programs."""

from __future__ import annotations

import numpy as np
import pytest
from anydevice import Backend

from pjrt.api.client import Client
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.shape_spec import stands_for_token

TOKENS = b"""func.func @main(%t: !stablehlo.token, %x: tensor<2xf32>) -> (!stablehlo.token, tensor<2xf32>) {
  %u = stablehlo.after_all %t : !stablehlo.token
  %y = stablehlo.add %x, %x : tensor<2xf32>
  return %u, %y : !stablehlo.token, tensor<2xf32> }"""


def test_a_chain_of_tokens_begins_with_an_empty_array(backend: Backend, client: Client) -> None:
    """Frameworks order the effects of programs so."""
    if b"func.func" not in backend.programs.identity((2,)).code:
        pytest.skip("the device has a format of its own")
    executable = client.compile(TOKENS)
    token, x = client.buffer_from_host(np.zeros(0, np.bool_)), client.buffer_from_host(np.ones(2, np.float32))
    for _ in range(2):
        ((token, x),) = executable.execute([[token, x]])
        assert stands_for_token(token.element_type, token.shape)
    token.ready().result(60)
    assert np.asarray(x).tolist() == [4, 4]
    with pytest.raises(InvalidArgumentError, match=r"argument 0\b.*found pred\[1\]"):
        executable.execute([[client.buffer_from_host(np.zeros(1, np.bool_)), x]])
