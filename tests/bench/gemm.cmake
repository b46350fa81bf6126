sy_binary(gemm_bench SRCS gemm_bench.cc DEPS sy_ops_gemm sy_onednn_gemm)
sy_binary(weight_gradient_bench SRCS weight_gradient_bench.cc DEPS sy_ops_backward_gemm sy_ops_gemm)
