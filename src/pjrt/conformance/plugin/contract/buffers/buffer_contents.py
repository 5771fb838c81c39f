"""Checks of the contents of buffers: from the host to the device, and back."""

from __future__ import annotations

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.conformance.plugin.check import check
from pjrt.conformance.plugin.subject import Subject

_TYPES = {
    each.mlir: each for each in ElementType if each not in (ElementType.INVALID, ElementType.TOKEN) and each.bits >= 8
}


@check(
    "buffer.contents.there_and_back",
    calls=("PJRT_Client_BufferFromHostBuffer", "PJRT_Buffer_ToHostBuffer"),
    rule="A buffer has the elements of the host array that it was made from.",
    over=_TYPES,
)
def _there_and_back(subject: Subject, element_type: ElementType) -> None:
    array = np.arange(6).reshape(2, 3).astype(element_type.dtype)
    subject.expect_contents(subject.buffer(array), array)
