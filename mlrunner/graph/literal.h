// Literal: the bytes of a small constant tensor in a graph, row-major.
//
// Thread rule: values; the bytes are shared and never written.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mlrunner/graph/shape.h"
#include "mlrunner/types/dtype.h"

namespace ropewalk::mlrunner {

struct Literal {
  Dtype dtype = Dtype::kF32;
  Dims dims;
  std::shared_ptr<const std::string> bytes;

  template <class T>
  static Literal Of(Dtype dtype, Dims dims, const std::vector<T>& values) {
    return {dtype, std::move(dims),
            std::make_shared<const std::string>(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T))};
  }
  friend bool operator==(const Literal& a, const Literal& b) {
    return a.dtype == b.dtype && a.dims == b.dims && (a.bytes == b.bytes || *a.bytes == *b.bytes);
  }
};

}  // namespace ropewalk::mlrunner
