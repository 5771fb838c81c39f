module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<64xf32>) -> (tensor<10xf32> {jax.result_info = "result[0]"}, tensor<64xi32> {jax.result_info = "result[1]"}) {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %cst_0 = stablehlo.constant dense<0x7F800000> : tensor<f32>
    %1 = stablehlo.reduce(%arg0 init: %cst_0) applies stablehlo.minimum across dimensions = [0] : (tensor<64xf32>, tensor<f32>) -> tensor<f32>
    %cst_1 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %2 = stablehlo.reduce(%arg0 init: %cst_1) applies stablehlo.maximum across dimensions = [0] : (tensor<64xf32>, tensor<f32>) -> tensor<f32>
    %3 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f32>) -> tensor<1xf32>
    %4 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<f32>) -> tensor<1xf32>
    %5 = stablehlo.concatenate %3, %4, dim = 0 : (tensor<1xf32>, tensor<1xf32>) -> tensor<2xf32>
    %6 = call @_ptp(%5) : (tensor<2xf32>) -> tensor<f32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %7 = stablehlo.compare EQ, %6, %cst_2, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %8 = stablehlo.slice %5 [0:1] : (tensor<2xf32>) -> tensor<1xf32>
    %9 = stablehlo.reshape %8 : (tensor<1xf32>) -> tensor<f32>
    %cst_3 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %10 = stablehlo.subtract %9, %cst_3 : tensor<f32>
    %11 = stablehlo.slice %5 [0:1] : (tensor<2xf32>) -> tensor<1xf32>
    %12 = stablehlo.reshape %11 : (tensor<1xf32>) -> tensor<f32>
    %13 = call @_where(%7, %10, %12) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %14 = call @_ptp(%5) : (tensor<2xf32>) -> tensor<f32>
    %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %15 = stablehlo.compare EQ, %14, %cst_4, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %16 = stablehlo.slice %5 [1:2] : (tensor<2xf32>) -> tensor<1xf32>
    %17 = stablehlo.reshape %16 : (tensor<1xf32>) -> tensor<f32>
    %cst_5 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %18 = stablehlo.add %17, %cst_5 : tensor<f32>
    %19 = stablehlo.slice %5 [1:2] : (tensor<2xf32>) -> tensor<1xf32>
    %20 = stablehlo.reshape %19 : (tensor<1xf32>) -> tensor<f32>
    %21 = call @_where(%15, %18, %20) : (tensor<i1>, tensor<f32>, tensor<f32>) -> tensor<f32>
    %22 = call @_linspace(%13, %21) : (tensor<f32>, tensor<f32>) -> tensor<11xf32>
    %23 = call @searchsorted(%22, %arg0) : (tensor<11xf32>, tensor<64xf32>) -> tensor<64xi32>
    %24 = stablehlo.slice %22 [10:11] : (tensor<11xf32>) -> tensor<1xf32>
    %25 = stablehlo.reshape %24 : (tensor<1xf32>) -> tensor<f32>
    %26 = stablehlo.broadcast_in_dim %25, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %27 = stablehlo.compare EQ, %arg0, %26, FLOAT : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xi1>
    %c = stablehlo.constant dense<10> : tensor<i32>
    %28 = call @_where_1(%27, %c, %23) : (tensor<64xi1>, tensor<i32>, tensor<64xi32>) -> tensor<64xi32>
    %cst_6 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %29 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<11xf32>
    %c_7 = stablehlo.constant dense<0> : tensor<i32>
    %30 = stablehlo.broadcast_in_dim %c_7, dims = [] : (tensor<i32>) -> tensor<64xi32>
    %31 = stablehlo.compare LT, %28, %30, SIGNED : (tensor<64xi32>, tensor<64xi32>) -> tensor<64xi1>
    %c_8 = stablehlo.constant dense<11> : tensor<i32>
    %32 = stablehlo.broadcast_in_dim %c_8, dims = [] : (tensor<i32>) -> tensor<64xi32>
    %33 = stablehlo.add %28, %32 : tensor<64xi32>
    %34 = stablehlo.select %31, %33, %28 : tensor<64xi1>, tensor<64xi32>
    %35 = stablehlo.broadcast_in_dim %34, dims = [0] : (tensor<64xi32>) -> tensor<64x1xi32>
    %36 = "stablehlo.scatter"(%29, %35, %0) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
      %40 = stablehlo.add %arg1, %arg2 : tensor<f32>
      stablehlo.return %40 : tensor<f32>
    }) : (tensor<11xf32>, tensor<64x1xi32>, tensor<64xf32>) -> tensor<11xf32>
    %37 = stablehlo.slice %36 [1:11] : (tensor<11xf32>) -> tensor<10xf32>
    %38 = call @sort(%arg0) : (tensor<64xf32>) -> tensor<64xf32>
    %39 = call @searchsorted_2(%38, %arg0) : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xi32>
    return %37, %39 : tensor<10xf32>, tensor<64xi32>
  }
  func.func private @_ptp(%arg0: tensor<2xf32>) -> tensor<f32> {
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.maximum across dimensions = [0] : (tensor<2xf32>, tensor<f32>) -> tensor<f32>
    %cst_0 = stablehlo.constant dense<0x7F800000> : tensor<f32>
    %1 = stablehlo.reduce(%arg0 init: %cst_0) applies stablehlo.minimum across dimensions = [0] : (tensor<2xf32>, tensor<f32>) -> tensor<f32>
    %2 = stablehlo.subtract %0, %1 : tensor<f32>
    return %2 : tensor<f32>
  }
  func.func private @_where(%arg0: tensor<i1>, %arg1: tensor<f32>, %arg2: tensor<f32>) -> tensor<f32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<i1>, tensor<f32>
    return %0 : tensor<f32>
  }
  func.func private @_linspace(%arg0: tensor<f32>, %arg1: tensor<f32>) -> tensor<11xf32> {
    %0 = stablehlo.subtract %arg1, %arg0 : tensor<f32>
    %cst = stablehlo.constant dense<1.000000e+01> : tensor<f32>
    %1 = stablehlo.divide %0, %cst : tensor<f32>
    %2 = stablehlo.iota dim = 0 : tensor<10xf32>
    %cst_0 = stablehlo.constant dense<1.000000e+01> : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<10xf32>
    %4 = stablehlo.divide %2, %3 : tensor<10xf32>
    %5 = stablehlo.reshape %arg0 : (tensor<f32>) -> tensor<1xf32>
    %cst_1 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %6 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<10xf32>
    %7 = stablehlo.subtract %6, %4 : tensor<10xf32>
    %8 = stablehlo.broadcast_in_dim %5, dims = [0] : (tensor<1xf32>) -> tensor<10xf32>
    %9 = stablehlo.multiply %8, %7 : tensor<10xf32>
    %10 = stablehlo.reshape %arg1 : (tensor<f32>) -> tensor<1xf32>
    %11 = stablehlo.broadcast_in_dim %10, dims = [0] : (tensor<1xf32>) -> tensor<10xf32>
    %12 = stablehlo.multiply %11, %4 : tensor<10xf32>
    %13 = stablehlo.add %9, %12 : tensor<10xf32>
    %14 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<f32>) -> tensor<1xf32>
    %15 = stablehlo.concatenate %13, %14, dim = 0 : (tensor<10xf32>, tensor<1xf32>) -> tensor<11xf32>
    return %15 : tensor<11xf32>
  }
  func.func private @searchsorted(%arg0: tensor<11xf32>, %arg1: tensor<64xf32>) -> tensor<64xi32> {
    %0 = call @_searchsorted_scan_impl(%arg0, %arg1) : (tensor<11xf32>, tensor<64xf32>) -> tensor<64xi32>
    return %0 : tensor<64xi32>
  }
  func.func private @_searchsorted_scan_impl(%arg0: tensor<11xf32>, %arg1: tensor<64xf32>) -> tensor<64xi32> {
    %0 = call @_searchsorted_scan_impl_0(%arg0, %arg1) : (tensor<11xf32>, tensor<64xf32>) -> tensor<64xi32>
    return %0 : tensor<64xi32>
  }
  func.func private @_searchsorted_scan_impl_0(%arg0: tensor<11xf32>, %arg1: tensor<64xf32>) -> tensor<64xi32> {
    %c = stablehlo.constant dense<0> : tensor<ui32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<ui32>) -> tensor<64xui32>
    %c_0 = stablehlo.constant dense<11> : tensor<ui32>
    %1 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<ui32>) -> tensor<64xui32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %2:5 = stablehlo.while(%iterArg = %arg0, %iterArg_2 = %arg1, %iterArg_3 = %c_1, %iterArg_4 = %0, %iterArg_5 = %1) : tensor<11xf32>, tensor<64xf32>, tensor<i32>, tensor<64xui32>, tensor<64xui32>
    cond {
      %c_6 = stablehlo.constant dense<4> : tensor<i32>
      %4 = stablehlo.compare LT, %iterArg_3, %c_6, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %4 : tensor<i1>
    } do {
      %4:2 = func.call @closed_call(%iterArg, %iterArg_2, %iterArg_4, %iterArg_5) : (tensor<11xf32>, tensor<64xf32>, tensor<64xui32>, tensor<64xui32>) -> (tensor<64xui32>, tensor<64xui32>)
      %c_6 = stablehlo.constant dense<1> : tensor<i32>
      %5 = stablehlo.add %iterArg_3, %c_6 : tensor<i32>
      stablehlo.return %iterArg, %iterArg_2, %5, %4#0, %4#1 : tensor<11xf32>, tensor<64xf32>, tensor<i32>, tensor<64xui32>, tensor<64xui32>
    }
    %3 = stablehlo.convert %2#4 : (tensor<64xui32>) -> tensor<64xi32>
    return %3 : tensor<64xi32>
  }
  func.func private @closed_call(%arg0: tensor<11xf32>, %arg1: tensor<64xf32>, %arg2: tensor<64xui32>, %arg3: tensor<64xui32>) -> (tensor<64xui32>, tensor<64xui32>) {
    %0 = stablehlo.subtract %arg3, %arg2 : tensor<64xui32>
    %c = stablehlo.constant dense<2> : tensor<i32>
    %1 = call @floor_divide(%0, %c) : (tensor<64xui32>, tensor<i32>) -> tensor<64xui32>
    %2 = stablehlo.add %arg2, %1 : tensor<64xui32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [0] : (tensor<64xui32>) -> tensor<64x1xui32>
    %4 = "stablehlo.gather"(%arg0, %3) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<11xf32>, tensor<64x1xui32>) -> tensor<64x1xf32>
    %5 = stablehlo.reshape %4 : (tensor<64x1xf32>) -> tensor<64xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %6 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %7 = stablehlo.compare EQ, %arg1, %6, FLOAT : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xi1>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %8 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %9 = stablehlo.select %7, %8, %arg1 : tensor<64xi1>, tensor<64xf32>
    %10 = stablehlo.compare NE, %arg1, %arg1, FLOAT : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xi1>
    %cst_1 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %11 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %12 = stablehlo.select %10, %11, %9 : tensor<64xi1>, tensor<64xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %13 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %14 = stablehlo.compare EQ, %5, %13, FLOAT : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xi1>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %15 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %16 = stablehlo.select %14, %15, %5 : tensor<64xi1>, tensor<64xf32>
    %17 = stablehlo.compare NE, %5, %5, FLOAT : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xi1>
    %cst_4 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %18 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %19 = stablehlo.select %17, %18, %16 : tensor<64xi1>, tensor<64xf32>
    %20 = stablehlo.compare LT, %12, %19, TOTALORDER : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xi1>
    %21 = stablehlo.select %20, %arg2, %2 : tensor<64xi1>, tensor<64xui32>
    %22 = stablehlo.select %20, %2, %arg3 : tensor<64xi1>, tensor<64xui32>
    return %21, %22 : tensor<64xui32>, tensor<64xui32>
  }
  func.func private @floor_divide(%arg0: tensor<64xui32>, %arg1: tensor<i32>) -> tensor<64xui32> {
    %0 = stablehlo.convert %arg1 : (tensor<i32>) -> tensor<ui32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<ui32>) -> tensor<64xui32>
    %2 = stablehlo.divide %arg0, %1 : tensor<64xui32>
    return %2 : tensor<64xui32>
  }
  func.func private @_where_1(%arg0: tensor<64xi1>, %arg1: tensor<i32>, %arg2: tensor<64xi32>) -> tensor<64xi32> {
    %0 = stablehlo.convert %arg1 : tensor<i32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<i32>) -> tensor<64xi32>
    %2 = stablehlo.select %arg0, %1, %arg2 : tensor<64xi1>, tensor<64xi32>
    return %2 : tensor<64xi32>
  }
  func.func private @sort(%arg0: tensor<64xf32>) -> tensor<64xf32> {
    %0 = "stablehlo.sort"(%arg0) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
      %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %1 = stablehlo.compare EQ, %arg1, %cst, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %2 = stablehlo.select %1, %cst_0, %arg1 : tensor<i1>, tensor<f32>
      %3 = stablehlo.compare NE, %arg1, %arg1, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_1 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %4 = stablehlo.select %3, %cst_1, %2 : tensor<i1>, tensor<f32>
      %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %5 = stablehlo.compare EQ, %arg2, %cst_2, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %6 = stablehlo.select %5, %cst_3, %arg2 : tensor<i1>, tensor<f32>
      %7 = stablehlo.compare NE, %arg2, %arg2, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %cst_4 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
      %8 = stablehlo.select %7, %cst_4, %6 : tensor<i1>, tensor<f32>
      %9 = stablehlo.compare LT, %4, %8, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %9 : tensor<i1>
    }) : (tensor<64xf32>) -> tensor<64xf32>
    return %0 : tensor<64xf32>
  }
  func.func private @searchsorted_2(%arg0: tensor<64xf32>, %arg1: tensor<64xf32>) -> tensor<64xi32> {
    %0 = call @_searchsorted_scan_impl_3(%arg0, %arg1) : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xi32>
    return %0 : tensor<64xi32>
  }
  func.func private @_searchsorted_scan_impl_3(%arg0: tensor<64xf32>, %arg1: tensor<64xf32>) -> tensor<64xi32> {
    %0 = call @_searchsorted_scan_impl_4(%arg0, %arg1) : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xi32>
    return %0 : tensor<64xi32>
  }
  func.func private @_searchsorted_scan_impl_4(%arg0: tensor<64xf32>, %arg1: tensor<64xf32>) -> tensor<64xi32> {
    %c = stablehlo.constant dense<0> : tensor<ui32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<ui32>) -> tensor<64xui32>
    %c_0 = stablehlo.constant dense<64> : tensor<ui32>
    %1 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<ui32>) -> tensor<64xui32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %2:5 = stablehlo.while(%iterArg = %arg0, %iterArg_2 = %arg1, %iterArg_3 = %c_1, %iterArg_4 = %0, %iterArg_5 = %1) : tensor<64xf32>, tensor<64xf32>, tensor<i32>, tensor<64xui32>, tensor<64xui32>
    cond {
      %c_6 = stablehlo.constant dense<7> : tensor<i32>
      %4 = stablehlo.compare LT, %iterArg_3, %c_6, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %4 : tensor<i1>
    } do {
      %4:2 = func.call @closed_call_5(%iterArg, %iterArg_2, %iterArg_4, %iterArg_5) : (tensor<64xf32>, tensor<64xf32>, tensor<64xui32>, tensor<64xui32>) -> (tensor<64xui32>, tensor<64xui32>)
      %c_6 = stablehlo.constant dense<1> : tensor<i32>
      %5 = stablehlo.add %iterArg_3, %c_6 : tensor<i32>
      stablehlo.return %iterArg, %iterArg_2, %5, %4#0, %4#1 : tensor<64xf32>, tensor<64xf32>, tensor<i32>, tensor<64xui32>, tensor<64xui32>
    }
    %3 = stablehlo.convert %2#4 : (tensor<64xui32>) -> tensor<64xi32>
    return %3 : tensor<64xi32>
  }
  func.func private @closed_call_5(%arg0: tensor<64xf32>, %arg1: tensor<64xf32>, %arg2: tensor<64xui32>, %arg3: tensor<64xui32>) -> (tensor<64xui32>, tensor<64xui32>) {
    %0 = stablehlo.subtract %arg3, %arg2 : tensor<64xui32>
    %c = stablehlo.constant dense<2> : tensor<i32>
    %1 = call @floor_divide(%0, %c) : (tensor<64xui32>, tensor<i32>) -> tensor<64xui32>
    %2 = stablehlo.add %arg2, %1 : tensor<64xui32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [0] : (tensor<64xui32>) -> tensor<64x1xui32>
    %4 = "stablehlo.gather"(%arg0, %3) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<64xf32>, tensor<64x1xui32>) -> tensor<64x1xf32>
    %5 = stablehlo.reshape %4 : (tensor<64x1xf32>) -> tensor<64xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %6 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %7 = stablehlo.compare EQ, %arg1, %6, FLOAT : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xi1>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %8 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %9 = stablehlo.select %7, %8, %arg1 : tensor<64xi1>, tensor<64xf32>
    %10 = stablehlo.compare NE, %arg1, %arg1, FLOAT : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xi1>
    %cst_1 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %11 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %12 = stablehlo.select %10, %11, %9 : tensor<64xi1>, tensor<64xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %13 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %14 = stablehlo.compare EQ, %5, %13, FLOAT : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xi1>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %15 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %16 = stablehlo.select %14, %15, %5 : tensor<64xi1>, tensor<64xf32>
    %17 = stablehlo.compare NE, %5, %5, FLOAT : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xi1>
    %cst_4 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %18 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %19 = stablehlo.select %17, %18, %16 : tensor<64xi1>, tensor<64xf32>
    %20 = stablehlo.compare LE, %12, %19, TOTALORDER : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xi1>
    %21 = stablehlo.select %20, %arg2, %2 : tensor<64xi1>, tensor<64xui32>
    %22 = stablehlo.select %20, %2, %arg3 : tensor<64xi1>, tensor<64xui32>
    return %21, %22 : tensor<64xui32>, tensor<64xui32>
  }
}
