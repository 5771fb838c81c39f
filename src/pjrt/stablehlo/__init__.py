"""Programs: reading, telling apart, converting and looking into what devices compile.

Floor 2: this room knows ``api`` only; it must not know devices or buffers.
"""

from __future__ import annotations

from pjrt.stablehlo.conversion import (
    current_version,
    from_hlo,
    minimum_version,
    needed_version,
    serialize,
    to_hlo,
    to_module,
    to_text,
)
from pjrt.stablehlo.encoding import Encoding, artifact_version, encoding_of
from pjrt.stablehlo.reading import read, read_file
from pjrt.stablehlo.version import Version
from pjrt.stablehlo.vetting import vet

__all__ = [
    "Encoding",
    "Version",
    "artifact_version",
    "current_version",
    "encoding_of",
    "from_hlo",
    "minimum_version",
    "needed_version",
    "read",
    "read_file",
    "serialize",
    "to_hlo",
    "to_module",
    "to_text",
    "vet",
]
