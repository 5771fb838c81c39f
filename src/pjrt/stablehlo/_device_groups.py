"""Groups of devices along the axes of a mesh, rewritten as lists of the devices.

XLA's converter from HLO to StableHLO keeps the axes and loses the order of the mesh's devices, and so does its
partitioner since jaxlib 0.12: other devices would exchange values.
"""

from __future__ import annotations

import numpy as np

from pjrt.api.errors import DataLossError, InvalidArgumentError
from pjrt.stablehlo import _xla_protos, jaxlib
from pjrt.stablehlo._mlir import MlirModule
from pjrt.stablehlo.mlir_walk import top_level, walk
from pjrt.stablehlo.shardings.mesh_sharding import Mesh, axes_of
from pjrt.stablehlo.shardings.sharding_parser import parse_mesh, parse_mesh_axes

_TAG = b"\xea\x05"
"""How the field ``mesh_axes_replica_group_list`` of an instruction begins."""


def with_listed_groups(module: bytes) -> bytes:
    """Return the ``HloModuleProto`` with a list of devices for each group; the same object if it has no others.

    Raises:
        DataLossError: the module is corrupt.
    """
    if _TAG not in module:
        return module
    proto, changed = _xla_protos.parse("HloModuleProto", module), False
    for computation in proto.computations:
        for instruction in computation.instructions:
            if not instruction.HasField("mesh_axes_replica_group_list"):
                continue
            stated, changed = instruction.mesh_axes_replica_group_list, True
            try:
                mesh = Mesh.of_proto(stated.mesh)
                groups = mesh.groups_along(axes_of(stated.axes, list(mesh.axes)))
            except ValueError as error:
                raise DataLossError(f"corrupt groups of devices in {instruction.name!r}: {error}") from error
            instruction.ClearField("mesh_axes_replica_group_list")
            instruction.collective_device_list.replica_groups.extend(
                _xla_protos.new("ReplicaGroup", replica_ids=group) for group in groups
            )
    return bytes(proto.SerializeToString()) if changed else module


_GROUPS = "replica_groups"


def list_groups(module: MlirModule) -> None:
    """List the devices of each group that is stated as axes of a mesh, in place.

    Raises:
        InvalidArgumentError: the program lacks the mesh, or the mesh an axis.
    """
    ir = jaxlib.load("mlir.ir", "list the devices of groups")
    with module as mlir:
        named = {each.attributes["sym_name"].value: each for each in top_level(mlir) if each.name == "sdy.mesh"}

        def mesh(name: str) -> Mesh:
            if name not in named:
                raise InvalidArgumentError(f"expected the mesh {name} in the program, found {', '.join(named)}")
            return parse_mesh(str(named[name].attributes["mesh"]))

        for operation in walk(mlir.operation):
            attributes = operation.attributes
            groups = parse_mesh_axes(str(attributes[_GROUPS]), mesh) if _GROUPS in attributes else None
            if groups is not None:
                attributes[_GROUPS] = ir.DenseIntElementsAttr.get(np.array(groups, np.int64))
