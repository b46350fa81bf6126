foreach(op attention device_sequences elementwise gelu kv_format layer_norm permute_combine random rms_norm rope router row_sums sampling swiglu)
  sy_test(ops_${op}_test SRCS ${op}_test.cc DEPS sy_ops)
endforeach()
