"""The TLS deployment of docs/remote.md: its commands are run, and a client connects as the page has it."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
from remote_fixtures import Serve

import pjrt

pytestmark = pytest.mark.full

PAGE = (Path(__file__).parents[2] / "docs" / "remote.md").read_text()
SECTION = PAGE.partition("## A TLS deployment, step by step")[2].partition("\n## ")[0]


def test_the_deployment_of_the_page(serving: Serve, tmp_path: Path) -> None:
    scripts = re.findall(r"^```sh\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)
    assert len(scripts) == 3
    one_shell = ["bash", "-ec", "\n".join(scripts)]
    done = subprocess.run(one_shell, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (command,) = re.findall(r"^\$ pjrt serve (.*)$", SECTION, re.MULTILINE)
    with_certificates = command.replace("--token-file tokens", "--client-ca ca.pem")
    assert with_certificates != command
    call = re.search(r">>> client = (pjrt\.client\(.*\))", SECTION)
    assert call is not None
    with_certificate = call[1].replace('token_file="alice.token"', 'certificate_file="alice.pem", key_file="alice.key"')
    for options, source in ((command, call[1]), (with_certificates, with_certificate)):
        words = shlex.split(options.replace("0.0.0.0:8470", "0.0.0.0:0"))
        paths = [str(tmp_path / word) if (tmp_path / word).is_file() else word for word in words]
        server = serving(*paths)
        port = server.address.rpartition(":")[2]
        source = source.replace("server.example:8470", f"127.0.0.1:{port}")
        source = re.sub(r'"([\w.]+\.(?:pem|key|token))"', lambda match: repr(str(tmp_path / match[1])), source)
        with eval(source, {"pjrt": pjrt}) as client:
            assert np.array_equal(client.buffer_from_host(np.arange(5)), np.arange(5))
