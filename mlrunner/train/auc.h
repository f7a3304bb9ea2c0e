// The area under the ROC curve: how often a label of 1 has a larger score than one of 0, of all pairs of them; two that score alike count
// half (Hanley and McNeil 1982).
//
// Scores are counted in fixed bins: those from 2^-20 to 2^12 and below zero in the same way, 1024 bins for each power of two; what is
// smaller is 0, what is larger 2^12. So counts of ranks add up, whoever counted which sample, and what is compared are scores that are
// rounded to a thousandth of themselves: the figure is exact to about 1e-6 unless scores are all alike to three digits.
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <vector>

namespace ropewalk::mlrunner {

class AucCounts {
 public:
  AucCounts();
  // A score that is no number counts nowhere.
  void Add(double score, bool is_positive);
  // Counts of several ranks are added up element by element: whole numbers, exact up to 2^53.
  std::vector<double>& counts() { return counts_; }
  // In [0, 1]; no number where there are no labels of 0, or none of 1.
  double Auc() const;

 private:
  std::vector<double> counts_;  // (bins, 2): of 0 and of 1, from the smallest score on
};

}  // namespace ropewalk::mlrunner
