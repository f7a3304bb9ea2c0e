#include "mlrunner/onnx/recognise.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <set>

#include "mlrunner/onnx/operand.h"

namespace ropewalk::mlrunner::onnx {
namespace {

// A file can lead from a node to itself: how far back a search goes. What is searched for is no deeper.
constexpr int kDepthMax = 16;

bool Near(double a, double b) { return std::fabs(a - b) <= 1e-4 * std::fabs(b); }

class Matcher {
 public:
  explicit Matcher(const GraphDef& graph) : graph_(graph) {
    for (const Node& node : graph.nodes) {
      for (const std::string& output : node.outputs) makers_[output] = &node;
      for (const std::string& input : node.inputs) ++uses_[input];
    }
    for (const ValueDef& output : graph.outputs) ++uses_[output.name];
    for (const auto& [name, literal] : graph.initializers) literals_[name] = &literal;
  }

  // The node that replaces this one; nothing where it is no last step.
  std::optional<Node> Whole(const Node& root) const {
    if (root.op == "Mul" || root.op == "Div") return GeluAt(root);
    if (root.op == "Add") return NormAt(root);
    return std::nullopt;
  }

 private:
  // A number times values; a value occurs as often as its power.
  struct Product {
    double number = 1;
    std::vector<std::string> factors;
  };

  const Node* Maker(const std::string& name, const char* op) const {
    auto found = makers_.find(name);
    return found != makers_.end() && found->second->domain.empty() && found->second->op == op ? found->second : nullptr;
  }
  std::optional<std::vector<double>> NumbersOf(const std::string& name, int depth = 0) const {
    std::optional<Known> known;
    if (const Node* constant = Maker(name, "Constant")) {
      for (const auto& [key, value] : constant->attributes) {
        if (const auto* literal = std::get_if<Literal>(&value)) known = FromLiteral(*literal);
        if (const auto* real = std::get_if<double>(&value)) return std::vector<double>{*real};
        if (const auto* whole = std::get_if<std::int64_t>(&value)) return std::vector<double>{static_cast<double>(*whole)};
        if (const auto* many = std::get_if<std::vector<std::int64_t>>(&value)) return std::vector<double>(many->begin(), many->end());
      }
    } else if (auto found = literals_.find(name); found != literals_.end() && found->second->dims.empty()) {
      known = FromLiteral(*found->second);
    } else if (const Node* reshape = Maker(name, "Reshape"); reshape != nullptr && depth < kDepthMax) {  // so axes of a mean are written
      return NumbersOf(reshape->inputs.at(0), depth + 1);
    }
    if (!known) return std::nullopt;
    std::vector<double> numbers = known->real;
    for (const Dim& dim : known->whole) numbers.push_back(static_cast<double>(dim.Constant().value_or(0)));
    return numbers;
  }
  std::optional<double> NumberOf(const std::string& name) const {
    auto numbers = NumbersOf(name);
    return numbers && numbers->size() == 1 ? std::optional((*numbers)[0]) : std::nullopt;
  }

  void Multiply(const std::string& name, int depth, Product* product) const {
    if (auto number = NumberOf(name)) {
      product->number *= *number;
      return;
    }
    auto used = uses_.find(name);
    const bool inner = depth == 0 || (depth < kDepthMax && used != uses_.end() && used->second == 1);
    const Node* node;
    if (inner && (node = Maker(name, "Mul")) != nullptr) {
      Multiply(node->inputs.at(0), depth + 1, product);
      Multiply(node->inputs.at(1), depth + 1, product);
    } else if (inner && (node = Maker(name, "Div")) != nullptr && NumberOf(node->inputs.at(1))) {
      Multiply(node->inputs.at(0), depth + 1, product);
      product->number /= *NumberOf(node->inputs[1]);
    } else if (inner && (node = Maker(name, "Pow")) != nullptr && NumberOf(node->inputs.at(1)) &&
               (*NumberOf(node->inputs[1]) == 2 || *NumberOf(node->inputs[1]) == 3)) {
      for (int i = 0; i < static_cast<int>(*NumberOf(node->inputs[1])); ++i) product->factors.push_back(node->inputs[0]);
    } else {
      product->factors.push_back(name);
    }
  }
  Product ProductOf(const std::string& name) const {
    Product product;
    Multiply(name, 0, &product);
    return product;
  }
  // x of "x + number".
  std::optional<std::string> Beside(const std::string& name, double number) const {
    const Node* add = Maker(name, "Add");
    if (add == nullptr) return std::nullopt;
    for (std::size_t i : {0, 1}) {
      auto found = NumberOf(add->inputs.at(i));
      if (found && Near(*found, number)) return add->inputs.at(1 - i);
    }
    return std::nullopt;
  }

  // x (1 + erf(x / sqrt 2)) / 2, and x (1 + tanh(sqrt(2 / pi) (x + .044715 x^3))) / 2, with factors in any order.
  std::optional<Node> GeluAt(const Node& root) const {
    Product whole = ProductOf(root.outputs.at(0));
    if (!Near(whole.number, .5) || whole.factors.size() != 2) return std::nullopt;
    for (std::size_t i : {0, 1}) {
      const std::string& x = whole.factors[i];
      auto inner = Beside(whole.factors[1 - i], 1);
      if (!inner) continue;
      const Node *erf = Maker(*inner, "Erf"), *tanh = Maker(*inner, "Tanh");
      bool is_tanh = tanh != nullptr && InTanh(tanh->inputs.at(0), x), is_erf = false;
      if (erf != nullptr) {
        Product scaled = ProductOf(erf->inputs.at(0));
        is_erf = Near(scaled.number, 1 / std::numbers::sqrt2) && scaled.factors == std::vector<std::string>{x};
      }
      if (!is_erf && !is_tanh) continue;
      Node gelu{root.name, "Gelu", "", {x}, root.outputs, {}};
      gelu.attributes["approximate"] = std::string(is_tanh ? "tanh" : "none");
      return gelu;
    }
    return std::nullopt;
  }
  bool InTanh(const std::string& name, const std::string& x) const {
    const double scale = std::sqrt(2 / std::numbers::pi), cubic = .044715;
    Product whole = ProductOf(name);
    if (!Near(whole.number, scale)) return false;
    auto is_power = [&](const std::string& of, std::size_t power) {
      Product product = ProductOf(of);
      return Near(product.number, cubic) && product.factors == std::vector<std::string>(power, x);
    };
    if (whole.factors.size() == 1) {  // x + .044715 x^3
      const Node* add = Maker(whole.factors[0], "Add");
      if (add == nullptr) return false;
      return (add->inputs.at(0) == x && is_power(add->inputs.at(1), 3)) || (add->inputs.at(1) == x && is_power(add->inputs.at(0), 3));
    }
    if (whole.factors.size() != 2) return false;
    for (std::size_t i : {0, 1}) {  // x (1 + .044715 x^2)
      auto square = whole.factors[i] == x ? Beside(whole.factors[1 - i], 1) : std::nullopt;
      if (square && is_power(*square, 2)) return true;
    }
    return false;
  }

  // The mean over the last axis, which is kept, of this; empty: it is none.
  std::string MeanOver(const std::string& name) const {
    const Node* mean = Maker(name, "ReduceMean");
    if (mean == nullptr || mean->Int("keepdims", 1) != 1) return {};
    bool is_last = mean->Ints("axes") == std::vector<std::int64_t>{-1};
    if (!mean->Has("axes") && mean->inputs.size() > 1) is_last = NumbersOf(mean->inputs[1]) == std::vector<double>{-1};
    return is_last ? mean->inputs.at(0) : std::string();
  }
  // x of "x - mean(x)".
  std::string Centred(const std::string& name) const {
    const Node* sub = Maker(name, "Sub");
    return sub != nullptr && MeanOver(sub->inputs.at(1)) == sub->inputs.at(0) ? sub->inputs[0] : std::string();
  }
  bool IsVector(const std::string& name) const {
    auto found = literals_.find(name);
    return found != literals_.end() && found->second->dims.size() == 1 && IsFloat(found->second->dtype);
  }

  // (x - mean) / sqrt(mean((x - mean)^2) + epsilon) * gain + bias
  std::optional<Node> NormAt(const Node& root) const {
    for (std::size_t i : {0, 1}) {
      const std::string& bias = root.inputs.at(i);
      const Node* scaled = Maker(root.inputs.at(1 - i), "Mul");
      if (!IsVector(bias) || scaled == nullptr) continue;
      for (std::size_t j : {0, 1}) {
        const std::string& gain = scaled->inputs.at(j);
        const Node* divided = Maker(scaled->inputs.at(1 - j), "Div");
        const Node* deviation = divided == nullptr ? nullptr : Maker(divided->inputs.at(1), "Sqrt");
        const Node* sum = deviation == nullptr ? nullptr : Maker(deviation->inputs.at(0), "Add");
        if (!IsVector(gain) || sum == nullptr) continue;
        const std::string x = Centred(divided->inputs.at(0));
        for (std::size_t k : {0, 1}) {
          auto epsilon = NumberOf(sum->inputs.at(k));
          const std::string square = MeanOver(sum->inputs.at(1 - k));
          if (!epsilon || square.empty() || x.empty()) continue;
          Product product = ProductOf(square);
          const bool is_square = Near(product.number, 1) && product.factors.size() == 2 && product.factors[0] == product.factors[1];
          if (!is_square || Centred(product.factors[0]) != x) continue;
          Node norm{root.name, "LayerNormalization", "", {x, gain, bias}, root.outputs, {}};
          norm.attributes["axis"] = std::int64_t{-1};
          norm.attributes["epsilon"] = *epsilon;
          return norm;
        }
      }
    }
    return std::nullopt;
  }

  const GraphDef& graph_;
  std::map<std::string, const Node*> makers_;
  std::map<std::string, int> uses_;
  std::map<std::string, const Literal*> literals_;
};

}  // namespace

GraphDef Recognise(const GraphDef& graph) {
  const Matcher matcher(graph);
  GraphDef made = graph;
  for (Node& node : made.nodes) {
    if (node.outputs.empty() || node.inputs.size() != 2) continue;
    if (auto whole = matcher.Whole(node)) node = *std::move(whole);
  }
  return made;
}

}  // namespace ropewalk::mlrunner::onnx
