"""The command as a user calls it, with real files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from in_process import pjrt

import pjrt as pjrt_package

PROGRAM = """
module @sum_and_scale {
  func.func @main(%x: tensor<2x3xf32> loc("x"), %w: tensor<2x3xf32> loc("w")) -> (tensor<2x3xf32>, tensor<f32>) {
    %0 = stablehlo.multiply %x, %w : tensor<2x3xf32>
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %1 = stablehlo.reduce(%0 init: %zero) applies stablehlo.add across dimensions = [0, 1]
        : (tensor<2x3xf32>, tensor<f32>) -> tensor<f32>
    return %0, %1 : tensor<2x3xf32>, tensor<f32>
  }
}
"""


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """One line on the error stream that has all these words, exit code 2, nothing else."""
    assert done.returncode == 2, done
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    for word in words:
        assert word in lines[0], lines[0]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.mlir"
    path.write_text(PROGRAM)
    return path


@pytest.fixture
def arrays(tmp_path: Path) -> tuple[Path, Path]:
    x, w = tmp_path / "x.npy", tmp_path / "w.npy"
    np.save(x, np.arange(6, dtype=np.float32).reshape(2, 3))
    np.save(w, np.full((2, 3), 2, np.float32))
    return x, w


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_run_writes_the_results(program: Path, arrays: tuple[Path, Path], tmp_path: Path, device: str) -> None:
    out = tmp_path / "out.npz"
    done = pjrt("run", program, "-d", device, "-i", arrays[0], "-i", arrays[1], "-o", out)
    assert done.returncode == 0, done.stderr
    with np.load(out) as file:
        written = dict(file)
    np.testing.assert_array_equal(written["result_0"], np.arange(6, dtype=np.float32).reshape(2, 3) * 2)
    assert written["result_1"] == 30
    assert "f32[2,3] [0, 2, 4, 6, 8, 10]" in done.stdout


def test_run_repeats_and_prints_json(program: Path) -> None:
    done = pjrt("run", program, "-i", "random:7", "--repeat", "5", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["device"] == "cpu"
    assert report["repeats"] == 5
    assert 0 < report["min_seconds"] <= report["median_seconds"] <= report["p90_seconds"]
    assert report["results"] == [
        {"name": "result_0", "element_type": "F32", "shape": [2, 3]},
        {"name": "result_1", "element_type": "F32", "shape": []},
    ]


def test_random_inputs_are_the_same_for_the_same_seed(program: Path) -> None:
    first, again, other = (
        pjrt("run", program, "-i", seed).stdout.splitlines()[0] for seed in ("random:1", "random:1", "random:2")
    )
    assert first == again
    assert first != other


def test_a_named_argument_and_a_filler(program: Path, arrays: tuple[Path, Path]) -> None:
    done = pjrt("run", program, "-i", f"1={arrays[1]}", "-i", "zeros")
    assert done.returncode == 0, done.stderr
    assert "f32[] [0]" in done.stdout


def test_arrays_of_one_file_by_name(program: Path, tmp_path: Path) -> None:
    both = tmp_path / "both.npz"
    np.savez(both, w=np.full((2, 3), 2, np.float32), x=np.arange(6, dtype=np.float32).reshape(2, 3))
    done = pjrt("run", program, "-i", f"0={both}:x", "-i", f"1={both}:w")
    assert "f32[] [30]" in done.stdout, done


def test_safetensors_with_a_type_numpy_lacks(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    program, weights = tmp_path / "p.mlir", tmp_path / "w.safetensors"
    program.write_text("func.func @main(%x: tensor<3xbf16>) -> tensor<3xbf16> {\n return %x : tensor<3xbf16>\n}")
    save_file({"x": np.array([1, 2, 3], ml_dtypes.bfloat16)}, weights)
    done = pjrt("run", program, "-i", weights)
    assert "bf16[3] [1, 2, 3]" in done.stdout, done


def test_inspect_tells_what_is_in_a_program(program: Path) -> None:
    report = json.loads(pjrt("inspect", program, "--json").stdout)
    assert report["name"] == "sum_and_scale"
    assert [a["type"] for a in report["arguments"]] == ["tensor<2x3xf32>"] * 2
    assert {op["name"]: op["count"] for op in report["operations"]}["stablehlo.multiply"] == 1
    text = pjrt("inspect", program).stdout
    assert "stablehlo.reduce" in text
    assert "sum_and_scale" in text


def test_devices_lists_what_is_here() -> None:
    report = json.loads(pjrt("devices", "cpu", "--option", "num_devices=3", "--json").stdout)
    assert [d["id"] for d in report["devices"]] == [0, 1, 2]
    assert "cpu" in pjrt("devices").stdout


def test_info_names_versions() -> None:
    report = json.loads(pjrt("info", "--json").stdout)
    assert report["numpy"] == np.__version__
    assert report["device cpu"].startswith("1 × ")


def test_compile_for_a_topology(program: Path, tmp_path: Path) -> None:
    out = tmp_path / "compiled.bin"
    done = pjrt("compile", program, "-t", "cpu", "-o", out, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["memory"]["argument_size_in_bytes"] == 48
    assert report["output_size_in_bytes"] == out.stat().st_size > 0
    with pjrt_package.client("cpu") as client:
        assert pjrt_package.load_executable(client, out).name == "sum_and_scale"


def test_compile_prints_tables(program: Path) -> None:
    done = pjrt("compile", program, "-t", "cpu", "-O", "num_devices=2", "--num-replicas", "2")
    assert done.returncode == 0, done.stderr
    assert "2 × cpu (cpu)" in done.stdout
    assert "2 of them: 2 replicas × 1 partitions" in done.stdout
    (arguments,) = (line for line in done.stdout.splitlines() if line.strip().startswith("arguments"))
    assert "48 B" in arguments
    assert "█" in arguments


def test_an_option_from_a_file(program: Path, tmp_path: Path) -> None:
    (tmp_path / "number").write_text("three")
    done = pjrt("compile", program, "-t", "cpu", "-O", f"num_devices=@{tmp_path / 'number'}")
    assert_refused(done, "num_devices", "three")
    assert_refused(pjrt("compile", program, "-t", "cpu", "-O", "num_devices=@nowhere"), "@nowhere")


def test_export_writes_a_library_that_loads(tmp_path: Path, program: Path) -> None:
    device = tmp_path / "mydevice.py"
    device.write_text('import pjrt\n\ndef make(**options):\n    return pjrt.client("reference", **options)\n')
    library = tmp_path / "libmydevice.so"
    done = pjrt("export", f"{device}:make", "-o", library, "--name", "mydevice")
    assert done.returncode == 0, done.stderr
    done = pjrt("run", program, "-d", library, "-i", "zeros")
    assert done.returncode == 0, done.stderr
    assert "f32[] [0]" in done.stdout


@pytest.mark.full
def test_long_work_shows_progress_on_a_terminal_and_nowhere_else(program: Path) -> None:
    command = [sys.executable, "-m", "pjrt", "run", str(program), "-i", "zeros", "--json"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    ours, theirs = os.openpty()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # how Linux says that nobody holds the other end any more
            pass
        os.close(ours)
        assert process.stdout is not None
        assert json.loads(process.stdout.read())["device"] == "cpu"
    for what in ("reading the program", "compiling for cpu", "running"):
        assert what in shown.decode()
    assert pjrt(*command[3:]).stderr == ""


def test_a_file_in_another_order_of_bytes(program: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6, dtype=">f4").reshape(2, 3))
    done = pjrt("run", program, "-i", tmp_path / "x.npy", "-i", tmp_path / "x.npy")
    assert done.returncode == 0, done.stderr
    assert "f32[] [55]" in done.stdout


class TestArraysOfAFileWithOtherNames:
    """Matching arrays with arguments where the names do not decide."""

    PROGRAM = """
func.func @main(%q: tensor<2xf32> loc("q"), %k: tensor<2xf32> loc("k"), %b: tensor<f32>) -> tensor<2xf32> {
  %0 = stablehlo.subtract %q, %k : tensor<2xf32>
  return %0 : tensor<2xf32>
}
"""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "p.mlir").write_text(self.PROGRAM)
        (tmp_path / "distinct.mlir").write_text(self.PROGRAM.replace("%k: tensor<2xf32>", "%k: tensor<2xi32>"))
        return tmp_path

    def test_the_order_of_the_file_is_no_answer(self, folder: Path) -> None:
        np.savez(folder / "w.npz", key=np.zeros(2, np.float32), query=np.ones(2, np.float32), bias=np.float32(0))
        done = pjrt("run", folder / "p.mlir", "-i", "w.npz", folder=folder)
        fits = "'key', f32[2], fits argument 0 (q): f32[2]; argument 1 (k)"
        assert_refused(done, "none of its names", fits, "0=w.npz:NAME")

    def test_two_arrays_for_one_argument_are_refused(self, folder: Path) -> None:
        np.savez(folder / "w.npz", one=np.float32(0), other=np.float32(1))
        done = pjrt("run", folder / "p.mlir", "-i", "w.npz", folder=folder)
        assert_refused(done, "'one' and 'other' both fit argument 2")

    def test_an_array_of_no_arguments_type_is_refused(self, folder: Path) -> None:
        np.savez(folder / "w.npz", one=np.float32(0), other=np.zeros(3, np.int8))
        assert_refused(pjrt("run", folder / "p.mlir", "-i", "w.npz", folder=folder), "'other', s8[3], fits none")

    def test_types_that_leave_no_choice_decide_and_it_is_told(self, folder: Path) -> None:
        path = folder / "distinct.mlir"
        path.write_text(path.read_text().replace("stablehlo.subtract %q, %k", "stablehlo.negate %q"))
        np.savez(folder / "w.npz", bias=np.float32(0), key=np.zeros(2, np.int32), query=np.ones(2, np.float32))
        done = pjrt("run", path, "-i", "w.npz", folder=folder)
        assert done.returncode == 0, done.stderr
        assert "f32[2] [-1, -1]" in done.stdout
        assert done.stderr.splitlines() == [
            "pjrt: w.npz:query is used for argument 0 (q): f32[2], the only one of its type and shape",
            "pjrt: w.npz:key is used for argument 1 (k): s32[2], the only one of its type and shape",
            "pjrt: w.npz:bias is used for argument 2: f32[], the only one of its type and shape",
        ]

    @pytest.mark.parametrize("sources", [("k.npz", "q.npz"), ("both.npz:k", "both.npz:q")])
    def test_one_array_goes_to_the_argument_of_its_name(self, folder: Path, sources: tuple[str, str]) -> None:
        q, k = np.ones(2, np.float32), np.zeros(2, np.float32)
        np.savez(folder / "q.npz", q=q)
        np.savez(folder / "k.npz", k=k)
        np.savez(folder / "both.npz", k=k, q=q)
        done = pjrt("run", folder / "p.mlir", "-i", sources[0], "-i", sources[1], "-i", "zeros", folder=folder)
        assert "f32[2] [1, 1]" in done.stdout, done


class TestErrorsInJson:
    """With ``--json`` the output is one object in any case."""

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            (["run", "nowhere.mlir", "--json"], "NOT_FOUND"),
            (["run", "--json"], "INVALID_ARGUMENT"),
            (["runn", "--json"], "INVALID_ARGUMENT"),
            (["plugins", "nonesuch", "--json"], "NOT_FOUND"),
            (["check", "nowhere.mlir", "--json"], "NOT_FOUND"),
            (["devices", "cpu", "-O", "num_devices=0", "--json"], "INVALID_ARGUMENT"),
        ],
    )
    def test_an_error_is_an_object(self, arguments: list[str], code: str) -> None:
        done = pjrt(*arguments)
        assert done.returncode == 2
        error = json.loads(done.stdout)["error"]
        assert error["code"] == code
        assert error["message"] in done.stderr

    def test_what_was_found_out_before_is_told_too(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "nothing.so").write_bytes(b"")
        done = pjrt("plugins", tmp_path / "nothing.so", "--json")
        assert done.returncode == 2
        found = json.loads(done.stdout)
        assert (found["state"], found["error"]["code"]) == ("broken", "FAILED_PRECONDITION")


class TestAProgramThatDoesNotFit:
    """``check`` and ``compile`` hold what a program needs against the memory that there is."""

    DEVICE = """
import pjrt


def make_client(**options):
    limit = {"device_memory_bytes_limit": 50}
    return pjrt.StableHloClient("small", compile=compile, device_attributes=limit, **options)


def compile(program, options):
    return lambda x, w: (x, x.sum())
"""

    @pytest.mark.full
    def test_both_say_no(self, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "small.py").write_text(self.DEVICE)
        (tmp_path / "config.toml").write_text("[plugins.small]\nfactory = 'small:make_client'\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # for the subprocess of a check
        monkeypatch.setenv("PJRT_CONFIG", str(tmp_path / "config.toml"))
        words = "needs 76 bytes of memory on each device, 152% of the 50 that a device has"
        out = tmp_path / "out.bin"
        done = pjrt("compile", program, "-t", "small:1", "-o", out)
        assert (done.returncode, words in done.stderr, out.exists()) == (2, True, False)
        assert "76 B" in done.stdout
        for target in ("-t", "small:1"), ("-d", "small"):
            done = pjrt("check", program, *target)
            assert (done.returncode, words in done.stdout) == (1, True), done
        found = json.loads(pjrt("compile", program, "-t", "small:1", "--json").stdout)
        assert (found["memory_needed_in_bytes"], found["error"]["code"]) == (76, "RESOURCE_EXHAUSTED")

    def test_the_limit_of_a_client_counts(self, program: Path) -> None:
        def compile(program: object, options: object) -> object:
            return lambda x, w: (x, x.sum())

        text = program.read_text()
        with pjrt_package.StableHloClient("small", compile=compile, memory_limit=75) as small:  # type: ignore[arg-type]
            assert small.supports(text).verdict is pjrt_package.Verdict.NO
        with pjrt_package.StableHloClient("large", compile=compile, memory_limit=76) as large:  # type: ignore[arg-type]
            assert large.supports(text).verdict is pjrt_package.Verdict.YES


class TestWrongInput:
    def test_no_such_file(self) -> None:
        assert_refused(pjrt("run", "nowhere.mlir"), "nowhere.mlir", "no file")

    def test_not_a_program(self, tmp_path: Path) -> None:
        (tmp_path / "text").write_text("hello")
        assert_refused(pjrt("inspect", tmp_path / "text"), "expected a program", "hello")

    def test_wrong_shape(self, program: Path, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", np.zeros((3, 2), np.float32))
        done = pjrt("run", program, "-i", tmp_path / "x.npy", "-i", "zeros")
        assert_refused(done, "expected argument 0", "f32[2,3]", "found f32[3,2]")

    def test_wrong_dtype(self, program: Path, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", np.zeros((2, 3), np.int32))
        done = pjrt("run", program, "-i", tmp_path / "x.npy", "-i", "zeros")
        assert_refused(done, "f32[2,3]", "found s32[2,3]")

    def test_an_argument_without_a_value(self, program: Path, arrays: tuple[Path, Path]) -> None:
        assert_refused(pjrt("run", program, "-i", arrays[0]), "has 2 arguments", "gave 1", "argument 1")

    def test_too_many_arrays(self, program: Path, arrays: tuple[Path, Path]) -> None:
        assert_refused(pjrt("run", program, *["-i", str(arrays[0])] * 3), "left over")

    def test_an_unknown_device(self, program: Path) -> None:
        assert_refused(pjrt("run", program, "-i", "zeros", "-d", "nope"), "no device called 'nope'", "cpu")

    def test_an_unknown_option(self, program: Path) -> None:
        done = pjrt("run", program, "-i", "zeros", "-O", "colour=blue")
        assert_refused(done, "colour", "num_devices")

    @pytest.mark.parametrize("source", ["x.txt", "random:x", "x.npy", "x.npz:y"])
    def test_an_unreadable_source(self, program: Path, source: str) -> None:
        assert_refused(pjrt("run", program, "-i", source), source)

    def test_a_damaged_file(self, program: Path, tmp_path: Path) -> None:
        (tmp_path / "x.npy").write_bytes(b"not an array")
        assert_refused(pjrt("run", program, "-i", tmp_path / "x.npy"), "x.npy", "readable .npy")

    def test_a_place_that_cannot_be_written(self, program: Path, tmp_path: Path) -> None:
        done = pjrt("run", program, "-i", "zeros", "-o", tmp_path / "no" / "out.npz")
        assert_refused(done, "no folder")

    def test_an_error_in_the_program(self, tmp_path: Path) -> None:
        path = tmp_path / "p.mlir"
        path.write_text("func.func @main(%x: tensor<f32>) -> tensor<f32> {\n return %y : tensor<f32>\n}")
        assert_refused(pjrt("run", path, "-i", "zeros"), f"error: {path}: ", "line 2", "not defined", "return %y")
        assert_refused(pjrt("inspect", path), f"error: {path}: ", "line 2")
        assert_refused(pjrt("inspect", path, "--text"), f"error: {path}: ", "line 2")
        assert_refused(pjrt("compile", path, "-t", "reference"), f"error: {path}: ", "line 2")

    @pytest.mark.parametrize(
        ("arguments", "word"),
        [
            (["run"], "PROGRAM"),
            (["run", "p.mlir", "--repeat", "0"], "--repeat"),
            (["run", "p.mlir", "-O", "num_devices"], "KEY=VALUE"),
            (["compile", "p.mlir"], "--topology"),
            (["runn"], "runn"),
            (["--verbose"], "--verbose"),
        ],
    )
    def test_a_command_that_is_not_one(self, arguments: list[str], word: str) -> None:
        assert_refused(pjrt(*arguments), word, "--help'")

    @pytest.mark.parametrize("name", ["name", "self", "plugin"])
    def test_an_option_with_the_name_of_a_parameter(self, program: Path, name: str) -> None:
        assert_refused(pjrt("run", program, "-i", "zeros", "-O", f"{name}=1"), "no option", name)
        assert_refused(pjrt("compile", program, "-t", "cpu", "-O", f"{name}=1"), "no option", name)

    @pytest.mark.parametrize("filler", ["zeros", "random:0"])
    @pytest.mark.parametrize("size", [10**12, 2**61])
    def test_an_array_that_no_machine_holds(self, tmp_path: Path, filler: str, size: int) -> None:
        path = tmp_path / "p.mlir"
        path.write_text(
            f"func.func @main(%x: tensor<{size}xf32>) -> tensor<{size}xf32> {{ return %x : tensor<{size}xf32> }}"
        )
        assert_refused(pjrt("run", path, "-i", filler), "RESOURCE_EXHAUSTED", f"f32[{size}]")

    @pytest.mark.parametrize("seed", ["nan", "-1", "1.5", "", "²"])
    def test_a_seed_that_is_no_number(self, program: Path, seed: str) -> None:
        assert_refused(pjrt("run", program, "-i", f"random:{seed}"), "random:SEED")

    def test_a_folder_where_a_file_belongs(self, program: Path, tmp_path: Path) -> None:
        folder = tmp_path / "folder.npy"
        folder.mkdir()
        assert_refused(pjrt("run", folder), "expected a program", "found a folder")
        assert_refused(pjrt("run", program, "-i", folder), "expected a file", "folder.npy")
        out = tmp_path / "folder.npz"
        out.mkdir()
        assert_refused(pjrt("run", program, "-i", "zeros", "-o", out), "found a folder")

    @pytest.mark.parametrize(
        ("name", "content"),
        [
            ("empty.npy", b""),
            ("header.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': foo(}\n" + bytes(16)),
            ("empty.npz", b""),
            ("half.npz", b"PK\x03\x04garbage"),
            ("x.safetensors", b"\xff" * 20),
        ],
    )
    def test_files_that_only_look_like_arrays(self, program: Path, tmp_path: Path, name: str, content: bytes) -> None:
        (tmp_path / name).write_bytes(content)
        assert_refused(pjrt("run", program, "-i", tmp_path / name), name, "is not a readable")

    def test_a_name_that_the_program_does_not_have(self, program: Path, tmp_path: Path) -> None:
        x = np.zeros((2, 3), np.float32)
        np.savez(tmp_path / "both.npz", x=x, v=x)
        assert_refused(pjrt("run", program, "-i", tmp_path / "both.npz"), "(x, w)", "found v")
        assert_refused(pjrt("run", program, "-i", f"v={tmp_path / 'both.npz'}"), "no argument called 'v'")

    @pytest.mark.parametrize("content", ["", "\0", "module {"])
    def test_programs_that_are_none(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "p.mlir").write_text(content)
        assert_refused(pjrt("run", tmp_path / "p.mlir"))
        assert_refused(pjrt("inspect", tmp_path / "p.mlir"))
        assert_refused(pjrt("compile", tmp_path / "p.mlir", "-t", "cpu"))

    @pytest.mark.parametrize("topology", ["cpu:many", "cpu:-1", "cpu:0", ":", "nowhere:1"])
    def test_an_unknown_topology(self, program: Path, topology: str) -> None:
        assert_refused(pjrt("compile", program, "-t", topology), "device")

    def test_a_topology_that_is_too_small(self, program: Path) -> None:
        done = pjrt("compile", program, "-t", "cpu", "--num-partitions", "4")
        assert_refused(done, "1 replicas × 4 partitions need 4 devices", "has 1")

    def test_a_plugin_that_is_not_installed(self, program: Path) -> None:
        assert_refused(pjrt("devices", "rocm"), "rocm", "pip install")

    @pytest.mark.parametrize("flag", ["fast", "=1", "x=1,2"])
    def test_a_compiler_option_without_one_value(self, program: Path, flag: str) -> None:
        assert_refused(pjrt("compile", program, "-t", "cpu", "-C", flag), "expected KEY=VALUE with one value")

    @pytest.mark.full
    def test_a_path_is_said_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = str(tmp_path / "nothing.so")
        monkeypatch.setenv("PJRT_PLUGIN_LIBRARY_PATH", path)
        monkeypatch.setenv("PJRT_CONFIG", os.devnull)
        listed = pjrt("plugins", "--no-load").stdout.splitlines()
        assert [line for line in listed if "there is" in line] == [f"{path}: there is no such file or directory"]
        assert f"{path} is not available: there is no such file or directory" in pjrt("devices").stdout.splitlines()
        assert f"{path} cannot be used: there is no such file" in pjrt("plugins", path).stderr

    def test_an_export_of_nothing(self, tmp_path: Path) -> None:
        assert_refused(pjrt("export", "nowhere:make", "-o", tmp_path / "x.so"), "no module 'nowhere'")

    @pytest.mark.parametrize(
        ("code", "said"), [("def make(:", "SyntaxError"), ("raise OSError('no such bus')", "OSError: no such bus")]
    )
    def test_an_export_of_what_cannot_be_imported(self, code: str, said: str, tmp_path: Path) -> None:
        (tmp_path / "mine.py").write_text(code)
        assert_refused(pjrt("export", f"{tmp_path / 'mine.py'}:make", "-o", tmp_path / "x.so"), "mine.py", said)

    def test_a_size_that_is_open(self, tmp_path: Path) -> None:
        path = tmp_path / "p.mlir"
        path.write_text("func.func @main(%x: tensor<?x2xf32>) -> tensor<?x2xf32> { return %x : tensor<?x2xf32> }")
        assert_refused(pjrt("run", path, "-i", "zeros"), "f32[?,2]", "give a file")


def test_every_subcommand_has_examples() -> None:
    listed = pjrt("--help").stdout
    for name in ("compile", "devices", "export", "info", "inspect", "run"):
        assert name in listed
        assert "Examples:" in pjrt(name, "--help").stdout


def test_a_command_that_there_is_not() -> None:
    assert_refused(pjrt("rnu", "x.mlir"), "there is no command 'rnu'; perhaps 'run' is meant")
    assert_refused(pjrt("zzzzzz"), "there is no command 'zzzzzz'; see 'pjrt --help'")


def test_an_option_of_one_letter_that_there_is_not() -> None:
    assert_refused(pjrt("run", "x.mlir", "-I", "ones"), "No such option '-I'; there are -i/--input; see")
    assert_refused(pjrt("devices", "-z"), "No such option '-z'; there are -O/--option, -h/--help; see")


def test_an_address_is_no_file() -> None:
    assert_refused(pjrt("run", "https://example.org/model.mlir"), "it is an address: download the file first")


def test_what_is_to_be_known_of_a_plugin() -> None:
    """Its library's path, or its name, after `info` as after `plugins`; `info` makes a client, too."""
    shown = pjrt("info", "reference")
    assert shown.returncode == 0, shown.stderr
    assert "built-in" in shown.stdout
    facts = pjrt("plugins", "reference").stdout
    assert facts
    assert shown.stdout.startswith(facts.rstrip("\n"))
    assert "1 × reference" in shown.stdout.removeprefix(facts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "-i", "x=none.npy"], "--input x=none.npy: expected a file, found none at 'none.npy'"),
        (["run", "-i", "none.npz:w"], "--input none.npz:w: expected a file, found none at 'none.npz'"),
        (["run", "-i", "x=random:a"], "--input x=random:a: expected random:SEED with"),
        (["run", "-i", "zeros", "-o", "scores.txt"], "--output scores.txt: "),
        (["run", "-i", "zeros", "-d", "nonesuch"], "there is no device called 'nonesuch'"),
        (["bench", "-i", "none.bin"], "--input none.bin: expected a file, found none at 'none.bin'"),
        (["compare", "-d", "cpu", "-d", "nonesuch"], "there is no device called 'nonesuch'"),
        (["check", "-d", "nonesuch"], "there is no device called 'nonesuch'"),
        (["compile", "-t", "reference:x"], "is named by the number of its devices"),
    ],
)
def test_what_is_cheap_is_checked_before_the_program_is_read(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    """The conversion of a program of PyTorch takes seconds."""
    (tmp_path / "damaged.mlir").write_text("func.func @main(")
    command, *others = arguments
    assert message in pjrt(command, "damaged.mlir", *others, folder=tmp_path).stderr
