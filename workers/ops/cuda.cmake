# The CUDA kernels of this room: sy_ops_cuda where CUDA is built, and the same sources emulated on the CPU for tests.  Linking one of
# them gives RegisterCudaOps().
set(kernels_cuda combine_cuda.cu elementwise_cuda.cu embedding_cuda.cu expert_places_cuda.cu fading_sum_cuda.cu permute_cuda.cu rms_norm_cuda.cu rope_cuda.cu
                 router_cuda.cu row_exchange_cuda.cu sampling_cuda.cu attention_cuda.cu attention_decode_cuda.cu attention_plain_cuda.cu attention_prefill_cuda.cu
                 kv_cache_cuda.cu qkv_cuda.cu)
sy_cuda_library(sy_ops_cuda SRCS kernel_table_cuda.cc ${kernels_cuda} DEPS sy_ops_common sy_gemm_cuda)
sy_cuda_emulated(sy_ops_cuda_emulated SRCS kernel_table_cuda.cc ${kernels_cuda} DEPS sy_ops_common sy_gemm_cuda_emulated)
