"""XLA's log on the error stream: warnings and errors, whatever loads XLA first, and what the user asks for."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jaxlib")

CLIENTS = {
    "kernels beside the reference device": (
        "pjrt.StableHloClient('chip', kernels={'stablehlo.sine': lambda op, x: np.sin(x)}, fallback='reference')"
    ),
    "all kernels": "pjrt.StableHloClient('chip', kernels={})",
    "reference": "pjrt.client('reference')",
    "its capabilities": "pjrt.client('reference').capabilities",
    "cpu": "pjrt.client('cpu')",
    "a program": "pjrt.stablehlo.inspect('func.func @main() { return }')",
}
INFORMATION = re.compile(r"^I\d{4} ", re.MULTILINE)


def errors_of(script: str, **variables: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment | {"JAX_PLATFORMS": "cpu"} | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.full
@pytest.mark.parametrize("made", CLIENTS.values(), ids=CLIENTS)
def test_information_is_left_out_whatever_comes_before_jax(made: str) -> None:
    pytest.importorskip("jax")
    assert not errors_of(f"import numpy as np, pjrt\nx = {made}\nimport jax\njax.devices()")


@pytest.mark.full
def test_the_user_chooses_the_level() -> None:
    script = "import pjrt, jax\npjrt.client('reference')\njax.devices()"
    assert INFORMATION.search(errors_of(script, TF_CPP_MIN_LOG_LEVEL="0"))


def test_libraries_of_plugins_find_the_level(tiny_library: Path) -> None:
    errors_of(f"""
import os, sys, pjrt
pjrt.load_plugin({str(tiny_library)!r})
assert "jaxlib" not in sys.modules
assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "1"
""")
