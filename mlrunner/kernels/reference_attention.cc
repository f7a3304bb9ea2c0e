// References of attention.
#include <algorithm>
#include <cmath>

#include "mlrunner/graph/attention.h"
#include "mlrunner/kernels/attention.h"
#include "mlrunner/kernels/philox.h"
#include "mlrunner/kernels/reference.h"
#include "mlrunner/kernels/table_parts.h"

namespace ropewalk::mlrunner {
namespace {

class Head {
 public:
  Head(const RefCall& c, const AttentionForm& form, const RefTensor* mask, std::int64_t head)
      : c_(c), form_(form), mask_(mask), head_(head) {}

  double Q(std::int64_t t, std::int64_t d) const { return c_.in[0]->data[QAt(t, d)]; }
  double K(std::int64_t s, std::int64_t d) const { return c_.in[1]->data[KAt(s, d)]; }
  double V(std::int64_t s, std::int64_t e) const { return c_.in[2]->data[VAt(s, e)]; }
  std::int64_t QAt(std::int64_t t, std::int64_t d) const { return (head_ * form_.places + t) * form_.width + d; }
  std::int64_t KAt(std::int64_t s, std::int64_t d) const {
    const std::int64_t first = head_ * form_.keys * form_.width;
    return first + (form_.transposed_keys ? s * form_.width + d : d * form_.keys + s);
  }
  std::int64_t VAt(std::int64_t s, std::int64_t e) const { return (head_ * form_.keys + s) * form_.out_width + e; }
  std::int64_t OutAt(std::int64_t t, std::int64_t e) const { return (head_ * form_.places + t) * form_.out_width + e; }
  std::int64_t RowAt(std::int64_t t) const { return head_ * form_.places + t; }

  // Of place t and each key that it may look at.
  std::vector<double> Scores(std::int64_t t) const {
    std::vector<double> scores(static_cast<std::size_t>(form_.KeysOf(t)));
    for (std::int64_t s = 0; s < std::ssize(scores); ++s) {
      for (std::int64_t d = 0; d < form_.width; ++d) scores[s] += Q(t, d) * K(s, d);
      scores[s] *= form_.scale;
      if (mask_ != nullptr) scores[s] += mask_->data[form_.mask_of_head[head_] + t * form_.mask_row + s];
    }
    return scores;
  }
  // What dropout multiplies the weight by.
  double Kept(std::int64_t t, std::int64_t s) const {
    if (form_.rate == 0) return 1;
    const AttentionForm::Draws draws = form_.DrawsOf(c_.run, head_, t);
    return UniformAt(draws.key, draws.sample, draws.first + static_cast<std::uint64_t>(s)) < form_.rate ? 0 : 1 / (1 - form_.rate);
  }

 private:
  const RefCall& c_;
  const AttentionForm& form_;
  const RefTensor* mask_;
  std::int64_t head_;
};

// f(head, place) for each row of weights.
template <class F>
Status ForPlaces(RefCall& c, std::size_t mask_at, F f) {
  const RefTensor* mask = c.in.size() > mask_at ? c.in[mask_at] : nullptr;
  const AttentionForm form = AttentionFormOf(c.op, c.in[0]->dims, c.in[2]->dims, mask == nullptr ? nullptr : &mask->dims);
  for (std::int64_t head = 0; head < form.heads; ++head) {
    for (std::int64_t t = 0; t < form.places; ++t) f(form, Head(c, form, mask, head), t);
  }
  return {};
}

Status Forward(RefCall& c) {  // (q, k, v[, mask]) -> out, log sums
  return ForPlaces(c, 3, [&](const AttentionForm& form, const Head& head, std::int64_t t) {
    const std::vector<double> scores = head.Scores(t);
    if (scores.empty()) return;
    const double top = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double score : scores) sum += std::exp(score - top);
    c.out[1].data[head.RowAt(t)] = top + std::log(sum);
    for (std::int64_t s = 0; s < std::ssize(scores); ++s) {
      const double weight = std::exp(scores[s] - top) / sum * head.Kept(t, s);
      for (std::int64_t e = 0; e < form.out_width; ++e) c.out[0].data[head.OutAt(t, e)] += weight * head.V(s, e);
    }
  });
}

Status Backward(RefCall& c) {  // (q, k, v, out, log sums, g[, mask]) -> dq, dk, dv
  return ForPlaces(c, 6, [&](const AttentionForm& form, const Head& head, std::int64_t t) {
    const std::vector<double> scores = head.Scores(t);
    auto g = [&](std::int64_t e) { return c.in[5]->data[head.OutAt(t, e)]; };
    double with_out = 0;
    for (std::int64_t e = 0; e < form.out_width; ++e) with_out += g(e) * c.in[3]->data[head.OutAt(t, e)];
    for (std::int64_t s = 0; s < std::ssize(scores); ++s) {
      const double weight = std::exp(scores[s] - c.in[4]->data[head.RowAt(t)]), kept = head.Kept(t, s);
      double by_weight = 0;
      for (std::int64_t e = 0; e < form.out_width; ++e) {
        by_weight += g(e) * head.V(s, e) * kept;
        c.out[2].data[head.VAt(s, e)] += weight * kept * g(e);
      }
      const double by_product = weight * (by_weight - with_out) * form.scale;
      for (std::int64_t d = 0; d < form.width; ++d) {
        c.out[0].data[head.QAt(t, d)] += by_product * head.K(s, d);
        c.out[1].data[head.KAt(s, d)] += by_product * head.Q(t, d);
      }
    }
  });
}

}  // namespace

void AddAttentionReferences(RefTable& table) {
  for (const OpDef* def : {&kAttention, &kCausalAttention}) table[def] = Forward;
  for (const OpDef* def : {&kAttentionGrad, &kCausalAttentionGrad}) table[def] = Backward;
}

}  // namespace ropewalk::mlrunner
