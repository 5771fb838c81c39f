"""Programs for the tests of several processes, as text that goes into the source of each process."""

QUIET = """
# gloo prints a line for each of its contexts, in pieces, which would tear the lines of the test apart.
sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
"""

ALL_REDUCE = (
    QUIET
    + '''
import numpy as np

def all_reduce(count, sizes="4", donated=False):
    """Return a program that sums its argument over a number of devices."""
    type_ = f"tensor<{sizes}xf32>"
    donor = "{tf.aliasing_output = 0 : i32}" if donated else ""
    groups = ",".join(map(str, range(count)))
    return f"""func.func @main(%x: {type_} {donor}) -> {type_} {{
      %0 = "stablehlo.all_reduce"(%x) ({{
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %c = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %c : tensor<f32>
      }}) {{replica_groups = dense<[[{groups}]]> : tensor<1x{count}xi64>,
           channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>}} : ({type_}) -> {type_}
      return %0 : {type_}
    }}"""

DOUBLE = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}"""

def put(client, devices=None):
    """Return a row of one argument for each device of this process: four times its id."""
    devices = client.addressable_devices if devices is None else devices
    return [[client.buffer_from_host(np.full(4, device.id, "f4"), device=device)] for device in devices]

def first(rows):
    """Return the first element of the first result on each device."""
    return [float(np.asarray(row[0])[0]) for row in rows]
'''
)
