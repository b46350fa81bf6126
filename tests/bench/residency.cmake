sy_binary(residency_bench SRCS residency_bench.cc DEPS sy_lab_placement)
