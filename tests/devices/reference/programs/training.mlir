module @jit_training attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<16x8xf32>, %arg1: tensor<8xf32>, %arg2: tensor<8x4xf32>, %arg3: tensor<4xf32>, %arg4: tensor<10x16xf32>, %arg5: tensor<10x4xf32>) -> (tensor<16x8xf32> {jax.result_info = "result[0][0][0]"}, tensor<8xf32> {jax.result_info = "result[0][0][1]"}, tensor<8x4xf32> {jax.result_info = "result[0][1][0]"}, tensor<4xf32> {jax.result_info = "result[0][1][1]"}, tensor<10xf32> {jax.result_info = "result[1]"}) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<10xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1:8 = stablehlo.while(%iterArg = %arg4, %iterArg_0 = %arg5, %iterArg_1 = %c, %iterArg_2 = %arg0, %iterArg_3 = %arg1, %iterArg_4 = %arg2, %iterArg_5 = %arg3, %iterArg_6 = %0) : tensor<10x16xf32>, tensor<10x4xf32>, tensor<i32>, tensor<16x8xf32>, tensor<8xf32>, tensor<8x4xf32>, tensor<4xf32>, tensor<10xf32>
    cond {
      %c_7 = stablehlo.constant dense<10> : tensor<i32>
      %2 = stablehlo.compare LT, %iterArg_1, %c_7, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %2:5 = func.call @closed_call(%iterArg, %iterArg_0, %iterArg_2, %iterArg_3, %iterArg_4, %iterArg_5) : (tensor<10x16xf32>, tensor<10x4xf32>, tensor<16x8xf32>, tensor<8xf32>, tensor<8x4xf32>, tensor<4xf32>) -> (tensor<16x8xf32>, tensor<8xf32>, tensor<8x4xf32>, tensor<4xf32>, tensor<f32>)
      %3 = func.call @dynamic_update_index_in_dim(%iterArg_6, %2#4, %iterArg_1) : (tensor<10xf32>, tensor<f32>, tensor<i32>) -> tensor<10xf32>
      %c_7 = stablehlo.constant dense<1> : tensor<i32>
      %4 = stablehlo.add %iterArg_1, %c_7 : tensor<i32>
      stablehlo.return %iterArg, %iterArg_0, %4, %2#0, %2#1, %2#2, %2#3, %3 : tensor<10x16xf32>, tensor<10x4xf32>, tensor<i32>, tensor<16x8xf32>, tensor<8xf32>, tensor<8x4xf32>, tensor<4xf32>, tensor<10xf32>
    }
    return %1#3, %1#4, %1#5, %1#6, %1#7 : tensor<16x8xf32>, tensor<8xf32>, tensor<8x4xf32>, tensor<4xf32>, tensor<10xf32>
  }
  func.func private @closed_call(%arg0: tensor<10x16xf32>, %arg1: tensor<10x4xf32>, %arg2: tensor<16x8xf32>, %arg3: tensor<8xf32>, %arg4: tensor<8x4xf32>, %arg5: tensor<4xf32>) -> (tensor<16x8xf32>, tensor<8xf32>, tensor<8x4xf32>, tensor<4xf32>, tensor<f32>) {
    %0 = stablehlo.dot_general %arg0, %arg2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<10x16xf32>, tensor<16x8xf32>) -> tensor<10x8xf32>
    %1 = stablehlo.broadcast_in_dim %arg3, dims = [1] : (tensor<8xf32>) -> tensor<1x8xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<1x8xf32>) -> tensor<10x8xf32>
    %3 = stablehlo.add %0, %2 : tensor<10x8xf32>
    %4 = stablehlo.tanh %3 : tensor<10x8xf32>
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<10x8xf32>
    %6 = stablehlo.subtract %5, %4 : tensor<10x8xf32>
    %7 = stablehlo.dot_general %4, %arg4, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<10x8xf32>, tensor<8x4xf32>) -> tensor<10x4xf32>
    %8 = stablehlo.broadcast_in_dim %arg5, dims = [1] : (tensor<4xf32>) -> tensor<1x4xf32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0, 1] : (tensor<1x4xf32>) -> tensor<10x4xf32>
    %10 = stablehlo.add %7, %9 : tensor<10x4xf32>
    %11 = stablehlo.tanh %10 : tensor<10x4xf32>
    %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %12 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<10x4xf32>
    %13 = stablehlo.subtract %12, %11 : tensor<10x4xf32>
    %14 = stablehlo.subtract %11, %arg1 : tensor<10x4xf32>
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
    %29 = stablehlo.dot_general %25, %4, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<10x4xf32>, tensor<10x8xf32>) -> tensor<4x8xf32>
    %30 = stablehlo.transpose %29, dims = [1, 0] : (tensor<4x8xf32>) -> tensor<8x4xf32>
    %31 = stablehlo.dot_general %25, %arg4, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<10x4xf32>, tensor<8x4xf32>) -> tensor<10x8xf32>
    %32 = stablehlo.multiply %31, %6 : tensor<10x8xf32>
    %33 = stablehlo.multiply %32, %4 : tensor<10x8xf32>
    %34 = stablehlo.add %32, %33 : tensor<10x8xf32>
    %cst_8 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %35 = stablehlo.reduce(%34 init: %cst_8) applies stablehlo.add across dimensions = [0] : (tensor<10x8xf32>, tensor<f32>) -> tensor<8xf32>
    %36 = stablehlo.reshape %35 : (tensor<8xf32>) -> tensor<1x8xf32>
    %cst_9 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %37 = stablehlo.reduce(%36 init: %cst_9) applies stablehlo.add across dimensions = [0] : (tensor<1x8xf32>, tensor<f32>) -> tensor<8xf32>
    %38 = stablehlo.dot_general %34, %arg0, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<10x8xf32>, tensor<10x16xf32>) -> tensor<8x16xf32>
    %39 = stablehlo.transpose %38, dims = [1, 0] : (tensor<8x16xf32>) -> tensor<16x8xf32>
    %cst_10 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %40 = stablehlo.broadcast_in_dim %cst_10, dims = [] : (tensor<f32>) -> tensor<16x8xf32>
    %41 = stablehlo.multiply %40, %39 : tensor<16x8xf32>
    %42 = stablehlo.subtract %arg2, %41 : tensor<16x8xf32>
    %cst_11 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %43 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %44 = stablehlo.multiply %43, %37 : tensor<8xf32>
    %45 = stablehlo.subtract %arg3, %44 : tensor<8xf32>
    %cst_12 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %46 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<8x4xf32>
    %47 = stablehlo.multiply %46, %30 : tensor<8x4xf32>
    %48 = stablehlo.subtract %arg4, %47 : tensor<8x4xf32>
    %cst_13 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %49 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %50 = stablehlo.multiply %49, %28 : tensor<4xf32>
    %51 = stablehlo.subtract %arg5, %50 : tensor<4xf32>
    return %42, %45, %48, %51, %19 : tensor<16x8xf32>, tensor<8xf32>, tensor<8x4xf32>, tensor<4xf32>, tensor<f32>
  }
  func.func private @dynamic_update_index_in_dim(%arg0: tensor<10xf32>, %arg1: tensor<f32>, %arg2: tensor<i32>) -> tensor<10xf32> {
    %0 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<f32>) -> tensor<1xf32>
    %1 = stablehlo.dynamic_update_slice %arg0, %0, %arg2 : (tensor<10xf32>, tensor<1xf32>, tensor<i32>) -> tensor<10xf32>
    return %1 : tensor<10xf32>
  }
}
