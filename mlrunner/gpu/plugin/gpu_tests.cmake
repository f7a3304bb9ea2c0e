# ropewalk_gpu_tests(PROGRAM PLUGIN)   registers the plugin's tests; each is skipped, with its reason, where there is no device
function(ropewalk_gpu_tests PROGRAM PLUGIN)
  foreach(test matmul adamw cross_entropy fold memory streams nccl)
    add_test(NAME gpu_${test} COMMAND ${PROGRAM} ${PLUGIN} ${test})
    # They measure nothing, but one device is one device.
    set_tests_properties(gpu_${test} PROPERTIES LABELS gpu TIMEOUT 120 SKIP_RETURN_CODE 77 RUN_SERIAL TRUE)
  endforeach()
endfunction()
