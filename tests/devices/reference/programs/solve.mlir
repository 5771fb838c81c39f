module @jit__lambda attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<8x8xf32>, %arg1: tensor<8x3xf32>) -> (tensor<8x3xf32> {jax.result_info = "result"}) {
    %0 = stablehlo.transpose %arg0, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %1 = stablehlo.dot_general %arg0, %0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %2 = stablehlo.iota dim = 0 : tensor<8x8xi32>
    %3 = stablehlo.iota dim = 1 : tensor<8x8xi32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %4 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<8x8xi32>
    %5 = stablehlo.add %2, %4 : tensor<8x8xi32>
    %6 = stablehlo.compare EQ, %5, %3, SIGNED : (tensor<8x8xi32>, tensor<8x8xi32>) -> tensor<8x8xi1>
    %7 = stablehlo.convert %6 : (tensor<8x8xi1>) -> tensor<8x8xf32>
    %cst = stablehlo.constant dense<4.000000e+00> : tensor<f32>
    %8 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %9 = stablehlo.multiply %8, %7 : tensor<8x8xf32>
    %10 = stablehlo.add %1, %9 : tensor<8x8xf32>
    %11 = call @solve(%10, %arg1) : (tensor<8x8xf32>, tensor<8x3xf32>) -> tensor<8x3xf32>
    return %11 : tensor<8x3xf32>
  }
  func.func private @solve(%arg0: tensor<8x8xf32>, %arg1: tensor<8x3xf32>) -> tensor<8x3xf32> {
    %c = stablehlo.constant dense<> : tensor<0xi32>
    %c_0 = stablehlo.constant dense<> : tensor<0xi32>
    %c_1 = stablehlo.constant dense<> : tensor<0xi32>
    %c_2 = stablehlo.constant dense<> : tensor<0xi32>
    %c_3 = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.broadcast_in_dim %c_3, dims = [] : (tensor<i32>) -> tensor<8xi32>
    %1 = stablehlo.iota dim = 0 : tensor<8xi32>
    %c_4 = stablehlo.constant dense<0> : tensor<i32>
    %2 = stablehlo.broadcast_in_dim %c_4, dims = [] : (tensor<i32>) -> tensor<8xi32>
    %3 = stablehlo.iota dim = 0 : tensor<8xi32>
    %c_5 = stablehlo.constant dense<0> : tensor<i32>
    %c_6 = stablehlo.constant dense<0> : tensor<i32>
    %4:5 = stablehlo.while(%iterArg = %c_6, %iterArg_14 = %c_5, %iterArg_15 = %2, %iterArg_16 = %3, %iterArg_17 = %arg0) : tensor<i32>, tensor<i32>, tensor<8xi32>, tensor<8xi32>, tensor<8x8xf32>
    cond {
      %c_18 = stablehlo.constant dense<8> : tensor<i32>
      %32 = stablehlo.compare LT, %iterArg, %c_18, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %32 : tensor<i1>
    } do {
      %32:4 = func.call @closed_call(%iterArg_14, %iterArg_15, %iterArg_16, %iterArg_17) : (tensor<i32>, tensor<8xi32>, tensor<8xi32>, tensor<8x8xf32>) -> (tensor<i32>, tensor<8xi32>, tensor<8xi32>, tensor<8x8xf32>)
      %c_18 = stablehlo.constant dense<1> : tensor<i32>
      %33 = stablehlo.add %iterArg, %c_18 : tensor<i32>
      stablehlo.return %33, %32#0, %32#1, %32#2, %32#3 : tensor<i32>, tensor<i32>, tensor<8xi32>, tensor<8xi32>, tensor<8x8xf32>
    }
    %c_7 = stablehlo.constant dense<0> : tensor<i32>
    %5 = stablehlo.broadcast_in_dim %c_7, dims = [] : (tensor<i32>) -> tensor<8xi32>
    %6 = stablehlo.add %4#2, %5 : tensor<8xi32>
    %7 = "stablehlo.scatter"(%0, %c, %6) <{indices_are_sorted = true, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0]>, unique_indices = true}> ({
    ^bb0(%arg2: tensor<i32>, %arg3: tensor<i32>):
      stablehlo.return %arg3 : tensor<i32>
    }) : (tensor<8xi32>, tensor<0xi32>, tensor<8xi32>) -> tensor<8xi32>
    %c_8 = stablehlo.constant dense<0> : tensor<i32>
    %8 = stablehlo.broadcast_in_dim %c_8, dims = [] : (tensor<i32>) -> tensor<8xi32>
    %9 = stablehlo.add %4#3, %8 : tensor<8xi32>
    %c_9 = stablehlo.constant dense<0> : tensor<i32>
    %10 = stablehlo.broadcast_in_dim %c_9, dims = [] : (tensor<i32>) -> tensor<8xi32>
    %11 = stablehlo.compare LT, %9, %10, SIGNED : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi1>
    %c_10 = stablehlo.constant dense<8> : tensor<i32>
    %12 = stablehlo.broadcast_in_dim %c_10, dims = [] : (tensor<i32>) -> tensor<8xi32>
    %13 = stablehlo.add %9, %12 : tensor<8xi32>
    %14 = stablehlo.select %11, %13, %9 : tensor<8xi1>, tensor<8xi32>
    %15 = stablehlo.broadcast_in_dim %14, dims = [0] : (tensor<8xi32>) -> tensor<8x1xi32>
    %16 = "stablehlo.gather"(%1, %15) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<8xi32>, tensor<8x1xi32>) -> tensor<8xi32>
    %17 = "stablehlo.scatter"(%1, %c_0, %16) <{indices_are_sorted = true, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0]>, unique_indices = true}> ({
    ^bb0(%arg2: tensor<i32>, %arg3: tensor<i32>):
      stablehlo.return %arg3 : tensor<i32>
    }) : (tensor<8xi32>, tensor<0xi32>, tensor<8xi32>) -> tensor<8xi32>
    %c_11 = stablehlo.constant dense<0> : tensor<i32>
    %18 = stablehlo.broadcast_in_dim %c_11, dims = [] : (tensor<i32>) -> tensor<8xi32>
    %19 = stablehlo.add %4#3, %18 : tensor<8xi32>
    %c_12 = stablehlo.constant dense<0> : tensor<i32>
    %20 = stablehlo.broadcast_in_dim %c_12, dims = [] : (tensor<i32>) -> tensor<8xi32>
    %21 = stablehlo.compare LT, %19, %20, SIGNED : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi1>
    %c_13 = stablehlo.constant dense<8> : tensor<i32>
    %22 = stablehlo.broadcast_in_dim %c_13, dims = [] : (tensor<i32>) -> tensor<8xi32>
    %23 = stablehlo.add %19, %22 : tensor<8xi32>
    %24 = stablehlo.select %21, %23, %19 : tensor<8xi1>, tensor<8xi32>
    %25 = stablehlo.broadcast_in_dim %24, dims = [0] : (tensor<8xi32>) -> tensor<8x1xi32>
    %26 = "stablehlo.gather"(%arg0, %25) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 8>}> : (tensor<8x8xf32>, tensor<8x1xi32>) -> tensor<8x8xf32>
    %27 = "stablehlo.scatter"(%arg0, %c_1, %26) <{indices_are_sorted = true, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0, 1]>, unique_indices = true}> ({
    ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
      stablehlo.return %arg3 : tensor<f32>
    }) : (tensor<8x8xf32>, tensor<0xi32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %28 = "stablehlo.scatter"(%27, %c_2, %4#4) <{indices_are_sorted = true, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0, 1]>, unique_indices = true}> ({
    ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
      stablehlo.return %arg3 : tensor<f32>
    }) : (tensor<8x8xf32>, tensor<0xi32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %29 = stablehlo.transpose %arg1, dims = [1, 0] : (tensor<8x3xf32>) -> tensor<3x8xf32>
    %30 = call @_lu_solve(%28, %17, %29) : (tensor<8x8xf32>, tensor<8xi32>, tensor<3x8xf32>) -> tensor<3x8xf32>
    %31 = stablehlo.transpose %30, dims = [1, 0] : (tensor<3x8xf32>) -> tensor<8x3xf32>
    return %31 : tensor<8x3xf32>
  }
  func.func private @closed_call(%arg0: tensor<i32>, %arg1: tensor<8xi32>, %arg2: tensor<8xi32>, %arg3: tensor<8x8xf32>) -> (tensor<i32>, tensor<8xi32>, tensor<8xi32>, tensor<8x8xf32>) {
    %c = stablehlo.constant dense<1> : tensor<i32>
    %0 = stablehlo.add %arg0, %c : tensor<i32>
    %1 = stablehlo.iota dim = 0 : tensor<8xi32>
    %2 = stablehlo.iota dim = 0 : tensor<8xi32>
    %3 = stablehlo.convert %arg0 : tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %4 = stablehlo.compare LT, %c_0, %c_1, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %c_3 = stablehlo.constant dense<8> : tensor<i32>
    %5 = stablehlo.add %c_2, %c_3 : tensor<i32>
    %c_4 = stablehlo.constant dense<0> : tensor<i32>
    %6 = stablehlo.select %4, %5, %c_4 : tensor<i1>, tensor<i32>
    %c_5 = stablehlo.constant dense<0> : tensor<i32>
    %7 = stablehlo.compare LT, %3, %c_5, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_6 = stablehlo.constant dense<8> : tensor<i32>
    %8 = stablehlo.add %3, %c_6 : tensor<i32>
    %9 = stablehlo.select %7, %8, %3 : tensor<i1>, tensor<i32>
    %10 = stablehlo.dynamic_slice %arg3, %6, %9, sizes = [8, 1] : (tensor<8x8xf32>, tensor<i32>, tensor<i32>) -> tensor<8x1xf32>
    %11 = stablehlo.reshape %10 : (tensor<8x1xf32>) -> tensor<8xf32>
    %12 = stablehlo.abs %11 : tensor<8xf32>
    %13 = stablehlo.convert %arg0 : tensor<i32>
    %14 = stablehlo.broadcast_in_dim %13, dims = [] : (tensor<i32>) -> tensor<8xi32>
    %15 = stablehlo.compare GE, %1, %14, SIGNED : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi1>
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %16 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %17 = stablehlo.select %15, %12, %16 : tensor<8xi1>, tensor<8xf32>
    %18 = call @argmax(%17) : (tensor<8xf32>) -> tensor<i32>
    %c_7 = stablehlo.constant dense<0> : tensor<i32>
    %19 = stablehlo.compare LT, %arg0, %c_7, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_8 = stablehlo.constant dense<8> : tensor<i32>
    %20 = stablehlo.add %arg0, %c_8 : tensor<i32>
    %21 = stablehlo.select %19, %20, %arg0 : tensor<i1>, tensor<i32>
    %22 = stablehlo.convert %21 : tensor<i32>
    %23 = stablehlo.broadcast_in_dim %22, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %24 = "stablehlo.scatter"(%arg1, %23, %18) <{indices_are_sorted = true, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0]>, unique_indices = true}> ({
    ^bb0(%arg4: tensor<i32>, %arg5: tensor<i32>):
      stablehlo.return %arg5 : tensor<i32>
    }) : (tensor<8xi32>, tensor<1xi32>, tensor<i32>) -> tensor<8xi32>
    %25 = stablehlo.broadcast_in_dim %18, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %26 = stablehlo.convert %arg0 : tensor<i32>
    %27 = stablehlo.broadcast_in_dim %26, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %28 = stablehlo.concatenate %25, %27, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
    %c_9 = stablehlo.constant dense<0> : tensor<i32>
    %29 = stablehlo.broadcast_in_dim %c_9, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %30 = stablehlo.compare LT, %28, %29, SIGNED : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi1>
    %c_10 = stablehlo.constant dense<8> : tensor<i32>
    %31 = stablehlo.broadcast_in_dim %c_10, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %32 = stablehlo.add %28, %31 : tensor<2xi32>
    %33 = stablehlo.select %30, %32, %28 : tensor<2xi1>, tensor<2xi32>
    %34 = stablehlo.broadcast_in_dim %33, dims = [0] : (tensor<2xi32>) -> tensor<2x1xi32>
    %35 = "stablehlo.gather"(%arg3, %34) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 8>}> : (tensor<8x8xf32>, tensor<2x1xi32>) -> tensor<2x8xf32>
    %36 = stablehlo.convert %arg0 : tensor<i32>
    %37 = stablehlo.broadcast_in_dim %36, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %38 = stablehlo.broadcast_in_dim %18, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %39 = stablehlo.concatenate %37, %38, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
    %c_11 = stablehlo.constant dense<0> : tensor<i32>
    %40 = stablehlo.broadcast_in_dim %c_11, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %41 = stablehlo.compare LT, %39, %40, SIGNED : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi1>
    %c_12 = stablehlo.constant dense<8> : tensor<i32>
    %42 = stablehlo.broadcast_in_dim %c_12, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %43 = stablehlo.add %39, %42 : tensor<2xi32>
    %44 = stablehlo.select %41, %43, %39 : tensor<2xi1>, tensor<2xi32>
    %45 = stablehlo.broadcast_in_dim %44, dims = [0] : (tensor<2xi32>) -> tensor<2x1xi32>
    %46 = "stablehlo.scatter"(%arg3, %45, %35) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      stablehlo.return %arg5 : tensor<f32>
    }) : (tensor<8x8xf32>, tensor<2x1xi32>, tensor<2x8xf32>) -> tensor<8x8xf32>
    %47 = stablehlo.convert %arg0 : tensor<i32>
    %48 = stablehlo.broadcast_in_dim %47, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %49 = stablehlo.broadcast_in_dim %18, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %50 = stablehlo.concatenate %48, %49, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
    %c_13 = stablehlo.constant dense<0> : tensor<i32>
    %51 = stablehlo.broadcast_in_dim %c_13, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %52 = stablehlo.compare LT, %50, %51, SIGNED : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi1>
    %c_14 = stablehlo.constant dense<8> : tensor<i32>
    %53 = stablehlo.broadcast_in_dim %c_14, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %54 = stablehlo.add %50, %53 : tensor<2xi32>
    %55 = stablehlo.select %52, %54, %50 : tensor<2xi1>, tensor<2xi32>
    %56 = stablehlo.broadcast_in_dim %55, dims = [0] : (tensor<2xi32>) -> tensor<2x1xi32>
    %57 = "stablehlo.gather"(%arg2, %56) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1>}> : (tensor<8xi32>, tensor<2x1xi32>) -> tensor<2xi32>
    %58 = stablehlo.broadcast_in_dim %18, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %59 = stablehlo.convert %arg0 : tensor<i32>
    %60 = stablehlo.broadcast_in_dim %59, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %61 = stablehlo.concatenate %58, %60, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
    %c_15 = stablehlo.constant dense<0> : tensor<i32>
    %62 = stablehlo.broadcast_in_dim %c_15, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %63 = stablehlo.compare LT, %61, %62, SIGNED : (tensor<2xi32>, tensor<2xi32>) -> tensor<2xi1>
    %c_16 = stablehlo.constant dense<8> : tensor<i32>
    %64 = stablehlo.broadcast_in_dim %c_16, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %65 = stablehlo.add %61, %64 : tensor<2xi32>
    %66 = stablehlo.select %63, %65, %61 : tensor<2xi1>, tensor<2xi32>
    %67 = stablehlo.broadcast_in_dim %66, dims = [0] : (tensor<2xi32>) -> tensor<2x1xi32>
    %68 = "stablehlo.scatter"(%arg2, %67, %57) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<i32>, %arg5: tensor<i32>):
      stablehlo.return %arg5 : tensor<i32>
    }) : (tensor<8xi32>, tensor<2x1xi32>, tensor<2xi32>) -> tensor<8xi32>
    %69 = stablehlo.convert %arg0 : tensor<i32>
    %70 = stablehlo.convert %arg0 : tensor<i32>
    %c_17 = stablehlo.constant dense<0> : tensor<i32>
    %71 = stablehlo.compare LT, %69, %c_17, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_18 = stablehlo.constant dense<8> : tensor<i32>
    %72 = stablehlo.add %69, %c_18 : tensor<i32>
    %73 = stablehlo.select %71, %72, %69 : tensor<i1>, tensor<i32>
    %c_19 = stablehlo.constant dense<0> : tensor<i32>
    %74 = stablehlo.compare LT, %70, %c_19, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_20 = stablehlo.constant dense<8> : tensor<i32>
    %75 = stablehlo.add %70, %c_20 : tensor<i32>
    %76 = stablehlo.select %74, %75, %70 : tensor<i1>, tensor<i32>
    %77 = stablehlo.dynamic_slice %46, %73, %76, sizes = [1, 1] : (tensor<8x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x1xf32>
    %78 = stablehlo.reshape %77 : (tensor<1x1xf32>) -> tensor<f32>
    %79 = stablehlo.convert %arg0 : tensor<i32>
    %80 = stablehlo.broadcast_in_dim %79, dims = [] : (tensor<i32>) -> tensor<8xi32>
    %81 = stablehlo.compare GT, %1, %80, SIGNED : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi1>
    %cst_21 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %82 = stablehlo.compare NE, %78, %cst_21, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %83 = stablehlo.broadcast_in_dim %82, dims = [] : (tensor<i1>) -> tensor<8xi1>
    %84 = stablehlo.and %81, %83 : tensor<8xi1>
    %85 = stablehlo.convert %arg0 : tensor<i32>
    %c_22 = stablehlo.constant dense<0> : tensor<i32>
    %c_23 = stablehlo.constant dense<0> : tensor<i32>
    %86 = stablehlo.compare LT, %c_22, %c_23, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_24 = stablehlo.constant dense<0> : tensor<i32>
    %c_25 = stablehlo.constant dense<8> : tensor<i32>
    %87 = stablehlo.add %c_24, %c_25 : tensor<i32>
    %c_26 = stablehlo.constant dense<0> : tensor<i32>
    %88 = stablehlo.select %86, %87, %c_26 : tensor<i1>, tensor<i32>
    %c_27 = stablehlo.constant dense<0> : tensor<i32>
    %89 = stablehlo.compare LT, %85, %c_27, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_28 = stablehlo.constant dense<8> : tensor<i32>
    %90 = stablehlo.add %85, %c_28 : tensor<i32>
    %91 = stablehlo.select %89, %90, %85 : tensor<i1>, tensor<i32>
    %92 = stablehlo.dynamic_slice %46, %88, %91, sizes = [8, 1] : (tensor<8x8xf32>, tensor<i32>, tensor<i32>) -> tensor<8x1xf32>
    %93 = stablehlo.reshape %92 : (tensor<8x1xf32>) -> tensor<8xf32>
    %94 = stablehlo.broadcast_in_dim %78, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %95 = stablehlo.divide %93, %94 : tensor<8xf32>
    %96 = stablehlo.convert %arg0 : tensor<i32>
    %c_29 = stablehlo.constant dense<0> : tensor<i32>
    %c_30 = stablehlo.constant dense<0> : tensor<i32>
    %97 = stablehlo.compare LT, %c_29, %c_30, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_31 = stablehlo.constant dense<0> : tensor<i32>
    %c_32 = stablehlo.constant dense<8> : tensor<i32>
    %98 = stablehlo.add %c_31, %c_32 : tensor<i32>
    %c_33 = stablehlo.constant dense<0> : tensor<i32>
    %99 = stablehlo.select %97, %98, %c_33 : tensor<i1>, tensor<i32>
    %c_34 = stablehlo.constant dense<0> : tensor<i32>
    %100 = stablehlo.compare LT, %96, %c_34, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_35 = stablehlo.constant dense<8> : tensor<i32>
    %101 = stablehlo.add %96, %c_35 : tensor<i32>
    %102 = stablehlo.select %100, %101, %96 : tensor<i1>, tensor<i32>
    %103 = stablehlo.dynamic_slice %46, %99, %102, sizes = [8, 1] : (tensor<8x8xf32>, tensor<i32>, tensor<i32>) -> tensor<8x1xf32>
    %104 = stablehlo.reshape %103 : (tensor<8x1xf32>) -> tensor<8xf32>
    %105 = stablehlo.select %84, %95, %104 : tensor<8xi1>, tensor<8xf32>
    %c_36 = stablehlo.constant dense<0> : tensor<i32>
    %106 = stablehlo.compare LT, %arg0, %c_36, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_37 = stablehlo.constant dense<8> : tensor<i32>
    %107 = stablehlo.add %arg0, %c_37 : tensor<i32>
    %108 = stablehlo.select %106, %107, %arg0 : tensor<i1>, tensor<i32>
    %109 = stablehlo.convert %108 : tensor<i32>
    %110 = stablehlo.broadcast_in_dim %109, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %111 = "stablehlo.scatter"(%46, %110, %105) <{indices_are_sorted = true, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0], inserted_window_dims = [1], scatter_dims_to_operand_dims = [1]>, unique_indices = true}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      stablehlo.return %arg5 : tensor<f32>
    }) : (tensor<8x8xf32>, tensor<1xi32>, tensor<8xf32>) -> tensor<8x8xf32>
    %112 = stablehlo.convert %arg0 : tensor<i32>
    %c_38 = stablehlo.constant dense<0> : tensor<i32>
    %c_39 = stablehlo.constant dense<0> : tensor<i32>
    %113 = stablehlo.compare LT, %c_38, %c_39, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_40 = stablehlo.constant dense<0> : tensor<i32>
    %c_41 = stablehlo.constant dense<8> : tensor<i32>
    %114 = stablehlo.add %c_40, %c_41 : tensor<i32>
    %c_42 = stablehlo.constant dense<0> : tensor<i32>
    %115 = stablehlo.select %113, %114, %c_42 : tensor<i1>, tensor<i32>
    %c_43 = stablehlo.constant dense<0> : tensor<i32>
    %116 = stablehlo.compare LT, %112, %c_43, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_44 = stablehlo.constant dense<8> : tensor<i32>
    %117 = stablehlo.add %112, %c_44 : tensor<i32>
    %118 = stablehlo.select %116, %117, %112 : tensor<i1>, tensor<i32>
    %119 = stablehlo.dynamic_slice %111, %115, %118, sizes = [8, 1] : (tensor<8x8xf32>, tensor<i32>, tensor<i32>) -> tensor<8x1xf32>
    %120 = stablehlo.reshape %119 : (tensor<8x1xf32>) -> tensor<8xf32>
    %121 = stablehlo.broadcast_in_dim %120, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %122 = stablehlo.convert %arg0 : tensor<i32>
    %c_45 = stablehlo.constant dense<0> : tensor<i32>
    %123 = stablehlo.compare LT, %122, %c_45, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_46 = stablehlo.constant dense<8> : tensor<i32>
    %124 = stablehlo.add %122, %c_46 : tensor<i32>
    %125 = stablehlo.select %123, %124, %122 : tensor<i1>, tensor<i32>
    %c_47 = stablehlo.constant dense<0> : tensor<i32>
    %c_48 = stablehlo.constant dense<0> : tensor<i32>
    %126 = stablehlo.compare LT, %c_47, %c_48, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_49 = stablehlo.constant dense<0> : tensor<i32>
    %c_50 = stablehlo.constant dense<8> : tensor<i32>
    %127 = stablehlo.add %c_49, %c_50 : tensor<i32>
    %c_51 = stablehlo.constant dense<0> : tensor<i32>
    %128 = stablehlo.select %126, %127, %c_51 : tensor<i1>, tensor<i32>
    %129 = stablehlo.dynamic_slice %111, %125, %128, sizes = [1, 8] : (tensor<8x8xf32>, tensor<i32>, tensor<i32>) -> tensor<1x8xf32>
    %130 = stablehlo.reshape %129 : (tensor<1x8xf32>) -> tensor<8xf32>
    %131 = stablehlo.broadcast_in_dim %130, dims = [1] : (tensor<8xf32>) -> tensor<1x8xf32>
    %132 = stablehlo.broadcast_in_dim %121, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x8xf32>
    %133 = stablehlo.broadcast_in_dim %131, dims = [0, 1] : (tensor<1x8xf32>) -> tensor<8x8xf32>
    %134 = stablehlo.multiply %132, %133 : tensor<8x8xf32>
    %135 = stablehlo.broadcast_in_dim %1, dims = [0] : (tensor<8xi32>) -> tensor<8x1xi32>
    %136 = stablehlo.convert %arg0 : tensor<i32>
    %137 = stablehlo.broadcast_in_dim %136, dims = [] : (tensor<i32>) -> tensor<8x1xi32>
    %138 = stablehlo.compare GT, %135, %137, SIGNED : (tensor<8x1xi32>, tensor<8x1xi32>) -> tensor<8x1xi1>
    %139 = stablehlo.broadcast_in_dim %2, dims = [1] : (tensor<8xi32>) -> tensor<1x8xi32>
    %140 = stablehlo.convert %arg0 : tensor<i32>
    %141 = stablehlo.broadcast_in_dim %140, dims = [] : (tensor<i32>) -> tensor<1x8xi32>
    %142 = stablehlo.compare GT, %139, %141, SIGNED : (tensor<1x8xi32>, tensor<1x8xi32>) -> tensor<1x8xi1>
    %143 = stablehlo.broadcast_in_dim %138, dims = [0, 1] : (tensor<8x1xi1>) -> tensor<8x8xi1>
    %144 = stablehlo.broadcast_in_dim %142, dims = [0, 1] : (tensor<1x8xi1>) -> tensor<8x8xi1>
    %145 = stablehlo.and %143, %144 : tensor<8x8xi1>
    %cst_52 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %146 = stablehlo.broadcast_in_dim %cst_52, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %147 = stablehlo.select %145, %134, %146 : tensor<8x8xi1>, tensor<8x8xf32>
    %148 = stablehlo.subtract %111, %147 : tensor<8x8xf32>
    return %0, %24, %68, %148 : tensor<i32>, tensor<8xi32>, tensor<8xi32>, tensor<8x8xf32>
  }
  func.func private @argmax(%arg0: tensor<8xf32>) -> tensor<i32> {
    %0 = stablehlo.iota dim = 0 : tensor<8xi32>
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1:2 = stablehlo.reduce(%arg0 init: %cst), (%0 init: %c) across dimensions = [0] : (tensor<8xf32>, tensor<8xi32>, tensor<f32>, tensor<i32>) -> (tensor<f32>, tensor<i32>)
     reducer(%arg1: tensor<f32>, %arg3: tensor<f32>) (%arg2: tensor<i32>, %arg4: tensor<i32>)  {
      %2 = stablehlo.compare GT, %arg1, %arg3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %3 = stablehlo.compare NE, %arg1, %arg1, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %4 = stablehlo.or %2, %3 : tensor<i1>
      %5 = stablehlo.compare EQ, %arg1, %arg3, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      %6 = stablehlo.compare LT, %arg2, %arg4, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %7 = stablehlo.and %5, %6 : tensor<i1>
      %8 = stablehlo.or %4, %7 : tensor<i1>
      %9 = stablehlo.select %4, %arg1, %arg3 : tensor<i1>, tensor<f32>
      %10 = stablehlo.select %8, %arg2, %arg4 : tensor<i1>, tensor<i32>
      stablehlo.return %9, %10 : tensor<f32>, tensor<i32>
    }
    return %1#1 : tensor<i32>
  }
  func.func private @_lu_solve(%arg0: tensor<8x8xf32>, %arg1: tensor<8xi32>, %arg2: tensor<3x8xf32>) -> tensor<3x8xf32> {
    %0 = stablehlo.broadcast_in_dim %arg2, dims = [0, 1] : (tensor<3x8xf32>) -> tensor<3x8x1xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<8xi32>
    %2 = stablehlo.compare LT, %arg1, %1, SIGNED : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi1>
    %c_0 = stablehlo.constant dense<8> : tensor<i32>
    %3 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<8xi32>
    %4 = stablehlo.add %arg1, %3 : tensor<8xi32>
    %5 = stablehlo.select %2, %4, %arg1 : tensor<8xi1>, tensor<8xi32>
    %6 = stablehlo.broadcast_in_dim %5, dims = [0] : (tensor<8xi32>) -> tensor<8x1xi32>
    %7 = "stablehlo.gather"(%0, %6) <{dimension_numbers = #stablehlo.gather<offset_dims = [0, 2], collapsed_slice_dims = [1], start_index_map = [1], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 3, 1, 1>}> : (tensor<3x8x1xf32>, tensor<8x1xi32>) -> tensor<3x8x1xf32>
    %8 = stablehlo.transpose %7, dims = [1, 2, 0] : (tensor<3x8x1xf32>) -> tensor<8x1x3xf32>
    %9 = stablehlo.reshape %8 : (tensor<8x1x3xf32>) -> tensor<8x3xf32>
    %10 = "stablehlo.triangular_solve"(%arg0, %9) <{left_side = true, lower = true, transpose_a = #stablehlo<transpose NO_TRANSPOSE>, unit_diagonal = true}> : (tensor<8x8xf32>, tensor<8x3xf32>) -> tensor<8x3xf32>
    %11 = stablehlo.reshape %10 : (tensor<8x3xf32>) -> tensor<8x1x3xf32>
    %12 = stablehlo.reshape %11 : (tensor<8x1x3xf32>) -> tensor<8x3xf32>
    %13 = "stablehlo.triangular_solve"(%arg0, %12) <{left_side = true, lower = false, transpose_a = #stablehlo<transpose NO_TRANSPOSE>, unit_diagonal = false}> : (tensor<8x8xf32>, tensor<8x3xf32>) -> tensor<8x3xf32>
    %14 = stablehlo.reshape %13 : (tensor<8x3xf32>) -> tensor<8x1x3xf32>
    %15 = stablehlo.transpose %14, dims = [2, 0, 1] : (tensor<8x1x3xf32>) -> tensor<3x8x1xf32>
    %16 = stablehlo.reshape %15 : (tensor<3x8x1xf32>) -> tensor<3x8xf32>
    return %16 : tensor<3x8xf32>
  }
}
