"""Memory options: one spelling for all plugins, translated into the options of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import pjrt
from pjrt import plugins
from pjrt.plugins import Declaration, MemoryOptions
from pjrt.plugins.discovery import wheels
from pjrt.plugins.loader import translate_memory

GPU = MemoryOptions(on_demand={"preallocate": False}, preallocated={"preallocate": True}, fraction="memory_fraction")
OTHER = MemoryOptions(on_demand={"allocator": "lazy", "grow": True}, preallocated=None, fraction="share")


def declared(memory: MemoryOptions | None, factory: Any = "nowhere:nothing") -> Declaration:
    return Declaration("mychip", "a test", factory=factory, memory=memory)


@pytest.mark.parametrize(
    ("memory", "given", "expected"),
    [
        (GPU, {"memory": "on-demand"}, {"preallocate": False}),
        (GPU, {"memory": "preallocated"}, {"preallocate": True}),
        (GPU, {"memory_fraction": 0.5}, {"memory_fraction": 0.5}),
        (GPU, {"memory_fraction": 1}, {"memory_fraction": 1.0}),
        (GPU, {"memory": "preallocated", "memory_fraction": 0.25, "node_id": 3},
         {"preallocate": True, "memory_fraction": 0.25, "node_id": 3}),
        (GPU, {"memory": "on-demand", "preallocate": False}, {"preallocate": False}),
        (OTHER, {"memory": "on-demand", "memory_fraction": 0.5}, {"allocator": "lazy", "grow": True, "share": 0.5}),
        (OTHER, {"preallocate": True}, {"preallocate": True}),
        (None, {"allocator": "bfc"}, {"allocator": "bfc"}),
    ],
)  # fmt: skip
def test_in_the_plugins_own_words(
    memory: MemoryOptions | None, given: Mapping[str, Any], expected: Mapping[str, Any]
) -> None:
    assert translate_memory(declared(memory), given) == expected


@pytest.mark.parametrize(
    ("memory", "given", "error", "said"),
    [
        (GPU, {"memory": "all"}, pjrt.InvalidArgumentError, "must be 'on-demand' or 'preallocated', found 'all'"),
        (GPU, {"memory_fraction": 0}, pjrt.InvalidArgumentError, "more than 0 and up to 1.*found 0"),
        (GPU, {"memory_fraction": 1.5}, pjrt.InvalidArgumentError, "found 1.5"),
        (GPU, {"memory_fraction": True}, pjrt.InvalidArgumentError, "found True"),
        (GPU, {"memory_fraction": "half"}, pjrt.InvalidArgumentError, "found 'half'"),
        (GPU, {"memory": "preallocated", "preallocate": False}, pjrt.InvalidArgumentError,
         "memory='preallocated' means preallocate=True to 'mychip', but preallocate=False is set as well"),
        (OTHER, {"memory": "preallocated"}, pjrt.UnimplementedError,
         "'mychip' has no memory preallocated: it has memory='on-demand', memory_fraction"),
        (MemoryOptions({}, {}), {"memory_fraction": 0.5}, pjrt.UnimplementedError,
         "no memory_fraction: it has memory='on-demand', memory='preallocated'"),
        (None, {"memory": "on-demand"}, pjrt.UnimplementedError, "'mychip' has no option 'memory', and no"),
    ],
)  # fmt: skip
def test_what_a_plugin_cannot_be_told(
    memory: MemoryOptions | None, given: Mapping[str, Any], error: type[pjrt.PjrtError], said: str
) -> None:
    with pytest.raises(error, match=said):
        translate_memory(declared(memory, lambda **options: None), given)


def test_a_factory_with_such_parameters_of_its_own_gets_them() -> None:
    def make_client(memory: str = "", **options: Any) -> None: ...

    assert translate_memory(declared(None, make_client), {"memory": "any"}) == {"memory": "any"}
    with pytest.raises(pjrt.UnimplementedError, match="'memory_fraction'"):
        translate_memory(declared(None, make_client), {"memory_fraction": 0.5})


def test_what_vendors_plugins_are_told() -> None:
    cuda = wheels.declare_library(Path("/somewhere/xla_cuda_plugin.so"))
    assert translate_memory(cuda, {"memory": "on-demand", "memory_fraction": 0.5}) == {
        "preallocate": False,
        "memory_fraction": 0.5,
    }
    with pytest.raises(pjrt.UnimplementedError, match="has no option 'memory'"):
        translate_memory(wheels.declare_library(Path("/somewhere/libtpu.so")), {"memory": "preallocated"})


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_devices_in_the_box_take_memory_as_they_need_it(name: str) -> None:
    pjrt.client(name, memory="on-demand").close()
    with pytest.raises(
        pjrt.UnimplementedError, match=f"'{name}' has no memory preallocated: it has memory='on-demand'"
    ):
        pjrt.client(name, memory="preallocated")


@pytest.fixture
def told() -> Iterator[list[Mapping[str, Any]]]:
    """The options that a registered plugin's factory is told, client by client."""
    seen: list[Mapping[str, Any]] = []

    def make_client(**options: Any) -> pjrt.Client:
        seen.append(options)
        return pjrt.client("reference")

    plugins.register(name="memory-chip", factory=make_client, memory=GPU, options={"preallocate": True, "node_id": 7})
    yield seen
    plugins.unregister("memory-chip")


def test_who_says_it_nearest_to_the_call_counts(told: list[Mapping[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin's defaults, then the environment, then the caller; in whichever words each of them says it."""
    pjrt.client("memory-chip").close()
    pjrt.client("memory-chip", memory="on-demand").close()
    monkeypatch.setenv("PJRT_OPTIONS_MEMORY_CHIP", "memory=on-demand;memory_fraction=0.5")
    pjrt.client("memory-chip").close()
    pjrt.client("memory-chip", memory_fraction=0.75, preallocate=True).close()
    assert told == [
        {"preallocate": True, "node_id": 7},
        {"preallocate": False, "node_id": 7},
        {"preallocate": False, "node_id": 7, "memory_fraction": 0.5},
        {"preallocate": True, "node_id": 7, "memory_fraction": 0.75},
    ]
