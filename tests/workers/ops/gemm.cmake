sy_test(gemm_choice_cuda_test SRCS gemm_choice_cuda_test.cc DEPS sy_gemm_choice_cuda)
sy_test(gemm_config_test SRCS gemm_config_test.cc DEPS sy_ops_gemm)
sy_test(gemm_reference_test SRCS gemm_reference_test.cc DEPS sy_ops_gemm sy_reference_gemm)
sy_test(gemm_sameness_test SRCS gemm_sameness_test.cc DEPS sy_ops_gemm)
sy_test(gated_sums_test SRCS gated_sums_test.cc DEPS sy_ops_gemm)
sy_test(weight_bias_test SRCS weight_bias_test.cc DEPS sy_ops_gemm)
sy_test(gelu_ffn_test SRCS gelu_ffn_test.cc DEPS sy_ops_gemm sy_ops)
sy_test(gemm_weight_test SRCS gemm_weight_test.cc DEPS sy_ops_gemm)
sy_test(quantized_gemm_test SRCS quantized_gemm_test.cc DEPS sy_ops_gemm sy_reference_gemm)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # What vpdpbusd does, by AVX2.
  add_library(sy_gemm_avx2_dot OBJECT "${CMAKE_SOURCE_DIR}/workers/ops/gemm/kernels/gemm_int_cpu.cc")
  target_link_libraries(sy_gemm_avx2_dot PRIVATE sy_flags)
  set_target_properties(sy_gemm_avx2_dot PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_compile_definitions(sy_gemm_avx2_dot PRIVATE SY_KERNEL_NS=avx2_dot SY_EPILOGUE_NS=avx2 SY_INT_DOT)
  target_compile_options(sy_gemm_avx2_dot PRIVATE -O3 -Wno-psabi -mavx2 -mfma -mf16c)
  sy_test(byte_dot_test SRCS byte_dot_test.cc $<TARGET_OBJECTS:sy_gemm_avx2_dot> DEPS sy_ops_gemm)
endif()

# The CUDA kernels, emulated on the CPU, and on a GPU.
add_library(sy_gemm_cuda_testing STATIC cuda/gemm_cuda_testing.cc)
target_link_libraries(sy_gemm_cuda_testing PUBLIC sy_gemm_cuda_emulated sy_reference_gemm sy_tensor GTest::gtest)
foreach(kind gemm_kernels gemm_wgmma dense_gemm_cuda gemm_sameness_cuda)
  sy_test(${kind}_test SRCS cuda/${kind}_test.cc DEPS sy_gemm_cuda_testing absl::strings)
  sy_test(${kind}_gpu_test
    SRCS
      cuda/gemm_cuda_testing.cc
      cuda/${kind}_test.cc
    DEPS sy_gemm_cuda sy_reference_gemm sy_tensor absl::strings
    LABELS gpu)
endforeach()
sy_test(few_bits_gemm_test SRCS cuda/few_bits_gemm_test.cc DEPS sy_gemm_cuda_testing sy_ops_gemm absl::strings)
sy_test(few_bits_gemm_gpu_test
  SRCS
    cuda/gemm_cuda_testing.cc
    cuda/few_bits_gemm_test.cc
  DEPS sy_gemm_cuda sy_ops_gemm sy_reference_gemm sy_tensor absl::strings
  LABELS gpu)
sy_test(gemm_wgmma_devices_test SRCS cuda/gemm_wgmma_devices_test.cc DEPS sy_gemm_cuda_testing)
