"""A served model elsewhere: as a container of KServe, as far as that goes without one, and under Ray Serve."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pjrt

EXAMPLE = Path(__file__).parents[2] / "examples" / "served_model"


def save(folder: Path) -> Path:
    path = folder / "classifier.pjrt"
    pjrt.save_model(lambda p, x: x * p, np.float32(2), np.zeros((1, 3), np.float32), path, shapes="b, ...")
    return path


def ask(address: str, body: Any = None) -> tuple[int, Any]:
    try:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(address, data), timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        text = error.read().decode()
        return error.code, json.loads(text) if text.startswith("{") else text


def ask_until(address: str, status: int, process: subprocess.Popen[str]) -> None:
    while process.poll() is None:
        try:
            if ask(address)[0] == status:
                return
        except urllib.error.URLError:
            pass  # it does not listen yet
        threading.Event().wait(0.1)
    raise AssertionError(f"the server ended with {process.returncode}")


QUESTION = {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}


@pytest.mark.full
def test_the_container_of_kserve_serves(tmp_path: Path) -> None:
    text = (EXAMPLE / "kserve.yaml").read_text()
    entry = json.loads((EXAMPLE / "Dockerfile").read_text().partition("ENTRYPOINT ")[2])
    arguments = json.loads(re.search(r"args: (\[.*\])", text)[1])  # type: ignore[index]
    places = {"/mnt/models/classifier.pjrt": str(save(tmp_path)), "0.0.0.0:8080": "127.0.0.1:0"}
    assert places.keys() <= {*arguments}
    command = [sys.executable, "-m", *entry, *(places.get(each, each) for each in arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = next(each for each in server.stdout if each.startswith("serving"))
            place = line.split()[-1].partition("/v2")[0]
            ready, live = re.findall(r"path: (/\S+),", text)
            assert ask(place + live)[0] == 200
            ask_until(place + ready, 200, server)
            answer = ask(f"{place}/v2/models/classifier/infer", QUESTION)
            assert (answer[0], answer[1]["outputs"][0]["data"]) == (200, [2, 4, 6])
        finally:
            server.terminate()
            assert server.wait(60) == 0


@pytest.mark.ray
def test_replicas_answer_under_ray_serve(tmp_path: Path) -> None:
    pytest.importorskip("ray.serve")
    command = [sys.executable, str(EXAMPLE / "ray_serve.py"), str(save(tmp_path))]
    with subprocess.Popen(command, text=True) as server:
        try:
            address = "http://127.0.0.1:8000/v2/models/classifier"
            ask_until(f"{address}/ready", 200, server)
            for _ in range(20):
                status, answer = ask(f"{address}/infer", QUESTION)
                assert (status, answer["outputs"][0]["data"]) == (200, [2, 4, 6])
            status, answer = ask(f"{address}/infer", {"inputs": []})
            assert (status, "found none for x" in answer["error"]) == (400, True)
        finally:
            server.send_signal(2)
            server.wait(120)
