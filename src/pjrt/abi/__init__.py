"""The C ABI of PJRT, stated once: headers in C, and all that follows from them.

``pjrt_abi.h`` and the headers below it state each struct, function and number; ``pjrt_support`` has what code in C on
either side of the ABI shares. ``generated`` has the declarations, sizes and tables that ``tools`` makes of the headers.
``schema`` is the same for Python: the fields of the arguments of each function.
"""

from __future__ import annotations
