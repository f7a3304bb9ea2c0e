// An ONNX file as plain data: what the importer reads and the exporter writes. Only file.cc knows the format's messages.
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "mlrunner/graph/literal.h"

namespace ropewalk::mlrunner::onnx {

struct GraphDef;
// A float is given as the double of its shortest decimal: 1e-05 and not 9.9999997e-06, which is what its writer meant.
using Attribute = std::variant<std::int64_t, double, std::string, Literal, std::vector<std::int64_t>, std::vector<double>,
                               std::vector<std::string>, std::shared_ptr<const GraphDef>>;

struct Node {
  std::string name, op, domain;
  std::vector<std::string> inputs, outputs;  // names of values; empty: an optional one that is not there
  std::map<std::string, Attribute> attributes;

  bool Has(const std::string& attribute) const { return attributes.contains(attribute); }
  template <class T>
  T Get(const std::string& attribute, T otherwise) const {
    auto found = attributes.find(attribute);
    const T* value = found == attributes.end() ? nullptr : std::get_if<T>(&found->second);
    return value == nullptr ? std::move(otherwise) : *value;
  }
  std::int64_t Int(const std::string& attribute, std::int64_t otherwise) const { return Get(attribute, otherwise); }
  double Float(const std::string& attribute, double otherwise) const { return Get(attribute, otherwise); }
  std::string String(const std::string& attribute, std::string otherwise) const { return Get(attribute, std::move(otherwise)); }
  std::vector<std::int64_t> Ints(const std::string& attribute) const { return Get(attribute, std::vector<std::int64_t>()); }
  const GraphDef* Body(const std::string& attribute) const { return Get(attribute, std::shared_ptr<const GraphDef>()).get(); }
};

struct DimDef {
  std::int64_t value = -1;  // -1: not a number
  std::string symbol;       // empty: nothing is known
};
struct ValueDef {
  std::string name;
  Dtype dtype = Dtype::kF32;
  bool has_shape = false;
  std::vector<DimDef> dims;
};

struct GraphDef {
  std::string name;
  std::vector<Node> nodes;  // inputs before users
  std::vector<std::pair<std::string, Literal>> initializers;
  std::vector<ValueDef> inputs, outputs;  // without those that initializers give
};

struct ModelDef {
  std::int64_t opset = 0;
  std::string producer;
  GraphDef graph;
};

inline constexpr std::int64_t kOpsetMin = 13, kOpsetMax = 23;

}  // namespace ropewalk::mlrunner::onnx
