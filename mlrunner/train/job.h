// A training job: what `ropewalk train job.toml` runs. Keys are strict: an unknown one is refused with its place and the nearest name.
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "mlrunner/types/dtype.h"

namespace ropewalk::mlrunner {

// What families of models and of data (train/family.h) have keys for. The members are keys that come often, and begin as these do; which of
// them a family has `ropewalk train --help` says, and the others do not count. All other keys of a family are in `more`, by name and as a
// job file has them: {.kind = "mlp", .more = {{"key", "value"}}}. What is not there is as the family begins it.
struct ModelSpec {
  std::string kind = "mlp";
  std::vector<std::int64_t> hidden = {512, 512};
  std::int64_t layers = 4, width = 256, heads = 4, length = 128;
  bool tied = false;
  std::string first_values = "";  // a safetensors file or a checkpoint that parameters and statistics begin with; empty: as the model says
  std::map<std::string, std::string> more = {};
};

struct DataSpec {
  std::string kind = "fashion-mnist";
  std::string path = "";  // empty: where the family's data lies if nothing else is said
  double held_out = .1;
  std::int64_t samples_max = 0;  // of the training set, the first ones; 0: all
  std::map<std::string, std::string> more = {};
};

struct OptimizerSpec {
  enum class Kind : std::uint8_t { kSgd, kAdamW, kAdam, kLamb, kAdagrad } kind = Kind::kSgd;
  enum class Schedule : std::uint8_t { kConstant, kLinear, kCosine, kStep } schedule = Schedule::kConstant;  // train/schedule.h
  double learning_rate = .05;
  std::int64_t warmup_steps = 0;  // the rate grows linearly over the first ones
  std::int64_t decay_steps = 0;   // linear, cosine: how long it falls; 0: to the end of the training
  double final_fraction = 0;      // linear, cosine: what is left of it then
  std::int64_t step_every = 0;    // step: after so many steps it is multiplied by
  double step_factor = .1;
  double clip_norm = 0;  // the most that the norm of all gradients may be; 0: whatever it is
  double momentum = .9;  // sgd
  double weight_decay = 0;
  double beta1 = .9, beta2 = .999;  // adamw, adam, lamb
  double epsilon = 1e-8;            // these and adagrad
  bool nesterov = false;            // sgd
  bool decay_matrices = false;      // weight decay is for parameters of two dimensions and more, not for biases and gains of norms
  double average = 0;               // a moving average of the parameters, which is what is counted with; 0: none
};

// How the algorithm of a sum over ranks is chosen: small and large ones by another each; or the fastest by what messages cost between the
// ranks, as it was measured in an earlier training on the same machines, or when this one begins (docs/collectives.md).
enum class ChooseBy : std::uint8_t { kFixedSizes, kKeptCosts, kMeasuredCosts };

// What happens to a step whose loss or gradients are no numbers: the training ends, or the step changes nothing and is counted.
enum class NanPolicy : std::uint8_t { kStop, kSkip };

// What backward computes again instead of keeping it from forward (train/recompute.h): nothing; all but products and masks; each block of
// the model from its input; stretches of as many blocks as the root of how many there are.
enum class RecomputeMarks : std::uint8_t { kNone, kSelective, kBlocks, kRoots };

struct CheckpointSpec {
  std::string folder;            // empty: none are written
  std::int64_t every_steps = 0;  // 0: only at the end
  std::int64_t keep = 3;         // the newest so many
  bool resume = true;            // begin at the newest one that is there
  bool best = false;             // the one with the smallest held-out loss is kept in FOLDER/best besides
};

struct TrainJob {
  ModelSpec model;
  DataSpec data;
  OptimizerSpec optimizer;
  CheckpointSpec checkpoint;
  std::int32_t ranks = 1;
  std::int32_t ranks_min = 0;      // it goes on with fewer ranks, so many at least, where there is no room for all; 0: all or none
  std::int64_t shrink_after = 5;   // seconds that it waits for room for all before that
  std::int64_t batch = 128;        // of all ranks together
  std::int32_t micro_batches = 1;  // that a rank's share of a batch is cut into: it needs memory for one of them only
  std::int64_t epochs = 0;         // one of the two, the other is 0; both 0: one epoch
  std::int64_t steps = 0;
  std::uint64_t seed = 1;
  Dtype dtype = Dtype::kF32;
  Dtype precision = Dtype::kF32;  // of products: kBF16 or kF16 are mixed precision, with f32 masters (graph/passes/pass.h: Autocast)
  RecomputeMarks recompute = RecomputeMarks::kNone;
  bool gpu = false;                    // ops that a GPU has kernels for are computed there, where there is one
  bool deterministic = true;           // gradients of the ranks are added in the order of the ranks
  std::size_t bucket_bytes = 1 << 20;  // gradients travel in buckets of about so many bytes
  std::int32_t threads = 0;            // of each rank; 0: the machine's cores, divided among its ranks
  std::int64_t evaluate_batch = 0;     // samples at a time on each rank; 0: as a step has
  std::int32_t prefetch = 2;           // batches that are made while a step computes; 0: none, each is made before its step
  std::int64_t timeout = 30 * 60;      // seconds that a rank waits for the others in one sum; 0: for ever
  ChooseBy choose_by = ChooseBy::kFixedSizes;
  std::int64_t evaluate_every = 0;  // steps; 0: at the end only
  std::int64_t patience = 0;        // evaluations without a smaller held-out loss, after which the training ends; 0: any
  NanPolicy nan = NanPolicy::kStop;
  double straggler_ratio = 1.5;       // a rank whose own part of a step takes so many times its peers' is named; 0: none
  std::int64_t straggler_steps = 50;  // that are looked at together (train/stragglers.h)
  bool anatomy = false;               // where the steps' time goes and MFU, of each rank (train/anatomy.h)
  std::string metrics;                // a file of JSON lines (train/metrics.h); empty: none
  std::string tensorboard;            // a folder for event files; empty: none
  std::string trace;                  // a file for the trace of one step; empty: none
  std::string frozen;                 // patterns of names, "encoder.*, *.bias": these parameters stay as they begin; empty: all are trained
  std::string export_to;              // FILE.onnx or FILE.safetensors, which holds what was trained; empty: none is written
};

// All keys with their defaults.
std::vector<ConfigKey> TrainKeys();

// What a file says and a flag makes meaningless is as if it were not there: train.epochs beside --set train.steps, what belongs to another
// kind than --set model.kind.
void DropOverruled(Config* config);

// SPEC02: values that do not fit together, keys that the chosen model, data or optimiser does not know.
Result<TrainJob> ReadTrainJob(const Config& config);
// The same where a dataset of a batch job says what is learnt from: [data] plays no part.
Result<TrainJob> ReadTrainJobOnDataset(const Config& config);

// The keys whose values are paths; empty ones are none.
std::vector<std::string> PathKeys();

// What differs from the defaults, as "section.key=value": with it any process of the job makes the same TrainJob without the file.
std::vector<std::string> AsSettings(const Config& config);
// The same of a job that was made in C++, with all its keys but those of [data]. A value that no key can have is among them.
std::vector<std::string> AsSettings(const TrainJob& job);
// "section.key=value" into `config`. SPEC01, SPEC02 as Config::Set; SPEC04: there is no '='.
Status ApplySetting(Config* config, const std::string& setting, const std::string& origin = "flag --set");

}  // namespace ropewalk::mlrunner
