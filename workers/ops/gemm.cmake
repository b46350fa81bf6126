# Weights and matrix products.  Kernel files (gemm/kernels/*_cpu.cc) are compiled with flags of their own, those of plain
# multiply-adds once per instruction set; gemm_kernels.cc chooses at run time.
# What every op needs to check its arguments and to reach a device's kernels.
sy_library(sy_ops_common
  SRCS
    core/cuda_call.cc
    core/op_checks.cc
    core/thread_scratch.cc
  DEPS sy_tensor absl::status absl::statusor absl::strings)
sy_library(sy_isa SRCS core/isa.cc DEPS absl::statusor absl::strings PRIVATE sy_base)
sy_library(sy_ops_gemm
  SRCS
    gemm/expert_ffn.cc
    gemm/gemm.cc
    gemm/gemm_cpu.cc
    gemm/gemm_job.cc
    gemm/gemm_tasks.cc
    gemm/grouped_gemm.cc
    gemm/quantized/quantize_panel.cc
    gemm/weight.cc
    gemm/weight_group.cc
    gemm/kernels/gemm_kernels.cc
  DEPS sy_tensor sy_isa sy_ops sy_ops_common absl::span absl::status absl::statusor absl::strings)

# Which CUDA kernel a product takes: needs no CUDA itself.
sy_library(sy_gemm_choice_cuda
  SRCS
    gemm/cublas_refusals.cc
    gemm/gemm_choice_cuda.cc
  PRIVATE sy_base sy_tensor)
sy_cuda_late_library(sy_cublaslt_late "${SY_CUDA_CUBLASLT}" gemm/cublaslt_cuda.cc)
sy_cuda_library(sy_gemm_cuda
  SRCS
    gemm/gemm_cuda.cu
    gemm/gemm_wgmma_cuda.cu
    gemm/grouped_gemm_cuda.cu
    gemm/quantized/few_bits_gemm_cuda.cu
  DEPS sy_gemm_choice_cuda sy_cublaslt_late)
sy_cuda_emulated(sy_gemm_cuda_emulated
  SRCS
    gemm/gemm_cuda.cu
    gemm/gemm_wgmma_cuda.cu
    gemm/grouped_gemm_cuda.cu
    gemm/quantized/few_bits_gemm_cuda.cu
  DEPS sy_gemm_choice_cuda)

# sy_gemm_kernel(NAME SRCS ... [FLAGS ...])
function(sy_gemm_kernel name)
  cmake_parse_arguments(arg "" "" "SRCS;FLAGS" ${ARGN})
  add_library(sy_gemm_${name} OBJECT ${arg_SRCS})
  target_link_libraries(sy_gemm_${name} PRIVATE sy_flags)
  target_compile_definitions(sy_gemm_${name} PRIVATE SY_KERNEL_NS=${name})
  target_compile_options(sy_gemm_${name} PRIVATE -O3 -Wno-psabi $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>
                         -Wno-uninitialized ${arg_FLAGS})
  target_sources(sy_ops_gemm PRIVATE $<TARGET_OBJECTS:sy_gemm_${name}>)
endfunction()

set(plain
  gemm/kernels/gemm_fma_cpu.cc
  gemm/kernels/gemm_int_cpu.cc
  gemm/kernels/gemm_panel_cpu.cc)
sy_gemm_kernel(baseline SRCS ${plain})
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(avx512_flags -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c)
  sy_gemm_kernel(avx2 SRCS ${plain} FLAGS -mavx2 -mfma -mf16c)
  sy_gemm_kernel(avx512 SRCS ${plain} FLAGS ${avx512_flags})
  sy_gemm_kernel(avx_vnni SRCS gemm/kernels/gemm_int_cpu.cc
    FLAGS -mavx2 -mfma -mf16c -mavxvnni -DSY_INT_DOT -DSY_EPILOGUE_NS=avx2)
  sy_gemm_kernel(avx512_vnni SRCS gemm/kernels/gemm_avx512_vnni_cpu.cc
    FLAGS ${avx512_flags} -mavx512vnni -DSY_INT_DOT -DSY_EPILOGUE_NS=avx512)
  sy_gemm_kernel(avx512_bf16 SRCS gemm/kernels/gemm_avx512_bf16_cpu.cc FLAGS ${avx512_flags} -mavx512bf16)
  sy_gemm_kernel(amx SRCS gemm/kernels/gemm_amx_cpu.cc FLAGS ${avx512_flags} -mamx-tile -mamx-bf16)
endif()
