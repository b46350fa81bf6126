sy_binary(gemm_bench SRCS gemm_bench.cc DEPS sy_ops_gemm sy_onednn_gemm)
