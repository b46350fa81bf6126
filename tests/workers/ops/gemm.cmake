sy_test(gemm_config_test SRCS gemm_config_test.cc DEPS sy_ops_gemm)
sy_test(gemm_reference_test SRCS gemm_reference_test.cc DEPS sy_ops_gemm sy_reference_gemm)
sy_test(gemm_sameness_test SRCS gemm_sameness_test.cc DEPS sy_ops_gemm)
sy_test(gemm_weight_test SRCS gemm_weight_test.cc DEPS sy_ops_gemm)
