"""SavedModels that TensorFlow wrote (see ``data/generate_saved_models.py``)."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from protobuf_fields import bytes_field

from pjrt import DataLossError, InvalidArgumentError, NotFoundError, PjrtError, UnimplementedError, stablehlo
from pjrt.stablehlo import SavedModelArgument, SavedModelSource, read_saved_model

DATA = Path(__file__).parents[1] / "data"
FOLDER = DATA / "saved_model"
CODE = (FOLDER / "saved_model.pb").read_bytes()


def test_the_program_its_arguments_and_results() -> None:
    model = read_saved_model(FOLDER)
    assert (model.signature, model.signatures, model.path) == ("serving_default", ("serving_default",), FOLDER)
    assert (model.platforms, model.calling_convention_version) == (("cpu", "tpu"), 10)
    assert [argument.source for argument in model.arguments] == ["variable", "variable", "input"]
    assert model.arguments[2] == SavedModelArgument(SavedModelSource.INPUT, "x")
    assert sorted(model.weights) == [0, 1]
    np.testing.assert_array_equal(model.weights[0], np.arange(12).reshape(4, 3))
    np.testing.assert_array_equal(model.weights[1], [1, 2, 3])
    assert len({argument.name for argument in model.arguments}) == 3
    assert model.results == ("sum", "y")
    signature = stablehlo.signature(model.program)
    assert [argument.shape for argument in signature.arguments] == [(), (4, 3), (3,), (None, 4)]
    assert [result.shape for result in signature.results] == [(), (None, 3)]


def test_the_program_is_read_as_from_a_file() -> None:
    assert stablehlo.read_file(FOLDER) == stablehlo.read(FOLDER) == read_saved_model(FOLDER).program
    assert stablehlo.is_saved_model(FOLDER)
    with pytest.raises(InvalidArgumentError, match="expected the folder of a SavedModel, found a file in it"):
        stablehlo.read_file(FOLDER / "saved_model.pb")
    assert not stablehlo.is_saved_model(DATA)
    assert not stablehlo.is_saved_model("zero\0byte")


def test_operations_of_tensorflow_are_no_program() -> None:
    with pytest.raises(UnimplementedError, match=r"saved_model\.pb: .* one XlaCallModule, found them from AddV2: only"):
        read_saved_model(DATA / "saved_model_of_tensorflow")


def test_a_signature_or_folder_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="expected one of the signatures serving_default, found 'train'"):
        read_saved_model(FOLDER, "train")
    with pytest.raises(NotFoundError, match=r"saved_model\.pb"):
        read_saved_model(tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"neither of PyTorch/XLA .* nor a SavedModel"):
        stablehlo.read_file(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "kind", "message"),
    [
        (b"ML\xefR", b"ML\xefr", DataLossError, "XlaCallModule holds no program"),
        (
            b"\x12\x07version\x12\x02\x18\x0a"[1:],
            b"\x07version\x12\x02\x18\x0b",
            InvalidArgumentError,
            "to 10, found 11: upgrade",
        ),
        (b"\x07version\x12\x02\x18\x0a", b"\x07version\x12\x02\x18\x04", InvalidArgumentError, "to 10, found 4: save"),
        (b"__inference_signature_wrapper", b"__inference_signature_wrappeR", DataLossError, "which it does not have"),
        (b"\x12\x0dXlaCallModule", b"\x12\x0dXlaCallmodule", UnimplementedError, "found them from XlaCallmodule"),
    ],
)
def test_what_is_changed(tmp_path: Path, old: bytes, new: bytes, kind: type[PjrtError], message: str) -> None:
    assert old in CODE
    first = CODE.index(old)
    changed = CODE.replace(old, new) if b"inference" not in old else CODE[:first] + new + CODE[first + len(old) :]
    (tmp_path / "saved_model.pb").write_bytes(changed)
    with pytest.raises(kind, match=message):
        read_saved_model(tmp_path)


def test_operations_in_a_circle(tmp_path: Path) -> None:
    node = bytes_field(1, b"a") + bytes_field(2, b"Identity") + bytes_field(3, b"a:0")
    output = bytes_field(1, b"y") + bytes_field(2, bytes_field(1, b"a:0"))
    signature = bytes_field(1, b"serve") + bytes_field(2, bytes_field(2, output))
    graph = bytes_field(2, bytes_field(1, node)) + bytes_field(5, signature)
    (tmp_path / "saved_model.pb").write_bytes(bytes_field(2, graph))
    with pytest.raises(DataLossError, match="refer to each other in a circle"):
        read_saved_model(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(b"")
    with pytest.raises(DataLossError, match="it has no graph"):
        read_saved_model(tmp_path)


def test_damage_is_an_error(tmp_path: Path) -> None:
    generator = random.Random(0)
    file = tmp_path / "saved_model.pb"
    for _ in range(300):
        damaged = bytearray(CODE)
        if generator.random() < 0.3:
            del damaged[generator.randrange(len(damaged)) :]
        else:
            for _ in range(generator.choice((1, 5, 50))):
                damaged[generator.randrange(len(damaged))] = generator.randrange(256)
        file.write_bytes(damaged)
        try:
            read_saved_model(tmp_path)
        except PjrtError as error:
            assert type(error) in (DataLossError, InvalidArgumentError, NotFoundError, UnimplementedError)  # noqa: PT017
