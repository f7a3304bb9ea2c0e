# The package's component "train": mlrunner::Train on a dataset and TrainNodes on a graph, with the libraries under them. The target Ropewalk::train, the header
# <ropewalk/train.h>.
include(GNUInstallDirs)

# In the build tree too, jobs say #include <ropewalk/train.h>.
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/ropewalk/train.h CONTENT "#pragma once\n#include \"mlrunner/train/nodes.h\"\n#include \"mlrunner/train/train.h\"\n" @ONLY)

add_library(ropewalk_training INTERFACE)
target_link_libraries(ropewalk_training INTERFACE ropewalk_train_on_data ropewalk_job)
set_target_properties(ropewalk_training PROPERTIES EXPORT_NAME train)
add_library(Ropewalk::train ALIAS ropewalk_training)

set_target_properties(ropewalk_train PROPERTIES EXPORT_NAME trainer)
install(TARGETS ropewalk_training ropewalk_train_on_data ropewalk_train ropewalk_onnx ropewalk_tensors ropewalk_models ropewalk_data ropewalk_executor ropewalk_kernels
                ropewalk_graph ropewalk_gpu ropewalk_collective ropewalk_sim
        EXPORT RopewalkTrainTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/ropewalk COMPONENT development)
foreach(header train nodes row job summary)
  install(FILES ${CMAKE_CURRENT_SOURCE_DIR}/${header}.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ropewalk/mlrunner/train COMPONENT development)
endforeach()
install(FILES ${CMAKE_SOURCE_DIR}/mlrunner/data/node_graph.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ropewalk/mlrunner/data COMPONENT development)
install(FILES ${CMAKE_SOURCE_DIR}/mlrunner/types/dtype.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ropewalk/mlrunner/types COMPONENT development)
install(FILES ${CMAKE_BINARY_DIR}/ropewalk/train.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ropewalk COMPONENT development)
install(EXPORT RopewalkTrainTargets NAMESPACE Ropewalk:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Ropewalk COMPONENT development)
