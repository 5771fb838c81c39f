"""Workers: the processes of a cluster that have its devices, and the controller's view of them."""

from __future__ import annotations
