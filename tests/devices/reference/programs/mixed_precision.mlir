module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<16x16xf32>) -> (tensor<16x16xf32> {jax.result_info = "result"}) {
    %0 = stablehlo.convert %arg0 : (tensor<16x16xf32>) -> tensor<16x16xbf16>
    %1 = stablehlo.transpose %arg0, dims = [1, 0] : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %2 = stablehlo.convert %1 : (tensor<16x16xf32>) -> tensor<16x16xbf16>
    %3 = stablehlo.dot_general %0, %2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<16x16xbf16>, tensor<16x16xbf16>) -> tensor<16x16xbf16>
    %4 = stablehlo.convert %3 : (tensor<16x16xbf16>) -> tensor<16x16xf32>
    return %4 : tensor<16x16xf32>
  }
}
