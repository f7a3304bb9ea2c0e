# The package: static libraries of the floors that a job's process needs, their headers, and a CMake package config with the one target
# Ropewalk::ropewalk. No daemon and no RocksDB in it.
#
#   include/ropewalk/ropewalk.h              the umbrella
#   include/ropewalk/{base,storage,dag,job}  what it includes, as "dag/dataset.h"
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# In the build tree too, jobs say #include <ropewalk/ropewalk.h>.
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/ropewalk/ropewalk.h CONTENT "#pragma once\n#include \"job/ropewalk.h\"\n" @ONLY)

set(parts base proto rpc storage dag dag_wire blocks task scheduler)
foreach(part ${parts})
  set_target_properties(ropewalk_${part} PROPERTIES EXPORT_NAME ${part})
  install(TARGETS ropewalk_${part} EXPORT RopewalkTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/ropewalk COMPONENT development)
endforeach()
set_target_properties(ropewalk_job PROPERTIES EXPORT_NAME ropewalk)
target_compile_features(ropewalk_job PUBLIC cxx_std_20)
target_include_directories(ropewalk_job INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
                                                  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/ropewalk>)
install(TARGETS ropewalk_job EXPORT RopewalkTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/ropewalk COMPONENT development)
add_library(Ropewalk::ropewalk ALIAS ropewalk_job)

install(FILES ${CMAKE_CURRENT_SOURCE_DIR}/ropewalk.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ropewalk COMPONENT development)
install(FILES ${CMAKE_CURRENT_SOURCE_DIR}/init.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ropewalk/job COMPONENT development)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/base ${CMAKE_SOURCE_DIR}/dag DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ropewalk COMPONENT development
        FILES_MATCHING PATTERN "*.h" PATTERN "wire" EXCLUDE)
install(FILES ${CMAKE_SOURCE_DIR}/storage/input.h ${CMAKE_SOURCE_DIR}/storage/output_folder.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ropewalk/storage COMPONENT development)

configure_package_config_file(${CMAKE_CURRENT_SOURCE_DIR}/RopewalkConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/RopewalkConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Ropewalk)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/RopewalkConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT RopewalkTargets NAMESPACE Ropewalk:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Ropewalk COMPONENT development)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/RopewalkConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/RopewalkConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/Ropewalk COMPONENT development)
