#include "mlrunner/train/held_out.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <span>
#include <utility>

#include "base/bytes.h"
#include "mlrunner/data/sampler.h"
#include "mlrunner/graph/optimizers.h"
#include "mlrunner/train/step_graph.h"

namespace ropewalk::mlrunner {
namespace {

double Scalar(const Tensor& tensor) { return ToRef(tensor).data.at(0); }

}  // namespace

Result<std::unique_ptr<HeldOut>> HeldOut::Make(Options options) {
  std::unique_ptr<HeldOut> made(new HeldOut(std::move(options)));
  const Options& o = made->options_;
  const Share share = ShareOf(o.samples->count(), o.gang->rank(), o.gang->ranks());
  made->mine_.resize(static_cast<std::size_t>(share.count));
  std::iota(made->mine_.begin(), made->mine_.end(), share.begin);
  made->rows_ = std::max<std::int64_t>(1, std::min(o.job->evaluate_batch > 0 ? o.job->evaluate_batch : o.rows, share.count));
  while (o.needs_whole_batches && share.count % made->rows_ != 0) --made->rows_;
  ASSIGN_OR_RETURN(const Graph graph, CountGraph(*o.job, *o.samples));
  made->graph_ = o.lay(graph);
  ASSIGN_OR_RETURN(made->executable_, o.compile(made->graph_, {made->rows_}));
  made->tensors_ = std::make_unique<BatchTensors>(*o.samples, made->rows_, o.job->dtype);
  return made;
}

// Of the first `count` samples of the batch that was counted last; the last field are the labels, 0 or 1.
void HeldOut::AddScores(const Tensor& scores, std::size_t count, AucCounts* auc) const {
  const std::vector<const Tensor*> inputs = tensors_->inputs();
  const RefTensor said = ToRef(scores), labels = ToRef(*inputs[inputs.size() - 2]);
  const std::size_t each = said.data.size() / static_cast<std::size_t>(rows_);
  for (std::size_t i = 0; i < count * each; ++i) auc->Add(said.data[i], labels.data[i] > .5);
}

// Over all ranks. They are too many numbers for the master's Exchange.
Status HeldOut::SumCounts(AucCounts* auc) {
  if (options_.ranks == nullptr) return {};
  std::vector<double>& counts = auc->counts();
  return options_.ranks->AllReduce({.in = counts.data(),
                                    .out = counts.data(),
                                    .count = static_cast<std::int64_t>(counts.size()),
                                    .dtype = Dtype::kF64,
                                    .name = "counts of scores"});
}

Status HeldOut::CountMine(StateStore& states, Sums* sums) {
  const std::span<const std::int64_t> mine(mine_);
  RETURN_IF_ERROR(options_.samples->Prepare(mine));
  for (std::size_t done = 0; done < mine.size(); done += static_cast<std::size_t>(rows_)) {
    RETURN_IF_ERROR(options_.lost());
    const std::size_t count = std::min(static_cast<std::size_t>(rows_), mine.size() - done);
    if (const Status filled = tensors_->Fill(mine.subspan(done, count), 0, 1); !filled.ok())
      return filled.WithContext("counting the held-out samples");
    RunInputs inputs;
    inputs.micro_batches[0] = tensors_->inputs();
    inputs.run.seed = options_.job->seed;
    auto outputs = executable_->Run(inputs, states);
    if (!outputs.ok()) return outputs.status().WithContext("counting the held-out samples");
    sums->loss += Scalar(outputs->outputs[0][0]);
    sums->hits += Scalar(outputs->outputs[0][1]);
    if (judges()) AddScores(outputs->outputs[0][2], count, &sums->scores);
  }
  return {};
}

Result<HeldOutCount> HeldOut::Count(StateStore& states) {
  Sums sums;
  RETURN_IF_ERROR(CountMine(states, &sums));
  HeldOutCount count;
  if (judges()) {
    RETURN_IF_ERROR(SumCounts(&sums.scores));
    count.auc = sums.scores.Auc();
  }
  std::string bytes;
  ByteWriter writer(&bytes);
  writer.Fixed(sums.loss);
  writer.Fixed(static_cast<std::int64_t>(std::llround(sums.hits)));
  writer.Fixed(options_.samples->NumLabels(mine_));
  ASSIGN_OR_RETURN(const std::vector<std::string> all, options_.gang->Exchange(std::move(bytes)));
  for (const std::string& each : all) {
    ByteReader reader(each);
    count.loss += reader.Fixed<double>();
    count.hits += reader.Fixed<std::int64_t>();
    count.labels += reader.Fixed<std::int64_t>();
    if (!reader.ok() || !reader.empty()) return Status(Code::kInternal, "TRAIN02", "a rank's counts cannot be read");
  }
  count.loss /= static_cast<double>(std::max<std::int64_t>(1, count.labels));
  return count;
}

StateStore Averaged(const Graph& graph, const StateStore& states) {
  StateStore averaged;
  for (const StateInfo& state : graph.states) {
    if (state.kind != StateKind::kParameter && state.kind != StateKind::kStatistic) continue;
    Tensor value = state.kind == StateKind::kParameter ? states.Get(state.name + kAverage) : Tensor();
    if (value.bytes.empty()) value = states.Get(state.name);               // a statistic, or a parameter that is frozen
    if (!value.bytes.empty()) averaged.Set(state.name, std::move(value));  // else no step was made: it begins as it does
  }
  return averaged;
}

}  // namespace ropewalk::mlrunner
