#include "mlrunner/models/mlp.h"

#include "mlrunner/graph/maths.h"
#include "mlrunner/train/family.h"

namespace ropewalk::mlrunner {
namespace {

// Images are features in the order of their rows.
Value Flat(const Batch& batch, const Value& x) {
  if (x.rank() == 2) return x;
  std::int64_t features = 1;
  for (std::int64_t length : batch.fields[0].dims) features *= length;
  return Reshape(x, {batch.rows, features});
}

Result<Learnt> Build(const Batch& batch) {
  const Model model = Mlp(batch.b, {batch.keys.Numbers("hidden"), batch.FieldOf("label").classes}, Flat(batch, batch.values[0]));
  return Classify(batch, model, batch.At("label"));
}

}  // namespace

const ModelFamily& MlpFamily() {
  static const ModelFamily family{
      .name = "mlp",
      .help = "linear maps with ReLU between them",
      .learns_from = {SampleKind::kFeatures, SampleKind::kImages},
      .keys = {{"hidden", ConfigType::kNumbers, "512, 512", "widths of the hidden layers", 1}},
      .check = nullptr,
      .build = Build,
  };
  return family;
}

}  // namespace ropewalk::mlrunner
