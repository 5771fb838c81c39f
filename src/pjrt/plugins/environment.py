"""The environment variables that a plugin's declaration asks for, set before its library or module is loaded."""

from __future__ import annotations

import os

from pjrt import system
from pjrt.plugins.declaration import Declaration


def set_environment(declaration: Declaration) -> None:
    """Set the environment variables that a plugin is to find. One that is set, and not empty, stays as it is."""
    variables = dict(declaration.environment)
    if declaration.environment_without_hardware and not system.any_file(declaration.hardware):
        variables |= declaration.environment_without_hardware
    for variable, value in variables.items():
        if not os.environ.get(variable):
            os.environ[variable] = value
