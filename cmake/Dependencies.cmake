# Libraries of the distribution (deploy/install-deps.sh installs them).
find_package(Threads REQUIRED)
find_package(Boost 1.81 REQUIRED)
find_package(Protobuf MODULE REQUIRED)
find_package(RocksDB REQUIRED)
find_package(glog REQUIRED)
find_package(GTest REQUIRED)
find_package(ZLIB REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(fmt REQUIRED)

find_path(XXHASH_INCLUDE xxhash.h REQUIRED)
find_library(ZSTD_LIBRARY zstd REQUIRED)

# oneDNN's own CMake config asks for OpenCL files that the package does not hold.
find_path(DNNL_INCLUDE dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
find_package(OpenMP REQUIRED)

# Looked for and reported; used by the plugin in mlrunner/gpu, which finds them by itself. Without nvcc, tests name that lane as skipped.
include(CheckLanguage)
check_language(CUDA)
find_library(NCCL_LIBRARY nccl HINTS /usr/local/cuda/lib64)
if(CMAKE_CUDA_COMPILER)
  message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER}; NCCL: ${NCCL_LIBRARY}")
else()
  message(STATUS "CUDA: not found (the gpu lane is skipped)")
endif()
