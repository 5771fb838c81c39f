"""Groups of devices along the axes of a mesh in HLO, rewritten as lists of the devices.

XLA's converter to StableHLO keeps the axes and loses the order of the mesh's devices, so that others would exchange
values.
"""

from __future__ import annotations

from pjrt.api.errors import DataLossError
from pjrt.stablehlo import _xla_protos
from pjrt.stablehlo.shardings.mesh_sharding import Mesh, axes_of

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
