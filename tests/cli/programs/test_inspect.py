from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pjrt.cli import main
from pjrt.stablehlo import read_file, serialize, to_hlo

TEXT = """
module @model attributes {mhlo.num_replicas = 2 : i32} {
  func.func @main(%x: tensor<2x?xf32> {tf.aliasing_output = 0 : i32} loc("images"), %y: tensor<3xbf16>)
      -> (tensor<2x?xf32> {jax.result_info = "scores"}) {
    %0 = stablehlo.add %x, %x : tensor<2x?xf32> loc("jit(f)/add"("model.py":7:3))
    %1 = stablehlo.custom_call @work(%0) {has_side_effect = true} : (tensor<2x?xf32>) -> tensor<2x?xf32>
    return %1 : tensor<2x?xf32>
  }
}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A program in a file."""
    path = tmp_path / "model.mlir"
    path.write_text(TEXT)
    return path


def inspect(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["inspect", *map(str, arguments)])


def test_tables_show_types_operations_versions_and_size(path: Path) -> None:
    result = inspect(path)
    assert result.exit_code == 0
    for shown in (
        "MLIR text",
        "StableHLO 0.9.0",
        f"{len(TEXT)} B",
        "2 replicas",
        "images",
        "tensor<2x?xf32>",
        "donated to result 0",
        "tensor<3xbf16>",
        "scores",
        "stablehlo.add",
        "jit(f)/add at model.py:7:3",
        "custom_call @work",
        "work (1)",
    ):
        assert shown in result.output, shown


def test_json_holds_the_same_for_every_encoding(path: Path, tmp_path: Path) -> None:
    of_text = json.loads(inspect(path, "--json").output)
    assert of_text["operations"][0] == {
        "name": "stablehlo.add",
        "count": 1,
        "locations": ["jit(f)/add at model.py:7:3"],
    }
    artifact = tmp_path / "model.stablehlo"
    artifact.write_bytes(serialize(read_file(path), "1.2.0").code)
    of_artifact = json.loads(inspect(artifact, "--json").output)
    assert (of_artifact["encoding"], of_artifact["version"]) == ("StableHLO portable artifact", "1.2.0")
    for same in (
        "name",
        "arguments",
        "results",
        "custom_calls",
        "side_effects",
        "has_dynamic_shapes",
        "needed_version",
    ):
        assert of_artifact[same] == of_text[same]


def test_hlo_protos_are_read_too(tmp_path: Path) -> None:
    text = tmp_path / "a.mlir"
    text.write_text("func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> }")
    proto = tmp_path / "a.pb"
    proto.write_bytes(to_hlo(read_file(text)).code)
    found = json.loads(inspect(proto, "--json").output)
    assert (found["format"], found["arguments"][0]["type"]) == ("hlo", "tensor<2xf32>")


def test_text_prints_the_program(path: Path) -> None:
    result = inspect(path, "--text")
    assert result.exit_code == 0
    assert "stablehlo.add" in result.output
    assert "model.py" not in result.output
    assert '"model.py":7:3' in inspect(path, "--text", "--locations").output


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "found no file"),
        (b"", "found nothing"),
        (b"hello", "found 5 bytes"),
        (b"ML\xefR\x0dStableHLO", "truncated MLIR bytecode"),
        (b"module { foo.bar }", "cannot read the MLIR text: line 1, column 10"),
    ],
)
def test_wrong_files_are_one_line_and_exit_code_2(tmp_path: Path, content: bytes | None, expected: str) -> None:
    path = tmp_path / "wrong"
    if content is not None:
        path.write_bytes(content)
    result = inspect(path)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize("options", [["--json", "--text"], ["--locations"]])
def test_options_that_contradict_each_other_are_refused(path: Path, options: list[str]) -> None:
    result = inspect(path, *options)
    assert result.exit_code == 2
    assert "expected" in result.stderr


def test_a_page_is_written(path: Path, tmp_path: Path) -> None:
    result = inspect(path, "--html", tmp_path / "report.html")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[0].split() == ["written", "to", str(tmp_path / "report.html")]
    assert "jit(f)/add" in (tmp_path / "report.html").read_text()


def test_the_graph_for_graphviz(path: Path) -> None:
    result = inspect(path, "--dot")
    assert result.exit_code == 0, result.output
    assert result.output.startswith('digraph "model" {\n')
    assert "custom_call @work" in result.output
    assert "f32[2,?]" in result.output


def test_the_graph_of_a_dynamic_program_for_given_shapes(tmp_path: Path) -> None:
    path = tmp_path / "dynamic.mlir"
    path.write_text(
        """func.func @main(%x: tensor<2x?xf32> loc("images")) -> tensor<2x?xf32> {
          %0 = stablehlo.add %x, %x : tensor<2x?xf32>
          return %0 : tensor<2x?xf32>
        }"""
    )
    result = inspect(path, "--dot", "--shape", "images=2x3")
    assert result.exit_code == 0, result.output
    assert r'label="images\nf32[2,3]"' in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--html", "nowhere/report.html"], "there is no folder 'nowhere'"),
        (["--html", "."], "expected the name of a file, found a folder"),
        (["--html", "a.html", "--dot"], "found --dot and --html"),
        (["--json", "--text"], "found --json and --text"),
        (["--shape", "0=2x3"], "expected --html or --dot with --shape"),
    ],
)
def test_bad_forms(path: Path, options: list[str], message: str) -> None:
    result = inspect(path, *options)
    assert result.exit_code == 2
    assert message in result.output


def test_the_arguments_of_a_caller_come_before_those_of_the_file() -> None:
    folder = Path(__file__).parents[2] / "stablehlo" / "data" / "saved_model"
    lines = inspect(folder).output.splitlines()
    places = [next(n for n, line in enumerate(lines) if name in line.split()) for name in ("x", "p[0]", "p[1]")]
    assert places == sorted(places)
    listed = json.loads(inspect(folder, "--json").output)["arguments"]
    assert listed[-1]["name"] == "x"  # which has the order of the program
