#include "mlrunner/graph/shape.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

namespace ropewalk::mlrunner {
namespace {

// What no 64 bits hold becomes the number at their end, which no tensor has as a length: who asks for one refuses it (RUN04).
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max(), kLeast = std::numeric_limits<std::int64_t>::min();
std::int64_t Plus(std::int64_t a, std::int64_t b) {
  std::int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? (a < 0 ? kLeast : kMost) : sum;
}
std::int64_t Times(std::int64_t a, std::int64_t b) {
  std::int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? ((a < 0) == (b < 0) ? kMost : kLeast) : product;
}
// Of summands in a polynomial, and of symbols in one of them. A file can square a length again and again.
constexpr std::size_t kTermsMax = 4096, kPowerMax = 64;

}  // namespace

Dim Dim::FromTerms(std::vector<Term> terms) {
  std::sort(terms.begin(), terms.end(), [](const Term& a, const Term& b) { return a.symbols < b.symbols; });
  Dim result;
  for (Term& term : terms) {
    if (!result.terms_.empty() && result.terms_.back().symbols == term.symbols) {
      result.terms_.back().coefficient = Plus(result.terms_.back().coefficient, term.coefficient);
    } else {
      result.terms_.push_back(std::move(term));
    }
  }
  std::erase_if(result.terms_, [](const Term& t) { return t.coefficient == 0; });
  return result;
}

std::optional<std::int64_t> Dim::Constant() const {
  if (terms_.empty()) return 0;
  if (!IsConstant()) return std::nullopt;
  return terms_[0].coefficient;
}

std::int64_t Dim::Evaluate(const Bindings& bindings) const {
  std::int64_t sum = 0;
  for (const Term& term : terms_) {
    std::int64_t product = term.coefficient;
    for (std::uint32_t symbol : term.symbols) {
      if (__builtin_mul_overflow(product, bindings.at(symbol), &product)) return kMost;
    }
    if (__builtin_add_overflow(sum, product, &sum)) return kMost;
  }
  return sum;
}

std::optional<std::int64_t> Dim::UpperBound(const std::vector<SymbolInfo>& symbols) const {
  std::int64_t sum = 0;
  for (const Term& term : terms_) {
    if (term.coefficient < 0 && !term.symbols.empty()) return std::nullopt;
    std::int64_t product = term.coefficient;
    for (std::uint32_t symbol : term.symbols) {
      if (symbols.at(symbol).max == 0) return std::nullopt;
      if (__builtin_mul_overflow(product, symbols[symbol].max, &product)) return std::nullopt;
    }
    if (__builtin_add_overflow(sum, product, &sum)) return std::nullopt;
  }
  return sum;
}

std::optional<std::int64_t> Dim::LowerBound(const std::vector<SymbolInfo>& symbols) const {
  std::int64_t sum = 0;
  for (const Term& term : terms_) {
    std::int64_t product = term.coefficient;
    for (std::uint32_t symbol : term.symbols) {
      const SymbolInfo& info = symbols.at(symbol);
      if (term.coefficient < 0 && info.max == 0) return std::nullopt;
      if (__builtin_mul_overflow(product, term.coefficient < 0 ? info.max : info.min, &product)) return std::nullopt;
    }
    if (__builtin_add_overflow(sum, product, &sum)) return std::nullopt;
  }
  return sum;
}

std::optional<Dim> Dim::DividedBy(const Dim& divisor) const {
  if (*this == divisor && !terms_.empty()) return Dim(1);
  if (divisor.terms_.size() != 1) return std::nullopt;
  const Term& by = divisor.terms_[0];
  std::vector<Term> quotient;
  for (const Term& term : terms_) {
    if (by.coefficient == -1 && term.coefficient == kLeast) return std::nullopt;  // for which there is no quotient
    if (term.coefficient % by.coefficient != 0 ||
        !std::includes(term.symbols.begin(), term.symbols.end(), by.symbols.begin(), by.symbols.end())) {
      return std::nullopt;
    }
    Term left{{}, term.coefficient / by.coefficient};
    std::set_difference(term.symbols.begin(), term.symbols.end(), by.symbols.begin(), by.symbols.end(), std::back_inserter(left.symbols));
    quotient.push_back(std::move(left));
  }
  return FromTerms(std::move(quotient));
}

std::string Dim::ToString(const std::vector<SymbolInfo>& symbols) const {
  if (terms_.empty()) return "0";
  std::string text;
  for (auto term = terms_.rbegin(); term != terms_.rend(); ++term) {
    if (!text.empty()) text += term->coefficient < 0 ? " - " : " + ";
    std::int64_t coefficient = text.empty() ? term->coefficient : term->coefficient < 0 ? Times(term->coefficient, -1) : term->coefficient;
    std::string product;
    for (std::uint32_t symbol : term->symbols) {
      if (!product.empty()) product += '*';
      product += symbol < symbols.size() ? symbols[symbol].name : fmt::format("s{}", symbol);
    }
    if (product.empty()) {
      text += std::to_string(coefficient);
    } else {
      text += coefficient == 1 ? product : coefficient == -1 ? "-" + product : fmt::format("{}*{}", coefficient, product);
    }
  }
  return text;
}

std::vector<Symbol> Dim::Symbols() const {
  std::vector<Symbol> found;
  for (const Term& term : terms_) {
    for (std::uint32_t id : term.symbols) found.push_back({id});
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

std::vector<std::pair<std::vector<Symbol>, std::int64_t>> Dim::Terms() const {
  std::vector<std::pair<std::vector<Symbol>, std::int64_t>> terms;
  for (const Term& term : terms_) {
    terms.emplace_back(std::vector<Symbol>(), term.coefficient);
    for (std::uint32_t id : term.symbols) terms.back().first.push_back({id});
  }
  return terms;
}

Dim operator+(const Dim& a, const Dim& b) {
  std::vector<Dim::Term> terms = a.terms_;
  terms.insert(terms.end(), b.terms_.begin(), b.terms_.end());
  return Dim::FromTerms(std::move(terms));
}

Dim operator-(const Dim& a, const Dim& b) { return a + b * Dim(-1); }

Dim operator*(const Dim& a, const Dim& b) {
  auto power = [](const Dim& dim) {
    std::size_t most = 0;
    for (const Dim::Term& term : dim.terms_) most = std::max(most, term.symbols.size());
    return most;
  };
  if (a.terms_.size() * b.terms_.size() > kTermsMax || power(a) + power(b) > kPowerMax) return Dim(kMost);
  std::vector<Dim::Term> terms;
  for (const Dim::Term& x : a.terms_) {
    for (const Dim::Term& y : b.terms_) {
      Dim::Term product{x.symbols, Times(x.coefficient, y.coefficient)};
      product.symbols.insert(product.symbols.end(), y.symbols.begin(), y.symbols.end());
      std::sort(product.symbols.begin(), product.symbols.end());
      terms.push_back(std::move(product));
    }
  }
  return Dim::FromTerms(std::move(terms));
}

std::string ToString(const Shape& shape, const std::vector<SymbolInfo>& symbols) {
  std::string text = "(";
  for (const Dim& dim : shape) text += (text.size() > 1 ? ", " : "") + dim.ToString(symbols);
  return text + ")";
}

std::string ToString(const Dims& dims) {
  std::string text = "(";
  for (std::int64_t dim : dims) text += (text.size() > 1 ? ", " : "") + std::to_string(dim);
  return text + ")";
}

Dim NumElements(const Shape& shape) {
  Dim product = 1;
  for (const Dim& dim : shape) product = product * dim;
  return product;
}

std::int64_t NumElements(const Dims& dims) {
  std::int64_t product = 1;
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) return 0;
  for (std::int64_t dim : dims) product = Times(product, dim);
  return product;
}

Dims Evaluate(const Shape& shape, const Bindings& bindings) {
  Dims dims;
  for (const Dim& dim : shape) dims.push_back(dim.Evaluate(bindings));
  return dims;
}

std::optional<Shape> Broadcast(const Shape& a, const Shape& b) {
  const Shape& longer = a.size() >= b.size() ? a : b;
  const Shape& shorter = a.size() >= b.size() ? b : a;
  Shape result = longer;
  std::size_t shift = longer.size() - shorter.size();
  for (std::size_t i = 0; i < shorter.size(); ++i) {
    Dim& dim = result[shift + i];
    if (dim == shorter[i] || shorter[i].Is(1)) continue;
    if (!dim.Is(1)) return std::nullopt;
    dim = shorter[i];
  }
  return result;
}

}  // namespace ropewalk::mlrunner
