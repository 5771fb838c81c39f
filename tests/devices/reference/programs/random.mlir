module @jit_random attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2xui32>) -> (tensor<7xui32> {jax.result_info = "result[0]"}, tensor<20xi32> {jax.result_info = "result[1]"}, tensor<5xi32> {jax.result_info = "result[2]"}, tensor<100xf32> {jax.result_info = "result[3]"}) {
    %0 = stablehlo.slice %arg0 [0:1] : (tensor<2xui32>) -> tensor<1xui32>
    %1 = stablehlo.reshape %0 : (tensor<1xui32>) -> tensor<ui32>
    %2 = stablehlo.slice %arg0 [1:2] : (tensor<2xui32>) -> tensor<1xui32>
    %3 = stablehlo.reshape %2 : (tensor<1xui32>) -> tensor<ui32>
    %4 = stablehlo.iota dim = 0 : tensor<7xui64>
    %c = stablehlo.constant dense<1> : tensor<ui64>
    %5 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<ui64>) -> tensor<7xui64>
    %6 = stablehlo.multiply %5, %4 : tensor<7xui64>
    %c_0 = stablehlo.constant dense<32> : tensor<ui64>
    %7 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<ui64>) -> tensor<7xui64>
    %8 = stablehlo.shift_right_logical %6, %7 : tensor<7xui64>
    %9 = stablehlo.convert %6 : (tensor<7xui64>) -> tensor<7xui32>
    %10 = stablehlo.convert %8 : (tensor<7xui64>) -> tensor<7xui32>
    %11:2 = call @threefry2x32(%1, %3, %10, %9) : (tensor<ui32>, tensor<ui32>, tensor<7xui32>, tensor<7xui32>) -> (tensor<7xui32>, tensor<7xui32>)
    %12 = stablehlo.xor %11#0, %11#1 : tensor<7xui32>
    %13 = stablehlo.iota dim = 0 : tensor<20xi32>
    %14 = call @_shuffle(%arg0, %13) : (tensor<2xui32>, tensor<20xi32>) -> tensor<20xi32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %c_2 = stablehlo.constant dense<100> : tensor<i32>
    %15 = call @_randint(%arg0, %c_1, %c_2) : (tensor<2xui32>, tensor<i32>, tensor<i32>) -> tensor<5xi32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %cst_3 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %16 = call @_uniform(%arg0, %cst, %cst_3) : (tensor<2xui32>, tensor<f32>, tensor<f32>) -> tensor<100xf32>
    return %12, %14, %15, %16 : tensor<7xui32>, tensor<20xi32>, tensor<5xi32>, tensor<100xf32>
  }
  func.func private @threefry2x32(%arg0: tensor<ui32>, %arg1: tensor<ui32>, %arg2: tensor<7xui32>, %arg3: tensor<7xui32>) -> (tensor<7xui32>, tensor<7xui32>) {
    %0 = stablehlo.xor %arg0, %arg1 : tensor<ui32>
    %c = stablehlo.constant dense<466688986> : tensor<ui32>
    %1 = stablehlo.xor %0, %c : tensor<ui32>
    %2 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %3 = stablehlo.add %arg2, %2 : tensor<7xui32>
    %4 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %5 = stablehlo.add %arg3, %4 : tensor<7xui32>
    %6 = stablehlo.add %3, %5 : tensor<7xui32>
    %c_0 = stablehlo.constant dense<13> : tensor<ui32>
    %7 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %8 = stablehlo.shift_left %5, %7 : tensor<7xui32>
    %c_1 = stablehlo.constant dense<19> : tensor<ui32>
    %9 = stablehlo.broadcast_in_dim %c_1, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %10 = stablehlo.shift_right_logical %5, %9 : tensor<7xui32>
    %11 = stablehlo.or %8, %10 : tensor<7xui32>
    %12 = stablehlo.xor %6, %11 : tensor<7xui32>
    %13 = stablehlo.add %6, %12 : tensor<7xui32>
    %c_2 = stablehlo.constant dense<15> : tensor<ui32>
    %14 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %15 = stablehlo.shift_left %12, %14 : tensor<7xui32>
    %c_3 = stablehlo.constant dense<17> : tensor<ui32>
    %16 = stablehlo.broadcast_in_dim %c_3, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %17 = stablehlo.shift_right_logical %12, %16 : tensor<7xui32>
    %18 = stablehlo.or %15, %17 : tensor<7xui32>
    %19 = stablehlo.xor %13, %18 : tensor<7xui32>
    %20 = stablehlo.add %13, %19 : tensor<7xui32>
    %c_4 = stablehlo.constant dense<26> : tensor<ui32>
    %21 = stablehlo.broadcast_in_dim %c_4, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %22 = stablehlo.shift_left %19, %21 : tensor<7xui32>
    %c_5 = stablehlo.constant dense<6> : tensor<ui32>
    %23 = stablehlo.broadcast_in_dim %c_5, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %24 = stablehlo.shift_right_logical %19, %23 : tensor<7xui32>
    %25 = stablehlo.or %22, %24 : tensor<7xui32>
    %26 = stablehlo.xor %20, %25 : tensor<7xui32>
    %27 = stablehlo.add %20, %26 : tensor<7xui32>
    %c_6 = stablehlo.constant dense<6> : tensor<ui32>
    %28 = stablehlo.broadcast_in_dim %c_6, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %29 = stablehlo.shift_left %26, %28 : tensor<7xui32>
    %c_7 = stablehlo.constant dense<26> : tensor<ui32>
    %30 = stablehlo.broadcast_in_dim %c_7, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %31 = stablehlo.shift_right_logical %26, %30 : tensor<7xui32>
    %32 = stablehlo.or %29, %31 : tensor<7xui32>
    %33 = stablehlo.xor %27, %32 : tensor<7xui32>
    %34 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %35 = stablehlo.add %27, %34 : tensor<7xui32>
    %36 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %37 = stablehlo.add %33, %36 : tensor<7xui32>
    %c_8 = stablehlo.constant dense<1> : tensor<ui32>
    %38 = stablehlo.broadcast_in_dim %c_8, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %39 = stablehlo.add %37, %38 : tensor<7xui32>
    %40 = stablehlo.add %35, %39 : tensor<7xui32>
    %c_9 = stablehlo.constant dense<17> : tensor<ui32>
    %41 = stablehlo.broadcast_in_dim %c_9, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %42 = stablehlo.shift_left %39, %41 : tensor<7xui32>
    %c_10 = stablehlo.constant dense<15> : tensor<ui32>
    %43 = stablehlo.broadcast_in_dim %c_10, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %44 = stablehlo.shift_right_logical %39, %43 : tensor<7xui32>
    %45 = stablehlo.or %42, %44 : tensor<7xui32>
    %46 = stablehlo.xor %40, %45 : tensor<7xui32>
    %47 = stablehlo.add %40, %46 : tensor<7xui32>
    %c_11 = stablehlo.constant dense<29> : tensor<ui32>
    %48 = stablehlo.broadcast_in_dim %c_11, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %49 = stablehlo.shift_left %46, %48 : tensor<7xui32>
    %c_12 = stablehlo.constant dense<3> : tensor<ui32>
    %50 = stablehlo.broadcast_in_dim %c_12, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %51 = stablehlo.shift_right_logical %46, %50 : tensor<7xui32>
    %52 = stablehlo.or %49, %51 : tensor<7xui32>
    %53 = stablehlo.xor %47, %52 : tensor<7xui32>
    %54 = stablehlo.add %47, %53 : tensor<7xui32>
    %c_13 = stablehlo.constant dense<16> : tensor<ui32>
    %55 = stablehlo.broadcast_in_dim %c_13, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %56 = stablehlo.shift_left %53, %55 : tensor<7xui32>
    %c_14 = stablehlo.constant dense<16> : tensor<ui32>
    %57 = stablehlo.broadcast_in_dim %c_14, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %58 = stablehlo.shift_right_logical %53, %57 : tensor<7xui32>
    %59 = stablehlo.or %56, %58 : tensor<7xui32>
    %60 = stablehlo.xor %54, %59 : tensor<7xui32>
    %61 = stablehlo.add %54, %60 : tensor<7xui32>
    %c_15 = stablehlo.constant dense<24> : tensor<ui32>
    %62 = stablehlo.broadcast_in_dim %c_15, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %63 = stablehlo.shift_left %60, %62 : tensor<7xui32>
    %c_16 = stablehlo.constant dense<8> : tensor<ui32>
    %64 = stablehlo.broadcast_in_dim %c_16, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %65 = stablehlo.shift_right_logical %60, %64 : tensor<7xui32>
    %66 = stablehlo.or %63, %65 : tensor<7xui32>
    %67 = stablehlo.xor %61, %66 : tensor<7xui32>
    %68 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %69 = stablehlo.add %61, %68 : tensor<7xui32>
    %70 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %71 = stablehlo.add %67, %70 : tensor<7xui32>
    %c_17 = stablehlo.constant dense<2> : tensor<ui32>
    %72 = stablehlo.broadcast_in_dim %c_17, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %73 = stablehlo.add %71, %72 : tensor<7xui32>
    %74 = stablehlo.add %69, %73 : tensor<7xui32>
    %c_18 = stablehlo.constant dense<13> : tensor<ui32>
    %75 = stablehlo.broadcast_in_dim %c_18, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %76 = stablehlo.shift_left %73, %75 : tensor<7xui32>
    %c_19 = stablehlo.constant dense<19> : tensor<ui32>
    %77 = stablehlo.broadcast_in_dim %c_19, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %78 = stablehlo.shift_right_logical %73, %77 : tensor<7xui32>
    %79 = stablehlo.or %76, %78 : tensor<7xui32>
    %80 = stablehlo.xor %74, %79 : tensor<7xui32>
    %81 = stablehlo.add %74, %80 : tensor<7xui32>
    %c_20 = stablehlo.constant dense<15> : tensor<ui32>
    %82 = stablehlo.broadcast_in_dim %c_20, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %83 = stablehlo.shift_left %80, %82 : tensor<7xui32>
    %c_21 = stablehlo.constant dense<17> : tensor<ui32>
    %84 = stablehlo.broadcast_in_dim %c_21, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %85 = stablehlo.shift_right_logical %80, %84 : tensor<7xui32>
    %86 = stablehlo.or %83, %85 : tensor<7xui32>
    %87 = stablehlo.xor %81, %86 : tensor<7xui32>
    %88 = stablehlo.add %81, %87 : tensor<7xui32>
    %c_22 = stablehlo.constant dense<26> : tensor<ui32>
    %89 = stablehlo.broadcast_in_dim %c_22, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %90 = stablehlo.shift_left %87, %89 : tensor<7xui32>
    %c_23 = stablehlo.constant dense<6> : tensor<ui32>
    %91 = stablehlo.broadcast_in_dim %c_23, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %92 = stablehlo.shift_right_logical %87, %91 : tensor<7xui32>
    %93 = stablehlo.or %90, %92 : tensor<7xui32>
    %94 = stablehlo.xor %88, %93 : tensor<7xui32>
    %95 = stablehlo.add %88, %94 : tensor<7xui32>
    %c_24 = stablehlo.constant dense<6> : tensor<ui32>
    %96 = stablehlo.broadcast_in_dim %c_24, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %97 = stablehlo.shift_left %94, %96 : tensor<7xui32>
    %c_25 = stablehlo.constant dense<26> : tensor<ui32>
    %98 = stablehlo.broadcast_in_dim %c_25, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %99 = stablehlo.shift_right_logical %94, %98 : tensor<7xui32>
    %100 = stablehlo.or %97, %99 : tensor<7xui32>
    %101 = stablehlo.xor %95, %100 : tensor<7xui32>
    %102 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %103 = stablehlo.add %95, %102 : tensor<7xui32>
    %104 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %105 = stablehlo.add %101, %104 : tensor<7xui32>
    %c_26 = stablehlo.constant dense<3> : tensor<ui32>
    %106 = stablehlo.broadcast_in_dim %c_26, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %107 = stablehlo.add %105, %106 : tensor<7xui32>
    %108 = stablehlo.add %103, %107 : tensor<7xui32>
    %c_27 = stablehlo.constant dense<17> : tensor<ui32>
    %109 = stablehlo.broadcast_in_dim %c_27, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %110 = stablehlo.shift_left %107, %109 : tensor<7xui32>
    %c_28 = stablehlo.constant dense<15> : tensor<ui32>
    %111 = stablehlo.broadcast_in_dim %c_28, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %112 = stablehlo.shift_right_logical %107, %111 : tensor<7xui32>
    %113 = stablehlo.or %110, %112 : tensor<7xui32>
    %114 = stablehlo.xor %108, %113 : tensor<7xui32>
    %115 = stablehlo.add %108, %114 : tensor<7xui32>
    %c_29 = stablehlo.constant dense<29> : tensor<ui32>
    %116 = stablehlo.broadcast_in_dim %c_29, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %117 = stablehlo.shift_left %114, %116 : tensor<7xui32>
    %c_30 = stablehlo.constant dense<3> : tensor<ui32>
    %118 = stablehlo.broadcast_in_dim %c_30, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %119 = stablehlo.shift_right_logical %114, %118 : tensor<7xui32>
    %120 = stablehlo.or %117, %119 : tensor<7xui32>
    %121 = stablehlo.xor %115, %120 : tensor<7xui32>
    %122 = stablehlo.add %115, %121 : tensor<7xui32>
    %c_31 = stablehlo.constant dense<16> : tensor<ui32>
    %123 = stablehlo.broadcast_in_dim %c_31, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %124 = stablehlo.shift_left %121, %123 : tensor<7xui32>
    %c_32 = stablehlo.constant dense<16> : tensor<ui32>
    %125 = stablehlo.broadcast_in_dim %c_32, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %126 = stablehlo.shift_right_logical %121, %125 : tensor<7xui32>
    %127 = stablehlo.or %124, %126 : tensor<7xui32>
    %128 = stablehlo.xor %122, %127 : tensor<7xui32>
    %129 = stablehlo.add %122, %128 : tensor<7xui32>
    %c_33 = stablehlo.constant dense<24> : tensor<ui32>
    %130 = stablehlo.broadcast_in_dim %c_33, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %131 = stablehlo.shift_left %128, %130 : tensor<7xui32>
    %c_34 = stablehlo.constant dense<8> : tensor<ui32>
    %132 = stablehlo.broadcast_in_dim %c_34, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %133 = stablehlo.shift_right_logical %128, %132 : tensor<7xui32>
    %134 = stablehlo.or %131, %133 : tensor<7xui32>
    %135 = stablehlo.xor %129, %134 : tensor<7xui32>
    %136 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %137 = stablehlo.add %129, %136 : tensor<7xui32>
    %138 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %139 = stablehlo.add %135, %138 : tensor<7xui32>
    %c_35 = stablehlo.constant dense<4> : tensor<ui32>
    %140 = stablehlo.broadcast_in_dim %c_35, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %141 = stablehlo.add %139, %140 : tensor<7xui32>
    %142 = stablehlo.add %137, %141 : tensor<7xui32>
    %c_36 = stablehlo.constant dense<13> : tensor<ui32>
    %143 = stablehlo.broadcast_in_dim %c_36, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %144 = stablehlo.shift_left %141, %143 : tensor<7xui32>
    %c_37 = stablehlo.constant dense<19> : tensor<ui32>
    %145 = stablehlo.broadcast_in_dim %c_37, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %146 = stablehlo.shift_right_logical %141, %145 : tensor<7xui32>
    %147 = stablehlo.or %144, %146 : tensor<7xui32>
    %148 = stablehlo.xor %142, %147 : tensor<7xui32>
    %149 = stablehlo.add %142, %148 : tensor<7xui32>
    %c_38 = stablehlo.constant dense<15> : tensor<ui32>
    %150 = stablehlo.broadcast_in_dim %c_38, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %151 = stablehlo.shift_left %148, %150 : tensor<7xui32>
    %c_39 = stablehlo.constant dense<17> : tensor<ui32>
    %152 = stablehlo.broadcast_in_dim %c_39, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %153 = stablehlo.shift_right_logical %148, %152 : tensor<7xui32>
    %154 = stablehlo.or %151, %153 : tensor<7xui32>
    %155 = stablehlo.xor %149, %154 : tensor<7xui32>
    %156 = stablehlo.add %149, %155 : tensor<7xui32>
    %c_40 = stablehlo.constant dense<26> : tensor<ui32>
    %157 = stablehlo.broadcast_in_dim %c_40, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %158 = stablehlo.shift_left %155, %157 : tensor<7xui32>
    %c_41 = stablehlo.constant dense<6> : tensor<ui32>
    %159 = stablehlo.broadcast_in_dim %c_41, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %160 = stablehlo.shift_right_logical %155, %159 : tensor<7xui32>
    %161 = stablehlo.or %158, %160 : tensor<7xui32>
    %162 = stablehlo.xor %156, %161 : tensor<7xui32>
    %163 = stablehlo.add %156, %162 : tensor<7xui32>
    %c_42 = stablehlo.constant dense<6> : tensor<ui32>
    %164 = stablehlo.broadcast_in_dim %c_42, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %165 = stablehlo.shift_left %162, %164 : tensor<7xui32>
    %c_43 = stablehlo.constant dense<26> : tensor<ui32>
    %166 = stablehlo.broadcast_in_dim %c_43, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %167 = stablehlo.shift_right_logical %162, %166 : tensor<7xui32>
    %168 = stablehlo.or %165, %167 : tensor<7xui32>
    %169 = stablehlo.xor %163, %168 : tensor<7xui32>
    %170 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %171 = stablehlo.add %163, %170 : tensor<7xui32>
    %172 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %173 = stablehlo.add %169, %172 : tensor<7xui32>
    %c_44 = stablehlo.constant dense<5> : tensor<ui32>
    %174 = stablehlo.broadcast_in_dim %c_44, dims = [] : (tensor<ui32>) -> tensor<7xui32>
    %175 = stablehlo.add %173, %174 : tensor<7xui32>
    return %171, %175 : tensor<7xui32>, tensor<7xui32>
  }
  func.func private @_shuffle(%arg0: tensor<2xui32>, %arg1: tensor<20xi32>) -> tensor<20xi32> {
    %0 = call @_threefry_split(%arg0) : (tensor<2xui32>) -> tensor<2x2xui32>
    %1 = stablehlo.slice %0 [0:1, 0:2] : (tensor<2x2xui32>) -> tensor<1x2xui32>
    %2 = stablehlo.reshape %1 : (tensor<1x2xui32>) -> tensor<2xui32>
    %3 = stablehlo.slice %0 [1:2, 0:2] : (tensor<2x2xui32>) -> tensor<1x2xui32>
    %4 = stablehlo.reshape %3 : (tensor<1x2xui32>) -> tensor<2xui32>
    %5 = stablehlo.slice %4 [0:1] : (tensor<2xui32>) -> tensor<1xui32>
    %6 = stablehlo.reshape %5 : (tensor<1xui32>) -> tensor<ui32>
    %7 = stablehlo.slice %4 [1:2] : (tensor<2xui32>) -> tensor<1xui32>
    %8 = stablehlo.reshape %7 : (tensor<1xui32>) -> tensor<ui32>
    %9 = stablehlo.iota dim = 0 : tensor<20xui64>
    %c = stablehlo.constant dense<1> : tensor<ui64>
    %10 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<ui64>) -> tensor<20xui64>
    %11 = stablehlo.multiply %10, %9 : tensor<20xui64>
    %c_0 = stablehlo.constant dense<32> : tensor<ui64>
    %12 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<ui64>) -> tensor<20xui64>
    %13 = stablehlo.shift_right_logical %11, %12 : tensor<20xui64>
    %14 = stablehlo.convert %11 : (tensor<20xui64>) -> tensor<20xui32>
    %15 = stablehlo.convert %13 : (tensor<20xui64>) -> tensor<20xui32>
    %16:2 = call @threefry2x32_1(%6, %8, %15, %14) : (tensor<ui32>, tensor<ui32>, tensor<20xui32>, tensor<20xui32>) -> (tensor<20xui32>, tensor<20xui32>)
    %17 = stablehlo.xor %16#0, %16#1 : tensor<20xui32>
    %18:2 = "stablehlo.sort"(%17, %arg1) <{dimension = 0 : i64, is_stable = true}> ({
    ^bb0(%arg2: tensor<ui32>, %arg3: tensor<ui32>, %arg4: tensor<i32>, %arg5: tensor<i32>):
      %19 = stablehlo.compare LT, %arg2, %arg3, UNSIGNED : (tensor<ui32>, tensor<ui32>) -> tensor<i1>
      stablehlo.return %19 : tensor<i1>
    }) : (tensor<20xui32>, tensor<20xi32>) -> (tensor<20xui32>, tensor<20xi32>)
    return %18#1 : tensor<20xi32>
  }
  func.func private @_threefry_split(%arg0: tensor<2xui32>) -> tensor<2x2xui32> {
    %0 = stablehlo.slice %arg0 [0:1] : (tensor<2xui32>) -> tensor<1xui32>
    %1 = stablehlo.reshape %0 : (tensor<1xui32>) -> tensor<ui32>
    %2 = stablehlo.slice %arg0 [1:2] : (tensor<2xui32>) -> tensor<1xui32>
    %3 = stablehlo.reshape %2 : (tensor<1xui32>) -> tensor<ui32>
    %4 = stablehlo.iota dim = 0 : tensor<2xui64>
    %c = stablehlo.constant dense<1> : tensor<ui64>
    %5 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<ui64>) -> tensor<2xui64>
    %6 = stablehlo.multiply %5, %4 : tensor<2xui64>
    %c_0 = stablehlo.constant dense<32> : tensor<ui64>
    %7 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<ui64>) -> tensor<2xui64>
    %8 = stablehlo.shift_right_logical %6, %7 : tensor<2xui64>
    %9 = stablehlo.convert %6 : (tensor<2xui64>) -> tensor<2xui32>
    %10 = stablehlo.convert %8 : (tensor<2xui64>) -> tensor<2xui32>
    %11:2 = call @threefry2x32_0(%1, %3, %10, %9) : (tensor<ui32>, tensor<ui32>, tensor<2xui32>, tensor<2xui32>) -> (tensor<2xui32>, tensor<2xui32>)
    %12 = stablehlo.broadcast_in_dim %11#0, dims = [0] : (tensor<2xui32>) -> tensor<2x1xui32>
    %13 = stablehlo.broadcast_in_dim %11#1, dims = [0] : (tensor<2xui32>) -> tensor<2x1xui32>
    %14 = stablehlo.concatenate %12, %13, dim = 1 : (tensor<2x1xui32>, tensor<2x1xui32>) -> tensor<2x2xui32>
    return %14 : tensor<2x2xui32>
  }
  func.func private @threefry2x32_0(%arg0: tensor<ui32>, %arg1: tensor<ui32>, %arg2: tensor<2xui32>, %arg3: tensor<2xui32>) -> (tensor<2xui32>, tensor<2xui32>) {
    %0 = stablehlo.xor %arg0, %arg1 : tensor<ui32>
    %c = stablehlo.constant dense<466688986> : tensor<ui32>
    %1 = stablehlo.xor %0, %c : tensor<ui32>
    %2 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %3 = stablehlo.add %arg2, %2 : tensor<2xui32>
    %4 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %5 = stablehlo.add %arg3, %4 : tensor<2xui32>
    %6 = stablehlo.add %3, %5 : tensor<2xui32>
    %c_0 = stablehlo.constant dense<13> : tensor<ui32>
    %7 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %8 = stablehlo.shift_left %5, %7 : tensor<2xui32>
    %c_1 = stablehlo.constant dense<19> : tensor<ui32>
    %9 = stablehlo.broadcast_in_dim %c_1, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %10 = stablehlo.shift_right_logical %5, %9 : tensor<2xui32>
    %11 = stablehlo.or %8, %10 : tensor<2xui32>
    %12 = stablehlo.xor %6, %11 : tensor<2xui32>
    %13 = stablehlo.add %6, %12 : tensor<2xui32>
    %c_2 = stablehlo.constant dense<15> : tensor<ui32>
    %14 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %15 = stablehlo.shift_left %12, %14 : tensor<2xui32>
    %c_3 = stablehlo.constant dense<17> : tensor<ui32>
    %16 = stablehlo.broadcast_in_dim %c_3, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %17 = stablehlo.shift_right_logical %12, %16 : tensor<2xui32>
    %18 = stablehlo.or %15, %17 : tensor<2xui32>
    %19 = stablehlo.xor %13, %18 : tensor<2xui32>
    %20 = stablehlo.add %13, %19 : tensor<2xui32>
    %c_4 = stablehlo.constant dense<26> : tensor<ui32>
    %21 = stablehlo.broadcast_in_dim %c_4, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %22 = stablehlo.shift_left %19, %21 : tensor<2xui32>
    %c_5 = stablehlo.constant dense<6> : tensor<ui32>
    %23 = stablehlo.broadcast_in_dim %c_5, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %24 = stablehlo.shift_right_logical %19, %23 : tensor<2xui32>
    %25 = stablehlo.or %22, %24 : tensor<2xui32>
    %26 = stablehlo.xor %20, %25 : tensor<2xui32>
    %27 = stablehlo.add %20, %26 : tensor<2xui32>
    %c_6 = stablehlo.constant dense<6> : tensor<ui32>
    %28 = stablehlo.broadcast_in_dim %c_6, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %29 = stablehlo.shift_left %26, %28 : tensor<2xui32>
    %c_7 = stablehlo.constant dense<26> : tensor<ui32>
    %30 = stablehlo.broadcast_in_dim %c_7, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %31 = stablehlo.shift_right_logical %26, %30 : tensor<2xui32>
    %32 = stablehlo.or %29, %31 : tensor<2xui32>
    %33 = stablehlo.xor %27, %32 : tensor<2xui32>
    %34 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %35 = stablehlo.add %27, %34 : tensor<2xui32>
    %36 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %37 = stablehlo.add %33, %36 : tensor<2xui32>
    %c_8 = stablehlo.constant dense<1> : tensor<ui32>
    %38 = stablehlo.broadcast_in_dim %c_8, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %39 = stablehlo.add %37, %38 : tensor<2xui32>
    %40 = stablehlo.add %35, %39 : tensor<2xui32>
    %c_9 = stablehlo.constant dense<17> : tensor<ui32>
    %41 = stablehlo.broadcast_in_dim %c_9, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %42 = stablehlo.shift_left %39, %41 : tensor<2xui32>
    %c_10 = stablehlo.constant dense<15> : tensor<ui32>
    %43 = stablehlo.broadcast_in_dim %c_10, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %44 = stablehlo.shift_right_logical %39, %43 : tensor<2xui32>
    %45 = stablehlo.or %42, %44 : tensor<2xui32>
    %46 = stablehlo.xor %40, %45 : tensor<2xui32>
    %47 = stablehlo.add %40, %46 : tensor<2xui32>
    %c_11 = stablehlo.constant dense<29> : tensor<ui32>
    %48 = stablehlo.broadcast_in_dim %c_11, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %49 = stablehlo.shift_left %46, %48 : tensor<2xui32>
    %c_12 = stablehlo.constant dense<3> : tensor<ui32>
    %50 = stablehlo.broadcast_in_dim %c_12, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %51 = stablehlo.shift_right_logical %46, %50 : tensor<2xui32>
    %52 = stablehlo.or %49, %51 : tensor<2xui32>
    %53 = stablehlo.xor %47, %52 : tensor<2xui32>
    %54 = stablehlo.add %47, %53 : tensor<2xui32>
    %c_13 = stablehlo.constant dense<16> : tensor<ui32>
    %55 = stablehlo.broadcast_in_dim %c_13, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %56 = stablehlo.shift_left %53, %55 : tensor<2xui32>
    %c_14 = stablehlo.constant dense<16> : tensor<ui32>
    %57 = stablehlo.broadcast_in_dim %c_14, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %58 = stablehlo.shift_right_logical %53, %57 : tensor<2xui32>
    %59 = stablehlo.or %56, %58 : tensor<2xui32>
    %60 = stablehlo.xor %54, %59 : tensor<2xui32>
    %61 = stablehlo.add %54, %60 : tensor<2xui32>
    %c_15 = stablehlo.constant dense<24> : tensor<ui32>
    %62 = stablehlo.broadcast_in_dim %c_15, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %63 = stablehlo.shift_left %60, %62 : tensor<2xui32>
    %c_16 = stablehlo.constant dense<8> : tensor<ui32>
    %64 = stablehlo.broadcast_in_dim %c_16, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %65 = stablehlo.shift_right_logical %60, %64 : tensor<2xui32>
    %66 = stablehlo.or %63, %65 : tensor<2xui32>
    %67 = stablehlo.xor %61, %66 : tensor<2xui32>
    %68 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %69 = stablehlo.add %61, %68 : tensor<2xui32>
    %70 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %71 = stablehlo.add %67, %70 : tensor<2xui32>
    %c_17 = stablehlo.constant dense<2> : tensor<ui32>
    %72 = stablehlo.broadcast_in_dim %c_17, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %73 = stablehlo.add %71, %72 : tensor<2xui32>
    %74 = stablehlo.add %69, %73 : tensor<2xui32>
    %c_18 = stablehlo.constant dense<13> : tensor<ui32>
    %75 = stablehlo.broadcast_in_dim %c_18, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %76 = stablehlo.shift_left %73, %75 : tensor<2xui32>
    %c_19 = stablehlo.constant dense<19> : tensor<ui32>
    %77 = stablehlo.broadcast_in_dim %c_19, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %78 = stablehlo.shift_right_logical %73, %77 : tensor<2xui32>
    %79 = stablehlo.or %76, %78 : tensor<2xui32>
    %80 = stablehlo.xor %74, %79 : tensor<2xui32>
    %81 = stablehlo.add %74, %80 : tensor<2xui32>
    %c_20 = stablehlo.constant dense<15> : tensor<ui32>
    %82 = stablehlo.broadcast_in_dim %c_20, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %83 = stablehlo.shift_left %80, %82 : tensor<2xui32>
    %c_21 = stablehlo.constant dense<17> : tensor<ui32>
    %84 = stablehlo.broadcast_in_dim %c_21, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %85 = stablehlo.shift_right_logical %80, %84 : tensor<2xui32>
    %86 = stablehlo.or %83, %85 : tensor<2xui32>
    %87 = stablehlo.xor %81, %86 : tensor<2xui32>
    %88 = stablehlo.add %81, %87 : tensor<2xui32>
    %c_22 = stablehlo.constant dense<26> : tensor<ui32>
    %89 = stablehlo.broadcast_in_dim %c_22, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %90 = stablehlo.shift_left %87, %89 : tensor<2xui32>
    %c_23 = stablehlo.constant dense<6> : tensor<ui32>
    %91 = stablehlo.broadcast_in_dim %c_23, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %92 = stablehlo.shift_right_logical %87, %91 : tensor<2xui32>
    %93 = stablehlo.or %90, %92 : tensor<2xui32>
    %94 = stablehlo.xor %88, %93 : tensor<2xui32>
    %95 = stablehlo.add %88, %94 : tensor<2xui32>
    %c_24 = stablehlo.constant dense<6> : tensor<ui32>
    %96 = stablehlo.broadcast_in_dim %c_24, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %97 = stablehlo.shift_left %94, %96 : tensor<2xui32>
    %c_25 = stablehlo.constant dense<26> : tensor<ui32>
    %98 = stablehlo.broadcast_in_dim %c_25, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %99 = stablehlo.shift_right_logical %94, %98 : tensor<2xui32>
    %100 = stablehlo.or %97, %99 : tensor<2xui32>
    %101 = stablehlo.xor %95, %100 : tensor<2xui32>
    %102 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %103 = stablehlo.add %95, %102 : tensor<2xui32>
    %104 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %105 = stablehlo.add %101, %104 : tensor<2xui32>
    %c_26 = stablehlo.constant dense<3> : tensor<ui32>
    %106 = stablehlo.broadcast_in_dim %c_26, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %107 = stablehlo.add %105, %106 : tensor<2xui32>
    %108 = stablehlo.add %103, %107 : tensor<2xui32>
    %c_27 = stablehlo.constant dense<17> : tensor<ui32>
    %109 = stablehlo.broadcast_in_dim %c_27, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %110 = stablehlo.shift_left %107, %109 : tensor<2xui32>
    %c_28 = stablehlo.constant dense<15> : tensor<ui32>
    %111 = stablehlo.broadcast_in_dim %c_28, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %112 = stablehlo.shift_right_logical %107, %111 : tensor<2xui32>
    %113 = stablehlo.or %110, %112 : tensor<2xui32>
    %114 = stablehlo.xor %108, %113 : tensor<2xui32>
    %115 = stablehlo.add %108, %114 : tensor<2xui32>
    %c_29 = stablehlo.constant dense<29> : tensor<ui32>
    %116 = stablehlo.broadcast_in_dim %c_29, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %117 = stablehlo.shift_left %114, %116 : tensor<2xui32>
    %c_30 = stablehlo.constant dense<3> : tensor<ui32>
    %118 = stablehlo.broadcast_in_dim %c_30, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %119 = stablehlo.shift_right_logical %114, %118 : tensor<2xui32>
    %120 = stablehlo.or %117, %119 : tensor<2xui32>
    %121 = stablehlo.xor %115, %120 : tensor<2xui32>
    %122 = stablehlo.add %115, %121 : tensor<2xui32>
    %c_31 = stablehlo.constant dense<16> : tensor<ui32>
    %123 = stablehlo.broadcast_in_dim %c_31, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %124 = stablehlo.shift_left %121, %123 : tensor<2xui32>
    %c_32 = stablehlo.constant dense<16> : tensor<ui32>
    %125 = stablehlo.broadcast_in_dim %c_32, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %126 = stablehlo.shift_right_logical %121, %125 : tensor<2xui32>
    %127 = stablehlo.or %124, %126 : tensor<2xui32>
    %128 = stablehlo.xor %122, %127 : tensor<2xui32>
    %129 = stablehlo.add %122, %128 : tensor<2xui32>
    %c_33 = stablehlo.constant dense<24> : tensor<ui32>
    %130 = stablehlo.broadcast_in_dim %c_33, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %131 = stablehlo.shift_left %128, %130 : tensor<2xui32>
    %c_34 = stablehlo.constant dense<8> : tensor<ui32>
    %132 = stablehlo.broadcast_in_dim %c_34, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %133 = stablehlo.shift_right_logical %128, %132 : tensor<2xui32>
    %134 = stablehlo.or %131, %133 : tensor<2xui32>
    %135 = stablehlo.xor %129, %134 : tensor<2xui32>
    %136 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %137 = stablehlo.add %129, %136 : tensor<2xui32>
    %138 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %139 = stablehlo.add %135, %138 : tensor<2xui32>
    %c_35 = stablehlo.constant dense<4> : tensor<ui32>
    %140 = stablehlo.broadcast_in_dim %c_35, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %141 = stablehlo.add %139, %140 : tensor<2xui32>
    %142 = stablehlo.add %137, %141 : tensor<2xui32>
    %c_36 = stablehlo.constant dense<13> : tensor<ui32>
    %143 = stablehlo.broadcast_in_dim %c_36, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %144 = stablehlo.shift_left %141, %143 : tensor<2xui32>
    %c_37 = stablehlo.constant dense<19> : tensor<ui32>
    %145 = stablehlo.broadcast_in_dim %c_37, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %146 = stablehlo.shift_right_logical %141, %145 : tensor<2xui32>
    %147 = stablehlo.or %144, %146 : tensor<2xui32>
    %148 = stablehlo.xor %142, %147 : tensor<2xui32>
    %149 = stablehlo.add %142, %148 : tensor<2xui32>
    %c_38 = stablehlo.constant dense<15> : tensor<ui32>
    %150 = stablehlo.broadcast_in_dim %c_38, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %151 = stablehlo.shift_left %148, %150 : tensor<2xui32>
    %c_39 = stablehlo.constant dense<17> : tensor<ui32>
    %152 = stablehlo.broadcast_in_dim %c_39, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %153 = stablehlo.shift_right_logical %148, %152 : tensor<2xui32>
    %154 = stablehlo.or %151, %153 : tensor<2xui32>
    %155 = stablehlo.xor %149, %154 : tensor<2xui32>
    %156 = stablehlo.add %149, %155 : tensor<2xui32>
    %c_40 = stablehlo.constant dense<26> : tensor<ui32>
    %157 = stablehlo.broadcast_in_dim %c_40, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %158 = stablehlo.shift_left %155, %157 : tensor<2xui32>
    %c_41 = stablehlo.constant dense<6> : tensor<ui32>
    %159 = stablehlo.broadcast_in_dim %c_41, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %160 = stablehlo.shift_right_logical %155, %159 : tensor<2xui32>
    %161 = stablehlo.or %158, %160 : tensor<2xui32>
    %162 = stablehlo.xor %156, %161 : tensor<2xui32>
    %163 = stablehlo.add %156, %162 : tensor<2xui32>
    %c_42 = stablehlo.constant dense<6> : tensor<ui32>
    %164 = stablehlo.broadcast_in_dim %c_42, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %165 = stablehlo.shift_left %162, %164 : tensor<2xui32>
    %c_43 = stablehlo.constant dense<26> : tensor<ui32>
    %166 = stablehlo.broadcast_in_dim %c_43, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %167 = stablehlo.shift_right_logical %162, %166 : tensor<2xui32>
    %168 = stablehlo.or %165, %167 : tensor<2xui32>
    %169 = stablehlo.xor %163, %168 : tensor<2xui32>
    %170 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %171 = stablehlo.add %163, %170 : tensor<2xui32>
    %172 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %173 = stablehlo.add %169, %172 : tensor<2xui32>
    %c_44 = stablehlo.constant dense<5> : tensor<ui32>
    %174 = stablehlo.broadcast_in_dim %c_44, dims = [] : (tensor<ui32>) -> tensor<2xui32>
    %175 = stablehlo.add %173, %174 : tensor<2xui32>
    return %171, %175 : tensor<2xui32>, tensor<2xui32>
  }
  func.func private @threefry2x32_1(%arg0: tensor<ui32>, %arg1: tensor<ui32>, %arg2: tensor<20xui32>, %arg3: tensor<20xui32>) -> (tensor<20xui32>, tensor<20xui32>) {
    %0 = stablehlo.xor %arg0, %arg1 : tensor<ui32>
    %c = stablehlo.constant dense<466688986> : tensor<ui32>
    %1 = stablehlo.xor %0, %c : tensor<ui32>
    %2 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %3 = stablehlo.add %arg2, %2 : tensor<20xui32>
    %4 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %5 = stablehlo.add %arg3, %4 : tensor<20xui32>
    %6 = stablehlo.add %3, %5 : tensor<20xui32>
    %c_0 = stablehlo.constant dense<13> : tensor<ui32>
    %7 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %8 = stablehlo.shift_left %5, %7 : tensor<20xui32>
    %c_1 = stablehlo.constant dense<19> : tensor<ui32>
    %9 = stablehlo.broadcast_in_dim %c_1, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %10 = stablehlo.shift_right_logical %5, %9 : tensor<20xui32>
    %11 = stablehlo.or %8, %10 : tensor<20xui32>
    %12 = stablehlo.xor %6, %11 : tensor<20xui32>
    %13 = stablehlo.add %6, %12 : tensor<20xui32>
    %c_2 = stablehlo.constant dense<15> : tensor<ui32>
    %14 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %15 = stablehlo.shift_left %12, %14 : tensor<20xui32>
    %c_3 = stablehlo.constant dense<17> : tensor<ui32>
    %16 = stablehlo.broadcast_in_dim %c_3, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %17 = stablehlo.shift_right_logical %12, %16 : tensor<20xui32>
    %18 = stablehlo.or %15, %17 : tensor<20xui32>
    %19 = stablehlo.xor %13, %18 : tensor<20xui32>
    %20 = stablehlo.add %13, %19 : tensor<20xui32>
    %c_4 = stablehlo.constant dense<26> : tensor<ui32>
    %21 = stablehlo.broadcast_in_dim %c_4, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %22 = stablehlo.shift_left %19, %21 : tensor<20xui32>
    %c_5 = stablehlo.constant dense<6> : tensor<ui32>
    %23 = stablehlo.broadcast_in_dim %c_5, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %24 = stablehlo.shift_right_logical %19, %23 : tensor<20xui32>
    %25 = stablehlo.or %22, %24 : tensor<20xui32>
    %26 = stablehlo.xor %20, %25 : tensor<20xui32>
    %27 = stablehlo.add %20, %26 : tensor<20xui32>
    %c_6 = stablehlo.constant dense<6> : tensor<ui32>
    %28 = stablehlo.broadcast_in_dim %c_6, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %29 = stablehlo.shift_left %26, %28 : tensor<20xui32>
    %c_7 = stablehlo.constant dense<26> : tensor<ui32>
    %30 = stablehlo.broadcast_in_dim %c_7, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %31 = stablehlo.shift_right_logical %26, %30 : tensor<20xui32>
    %32 = stablehlo.or %29, %31 : tensor<20xui32>
    %33 = stablehlo.xor %27, %32 : tensor<20xui32>
    %34 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %35 = stablehlo.add %27, %34 : tensor<20xui32>
    %36 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %37 = stablehlo.add %33, %36 : tensor<20xui32>
    %c_8 = stablehlo.constant dense<1> : tensor<ui32>
    %38 = stablehlo.broadcast_in_dim %c_8, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %39 = stablehlo.add %37, %38 : tensor<20xui32>
    %40 = stablehlo.add %35, %39 : tensor<20xui32>
    %c_9 = stablehlo.constant dense<17> : tensor<ui32>
    %41 = stablehlo.broadcast_in_dim %c_9, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %42 = stablehlo.shift_left %39, %41 : tensor<20xui32>
    %c_10 = stablehlo.constant dense<15> : tensor<ui32>
    %43 = stablehlo.broadcast_in_dim %c_10, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %44 = stablehlo.shift_right_logical %39, %43 : tensor<20xui32>
    %45 = stablehlo.or %42, %44 : tensor<20xui32>
    %46 = stablehlo.xor %40, %45 : tensor<20xui32>
    %47 = stablehlo.add %40, %46 : tensor<20xui32>
    %c_11 = stablehlo.constant dense<29> : tensor<ui32>
    %48 = stablehlo.broadcast_in_dim %c_11, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %49 = stablehlo.shift_left %46, %48 : tensor<20xui32>
    %c_12 = stablehlo.constant dense<3> : tensor<ui32>
    %50 = stablehlo.broadcast_in_dim %c_12, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %51 = stablehlo.shift_right_logical %46, %50 : tensor<20xui32>
    %52 = stablehlo.or %49, %51 : tensor<20xui32>
    %53 = stablehlo.xor %47, %52 : tensor<20xui32>
    %54 = stablehlo.add %47, %53 : tensor<20xui32>
    %c_13 = stablehlo.constant dense<16> : tensor<ui32>
    %55 = stablehlo.broadcast_in_dim %c_13, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %56 = stablehlo.shift_left %53, %55 : tensor<20xui32>
    %c_14 = stablehlo.constant dense<16> : tensor<ui32>
    %57 = stablehlo.broadcast_in_dim %c_14, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %58 = stablehlo.shift_right_logical %53, %57 : tensor<20xui32>
    %59 = stablehlo.or %56, %58 : tensor<20xui32>
    %60 = stablehlo.xor %54, %59 : tensor<20xui32>
    %61 = stablehlo.add %54, %60 : tensor<20xui32>
    %c_15 = stablehlo.constant dense<24> : tensor<ui32>
    %62 = stablehlo.broadcast_in_dim %c_15, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %63 = stablehlo.shift_left %60, %62 : tensor<20xui32>
    %c_16 = stablehlo.constant dense<8> : tensor<ui32>
    %64 = stablehlo.broadcast_in_dim %c_16, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %65 = stablehlo.shift_right_logical %60, %64 : tensor<20xui32>
    %66 = stablehlo.or %63, %65 : tensor<20xui32>
    %67 = stablehlo.xor %61, %66 : tensor<20xui32>
    %68 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %69 = stablehlo.add %61, %68 : tensor<20xui32>
    %70 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %71 = stablehlo.add %67, %70 : tensor<20xui32>
    %c_17 = stablehlo.constant dense<2> : tensor<ui32>
    %72 = stablehlo.broadcast_in_dim %c_17, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %73 = stablehlo.add %71, %72 : tensor<20xui32>
    %74 = stablehlo.add %69, %73 : tensor<20xui32>
    %c_18 = stablehlo.constant dense<13> : tensor<ui32>
    %75 = stablehlo.broadcast_in_dim %c_18, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %76 = stablehlo.shift_left %73, %75 : tensor<20xui32>
    %c_19 = stablehlo.constant dense<19> : tensor<ui32>
    %77 = stablehlo.broadcast_in_dim %c_19, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %78 = stablehlo.shift_right_logical %73, %77 : tensor<20xui32>
    %79 = stablehlo.or %76, %78 : tensor<20xui32>
    %80 = stablehlo.xor %74, %79 : tensor<20xui32>
    %81 = stablehlo.add %74, %80 : tensor<20xui32>
    %c_20 = stablehlo.constant dense<15> : tensor<ui32>
    %82 = stablehlo.broadcast_in_dim %c_20, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %83 = stablehlo.shift_left %80, %82 : tensor<20xui32>
    %c_21 = stablehlo.constant dense<17> : tensor<ui32>
    %84 = stablehlo.broadcast_in_dim %c_21, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %85 = stablehlo.shift_right_logical %80, %84 : tensor<20xui32>
    %86 = stablehlo.or %83, %85 : tensor<20xui32>
    %87 = stablehlo.xor %81, %86 : tensor<20xui32>
    %88 = stablehlo.add %81, %87 : tensor<20xui32>
    %c_22 = stablehlo.constant dense<26> : tensor<ui32>
    %89 = stablehlo.broadcast_in_dim %c_22, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %90 = stablehlo.shift_left %87, %89 : tensor<20xui32>
    %c_23 = stablehlo.constant dense<6> : tensor<ui32>
    %91 = stablehlo.broadcast_in_dim %c_23, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %92 = stablehlo.shift_right_logical %87, %91 : tensor<20xui32>
    %93 = stablehlo.or %90, %92 : tensor<20xui32>
    %94 = stablehlo.xor %88, %93 : tensor<20xui32>
    %95 = stablehlo.add %88, %94 : tensor<20xui32>
    %c_24 = stablehlo.constant dense<6> : tensor<ui32>
    %96 = stablehlo.broadcast_in_dim %c_24, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %97 = stablehlo.shift_left %94, %96 : tensor<20xui32>
    %c_25 = stablehlo.constant dense<26> : tensor<ui32>
    %98 = stablehlo.broadcast_in_dim %c_25, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %99 = stablehlo.shift_right_logical %94, %98 : tensor<20xui32>
    %100 = stablehlo.or %97, %99 : tensor<20xui32>
    %101 = stablehlo.xor %95, %100 : tensor<20xui32>
    %102 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %103 = stablehlo.add %95, %102 : tensor<20xui32>
    %104 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %105 = stablehlo.add %101, %104 : tensor<20xui32>
    %c_26 = stablehlo.constant dense<3> : tensor<ui32>
    %106 = stablehlo.broadcast_in_dim %c_26, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %107 = stablehlo.add %105, %106 : tensor<20xui32>
    %108 = stablehlo.add %103, %107 : tensor<20xui32>
    %c_27 = stablehlo.constant dense<17> : tensor<ui32>
    %109 = stablehlo.broadcast_in_dim %c_27, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %110 = stablehlo.shift_left %107, %109 : tensor<20xui32>
    %c_28 = stablehlo.constant dense<15> : tensor<ui32>
    %111 = stablehlo.broadcast_in_dim %c_28, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %112 = stablehlo.shift_right_logical %107, %111 : tensor<20xui32>
    %113 = stablehlo.or %110, %112 : tensor<20xui32>
    %114 = stablehlo.xor %108, %113 : tensor<20xui32>
    %115 = stablehlo.add %108, %114 : tensor<20xui32>
    %c_29 = stablehlo.constant dense<29> : tensor<ui32>
    %116 = stablehlo.broadcast_in_dim %c_29, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %117 = stablehlo.shift_left %114, %116 : tensor<20xui32>
    %c_30 = stablehlo.constant dense<3> : tensor<ui32>
    %118 = stablehlo.broadcast_in_dim %c_30, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %119 = stablehlo.shift_right_logical %114, %118 : tensor<20xui32>
    %120 = stablehlo.or %117, %119 : tensor<20xui32>
    %121 = stablehlo.xor %115, %120 : tensor<20xui32>
    %122 = stablehlo.add %115, %121 : tensor<20xui32>
    %c_31 = stablehlo.constant dense<16> : tensor<ui32>
    %123 = stablehlo.broadcast_in_dim %c_31, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %124 = stablehlo.shift_left %121, %123 : tensor<20xui32>
    %c_32 = stablehlo.constant dense<16> : tensor<ui32>
    %125 = stablehlo.broadcast_in_dim %c_32, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %126 = stablehlo.shift_right_logical %121, %125 : tensor<20xui32>
    %127 = stablehlo.or %124, %126 : tensor<20xui32>
    %128 = stablehlo.xor %122, %127 : tensor<20xui32>
    %129 = stablehlo.add %122, %128 : tensor<20xui32>
    %c_33 = stablehlo.constant dense<24> : tensor<ui32>
    %130 = stablehlo.broadcast_in_dim %c_33, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %131 = stablehlo.shift_left %128, %130 : tensor<20xui32>
    %c_34 = stablehlo.constant dense<8> : tensor<ui32>
    %132 = stablehlo.broadcast_in_dim %c_34, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %133 = stablehlo.shift_right_logical %128, %132 : tensor<20xui32>
    %134 = stablehlo.or %131, %133 : tensor<20xui32>
    %135 = stablehlo.xor %129, %134 : tensor<20xui32>
    %136 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %137 = stablehlo.add %129, %136 : tensor<20xui32>
    %138 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %139 = stablehlo.add %135, %138 : tensor<20xui32>
    %c_35 = stablehlo.constant dense<4> : tensor<ui32>
    %140 = stablehlo.broadcast_in_dim %c_35, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %141 = stablehlo.add %139, %140 : tensor<20xui32>
    %142 = stablehlo.add %137, %141 : tensor<20xui32>
    %c_36 = stablehlo.constant dense<13> : tensor<ui32>
    %143 = stablehlo.broadcast_in_dim %c_36, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %144 = stablehlo.shift_left %141, %143 : tensor<20xui32>
    %c_37 = stablehlo.constant dense<19> : tensor<ui32>
    %145 = stablehlo.broadcast_in_dim %c_37, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %146 = stablehlo.shift_right_logical %141, %145 : tensor<20xui32>
    %147 = stablehlo.or %144, %146 : tensor<20xui32>
    %148 = stablehlo.xor %142, %147 : tensor<20xui32>
    %149 = stablehlo.add %142, %148 : tensor<20xui32>
    %c_38 = stablehlo.constant dense<15> : tensor<ui32>
    %150 = stablehlo.broadcast_in_dim %c_38, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %151 = stablehlo.shift_left %148, %150 : tensor<20xui32>
    %c_39 = stablehlo.constant dense<17> : tensor<ui32>
    %152 = stablehlo.broadcast_in_dim %c_39, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %153 = stablehlo.shift_right_logical %148, %152 : tensor<20xui32>
    %154 = stablehlo.or %151, %153 : tensor<20xui32>
    %155 = stablehlo.xor %149, %154 : tensor<20xui32>
    %156 = stablehlo.add %149, %155 : tensor<20xui32>
    %c_40 = stablehlo.constant dense<26> : tensor<ui32>
    %157 = stablehlo.broadcast_in_dim %c_40, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %158 = stablehlo.shift_left %155, %157 : tensor<20xui32>
    %c_41 = stablehlo.constant dense<6> : tensor<ui32>
    %159 = stablehlo.broadcast_in_dim %c_41, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %160 = stablehlo.shift_right_logical %155, %159 : tensor<20xui32>
    %161 = stablehlo.or %158, %160 : tensor<20xui32>
    %162 = stablehlo.xor %156, %161 : tensor<20xui32>
    %163 = stablehlo.add %156, %162 : tensor<20xui32>
    %c_42 = stablehlo.constant dense<6> : tensor<ui32>
    %164 = stablehlo.broadcast_in_dim %c_42, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %165 = stablehlo.shift_left %162, %164 : tensor<20xui32>
    %c_43 = stablehlo.constant dense<26> : tensor<ui32>
    %166 = stablehlo.broadcast_in_dim %c_43, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %167 = stablehlo.shift_right_logical %162, %166 : tensor<20xui32>
    %168 = stablehlo.or %165, %167 : tensor<20xui32>
    %169 = stablehlo.xor %163, %168 : tensor<20xui32>
    %170 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %171 = stablehlo.add %163, %170 : tensor<20xui32>
    %172 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %173 = stablehlo.add %169, %172 : tensor<20xui32>
    %c_44 = stablehlo.constant dense<5> : tensor<ui32>
    %174 = stablehlo.broadcast_in_dim %c_44, dims = [] : (tensor<ui32>) -> tensor<20xui32>
    %175 = stablehlo.add %173, %174 : tensor<20xui32>
    return %171, %175 : tensor<20xui32>, tensor<20xui32>
  }
  func.func private @_randint(%arg0: tensor<2xui32>, %arg1: tensor<i32>, %arg2: tensor<i32>) -> tensor<5xi32> {
    %c = stablehlo.constant dense<2147483647> : tensor<i32>
    %c_0 = stablehlo.constant dense<-2147483648> : tensor<i32>
    %c_1 = stablehlo.constant dense<2147483647> : tensor<i32>
    %0 = call @clip(%c, %c_0, %c_1) : (tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<i32>
    %1 = stablehlo.compare GT, %arg2, %0, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_2 = stablehlo.constant dense<-2147483648> : tensor<i32>
    %c_3 = stablehlo.constant dense<2147483647> : tensor<i32>
    %2 = call @clip_2(%arg1, %c_2, %c_3) : (tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<i32>
    %3 = stablehlo.convert %2 : tensor<i32>
    %c_4 = stablehlo.constant dense<-2147483648> : tensor<i32>
    %c_5 = stablehlo.constant dense<2147483647> : tensor<i32>
    %4 = call @clip_2(%arg2, %c_4, %c_5) : (tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<i32>
    %5 = stablehlo.convert %4 : tensor<i32>
    %6 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %7 = stablehlo.broadcast_in_dim %5, dims = [] : (tensor<i32>) -> tensor<1xi32>
    %8 = call @_threefry_split(%arg0) : (tensor<2xui32>) -> tensor<2x2xui32>
    %9 = stablehlo.slice %8 [0:1, 0:2] : (tensor<2x2xui32>) -> tensor<1x2xui32>
    %10 = stablehlo.reshape %9 : (tensor<1x2xui32>) -> tensor<2xui32>
    %11 = stablehlo.slice %8 [1:2, 0:2] : (tensor<2x2xui32>) -> tensor<1x2xui32>
    %12 = stablehlo.reshape %11 : (tensor<1x2xui32>) -> tensor<2xui32>
    %13 = stablehlo.slice %10 [0:1] : (tensor<2xui32>) -> tensor<1xui32>
    %14 = stablehlo.reshape %13 : (tensor<1xui32>) -> tensor<ui32>
    %15 = stablehlo.slice %10 [1:2] : (tensor<2xui32>) -> tensor<1xui32>
    %16 = stablehlo.reshape %15 : (tensor<1xui32>) -> tensor<ui32>
    %17 = stablehlo.iota dim = 0 : tensor<5xui64>
    %c_6 = stablehlo.constant dense<1> : tensor<ui64>
    %18 = stablehlo.broadcast_in_dim %c_6, dims = [] : (tensor<ui64>) -> tensor<5xui64>
    %19 = stablehlo.multiply %18, %17 : tensor<5xui64>
    %c_7 = stablehlo.constant dense<32> : tensor<ui64>
    %20 = stablehlo.broadcast_in_dim %c_7, dims = [] : (tensor<ui64>) -> tensor<5xui64>
    %21 = stablehlo.shift_right_logical %19, %20 : tensor<5xui64>
    %22 = stablehlo.convert %19 : (tensor<5xui64>) -> tensor<5xui32>
    %23 = stablehlo.convert %21 : (tensor<5xui64>) -> tensor<5xui32>
    %24:2 = call @threefry2x32_3(%14, %16, %23, %22) : (tensor<ui32>, tensor<ui32>, tensor<5xui32>, tensor<5xui32>) -> (tensor<5xui32>, tensor<5xui32>)
    %25 = stablehlo.xor %24#0, %24#1 : tensor<5xui32>
    %26 = stablehlo.slice %12 [0:1] : (tensor<2xui32>) -> tensor<1xui32>
    %27 = stablehlo.reshape %26 : (tensor<1xui32>) -> tensor<ui32>
    %28 = stablehlo.slice %12 [1:2] : (tensor<2xui32>) -> tensor<1xui32>
    %29 = stablehlo.reshape %28 : (tensor<1xui32>) -> tensor<ui32>
    %30 = stablehlo.iota dim = 0 : tensor<5xui64>
    %c_8 = stablehlo.constant dense<1> : tensor<ui64>
    %31 = stablehlo.broadcast_in_dim %c_8, dims = [] : (tensor<ui64>) -> tensor<5xui64>
    %32 = stablehlo.multiply %31, %30 : tensor<5xui64>
    %c_9 = stablehlo.constant dense<32> : tensor<ui64>
    %33 = stablehlo.broadcast_in_dim %c_9, dims = [] : (tensor<ui64>) -> tensor<5xui64>
    %34 = stablehlo.shift_right_logical %32, %33 : tensor<5xui64>
    %35 = stablehlo.convert %32 : (tensor<5xui64>) -> tensor<5xui32>
    %36 = stablehlo.convert %34 : (tensor<5xui64>) -> tensor<5xui32>
    %37:2 = call @threefry2x32_3(%27, %29, %36, %35) : (tensor<ui32>, tensor<ui32>, tensor<5xui32>, tensor<5xui32>) -> (tensor<5xui32>, tensor<5xui32>)
    %38 = stablehlo.xor %37#0, %37#1 : tensor<5xui32>
    %39 = stablehlo.subtract %7, %6 : tensor<1xi32>
    %40 = stablehlo.convert %39 : (tensor<1xi32>) -> tensor<1xui32>
    %41 = stablehlo.compare LE, %7, %6, SIGNED : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi1>
    %c_10 = stablehlo.constant dense<1> : tensor<ui32>
    %42 = stablehlo.broadcast_in_dim %c_10, dims = [] : (tensor<ui32>) -> tensor<1xui32>
    %43 = stablehlo.select %41, %42, %40 : tensor<1xi1>, tensor<1xui32>
    %44 = stablehlo.compare GT, %7, %6, SIGNED : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi1>
    %45 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<i1>) -> tensor<1xi1>
    %46 = stablehlo.and %45, %44 : tensor<1xi1>
    %c_11 = stablehlo.constant dense<1> : tensor<ui32>
    %47 = stablehlo.broadcast_in_dim %c_11, dims = [] : (tensor<ui32>) -> tensor<1xui32>
    %48 = stablehlo.add %43, %47 : tensor<1xui32>
    %49 = stablehlo.select %46, %48, %43 : tensor<1xi1>, tensor<1xui32>
    %c_12 = stablehlo.constant dense<65536> : tensor<ui32>
    %50 = stablehlo.broadcast_in_dim %c_12, dims = [] : (tensor<ui32>) -> tensor<1xui32>
    %51 = stablehlo.remainder %50, %49 : tensor<1xui32>
    %52 = stablehlo.multiply %51, %51 : tensor<1xui32>
    %53 = stablehlo.remainder %52, %49 : tensor<1xui32>
    %54 = stablehlo.broadcast_in_dim %49, dims = [0] : (tensor<1xui32>) -> tensor<5xui32>
    %55 = stablehlo.remainder %25, %54 : tensor<5xui32>
    %56 = stablehlo.broadcast_in_dim %53, dims = [0] : (tensor<1xui32>) -> tensor<5xui32>
    %57 = stablehlo.multiply %55, %56 : tensor<5xui32>
    %58 = stablehlo.broadcast_in_dim %49, dims = [0] : (tensor<1xui32>) -> tensor<5xui32>
    %59 = stablehlo.remainder %38, %58 : tensor<5xui32>
    %60 = stablehlo.add %57, %59 : tensor<5xui32>
    %61 = stablehlo.broadcast_in_dim %49, dims = [0] : (tensor<1xui32>) -> tensor<5xui32>
    %62 = stablehlo.remainder %60, %61 : tensor<5xui32>
    %63 = stablehlo.convert %62 : (tensor<5xui32>) -> tensor<5xi32>
    %64 = stablehlo.broadcast_in_dim %6, dims = [0] : (tensor<1xi32>) -> tensor<5xi32>
    %65 = stablehlo.add %64, %63 : tensor<5xi32>
    return %65 : tensor<5xi32>
  }
  func.func private @clip(%arg0: tensor<i32>, %arg1: tensor<i32>, %arg2: tensor<i32>) -> tensor<i32> {
    %0 = stablehlo.maximum %arg1, %arg0 : tensor<i32>
    %1 = stablehlo.minimum %arg2, %0 : tensor<i32>
    return %1 : tensor<i32>
  }
  func.func private @clip_2(%arg0: tensor<i32>, %arg1: tensor<i32>, %arg2: tensor<i32>) -> tensor<i32> {
    %0 = stablehlo.maximum %arg1, %arg0 : tensor<i32>
    %1 = stablehlo.minimum %arg2, %0 : tensor<i32>
    return %1 : tensor<i32>
  }
  func.func private @threefry2x32_3(%arg0: tensor<ui32>, %arg1: tensor<ui32>, %arg2: tensor<5xui32>, %arg3: tensor<5xui32>) -> (tensor<5xui32>, tensor<5xui32>) {
    %0 = stablehlo.xor %arg0, %arg1 : tensor<ui32>
    %c = stablehlo.constant dense<466688986> : tensor<ui32>
    %1 = stablehlo.xor %0, %c : tensor<ui32>
    %2 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %3 = stablehlo.add %arg2, %2 : tensor<5xui32>
    %4 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %5 = stablehlo.add %arg3, %4 : tensor<5xui32>
    %6 = stablehlo.add %3, %5 : tensor<5xui32>
    %c_0 = stablehlo.constant dense<13> : tensor<ui32>
    %7 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %8 = stablehlo.shift_left %5, %7 : tensor<5xui32>
    %c_1 = stablehlo.constant dense<19> : tensor<ui32>
    %9 = stablehlo.broadcast_in_dim %c_1, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %10 = stablehlo.shift_right_logical %5, %9 : tensor<5xui32>
    %11 = stablehlo.or %8, %10 : tensor<5xui32>
    %12 = stablehlo.xor %6, %11 : tensor<5xui32>
    %13 = stablehlo.add %6, %12 : tensor<5xui32>
    %c_2 = stablehlo.constant dense<15> : tensor<ui32>
    %14 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %15 = stablehlo.shift_left %12, %14 : tensor<5xui32>
    %c_3 = stablehlo.constant dense<17> : tensor<ui32>
    %16 = stablehlo.broadcast_in_dim %c_3, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %17 = stablehlo.shift_right_logical %12, %16 : tensor<5xui32>
    %18 = stablehlo.or %15, %17 : tensor<5xui32>
    %19 = stablehlo.xor %13, %18 : tensor<5xui32>
    %20 = stablehlo.add %13, %19 : tensor<5xui32>
    %c_4 = stablehlo.constant dense<26> : tensor<ui32>
    %21 = stablehlo.broadcast_in_dim %c_4, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %22 = stablehlo.shift_left %19, %21 : tensor<5xui32>
    %c_5 = stablehlo.constant dense<6> : tensor<ui32>
    %23 = stablehlo.broadcast_in_dim %c_5, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %24 = stablehlo.shift_right_logical %19, %23 : tensor<5xui32>
    %25 = stablehlo.or %22, %24 : tensor<5xui32>
    %26 = stablehlo.xor %20, %25 : tensor<5xui32>
    %27 = stablehlo.add %20, %26 : tensor<5xui32>
    %c_6 = stablehlo.constant dense<6> : tensor<ui32>
    %28 = stablehlo.broadcast_in_dim %c_6, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %29 = stablehlo.shift_left %26, %28 : tensor<5xui32>
    %c_7 = stablehlo.constant dense<26> : tensor<ui32>
    %30 = stablehlo.broadcast_in_dim %c_7, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %31 = stablehlo.shift_right_logical %26, %30 : tensor<5xui32>
    %32 = stablehlo.or %29, %31 : tensor<5xui32>
    %33 = stablehlo.xor %27, %32 : tensor<5xui32>
    %34 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %35 = stablehlo.add %27, %34 : tensor<5xui32>
    %36 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %37 = stablehlo.add %33, %36 : tensor<5xui32>
    %c_8 = stablehlo.constant dense<1> : tensor<ui32>
    %38 = stablehlo.broadcast_in_dim %c_8, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %39 = stablehlo.add %37, %38 : tensor<5xui32>
    %40 = stablehlo.add %35, %39 : tensor<5xui32>
    %c_9 = stablehlo.constant dense<17> : tensor<ui32>
    %41 = stablehlo.broadcast_in_dim %c_9, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %42 = stablehlo.shift_left %39, %41 : tensor<5xui32>
    %c_10 = stablehlo.constant dense<15> : tensor<ui32>
    %43 = stablehlo.broadcast_in_dim %c_10, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %44 = stablehlo.shift_right_logical %39, %43 : tensor<5xui32>
    %45 = stablehlo.or %42, %44 : tensor<5xui32>
    %46 = stablehlo.xor %40, %45 : tensor<5xui32>
    %47 = stablehlo.add %40, %46 : tensor<5xui32>
    %c_11 = stablehlo.constant dense<29> : tensor<ui32>
    %48 = stablehlo.broadcast_in_dim %c_11, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %49 = stablehlo.shift_left %46, %48 : tensor<5xui32>
    %c_12 = stablehlo.constant dense<3> : tensor<ui32>
    %50 = stablehlo.broadcast_in_dim %c_12, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %51 = stablehlo.shift_right_logical %46, %50 : tensor<5xui32>
    %52 = stablehlo.or %49, %51 : tensor<5xui32>
    %53 = stablehlo.xor %47, %52 : tensor<5xui32>
    %54 = stablehlo.add %47, %53 : tensor<5xui32>
    %c_13 = stablehlo.constant dense<16> : tensor<ui32>
    %55 = stablehlo.broadcast_in_dim %c_13, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %56 = stablehlo.shift_left %53, %55 : tensor<5xui32>
    %c_14 = stablehlo.constant dense<16> : tensor<ui32>
    %57 = stablehlo.broadcast_in_dim %c_14, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %58 = stablehlo.shift_right_logical %53, %57 : tensor<5xui32>
    %59 = stablehlo.or %56, %58 : tensor<5xui32>
    %60 = stablehlo.xor %54, %59 : tensor<5xui32>
    %61 = stablehlo.add %54, %60 : tensor<5xui32>
    %c_15 = stablehlo.constant dense<24> : tensor<ui32>
    %62 = stablehlo.broadcast_in_dim %c_15, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %63 = stablehlo.shift_left %60, %62 : tensor<5xui32>
    %c_16 = stablehlo.constant dense<8> : tensor<ui32>
    %64 = stablehlo.broadcast_in_dim %c_16, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %65 = stablehlo.shift_right_logical %60, %64 : tensor<5xui32>
    %66 = stablehlo.or %63, %65 : tensor<5xui32>
    %67 = stablehlo.xor %61, %66 : tensor<5xui32>
    %68 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %69 = stablehlo.add %61, %68 : tensor<5xui32>
    %70 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %71 = stablehlo.add %67, %70 : tensor<5xui32>
    %c_17 = stablehlo.constant dense<2> : tensor<ui32>
    %72 = stablehlo.broadcast_in_dim %c_17, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %73 = stablehlo.add %71, %72 : tensor<5xui32>
    %74 = stablehlo.add %69, %73 : tensor<5xui32>
    %c_18 = stablehlo.constant dense<13> : tensor<ui32>
    %75 = stablehlo.broadcast_in_dim %c_18, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %76 = stablehlo.shift_left %73, %75 : tensor<5xui32>
    %c_19 = stablehlo.constant dense<19> : tensor<ui32>
    %77 = stablehlo.broadcast_in_dim %c_19, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %78 = stablehlo.shift_right_logical %73, %77 : tensor<5xui32>
    %79 = stablehlo.or %76, %78 : tensor<5xui32>
    %80 = stablehlo.xor %74, %79 : tensor<5xui32>
    %81 = stablehlo.add %74, %80 : tensor<5xui32>
    %c_20 = stablehlo.constant dense<15> : tensor<ui32>
    %82 = stablehlo.broadcast_in_dim %c_20, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %83 = stablehlo.shift_left %80, %82 : tensor<5xui32>
    %c_21 = stablehlo.constant dense<17> : tensor<ui32>
    %84 = stablehlo.broadcast_in_dim %c_21, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %85 = stablehlo.shift_right_logical %80, %84 : tensor<5xui32>
    %86 = stablehlo.or %83, %85 : tensor<5xui32>
    %87 = stablehlo.xor %81, %86 : tensor<5xui32>
    %88 = stablehlo.add %81, %87 : tensor<5xui32>
    %c_22 = stablehlo.constant dense<26> : tensor<ui32>
    %89 = stablehlo.broadcast_in_dim %c_22, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %90 = stablehlo.shift_left %87, %89 : tensor<5xui32>
    %c_23 = stablehlo.constant dense<6> : tensor<ui32>
    %91 = stablehlo.broadcast_in_dim %c_23, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %92 = stablehlo.shift_right_logical %87, %91 : tensor<5xui32>
    %93 = stablehlo.or %90, %92 : tensor<5xui32>
    %94 = stablehlo.xor %88, %93 : tensor<5xui32>
    %95 = stablehlo.add %88, %94 : tensor<5xui32>
    %c_24 = stablehlo.constant dense<6> : tensor<ui32>
    %96 = stablehlo.broadcast_in_dim %c_24, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %97 = stablehlo.shift_left %94, %96 : tensor<5xui32>
    %c_25 = stablehlo.constant dense<26> : tensor<ui32>
    %98 = stablehlo.broadcast_in_dim %c_25, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %99 = stablehlo.shift_right_logical %94, %98 : tensor<5xui32>
    %100 = stablehlo.or %97, %99 : tensor<5xui32>
    %101 = stablehlo.xor %95, %100 : tensor<5xui32>
    %102 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %103 = stablehlo.add %95, %102 : tensor<5xui32>
    %104 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %105 = stablehlo.add %101, %104 : tensor<5xui32>
    %c_26 = stablehlo.constant dense<3> : tensor<ui32>
    %106 = stablehlo.broadcast_in_dim %c_26, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %107 = stablehlo.add %105, %106 : tensor<5xui32>
    %108 = stablehlo.add %103, %107 : tensor<5xui32>
    %c_27 = stablehlo.constant dense<17> : tensor<ui32>
    %109 = stablehlo.broadcast_in_dim %c_27, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %110 = stablehlo.shift_left %107, %109 : tensor<5xui32>
    %c_28 = stablehlo.constant dense<15> : tensor<ui32>
    %111 = stablehlo.broadcast_in_dim %c_28, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %112 = stablehlo.shift_right_logical %107, %111 : tensor<5xui32>
    %113 = stablehlo.or %110, %112 : tensor<5xui32>
    %114 = stablehlo.xor %108, %113 : tensor<5xui32>
    %115 = stablehlo.add %108, %114 : tensor<5xui32>
    %c_29 = stablehlo.constant dense<29> : tensor<ui32>
    %116 = stablehlo.broadcast_in_dim %c_29, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %117 = stablehlo.shift_left %114, %116 : tensor<5xui32>
    %c_30 = stablehlo.constant dense<3> : tensor<ui32>
    %118 = stablehlo.broadcast_in_dim %c_30, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %119 = stablehlo.shift_right_logical %114, %118 : tensor<5xui32>
    %120 = stablehlo.or %117, %119 : tensor<5xui32>
    %121 = stablehlo.xor %115, %120 : tensor<5xui32>
    %122 = stablehlo.add %115, %121 : tensor<5xui32>
    %c_31 = stablehlo.constant dense<16> : tensor<ui32>
    %123 = stablehlo.broadcast_in_dim %c_31, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %124 = stablehlo.shift_left %121, %123 : tensor<5xui32>
    %c_32 = stablehlo.constant dense<16> : tensor<ui32>
    %125 = stablehlo.broadcast_in_dim %c_32, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %126 = stablehlo.shift_right_logical %121, %125 : tensor<5xui32>
    %127 = stablehlo.or %124, %126 : tensor<5xui32>
    %128 = stablehlo.xor %122, %127 : tensor<5xui32>
    %129 = stablehlo.add %122, %128 : tensor<5xui32>
    %c_33 = stablehlo.constant dense<24> : tensor<ui32>
    %130 = stablehlo.broadcast_in_dim %c_33, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %131 = stablehlo.shift_left %128, %130 : tensor<5xui32>
    %c_34 = stablehlo.constant dense<8> : tensor<ui32>
    %132 = stablehlo.broadcast_in_dim %c_34, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %133 = stablehlo.shift_right_logical %128, %132 : tensor<5xui32>
    %134 = stablehlo.or %131, %133 : tensor<5xui32>
    %135 = stablehlo.xor %129, %134 : tensor<5xui32>
    %136 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %137 = stablehlo.add %129, %136 : tensor<5xui32>
    %138 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %139 = stablehlo.add %135, %138 : tensor<5xui32>
    %c_35 = stablehlo.constant dense<4> : tensor<ui32>
    %140 = stablehlo.broadcast_in_dim %c_35, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %141 = stablehlo.add %139, %140 : tensor<5xui32>
    %142 = stablehlo.add %137, %141 : tensor<5xui32>
    %c_36 = stablehlo.constant dense<13> : tensor<ui32>
    %143 = stablehlo.broadcast_in_dim %c_36, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %144 = stablehlo.shift_left %141, %143 : tensor<5xui32>
    %c_37 = stablehlo.constant dense<19> : tensor<ui32>
    %145 = stablehlo.broadcast_in_dim %c_37, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %146 = stablehlo.shift_right_logical %141, %145 : tensor<5xui32>
    %147 = stablehlo.or %144, %146 : tensor<5xui32>
    %148 = stablehlo.xor %142, %147 : tensor<5xui32>
    %149 = stablehlo.add %142, %148 : tensor<5xui32>
    %c_38 = stablehlo.constant dense<15> : tensor<ui32>
    %150 = stablehlo.broadcast_in_dim %c_38, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %151 = stablehlo.shift_left %148, %150 : tensor<5xui32>
    %c_39 = stablehlo.constant dense<17> : tensor<ui32>
    %152 = stablehlo.broadcast_in_dim %c_39, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %153 = stablehlo.shift_right_logical %148, %152 : tensor<5xui32>
    %154 = stablehlo.or %151, %153 : tensor<5xui32>
    %155 = stablehlo.xor %149, %154 : tensor<5xui32>
    %156 = stablehlo.add %149, %155 : tensor<5xui32>
    %c_40 = stablehlo.constant dense<26> : tensor<ui32>
    %157 = stablehlo.broadcast_in_dim %c_40, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %158 = stablehlo.shift_left %155, %157 : tensor<5xui32>
    %c_41 = stablehlo.constant dense<6> : tensor<ui32>
    %159 = stablehlo.broadcast_in_dim %c_41, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %160 = stablehlo.shift_right_logical %155, %159 : tensor<5xui32>
    %161 = stablehlo.or %158, %160 : tensor<5xui32>
    %162 = stablehlo.xor %156, %161 : tensor<5xui32>
    %163 = stablehlo.add %156, %162 : tensor<5xui32>
    %c_42 = stablehlo.constant dense<6> : tensor<ui32>
    %164 = stablehlo.broadcast_in_dim %c_42, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %165 = stablehlo.shift_left %162, %164 : tensor<5xui32>
    %c_43 = stablehlo.constant dense<26> : tensor<ui32>
    %166 = stablehlo.broadcast_in_dim %c_43, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %167 = stablehlo.shift_right_logical %162, %166 : tensor<5xui32>
    %168 = stablehlo.or %165, %167 : tensor<5xui32>
    %169 = stablehlo.xor %163, %168 : tensor<5xui32>
    %170 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %171 = stablehlo.add %163, %170 : tensor<5xui32>
    %172 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %173 = stablehlo.add %169, %172 : tensor<5xui32>
    %c_44 = stablehlo.constant dense<5> : tensor<ui32>
    %174 = stablehlo.broadcast_in_dim %c_44, dims = [] : (tensor<ui32>) -> tensor<5xui32>
    %175 = stablehlo.add %173, %174 : tensor<5xui32>
    return %171, %175 : tensor<5xui32>, tensor<5xui32>
  }
  func.func private @_uniform(%arg0: tensor<2xui32>, %arg1: tensor<f32>, %arg2: tensor<f32>) -> tensor<100xf32> {
    %0 = stablehlo.convert %arg1 : tensor<f32>
    %1 = stablehlo.convert %arg2 : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<1xf32>
    %3 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<f32>) -> tensor<1xf32>
    %4 = stablehlo.slice %arg0 [0:1] : (tensor<2xui32>) -> tensor<1xui32>
    %5 = stablehlo.reshape %4 : (tensor<1xui32>) -> tensor<ui32>
    %6 = stablehlo.slice %arg0 [1:2] : (tensor<2xui32>) -> tensor<1xui32>
    %7 = stablehlo.reshape %6 : (tensor<1xui32>) -> tensor<ui32>
    %8 = stablehlo.iota dim = 0 : tensor<100xui64>
    %c = stablehlo.constant dense<1> : tensor<ui64>
    %9 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<ui64>) -> tensor<100xui64>
    %10 = stablehlo.multiply %9, %8 : tensor<100xui64>
    %c_0 = stablehlo.constant dense<32> : tensor<ui64>
    %11 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<ui64>) -> tensor<100xui64>
    %12 = stablehlo.shift_right_logical %10, %11 : tensor<100xui64>
    %13 = stablehlo.convert %10 : (tensor<100xui64>) -> tensor<100xui32>
    %14 = stablehlo.convert %12 : (tensor<100xui64>) -> tensor<100xui32>
    %15:2 = call @threefry2x32_4(%5, %7, %14, %13) : (tensor<ui32>, tensor<ui32>, tensor<100xui32>, tensor<100xui32>) -> (tensor<100xui32>, tensor<100xui32>)
    %16 = stablehlo.xor %15#0, %15#1 : tensor<100xui32>
    %c_1 = stablehlo.constant dense<9> : tensor<ui32>
    %17 = stablehlo.broadcast_in_dim %c_1, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %18 = stablehlo.shift_right_logical %16, %17 : tensor<100xui32>
    %c_2 = stablehlo.constant dense<1065353216> : tensor<ui32>
    %19 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %20 = stablehlo.or %18, %19 : tensor<100xui32>
    %21 = stablehlo.bitcast_convert %20 : (tensor<100xui32>) -> tensor<100xf32>
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %22 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<100xf32>
    %23 = stablehlo.subtract %21, %22 : tensor<100xf32>
    %24 = stablehlo.subtract %3, %2 : tensor<1xf32>
    %25 = stablehlo.broadcast_in_dim %24, dims = [0] : (tensor<1xf32>) -> tensor<100xf32>
    %26 = stablehlo.multiply %23, %25 : tensor<100xf32>
    %27 = stablehlo.broadcast_in_dim %2, dims = [0] : (tensor<1xf32>) -> tensor<100xf32>
    %28 = stablehlo.add %26, %27 : tensor<100xf32>
    %29 = stablehlo.broadcast_in_dim %2, dims = [0] : (tensor<1xf32>) -> tensor<100xf32>
    %30 = stablehlo.maximum %29, %28 : tensor<100xf32>
    return %30 : tensor<100xf32>
  }
  func.func private @threefry2x32_4(%arg0: tensor<ui32>, %arg1: tensor<ui32>, %arg2: tensor<100xui32>, %arg3: tensor<100xui32>) -> (tensor<100xui32>, tensor<100xui32>) {
    %0 = stablehlo.xor %arg0, %arg1 : tensor<ui32>
    %c = stablehlo.constant dense<466688986> : tensor<ui32>
    %1 = stablehlo.xor %0, %c : tensor<ui32>
    %2 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %3 = stablehlo.add %arg2, %2 : tensor<100xui32>
    %4 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %5 = stablehlo.add %arg3, %4 : tensor<100xui32>
    %6 = stablehlo.add %3, %5 : tensor<100xui32>
    %c_0 = stablehlo.constant dense<13> : tensor<ui32>
    %7 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %8 = stablehlo.shift_left %5, %7 : tensor<100xui32>
    %c_1 = stablehlo.constant dense<19> : tensor<ui32>
    %9 = stablehlo.broadcast_in_dim %c_1, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %10 = stablehlo.shift_right_logical %5, %9 : tensor<100xui32>
    %11 = stablehlo.or %8, %10 : tensor<100xui32>
    %12 = stablehlo.xor %6, %11 : tensor<100xui32>
    %13 = stablehlo.add %6, %12 : tensor<100xui32>
    %c_2 = stablehlo.constant dense<15> : tensor<ui32>
    %14 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %15 = stablehlo.shift_left %12, %14 : tensor<100xui32>
    %c_3 = stablehlo.constant dense<17> : tensor<ui32>
    %16 = stablehlo.broadcast_in_dim %c_3, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %17 = stablehlo.shift_right_logical %12, %16 : tensor<100xui32>
    %18 = stablehlo.or %15, %17 : tensor<100xui32>
    %19 = stablehlo.xor %13, %18 : tensor<100xui32>
    %20 = stablehlo.add %13, %19 : tensor<100xui32>
    %c_4 = stablehlo.constant dense<26> : tensor<ui32>
    %21 = stablehlo.broadcast_in_dim %c_4, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %22 = stablehlo.shift_left %19, %21 : tensor<100xui32>
    %c_5 = stablehlo.constant dense<6> : tensor<ui32>
    %23 = stablehlo.broadcast_in_dim %c_5, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %24 = stablehlo.shift_right_logical %19, %23 : tensor<100xui32>
    %25 = stablehlo.or %22, %24 : tensor<100xui32>
    %26 = stablehlo.xor %20, %25 : tensor<100xui32>
    %27 = stablehlo.add %20, %26 : tensor<100xui32>
    %c_6 = stablehlo.constant dense<6> : tensor<ui32>
    %28 = stablehlo.broadcast_in_dim %c_6, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %29 = stablehlo.shift_left %26, %28 : tensor<100xui32>
    %c_7 = stablehlo.constant dense<26> : tensor<ui32>
    %30 = stablehlo.broadcast_in_dim %c_7, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %31 = stablehlo.shift_right_logical %26, %30 : tensor<100xui32>
    %32 = stablehlo.or %29, %31 : tensor<100xui32>
    %33 = stablehlo.xor %27, %32 : tensor<100xui32>
    %34 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %35 = stablehlo.add %27, %34 : tensor<100xui32>
    %36 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %37 = stablehlo.add %33, %36 : tensor<100xui32>
    %c_8 = stablehlo.constant dense<1> : tensor<ui32>
    %38 = stablehlo.broadcast_in_dim %c_8, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %39 = stablehlo.add %37, %38 : tensor<100xui32>
    %40 = stablehlo.add %35, %39 : tensor<100xui32>
    %c_9 = stablehlo.constant dense<17> : tensor<ui32>
    %41 = stablehlo.broadcast_in_dim %c_9, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %42 = stablehlo.shift_left %39, %41 : tensor<100xui32>
    %c_10 = stablehlo.constant dense<15> : tensor<ui32>
    %43 = stablehlo.broadcast_in_dim %c_10, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %44 = stablehlo.shift_right_logical %39, %43 : tensor<100xui32>
    %45 = stablehlo.or %42, %44 : tensor<100xui32>
    %46 = stablehlo.xor %40, %45 : tensor<100xui32>
    %47 = stablehlo.add %40, %46 : tensor<100xui32>
    %c_11 = stablehlo.constant dense<29> : tensor<ui32>
    %48 = stablehlo.broadcast_in_dim %c_11, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %49 = stablehlo.shift_left %46, %48 : tensor<100xui32>
    %c_12 = stablehlo.constant dense<3> : tensor<ui32>
    %50 = stablehlo.broadcast_in_dim %c_12, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %51 = stablehlo.shift_right_logical %46, %50 : tensor<100xui32>
    %52 = stablehlo.or %49, %51 : tensor<100xui32>
    %53 = stablehlo.xor %47, %52 : tensor<100xui32>
    %54 = stablehlo.add %47, %53 : tensor<100xui32>
    %c_13 = stablehlo.constant dense<16> : tensor<ui32>
    %55 = stablehlo.broadcast_in_dim %c_13, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %56 = stablehlo.shift_left %53, %55 : tensor<100xui32>
    %c_14 = stablehlo.constant dense<16> : tensor<ui32>
    %57 = stablehlo.broadcast_in_dim %c_14, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %58 = stablehlo.shift_right_logical %53, %57 : tensor<100xui32>
    %59 = stablehlo.or %56, %58 : tensor<100xui32>
    %60 = stablehlo.xor %54, %59 : tensor<100xui32>
    %61 = stablehlo.add %54, %60 : tensor<100xui32>
    %c_15 = stablehlo.constant dense<24> : tensor<ui32>
    %62 = stablehlo.broadcast_in_dim %c_15, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %63 = stablehlo.shift_left %60, %62 : tensor<100xui32>
    %c_16 = stablehlo.constant dense<8> : tensor<ui32>
    %64 = stablehlo.broadcast_in_dim %c_16, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %65 = stablehlo.shift_right_logical %60, %64 : tensor<100xui32>
    %66 = stablehlo.or %63, %65 : tensor<100xui32>
    %67 = stablehlo.xor %61, %66 : tensor<100xui32>
    %68 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %69 = stablehlo.add %61, %68 : tensor<100xui32>
    %70 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %71 = stablehlo.add %67, %70 : tensor<100xui32>
    %c_17 = stablehlo.constant dense<2> : tensor<ui32>
    %72 = stablehlo.broadcast_in_dim %c_17, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %73 = stablehlo.add %71, %72 : tensor<100xui32>
    %74 = stablehlo.add %69, %73 : tensor<100xui32>
    %c_18 = stablehlo.constant dense<13> : tensor<ui32>
    %75 = stablehlo.broadcast_in_dim %c_18, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %76 = stablehlo.shift_left %73, %75 : tensor<100xui32>
    %c_19 = stablehlo.constant dense<19> : tensor<ui32>
    %77 = stablehlo.broadcast_in_dim %c_19, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %78 = stablehlo.shift_right_logical %73, %77 : tensor<100xui32>
    %79 = stablehlo.or %76, %78 : tensor<100xui32>
    %80 = stablehlo.xor %74, %79 : tensor<100xui32>
    %81 = stablehlo.add %74, %80 : tensor<100xui32>
    %c_20 = stablehlo.constant dense<15> : tensor<ui32>
    %82 = stablehlo.broadcast_in_dim %c_20, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %83 = stablehlo.shift_left %80, %82 : tensor<100xui32>
    %c_21 = stablehlo.constant dense<17> : tensor<ui32>
    %84 = stablehlo.broadcast_in_dim %c_21, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %85 = stablehlo.shift_right_logical %80, %84 : tensor<100xui32>
    %86 = stablehlo.or %83, %85 : tensor<100xui32>
    %87 = stablehlo.xor %81, %86 : tensor<100xui32>
    %88 = stablehlo.add %81, %87 : tensor<100xui32>
    %c_22 = stablehlo.constant dense<26> : tensor<ui32>
    %89 = stablehlo.broadcast_in_dim %c_22, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %90 = stablehlo.shift_left %87, %89 : tensor<100xui32>
    %c_23 = stablehlo.constant dense<6> : tensor<ui32>
    %91 = stablehlo.broadcast_in_dim %c_23, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %92 = stablehlo.shift_right_logical %87, %91 : tensor<100xui32>
    %93 = stablehlo.or %90, %92 : tensor<100xui32>
    %94 = stablehlo.xor %88, %93 : tensor<100xui32>
    %95 = stablehlo.add %88, %94 : tensor<100xui32>
    %c_24 = stablehlo.constant dense<6> : tensor<ui32>
    %96 = stablehlo.broadcast_in_dim %c_24, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %97 = stablehlo.shift_left %94, %96 : tensor<100xui32>
    %c_25 = stablehlo.constant dense<26> : tensor<ui32>
    %98 = stablehlo.broadcast_in_dim %c_25, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %99 = stablehlo.shift_right_logical %94, %98 : tensor<100xui32>
    %100 = stablehlo.or %97, %99 : tensor<100xui32>
    %101 = stablehlo.xor %95, %100 : tensor<100xui32>
    %102 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %103 = stablehlo.add %95, %102 : tensor<100xui32>
    %104 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %105 = stablehlo.add %101, %104 : tensor<100xui32>
    %c_26 = stablehlo.constant dense<3> : tensor<ui32>
    %106 = stablehlo.broadcast_in_dim %c_26, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %107 = stablehlo.add %105, %106 : tensor<100xui32>
    %108 = stablehlo.add %103, %107 : tensor<100xui32>
    %c_27 = stablehlo.constant dense<17> : tensor<ui32>
    %109 = stablehlo.broadcast_in_dim %c_27, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %110 = stablehlo.shift_left %107, %109 : tensor<100xui32>
    %c_28 = stablehlo.constant dense<15> : tensor<ui32>
    %111 = stablehlo.broadcast_in_dim %c_28, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %112 = stablehlo.shift_right_logical %107, %111 : tensor<100xui32>
    %113 = stablehlo.or %110, %112 : tensor<100xui32>
    %114 = stablehlo.xor %108, %113 : tensor<100xui32>
    %115 = stablehlo.add %108, %114 : tensor<100xui32>
    %c_29 = stablehlo.constant dense<29> : tensor<ui32>
    %116 = stablehlo.broadcast_in_dim %c_29, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %117 = stablehlo.shift_left %114, %116 : tensor<100xui32>
    %c_30 = stablehlo.constant dense<3> : tensor<ui32>
    %118 = stablehlo.broadcast_in_dim %c_30, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %119 = stablehlo.shift_right_logical %114, %118 : tensor<100xui32>
    %120 = stablehlo.or %117, %119 : tensor<100xui32>
    %121 = stablehlo.xor %115, %120 : tensor<100xui32>
    %122 = stablehlo.add %115, %121 : tensor<100xui32>
    %c_31 = stablehlo.constant dense<16> : tensor<ui32>
    %123 = stablehlo.broadcast_in_dim %c_31, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %124 = stablehlo.shift_left %121, %123 : tensor<100xui32>
    %c_32 = stablehlo.constant dense<16> : tensor<ui32>
    %125 = stablehlo.broadcast_in_dim %c_32, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %126 = stablehlo.shift_right_logical %121, %125 : tensor<100xui32>
    %127 = stablehlo.or %124, %126 : tensor<100xui32>
    %128 = stablehlo.xor %122, %127 : tensor<100xui32>
    %129 = stablehlo.add %122, %128 : tensor<100xui32>
    %c_33 = stablehlo.constant dense<24> : tensor<ui32>
    %130 = stablehlo.broadcast_in_dim %c_33, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %131 = stablehlo.shift_left %128, %130 : tensor<100xui32>
    %c_34 = stablehlo.constant dense<8> : tensor<ui32>
    %132 = stablehlo.broadcast_in_dim %c_34, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %133 = stablehlo.shift_right_logical %128, %132 : tensor<100xui32>
    %134 = stablehlo.or %131, %133 : tensor<100xui32>
    %135 = stablehlo.xor %129, %134 : tensor<100xui32>
    %136 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %137 = stablehlo.add %129, %136 : tensor<100xui32>
    %138 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %139 = stablehlo.add %135, %138 : tensor<100xui32>
    %c_35 = stablehlo.constant dense<4> : tensor<ui32>
    %140 = stablehlo.broadcast_in_dim %c_35, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %141 = stablehlo.add %139, %140 : tensor<100xui32>
    %142 = stablehlo.add %137, %141 : tensor<100xui32>
    %c_36 = stablehlo.constant dense<13> : tensor<ui32>
    %143 = stablehlo.broadcast_in_dim %c_36, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %144 = stablehlo.shift_left %141, %143 : tensor<100xui32>
    %c_37 = stablehlo.constant dense<19> : tensor<ui32>
    %145 = stablehlo.broadcast_in_dim %c_37, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %146 = stablehlo.shift_right_logical %141, %145 : tensor<100xui32>
    %147 = stablehlo.or %144, %146 : tensor<100xui32>
    %148 = stablehlo.xor %142, %147 : tensor<100xui32>
    %149 = stablehlo.add %142, %148 : tensor<100xui32>
    %c_38 = stablehlo.constant dense<15> : tensor<ui32>
    %150 = stablehlo.broadcast_in_dim %c_38, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %151 = stablehlo.shift_left %148, %150 : tensor<100xui32>
    %c_39 = stablehlo.constant dense<17> : tensor<ui32>
    %152 = stablehlo.broadcast_in_dim %c_39, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %153 = stablehlo.shift_right_logical %148, %152 : tensor<100xui32>
    %154 = stablehlo.or %151, %153 : tensor<100xui32>
    %155 = stablehlo.xor %149, %154 : tensor<100xui32>
    %156 = stablehlo.add %149, %155 : tensor<100xui32>
    %c_40 = stablehlo.constant dense<26> : tensor<ui32>
    %157 = stablehlo.broadcast_in_dim %c_40, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %158 = stablehlo.shift_left %155, %157 : tensor<100xui32>
    %c_41 = stablehlo.constant dense<6> : tensor<ui32>
    %159 = stablehlo.broadcast_in_dim %c_41, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %160 = stablehlo.shift_right_logical %155, %159 : tensor<100xui32>
    %161 = stablehlo.or %158, %160 : tensor<100xui32>
    %162 = stablehlo.xor %156, %161 : tensor<100xui32>
    %163 = stablehlo.add %156, %162 : tensor<100xui32>
    %c_42 = stablehlo.constant dense<6> : tensor<ui32>
    %164 = stablehlo.broadcast_in_dim %c_42, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %165 = stablehlo.shift_left %162, %164 : tensor<100xui32>
    %c_43 = stablehlo.constant dense<26> : tensor<ui32>
    %166 = stablehlo.broadcast_in_dim %c_43, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %167 = stablehlo.shift_right_logical %162, %166 : tensor<100xui32>
    %168 = stablehlo.or %165, %167 : tensor<100xui32>
    %169 = stablehlo.xor %163, %168 : tensor<100xui32>
    %170 = stablehlo.broadcast_in_dim %1, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %171 = stablehlo.add %163, %170 : tensor<100xui32>
    %172 = stablehlo.broadcast_in_dim %arg0, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %173 = stablehlo.add %169, %172 : tensor<100xui32>
    %c_44 = stablehlo.constant dense<5> : tensor<ui32>
    %174 = stablehlo.broadcast_in_dim %c_44, dims = [] : (tensor<ui32>) -> tensor<100xui32>
    %175 = stablehlo.add %173, %174 : tensor<100xui32>
    return %171, %175 : tensor<100xui32>, tensor<100xui32>
  }
}
