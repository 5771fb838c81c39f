"""The environment variables that a plugin's declaration asks for, set before its library or module is loaded."""

from __future__ import annotations

import os

from pjrt.plugins import _tpu
from pjrt.plugins.declaration import Declaration


def set_environment(declaration: Declaration) -> None:
    """Sets the environment variables that a plugin is to find, unless they are set already."""
    for variable, value in declaration.environment.items():
        if not os.environ.get(variable) and (variable not in os.environ or _tpu.is_unset_by_nothing(variable)):
            os.environ[variable] = value
