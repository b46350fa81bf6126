sy_library(sy_reference_gemm SRCS gemm.cc)
