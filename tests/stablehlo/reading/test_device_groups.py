"""Groups of devices along the axes of a mesh, in HLO and in StableHLO."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt import stablehlo
from pjrt.stablehlo import cost
from pjrt.stablehlo.encodings import jaxlib
from pjrt.stablehlo.ir.sharding import Axis, Mesh

X = np.arange(48, dtype=np.float32).reshape(8, 6)
SUM = """({{
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
  }})"""
HLO = """
HloModule sums, replica_count=8
add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}}
ENTRY main {{
  x = f32[6] parameter(0)
  ROOT y = f32[6] all-reduce(x), channel_id=1, replica_groups={groups}, use_global_device_ids=true, to_apply=add
}}
"""
MLIR = (
    """
module @sums attributes {{mhlo.num_replicas = 8 : i32}} {{
  {mesh}
  func.func @main(%x: tensor<6xf32>) -> tensor<6xf32> {{
    %0 = "stablehlo.all_reduce"(%x) <{{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = {groups}, use_global_device_ids}}> """
    + SUM
    + """ : (tensor<6xf32>) -> tensor<6xf32>
    return %0 : tensor<6xf32>
  }}
}}"""
)
needs_axes = pytest.mark.skipif(jaxlib.version() < (0, 10), reason="this jaxlib has no groups along axes")


def groups_of(grid: Any, axes: Any) -> list[list[int]]:
    """Return the devices of a grid in groups that differ along some of its dimensions, each group in their order."""
    grid = np.asarray(grid)
    others = [axis for axis in range(grid.ndim) if axis not in axes]
    count = int(np.prod([grid.shape[axis] for axis in axes], dtype=int))
    return grid.transpose([*others, *axes]).reshape(-1, count).tolist()  # type: ignore[no-any-return]


def group_size(program: Any) -> int | None:
    (collective,) = cost(program).collectives
    return collective.group_size


REVERSED = np.arange(8)[::-1]
# HLO's spelling, and the same by dimensions of a grid of devices.
AXES = [
    ("mesh['x'=4,'y'=2] {'x'}", np.arange(8).reshape(4, 2), (0,)),
    ("mesh['x'=4,'y'=2] {'y','x'}", np.arange(8).reshape(4, 2), (1, 0)),
    ("mesh['x'=4,'y'=2], device_ids=(7,6,5,4,3,2,1,0) {'y'}", REVERSED.reshape(4, 2), (1,)),
    ("mesh['x'=4,'y'=2], device_ids=([2,4]T(1,0)) {'x'}", np.arange(8).reshape(2, 4).T.reshape(4, 2), (0,)),
    ("mesh['x'=4,'y'=2] {'x':(1)2}", np.arange(8).reshape(2, 2, 2), (0,)),
    ("mesh['x'=4,'y'=2] {'x':(2)2,'y'}", np.arange(8).reshape(2, 2, 2), (1, 2)),
]


@needs_axes
@pytest.mark.parametrize(("spelled", "grid", "axes"), AXES)
def test_groups_in_hlo_keep_the_order_of_the_devices(spelled: str, grid: Any, axes: Any) -> None:
    """XLA's converter to StableHLO loses it."""
    program = stablehlo.read(HLO.format(groups=spelled))
    (listed,) = re.findall(r"replica_groups = dense<(\[\[.*?\]\])>", stablehlo.to_text(program))
    assert sorted(json.loads(listed)) == sorted(groups_of(grid, axes))
    assert group_size(program) == len(groups_of(grid, axes)[0])


@needs_axes
@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize(("spelled", "grid", "axes"), AXES)
def test_the_devices_of_a_group_add(device: str, spelled: str, grid: Any, axes: Any) -> None:
    with pjrt.client(device, num_devices=8) as client:
        executable = client.compile(stablehlo.read(HLO.format(groups=spelled)))
        rows = [[client.buffer_from_host(row, device=at)] for row, at in zip(X, client.devices, strict=True)]
        sums = [np.asarray(row[0]) for row in executable.execute(rows)]
    for group in groups_of(grid, axes):
        for member in group:
            np.testing.assert_array_equal(sums[member], X[group].sum(0))


_REF = "#stablehlo.axis_ref<name = "
MESH = 'sdy.mesh @mesh = <["x"=4, "y"=2]>'
INLINE = '#stablehlo.mesh<axes = [<name = "x", size = 4>, <name = "y", size = 2>]'


@needs_axes
@pytest.mark.parametrize(
    ("mesh", "groups", "grid", "axes"),
    [
        (MESH, f'mesh = @mesh, axes = [{_REF}"y">]', np.arange(8).reshape(4, 2), (1,)),
        (MESH, f'mesh = @mesh, axes = [{_REF}"x", sub_axis_info = (2)2>]', np.arange(8).reshape(2, 2, 2), (1,)),
        (MESH[:-1] + ", device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>", f'mesh = @mesh, axes = [{_REF}"x">]',
         REVERSED.reshape(4, 2), (0,)),
        ("", f'mesh = {INLINE}>, axes = [{_REF}"x">]', np.arange(8).reshape(4, 2), (0,)),
        ("", f'mesh = {INLINE}, device_ids = dense<[0, 2, 4, 6, 1, 3, 5, 7]> : tensor<8xi64>>, axes = [{_REF}"y">]',
         np.array([0, 2, 4, 6, 1, 3, 5, 7]).reshape(4, 2), (1,)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_groups_in_stablehlo(device: str, mesh: str, groups: str, grid: Any, axes: Any) -> None:
    """Also where XLA loses the order of the devices."""
    text = MLIR.format(mesh=mesh, groups=f"#stablehlo.replica_group_mesh_axes<{groups}>")
    assert group_size(text) == len(groups_of(grid, axes)[0])
    with pjrt.client(device, num_devices=8) as client:
        executable = client.compile(text)
        rows = [[client.buffer_from_host(row, device=at)] for row, at in zip(X, client.devices, strict=True)]
        sums = [np.asarray(row[0]) for row in executable.execute(rows)]
    for group in groups_of(grid, axes):
        for member in group:
            np.testing.assert_array_equal(sums[member], X[group].sum(0))


def test_parts_of_an_axis_that_overlap_are_refused() -> None:
    mesh = Mesh({"x": 8}, tuple(range(8)))
    assert mesh.groups_along([Axis("x", 2, 2)]) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    with pytest.raises(ValueError, match="the axis x twice"):
        mesh.groups_along([Axis("x", 1, 4), Axis("x", 2, 2)])
