"""Programs for the checks of executions, by name: numbers of arguments and results, collectives, callbacks."""

from __future__ import annotations

MANY = 30
"""The number of arguments of ``many_arguments``, and of results of ``many_results``."""

HANDLER = "pjrt_conformance_handler"
"""The name of the FFI handler that ``calls_handler`` and ``fails`` call."""


def _many_arguments() -> str:
    parameters = ", ".join(f"%x{i}: tensor<$T>" for i in range(MANY))
    sums = [f"  %s{i} = stablehlo.add %{f's{i - 1}' if i > 1 else 'x0'}, %x{i} : tensor<$T>" for i in range(1, MANY)]
    lines = "\n".join([*sums, f"  return %s{MANY - 1} : tensor<$T>"])
    return f"func.func public @main({parameters}) -> tensor<$T> {{\n{lines}\n}}"


def _many_results() -> str:
    types = ", ".join(["tensor<$T>"] * MANY)
    sums = [f"  %r{i} = stablehlo.add %{f'r{i - 1}' if i > 1 else 'x'}, %x : tensor<$T>" for i in range(1, MANY)]
    values = ", ".join(["%x", *(f"%r{i}" for i in range(1, MANY))])
    lines = "\n".join([*sums, f"  return {values} : {types}"])
    return f"func.func public @main(%x: tensor<$T>) -> ({types}) {{\n{lines}\n}}"


def _collective(operation: str, attributes: str, result: str = "$T", region: str = "") -> str:
    return (
        f"func.func public @main(%x: tensor<$T>) -> tensor<{result}> {{\n"
        f'  %0 = "stablehlo.{operation}"(%x) <{{{attributes}}}>{region}'
        f" : (tensor<$T>) -> tensor<{result}>\n  return %0 : tensor<{result}>\n}}"
    )


def _collectives(count: int) -> dict[str, str]:
    """Return programs in which as many devices exchange values; those for two devices have no number in their names."""
    suffix = "" if count == 2 else f"_{count}"
    devices = list(range(count))
    groups = f"replica_groups = dense<[{devices}]> : tensor<1x{count}xi64>"
    pairs = [[device, (device + 1) % count] for device in devices]
    add = (
        " ({\n  ^bb0(%a: tensor<f32>, %b: tensor<f32>):\n    %s = stablehlo.add %a, %b : tensor<f32>\n"
        "    stablehlo.return %s : tensor<f32>\n  })"
    )
    split = f"split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = {count} : i64"
    return {
        f"all_reduce{suffix}": _collective("all_reduce", groups, region=add),
        f"all_gather{suffix}": _collective("all_gather", f"all_gather_dim = 0 : i64, {groups}", f"{4 * count}xf32"),
        f"all_to_all{suffix}": _collective("all_to_all", f"{split}, {groups}"),
        f"collective_permute{suffix}": _collective(
            "collective_permute", f"source_target_pairs = dense<{pairs}> : tensor<{count}x2xi64>"
        ),
    }


def _custom_call(attributes: str) -> str:
    return (
        "func.func public @main(%x: tensor<$T>) -> tensor<$T> {\n"
        f"  %0 = stablehlo.custom_call @{HANDLER}(%x) {{api_version = 4 : i32, backend_config = {attributes}, "
        "has_side_effect = true} : (tensor<$T>) -> tensor<$T>\n  return %0 : tensor<$T>\n}"
    )


EXECUTION_SAMPLES = {
    "subtract": """func.func public @main(%x: tensor<$T>, %y: tensor<$T>) -> tensor<$T> {
  %0 = stablehlo.subtract %x, %y : tensor<$T>
  return %0 : tensor<$T>
}""",
    "no_arguments": """func.func public @main() -> tensor<$T> {
  %0 = stablehlo.constant dense<3.0> : tensor<$T>
  return %0 : tensor<$T>
}""",
    "no_results": "func.func public @main(%x: tensor<$T>) {\n  return\n}",
    "many_arguments": _many_arguments(),
    "many_results": _many_results(),
    "mixed_results": """func.func public @main(%x: tensor<$T>) -> (tensor<$T>, tensor<2x3xi32>, tensor<f32>) {
  %0 = stablehlo.constant dense<7> : tensor<2x3xi32>
  %1 = stablehlo.constant dense<1.5> : tensor<f32>
  return %x, %0, %1 : tensor<$T>, tensor<2x3xi32>, tensor<f32>
}""",
    "replica_id": """func.func public @main() -> tensor<ui32> {
  %0 = stablehlo.replica_id : tensor<ui32>
  return %0 : tensor<ui32>
}""",
    "calls_handler": _custom_call("{fails = false}"),
    "fails": _custom_call("{fails = true}"),
    "sends": """func.func public @main(%x: tensor<$T>) -> tensor<$T> {
  %t = stablehlo.create_token : !stablehlo.token
  %0 = "stablehlo.send"(%x, %t) <{
    channel_handle = #stablehlo.channel_handle<handle = 7, type = 2>, is_host_transfer = true
  }> : (tensor<$T>, !stablehlo.token) -> !stablehlo.token
  return %x : tensor<$T>
}""",
    "receives": """func.func public @main() -> tensor<$T> {
  %t = stablehlo.create_token : !stablehlo.token
  %0:2 = "stablehlo.recv"(%t) <{
    channel_handle = #stablehlo.channel_handle<handle = 3, type = 3>, is_host_transfer = true
  }> : (!stablehlo.token) -> (tensor<$T>, !stablehlo.token)
  return %0#0 : tensor<$T>
}""",
    **_collectives(2),
    **_collectives(4),
}
"""The text of each program; ``$T`` is the type of its arrays."""
