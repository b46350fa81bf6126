# The CUDA kernels against the CPU's: emulated on the CPU, and on a GPU.
sy_device_test(device_row_ops_test SRCS device_row_ops_test.cc DEPS sy_ops)
sy_device_test(fading_sum_test SRCS fading_sum_test.cc DEPS sy_ops)
foreach(kind attention elementwise qkv router row sampling)
  sy_test(${kind}_kernels_test SRCS cuda/${kind}_kernels_test.cc DEPS sy_ops_cuda_emulated sy_ops)
  sy_test(${kind}_kernels_gpu_test SRCS cuda/${kind}_kernels_test.cc DEPS sy_ops_cuda sy_ops LABELS gpu)
endforeach()
