sy_test(gemm_choice_cuda_test SRCS gemm_choice_cuda_test.cc DEPS sy_gemm_choice_cuda)
sy_test(gemm_config_test SRCS gemm_config_test.cc DEPS sy_ops_gemm)
sy_test(gemm_reference_test SRCS gemm_reference_test.cc DEPS sy_ops_gemm sy_reference_gemm)
sy_test(gemm_sameness_test SRCS gemm_sameness_test.cc DEPS sy_ops_gemm)
sy_test(gemm_weight_test SRCS gemm_weight_test.cc DEPS sy_ops_gemm)

# The CUDA kernels, emulated on the CPU.
add_library(sy_gemm_cuda_testing STATIC cuda/gemm_cuda_testing.cc)
target_link_libraries(sy_gemm_cuda_testing PUBLIC sy_gemm_cuda_emulated sy_reference_gemm sy_tensor GTest::gtest)
sy_test(dense_gemm_cuda_test SRCS cuda/dense_gemm_cuda_test.cc DEPS sy_gemm_cuda_testing absl::strings)
sy_test(gemm_kernels_test SRCS cuda/gemm_kernels_test.cc DEPS sy_gemm_cuda_testing absl::strings)
sy_test(gemm_sameness_cuda_test SRCS cuda/gemm_sameness_cuda_test.cc DEPS sy_gemm_cuda_testing)
