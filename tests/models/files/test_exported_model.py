"""Models of ``jax.export``: nested arguments, any batch, shardings, several platforms."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from click.testing import CliRunner

import pjrt
from pjrt import ifrt
from pjrt.cli import main

F32 = np.float32


def weights() -> dict[str, Any]:
    generator = np.random.default_rng(0)
    return {
        "embedding": generator.standard_normal((32, 8)).astype(F32),
        "w": generator.standard_normal((8, 16)).astype(F32),
    }


def empty_cache(batch: int) -> dict[str, Any]:
    return {"k": np.zeros((batch, 5, 16), F32), "count": 0}


def expected_logits(params: dict[str, Any], tokens: Any, steps: int, scale: float) -> Any:
    hidden = params["embedding"][tokens] @ params["w"]
    return 5 * np.tanh(hidden * scale * steps)


@pytest.mark.full
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_sharded_step_of_any_batch_with_a_donated_cache(exported: Path, device: str) -> None:
    params = weights()
    with pjrt.load_model(exported / "step.jax", device) as model:
        assert model.client.pjrt_client.platform_name == device
        assert len(model.client.devices) == 8
        for batch in (4, 8):
            tokens, cache = np.arange(batch, dtype=np.int32), empty_cache(batch)
            for steps in (1, 2, 3):
                before = cache["k"]
                logits, cache = model(params, tokens, cache, scale=0.25)
                np.testing.assert_allclose(logits, expected_logits(params, tokens, steps, 0.25), rtol=1e-4)
                assert np.asarray(cache["count"]) == steps
                assert not isinstance(before, ifrt.Array) or before.is_deleted
            assert cache["k"].sharding.shard_shape(cache["k"].shape) == (batch // 4, 5, 8)
        assert [each.dynamic["tokens"] for each in model.compilations] == [(4,), (8,)]


@pytest.mark.full
def test_names_of_arguments_and_results(exported: Path) -> None:
    file = pjrt.models.ModelFile.read(exported / "step.jax")
    assert file.kind == "jax.export file"
    assert [str(each) for each in file.parameters] == [
        "argument 0 (params['embedding']): f32[32,8]",
        "argument 1 (params['w']): f32[8,16]",
        "argument 2 (tokens): s32[b]",
        "argument 3 (cache['count']): s32[]",
        "argument 4 (cache['k']): f32[b,5,16]",
        "argument 5 (scale): f32[]",
    ]
    assert [each.name for each in file.results] == ["result[0]", "result[1]['count']", "result[1]['k']"]
    assert [each.donated for each in file.parameters] == [False, False, False, True, True, False]
    assert file.platforms == ("cpu", "tpu")
    assert file.partitioning.num_devices == 8
    with pjrt.load_model(file, "cpu") as model:
        tokens = np.arange(4, dtype=np.int32)
        logits, _ = model(tokens=tokens, scale=1, cache=empty_cache(4), params=weights())
        np.testing.assert_allclose(logits, expected_logits(weights(), tokens, 1, 1), rtol=1e-4)


def test_fields_have_the_names_that_the_program_states(exported: Path) -> None:
    with pjrt.load_model(exported / "fields.jax", "cpu") as model:
        assert [each.name for each in model.parameters] == ["layer.w", "layer.b", "x"]
        assert [each.name for each in model.results] == ["result['layer'].w", "result['layer'].b", "result['y']"]
        result = model((2, 3), x=np.ones(2, F32))
        np.testing.assert_array_equal(result["y"], [5, 5])
        result = model(result["layer"], x=[1, 2])
        np.testing.assert_array_equal(result["y"], [5, 7])


def test_nested_arguments_are_put_on_the_devices(exported: Path) -> None:
    params = weights()
    with pjrt.load_model(exported / "step.jax", "cpu") as model:
        with pytest.raises(pjrt.InvalidArgumentError, match=r"nothing was compiled yet: call model.compile"):
            model.put(params)
        model.compile({"b": 4})
        params = model.put(params)
        assert params["w"].sharding.shard_shape(params["w"].shape) == (8, 8)
        cache = model.put(empty_cache(8), "cache")
        tokens = np.arange(8, dtype=np.int32)
        logits, _ = model(params, tokens, cache, scale=1)
        np.testing.assert_allclose(logits, expected_logits(weights(), tokens, 1, 1), rtol=1e-4)
        assert cache["k"].is_deleted
        assert not params["w"].is_deleted
        with pytest.raises(pjrt.InvalidArgumentError, match=r"found another: .*params\['w'\]"):
            model.put({"embedding": params["embedding"]})
    with pjrt.load_model(exported / "nested.jax", "cpu") as model:
        pair, state = model.put((1.0, [2.0, 3.0])), model.put((4.0, 5.0), 1)
        options, unused = model.put({"factor": 2.0, "other": 0.0}, "options"), model.put(np.zeros(7, np.int8), 2)
        assert isinstance(pair[1][0], ifrt.Array)
        assert isinstance(unused, np.ndarray)
        assert float(np.asarray(model(pair, state, unused, None, options=options)["total"])) == 9
    with pjrt.load_model(exported / "fields.jax", "cpu") as model:
        layer = model.put((2, 3), "layer")
        np.testing.assert_array_equal(model(layer, x=[1, 2])["y"], [5, 7])


def test_inspect_shows_the_indices_names_and_sizes_of_a_call(exported: Path) -> None:
    shown = CliRunner().invoke(main, ["inspect", str(exported / "fields.jax"), "--json"])
    facts = json.loads(shown.output)
    parameters = pjrt.models.ModelFile.read(exported / "fields.jax").parameters
    assert [each["index"] for each in facts["arguments"]] == [None, 0, 1, 2]
    assert [each["name"] for each in facts["arguments"][1:]] == [each.name for each in parameters]
    assert [each["shape"] for each in facts["results"]] == [[], [], ["n"]]
    ran = ["run", str(exported / "fields.jax"), "-d", "cpu", "-i", "zeros", "--json"]
    last = facts["arguments"][-1]["index"]
    assert CliRunner().invoke(main, [*ran, "-i", f"{last}=[1,2]"]).exit_code == 0
    shown = CliRunner().invoke(main, ["inspect", str(exported / "nested.jax"), "--json"])
    arguments = json.loads(shown.output)["arguments"]
    parameters = pjrt.models.ModelFile.read(exported / "nested.jax").parameters
    assert [each["index"] for each in arguments] == list(range(len(parameters)))
    assert [each["needed"] for each in arguments] == [each.argument is not None for each in parameters]
    assert not all(each["needed"] for each in arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"cache": {"k": 1}},
            r"expected the structure \{'count': \*, 'k': \*\}, found another: missing cache\['count'\]",
        ),
        ({"cache": empty_cache(8)}, r"expected b = 4 in argument 4 \(cache\['k'\]\) .*, found 8"),
        ({"tokens": np.zeros(4, F32)}, r"expected argument 2 \(tokens\): s32\[b\], found f32\[4\]: convert it"),
        ({"tokens": np.zeros((4, 1), np.int32)}, r"expected argument 2 \(tokens\): s32\[b\], found s32\[4,1\]"),
        ({"other": 1}, "expected the arguments params, tokens, cache, scale, found 'other'"),
        (
            {"tokens": np.zeros(6, np.int32), "cache": empty_cache(6)},
            r"step.jax: .*symbolic shape constraint .*found -2",
        ),
    ],
)
def test_arguments_that_do_not_fit(exported: Path, change: dict[str, Any], message: str) -> None:
    arguments = {"params": weights(), "tokens": np.arange(4, dtype=np.int32), "cache": empty_cache(4), "scale": 1}
    with (
        pjrt.load_model(exported / "step.jax", "cpu") as model,
        pytest.raises(pjrt.InvalidArgumentError, match=message),
    ):
        model(**{**arguments, **change})


def test_arguments_that_are_missing_or_too_many(exported: Path) -> None:
    with pjrt.load_model(exported / "step.jax", "cpu") as model:
        with pytest.raises(pjrt.InvalidArgumentError, match="found none for cache, scale"):
            model(weights(), [1, 2, 3, 4])
        with pytest.raises(
            pjrt.InvalidArgumentError, match=r"at most 3 positional .*\(params, tokens, cache\), found 4"
        ):
            model(weights(), [1, 2, 3, 4], empty_cache(4), 1)
        with pytest.raises(pjrt.InvalidArgumentError, match="expected one value for the argument params, found two"):
            model(weights(), [1, 2, 3, 4], empty_cache(4), params=weights())


class State(NamedTuple):
    mean: Any
    count: Any


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_nested_arguments_and_results(exported: Path, device: str) -> None:
    with pjrt.load_model(exported / "nested.jax", device, node_types={"State": State}) as model:
        assert [each.name for each in model.parameters if each.argument is None] == ["args[2]", "options['other']"]
        results = model((1, [2, 3]), State(10, 0), np.zeros(7, np.int8), None, options={"factor": 2, "other": 0})
        assert results.keys() == {"list", "none", "state", "total"}
        assert results["none"] is None
        assert float(np.asarray(results["total"])) == 9
        assert isinstance(results["state"], State)
        assert float(np.asarray(results["state"].mean)) == 19
        assert [float(np.asarray(each)) for each in results["list"]] == [1]


def test_a_node_of_an_unknown_type(exported: Path) -> None:
    with pjrt.load_model(exported / "nested.jax", "cpu") as model:
        results = model((1, [2, 3]), (10, 0), np.zeros(7, np.int8), None, options={"factor": 2, "other": 0})
        assert float(np.asarray(results["state"].mean)) == 19


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_a_program_for_several_platforms(exported: Path, device: str) -> None:
    """The reference device is none of the platforms: it gets the program for cpu."""
    with pjrt.load_model(exported / "platforms.jax", device) as model:
        np.testing.assert_allclose(model([[4, 2], [2, 2]]), [[2, 0], [1, 1]])
        assert "stablehlo.case" not in pjrt.stablehlo.to_text(model.file.program_for("tpu"))


def test_ordered_effects_are_refused(exported: Path) -> None:
    export = pjrt.stablehlo.read_jax_export(exported / "nested.jax")
    export = replace(export, ordered_effects=("OrderedDebugEffect",), calling_convention_version=10)
    with pytest.raises(
        pjrt.UnimplementedError, match=r"expected a function without ordered effects, .* OrderedDebugEffect"
    ):
        pjrt.load_model(export, "cpu")
