"""Messages of any length between processes, without other processes."""

from __future__ import annotations

import numpy as np
import pytest

from pjrt.devices.collectives.engine import Bytes, ProcessGroup, XlaCollectives

GROUP = ProcessGroup(((0, 0), (1, 0)), 0)


class Echo(XlaCollectives):
    """Collectives of two processes that send the same."""

    def __init__(self) -> None:  # no job
        self.gathers = 0

    def _all_gather(self, group: ProcessGroup, block: Bytes) -> Bytes:
        self.gathers += 1
        return np.stack([block] * len(group.members))


@pytest.mark.parametrize(("length", "gathers"), [(0, 1), (1015, 1), (1016, 1), (1017, 2), (1024, 2), (5000, 2)])
def test_a_message_that_has_no_room_in_the_first_block_is_sent_in_a_second(length: int, gathers: int) -> None:
    message = np.random.default_rng(0).integers(0, 256, length, np.uint8)
    collectives = Echo()
    for received in collectives.gather(GROUP, message):
        np.testing.assert_array_equal(received, message)
    assert collectives.gathers == gathers
