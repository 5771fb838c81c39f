"""Programs: reading, telling apart, converting and looking into what devices compile.

Floor 2: this room knows ``api`` only; it must not know devices or buffers.
"""

from __future__ import annotations

from pjrt.stablehlo.encoding import Encoding, artifact_version, encoding_of
from pjrt.stablehlo.reading import read, read_file
from pjrt.stablehlo.version import Version

__all__ = ["Encoding", "Version", "artifact_version", "encoding_of", "read", "read_file"]
