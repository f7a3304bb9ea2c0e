// References of updates.
#include <cmath>

#include "mlrunner/graph/optimizers.h"
#include "mlrunner/kernels/reference.h"
#include "mlrunner/kernels/table_parts.h"

namespace ropewalk::mlrunner {
namespace {

// (p, m, v, g, rate, step) -> p, m, v: You et al. 2020, algorithm 2.
Status Lamb(RefCall& c) {
  const double b1 = c.op.attrs.Double(Attr::kLow), b2 = c.op.attrs.Double(Attr::kHigh), epsilon = c.op.attrs.Double(Attr::kEpsilon);
  const double decay = c.op.attrs.Double(Attr::kValue), rate = c.in[4]->data[0], t = c.in[5]->data[0];
  const std::vector<double>& p = c.in[0]->data;
  std::vector<double> u(p.size());
  double p_squares = 0, u_squares = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double g = c.in[3]->data[i], m = c.out[1].data[i] = b1 * c.in[1]->data[i] + (1 - b1) * g;
    const double v = c.out[2].data[i] = b2 * c.in[2]->data[i] + (1 - b2) * g * g;
    u[i] = m / (1 - std::pow(b1, t)) / (std::sqrt(v / (1 - std::pow(b2, t))) + epsilon) + decay * p[i];
    p_squares += p[i] * p[i];
    u_squares += u[i] * u[i];
  }
  const double trust = p_squares > 0 && u_squares > 0 ? std::sqrt(p_squares) / std::sqrt(u_squares) : 1;
  for (std::size_t i = 0; i < p.size(); ++i) c.out[0].data[i] = p[i] - rate * trust * u[i];
  return {};
}

Status Adagrad(RefCall& c) {  // (p, s, g, rate) -> p, s
  const double epsilon = c.op.attrs.Double(Attr::kEpsilon), decay = c.op.attrs.Double(Attr::kValue), rate = c.in[3]->data[0];
  for (std::size_t i = 0; i < c.out[0].data.size(); ++i) {
    const double p = c.in[0]->data[i], g = c.in[2]->data[i] + decay * p, s = c.out[1].data[i] = c.in[1]->data[i] + g * g;
    c.out[0].data[i] = p - rate * g / (std::sqrt(s) + epsilon);
  }
  return {};
}

}  // namespace

void AddOptimizerReferences(RefTable& table) {
  table[&kLamb] = Lamb;
  table[&kAdagrad] = Adagrad;
}

}  // namespace ropewalk::mlrunner
