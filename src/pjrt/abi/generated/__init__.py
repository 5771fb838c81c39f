"""What follows from the headers, as files: made by ``tools``, and not edited."""

from __future__ import annotations
