"""Files that follow from the headers: made by ``tools/generate.py``, and not edited."""

from __future__ import annotations
