// Shapes whose dimensions may be symbols.
//
// A dimension is a polynomial of symbols with integer coefficients: 128, B, B*T, B*T + 2. Polynomials have one canonical form, so two
// dimensions are the same exactly when they are equal as values, whatever the symbols will be. A symbol has bounds (`T` in [1, 1024]); the
// memory planner may plan for the upper bound, and an executable is specialised for the numbers that a run binds.
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ropewalk::mlrunner {

// A named unknown. `id` is its place in the graph's table of symbols.
struct Symbol {
  std::uint32_t id = 0;
  friend auto operator<=>(const Symbol&, const Symbol&) = default;
};

struct SymbolInfo {
  std::string name;
  std::int64_t min = 1;
  std::int64_t max = 0;  // 0: no upper bound is known
};

// Numbers for symbols: bindings[symbol.id].
using Bindings = std::vector<std::int64_t>;

class Dim {
 public:
  Dim() = default;  // 0
  Dim(std::int64_t value) {
    if (value != 0) terms_.push_back({{}, value});
  }  // NOLINT: a number is a dimension
  Dim(int value) : Dim(static_cast<std::int64_t>(value)) {}   // NOLINT
  Dim(Symbol symbol) { terms_.push_back({{symbol.id}, 1}); }  // NOLINT

  bool IsConstant() const { return terms_.empty() || (terms_.size() == 1 && terms_[0].symbols.empty()); }
  // The number, where it is one.
  std::optional<std::int64_t> Constant() const;
  bool Is(std::int64_t value) const { return Constant() == value; }

  // The number under `bindings`, which must hold every symbol that occurs.
  std::int64_t Evaluate(const Bindings& bindings) const;
  // The largest value that the symbols' bounds allow; nothing where a symbol that occurs has no bound, or a coefficient is negative.
  std::optional<std::int64_t> UpperBound(const std::vector<SymbolInfo>& symbols) const;
  // A number that this never lies below; nothing where a coefficient is negative and its symbols have no bound.
  std::optional<std::int64_t> LowerBound(const std::vector<SymbolInfo>& symbols) const;
  // This divided by `divisor` where that is exact for all values of the symbols.
  std::optional<Dim> DividedBy(const Dim& divisor) const;

  // "128", "B", "2*B*T + 1".
  std::string ToString(const std::vector<SymbolInfo>& symbols) const;
  // The symbols that occur, each once.
  std::vector<Symbol> Symbols() const;
  // The summands: symbols, each as often as its power, and the coefficient.
  std::vector<std::pair<std::vector<Symbol>, std::int64_t>> Terms() const;

  friend Dim operator+(const Dim& a, const Dim& b);
  friend Dim operator-(const Dim& a, const Dim& b);
  friend Dim operator*(const Dim& a, const Dim& b);
  friend bool operator==(const Dim&, const Dim&) = default;

 private:
  struct Term {
    std::vector<std::uint32_t> symbols;  // sorted; a symbol occurs as often as its power
    std::int64_t coefficient = 0;        // never 0
    friend bool operator==(const Term&, const Term&) = default;
  };
  static Dim FromTerms(std::vector<Term> terms);
  std::vector<Term> terms_;  // sorted by symbols, no two alike
};

using Shape = std::vector<Dim>;
using Dims = std::vector<std::int64_t>;  // a shape of numbers

// (B, T, 64)
std::string ToString(const Shape& shape, const std::vector<SymbolInfo>& symbols);
std::string ToString(const Dims& dims);
Dim NumElements(const Shape& shape);
std::int64_t NumElements(const Dims& dims);
Dims Evaluate(const Shape& shape, const Bindings& bindings);
// The shape that numpy's broadcasting gives; nothing where a pair of dimensions differs and neither is 1.
std::optional<Shape> Broadcast(const Shape& a, const Shape& b);

}  // namespace ropewalk::mlrunner
