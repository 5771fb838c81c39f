module @jit_loss attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<16x32xf32>, %arg1: tensor<32xf32>, %arg2: tensor<32x4xf32>, %arg3: tensor<4xf32>, %arg4: tensor<10x16xf32>, %arg5: tensor<10x4xf32>) -> (tensor<16x32xf32> {jax.result_info = "result[0][0]"}, tensor<32xf32> {jax.result_info = "result[0][1]"}, tensor<32x4xf32> {jax.result_info = "result[1][0]"}, tensor<4xf32> {jax.result_info = "result[1][1]"}) {
    %0 = stablehlo.dot_general %arg4, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<10x16xf32>, tensor<16x32xf32>) -> tensor<10x32xf32>
    %1 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<32xf32>) -> tensor<1x32xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<1x32xf32>) -> tensor<10x32xf32>
    %3 = stablehlo.add %0, %2 : tensor<10x32xf32>
    %4 = stablehlo.tanh %3 : tensor<10x32xf32>
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<10x32xf32>
    %6 = stablehlo.subtract %5, %4 : tensor<10x32xf32>
    %7 = stablehlo.dot_general %4, %arg2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<10x32xf32>, tensor<32x4xf32>) -> tensor<10x4xf32>
    %8 = stablehlo.broadcast_in_dim %arg3, dims = [1] : (tensor<4xf32>) -> tensor<1x4xf32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<10x4xf32>
    %10 = stablehlo.add %7, %9 : tensor<10x4xf32>
    %11 = stablehlo.tanh %10 : tensor<10x4xf32>
    %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %12 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<10x4xf32>
    %13 = stablehlo.subtract %12, %11 : tensor<10x4xf32>
    %14 = stablehlo.subtract %11, %arg5 : tensor<10x4xf32>
    %15 = stablehlo.multiply %14, %14 : tensor<10x4xf32>
    %cst_1 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %16 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<10x4xf32>
    %17 = stablehlo.multiply %16, %14 : tensor<10x4xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %18 = stablehlo.reduce(%15 init: %cst_2) applies stablehlo.add across dimensions = [0, 1] : (tensor<10x4xf32>, tensor<f32>) -> tensor<f32>
    %cst_3 = stablehlo.constant dense<4.000000e+01> : tensor<f32>
    %19 = stablehlo.divide %18, %cst_3 : tensor<f32>
    %cst_4 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_5 = stablehlo.constant dense<4.000000e+01> : tensor<f32>
    %20 = stablehlo.divide %cst_4, %cst_5 : tensor<f32>
    %21 = stablehlo.broadcast_in_dim %20, dims = [] : (tensor<f32>) -> tensor<10x4xf32>
    %22 = stablehlo.multiply %21, %17 : tensor<10x4xf32>
    %23 = stablehlo.multiply %22, %13 : tensor<10x4xf32>
    %24 = stablehlo.multiply %23, %11 : tensor<10x4xf32>
    %25 = stablehlo.add %23, %24 : tensor<10x4xf32>
    %cst_6 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %26 = stablehlo.reduce(%25 init: %cst_6) applies stablehlo.add across dimensions = [0] : (tensor<10x4xf32>, tensor<f32>) -> tensor<4xf32>
    %27 = stablehlo.reshape %26 : (tensor<4xf32>) -> tensor<1x4xf32>
    %cst_7 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %28 = stablehlo.reduce(%27 init: %cst_7) applies stablehlo.add across dimensions = [0] : (tensor<1x4xf32>, tensor<f32>) -> tensor<4xf32>
    %29 = stablehlo.dot_general %25, %4, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<10x4xf32>, tensor<10x32xf32>) -> tensor<4x32xf32>
    %30 = stablehlo.transpose %29, dims = [1, 0] : (tensor<4x32xf32>) -> tensor<32x4xf32>
    %31 = stablehlo.dot_general %25, %arg2, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<10x4xf32>, tensor<32x4xf32>) -> tensor<10x32xf32>
    %32 = stablehlo.multiply %31, %6 : tensor<10x32xf32>
    %33 = stablehlo.multiply %32, %4 : tensor<10x32xf32>
    %34 = stablehlo.add %32, %33 : tensor<10x32xf32>
    %cst_8 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %35 = stablehlo.reduce(%34 init: %cst_8) applies stablehlo.add across dimensions = [0] : (tensor<10x32xf32>, tensor<f32>) -> tensor<32xf32>
    %36 = stablehlo.reshape %35 : (tensor<32xf32>) -> tensor<1x32xf32>
    %cst_9 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %37 = stablehlo.reduce(%36 init: %cst_9) applies stablehlo.add across dimensions = [0] : (tensor<1x32xf32>, tensor<f32>) -> tensor<32xf32>
    %38 = stablehlo.dot_general %34, %arg4, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<10x32xf32>, tensor<10x16xf32>) -> tensor<32x16xf32>
    %39 = stablehlo.transpose %38, dims = [1, 0] : (tensor<32x16xf32>) -> tensor<16x32xf32>
    return %39, %37, %30, %28 : tensor<16x32xf32>, tensor<32xf32>, tensor<32x4xf32>, tensor<4xf32>
  }
}
