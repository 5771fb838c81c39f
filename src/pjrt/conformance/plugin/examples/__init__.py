"""Right calls of the functions of the C API: an example of the arguments of each, made with the plugin under test.

``arguments_of`` returns the arguments of a function. The handles among them follow from the schema (``handles``); what
else a function needs is stated in ``table_arguments`` and ``extension_arguments``.
"""

from __future__ import annotations

from pjrt.conformance.plugin.examples.arguments import EXAMPLES, arguments_of, is_repeatable

__all__ = ["EXAMPLES", "arguments_of", "is_repeatable"]
