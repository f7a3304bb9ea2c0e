// References of ops over the steps of a sequence.
#include <cmath>

#include "mlrunner/graph/ops.h"
#include "mlrunner/kernels/reference.h"

namespace ropewalk::mlrunner {
namespace {

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// (x, bias, w, h, c) -> hidden states, the last cell state, cell states, gates
Status Lstm(RefCall& c) {
  const std::int64_t steps = c.in[0]->dims[0], rows = c.in[0]->dims[1], width = c.in[3]->dims[1];
  const std::vector<double>&x = c.in[0]->data, &bias = c.in[1]->data, &w = c.in[2]->data;
  for (std::int64_t t = 0; t < steps; ++t) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t at = (t * rows + row) * width;
      const double* h = t == 0 ? &c.in[3]->data[row * width] : &c.out[0].data[at - rows * width];
      const double* before = t == 0 ? &c.in[4]->data[row * width] : &c.out[2].data[at - rows * width];
      double* gates = &c.out[3].data[4 * at];
      for (std::int64_t k = 0; k < 4 * width; ++k) {
        double z = x[4 * at + k] + bias[k];
        for (std::int64_t j = 0; j < width; ++j) z += h[j] * w[k * width + j];
        gates[k] = k / width == 2 ? std::tanh(z) : Sigmoid(z);
      }
      for (std::int64_t k = 0; k < width; ++k) {
        const double cell = gates[width + k] * before[k] + gates[k] * gates[2 * width + k];
        c.out[2].data[at + k] = cell;
        c.out[0].data[at + k] = gates[3 * width + k] * std::tanh(cell);
        if (t + 1 == steps) c.out[1].data[row * width + k] = cell;
      }
    }
  }
  return {};
}

// (w, c, cell states, gates, gradient of the hidden states, that of the last cell state) -> gradients of x, h, c
Status LstmGrad(RefCall& c) {
  const std::int64_t steps = c.in[2]->dims[0], rows = c.in[1]->dims[0], width = c.in[1]->dims[1];
  const std::vector<double>& w = c.in[0]->data;
  std::vector<double>&dh = c.out[1].data, &dc = c.out[2].data;
  dc = c.in[5]->data;
  for (std::int64_t t = steps; t-- > 0;) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t at = (t * rows + row) * width, state = row * width;
      const double *gates = &c.in[3]->data[4 * at], *before = t == 0 ? &c.in[1]->data[state] : &c.in[2]->data[at - rows * width];
      double* dz = &c.out[0].data[4 * at];
      for (std::int64_t k = 0; k < width; ++k) {
        const double i = gates[k], f = gates[width + k], g = gates[2 * width + k], o = gates[3 * width + k];
        const double squashed = std::tanh(c.in[2]->data[at + k]), to_hidden = dh[state + k] + c.in[4]->data[at + k];
        const double to_cell = dc[state + k] + to_hidden * o * (1 - squashed * squashed);
        dz[k] = to_cell * g * i * (1 - i);
        dz[width + k] = to_cell * before[k] * f * (1 - f);
        dz[2 * width + k] = to_cell * i * (1 - g * g);
        dz[3 * width + k] = to_hidden * squashed * o * (1 - o);
        dc[state + k] = to_cell * f;
      }
      for (std::int64_t j = 0; j < width; ++j) {
        double sum = 0;
        for (std::int64_t k = 0; k < 4 * width; ++k) sum += dz[k] * w[k * width + j];
        dh[state + j] = sum;
      }
    }
  }
  return {};
}

}  // namespace

void AddSequenceReferences(RefTable& table) {
  table[&kLstm] = Lstm;
  table[&kLstmGrad] = LstmGrad;
}

}  // namespace ropewalk::mlrunner
