# The CUDA kernels of this room: sy_ops_cuda where CUDA is built, and the same sources emulated on the CPU for tests.  Linking one of
# them gives RegisterCudaOps().
set(kernels_cuda
  activation/elementwise_cuda.cu
  attention/attention_cuda.cu
  attention/attention_decode_cuda.cu
  attention/attention_plain_cuda.cu
  attention/attention_prefill_cuda.cu
  attention/attention_wgmma_cuda.cu
  attention/kv_cache_cuda.cu
  exchange/combine_cuda.cu
  exchange/expert_places_cuda.cu
  exchange/permute_cuda.cu
  exchange/row_exchange_cuda.cu
  norm/rms_norm_cuda.cu
  rope/qkv_cuda.cu
  rope/rope_cuda.cu
  router/router_cuda.cu
  sampling/sampling_cuda.cu)
sy_cuda_library(sy_ops_cuda
  SRCS
    core/kernel_table_cuda.cc
    ${kernels_cuda}
  DEPS sy_ops_common sy_gemm_cuda)
sy_cuda_emulated(sy_ops_cuda_emulated
  SRCS
    core/kernel_table_cuda.cc
    ${kernels_cuda}
  DEPS sy_ops_common sy_gemm_cuda_emulated)
