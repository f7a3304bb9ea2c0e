#include "mlrunner/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "mlrunner/collective/run/chooser.h"
#include "mlrunner/data/sampler.h"
#include "mlrunner/gpu/kernels.h"
#include "mlrunner/graph/optimizers.h"
#include "mlrunner/train/anatomy.h"
#include "mlrunner/train/auc.h"
#include "mlrunner/train/batch_tensors.h"
#include "mlrunner/train/batches.h"
#include "mlrunner/train/checkpoint.h"
#include "mlrunner/train/checkpoint_parts.h"
#include "mlrunner/train/checkpoint_reader.h"
#include "mlrunner/train/export_model.h"
#include "mlrunner/train/family.h"
#include "mlrunner/train/first_values.h"
#include "mlrunner/train/metrics.h"
#include "mlrunner/train/pace.h"
#include "mlrunner/train/saver.h"
#include "mlrunner/train/schedule.h"
#include "mlrunner/train/step_graph.h"
#include "storage/io_error.h"

namespace ropewalk::mlrunner {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// What a rank tells the others before they train together.
struct Hello {
  std::uint64_t model = 0;  // fingerprint of what is computed, whatever the number of ranks
  std::uint64_t data = 0;   // hash of the samples
  std::int64_t resume_from = -1;
  std::string machine;
};
std::string Encode(const Hello& hello) {
  std::string bytes;
  ByteWriter writer(&bytes);
  writer.Fixed(hello.model);
  writer.Fixed(hello.data);
  writer.Fixed(hello.resume_from);
  writer.Sized(hello.machine);
  return bytes;
}
Result<Hello> DecodeHello(const std::string& bytes) {
  ByteReader reader(bytes);
  Hello hello;
  hello.model = reader.Fixed<std::uint64_t>();
  hello.data = reader.Fixed<std::uint64_t>();
  hello.resume_from = reader.Fixed<std::int64_t>();
  hello.machine = reader.Sized();
  if (!reader.ok() || !reader.empty()) return Status(Code::kInternal, "TRAIN02", "a rank's greeting cannot be read");
  return hello;
}

double Scalar(const Tensor& tensor) { return ToRef(tensor).data.at(0); }

// States that go into checkpoints: all that hold bytes, but for the learning rate, which the job file says, and sums over micro-batches,
// which are zero between steps.
bool IsKept(const StateInfo& state) {
  return SizeOf(state.type.dtype) > 0 && state.name != kLearningRate && state.kind != StateKind::kAccumulator;
}

// One rank's training.
class Rank {
 public:
  Rank(dag::GangContext& gang, const TrainJob& job, const TrainHooks& hooks)
      : gang_(gang), job_(job), hooks_(hooks), files_(hooks.files == nullptr ? &local_files_ : hooks.files) {}

  ~Rank() {
    if (watches_) gang_.OnLost({});
  }

  Result<std::string> Run() {
    ASSIGN_OR_RETURN(data_, hooks_.load ? hooks_.load() : LoadData(job_, [this] { return KeptVocabulary(); }));
    samples_ = data_.training->count();
    if (job_.data.samples_max > 0) samples_ = std::min(samples_, job_.data.samples_max);
    // A batch is never larger than an epoch.
    batch_ = std::min(job_.batch, samples_);
    if (job_.batch > samples_ && gang_.rank() == 0)
      Warn(fmt::format("train.batch is {}, more than all training samples ({}), which each step takes then", job_.batch, samples_));
    rows_ = ShareOf(ShareOf(batch_, 0, gang_.ranks()).count, 0, job_.micro_batches).count;
    summary_.loss = std::numeric_limits<double>::quiet_NaN();
    steps_in_all_ = StepsInAll();
    ASSIGN_OR_RETURN(graph_, StepGraph(job_, *data_.training, gang_.ranks(), &beginning_));
    if (!job_.model.first_values.empty())
      RETURN_IF_ERROR(ReadFirstValues(*files_, job_.model.first_values, graph_, &beginning_.first_values));
    RETURN_IF_ERROR(AreWhole());
    if (!job_.export_to.empty() && gang_.rank() == 0) RETURN_IF_ERROR(CanExport(*files_, job_, *data_.training));
    RETURN_IF_ERROR(CanBeHeld());
    RETURN_IF_ERROR(DivideStates());
    RETURN_IF_ERROR(Meet());
    // Where nothing is left to do nothing will be written: such a folder may be of others, and only read.
    if (!job_.checkpoint.folder.empty() && !IsOver()) RETURN_IF_ERROR(TryFolder());
    MakeSaver();
    // Behind Meet(): all ranks have loaded what they found there.
    if (saver_ != nullptr && !IsOver() && gang_.rank() == 0)
      RETURN_IF_ERROR(data_.training->SaveVocabulary(*files_, VocabularyIn(job_.checkpoint.folder)));
    Status status = Connected();
    // The others must not wait for a rank that has given up.
    if (!status.ok() && ranks_ != nullptr) ranks_->Abort(status);
    // A checkpoint that is being written is what the next forming begins at, whatever has ended this one.
    if (!status.ok()) (void)Saved(Wait::kYes);
    RETURN_IF_ERROR(status);
    return gang_.rank() == 0 ? mlrunner::Encode(summary_) : std::string();
  }

 private:
  Status Connected() {
    if (gang_.ranks() > 1) {
      RETURN_IF_ERROR(Connect());
    } else {
      Watch();  // nobody else notices: with several ranks the communicator does, and ends what waits
    }
    RETURN_IF_ERROR(CompileStep());
    RETURN_IF_ERROR(OpenFiles());
    RETURN_IF_ERROR(Steps());
    RETURN_IF_ERROR(TellAnatomy());
    if (hooks_.on_parameter && gang_.rank() == 0) {
      for (const StateInfo& state : graph_.states)
        if (state.kind == StateKind::kParameter) hooks_.on_parameter(state.name, states_.Get(state.name));
    }
    if (!job_.export_to.empty() && gang_.rank() == 0) {
      const bool averages = job_.optimizer.average > 0;
      const StateStore averaged = averages ? Averaged() : StateStore();
      RETURN_IF_ERROR(ExportTrained(*files_, job_, *data_.training, averages ? averaged : states_));
    }
    if (data_.held_out != nullptr && counted_ != step_) {
      Watch();  // no sum is waited for any more, so that the communicator would not say it
      RETURN_IF_ERROR(CountHeldOut());
    }
    return metrics_ == nullptr ? Status() : metrics_->Flush();
  }

  // From now on Lost() says whether the job was cancelled or a peer is gone.
  void Watch() {
    watches_ = true;
    gang_.OnLost([this](const Status& status) {
      std::lock_guard lock(mutex_);
      lost_ = status;
    });
  }

  // All ranks find the same, before hours of steps are made for a result that cannot be given back.
  Status CanBeHeld() const {
    if (hooks_.result_words_max == 0) return {};
    constexpr std::int64_t kWordsBesides = 16;           // lengths, and the summary
    std::int64_t parameters = 0, words = steps_in_all_;  // a loss each
    for (const StateInfo& state : graph_.states) {
      if (state.kind != StateKind::kParameter) continue;
      const Dims dims = Evaluate(state.type.shape, {rows_});
      parameters += NumElements(dims);
      words += NumElements(dims) + static_cast<std::int64_t>(dims.size() + state.name.size() / 8) + kWordsBesides;
    }
    if (words + kWordsBesides <= hooks_.result_words_max) return {};
    return Status(Code::kUserError, "TRAIN06",
                  fmt::format("the result of the training, {} parameters and {} losses, would not reach main", parameters, steps_in_all_),
                  fmt::format("what a training on a dataset returns goes through the master and fits {} numbers", hooks_.result_words_max),
                  "take a smaller model or fewer steps, or `ropewalk train` with [checkpoint], which writes the parameters into files");
  }

  // A model's own mean over a batch counts rows that only fill it up.
  Status AreWhole() const {
    const std::int64_t parts = std::int64_t{gang_.ranks()} * job_.micro_batches;
    if (!beginning_.needs_whole_batches || (batch_ % parts == 0 && samples_ % batch_ == 0)) return {};
    return Status(Code::kUserError, "TRAIN10",
                  fmt::format("{} samples in batches of {} do not come out even for {} ranks with {} micro-batches", samples_, batch_,
                              gang_.ranks(), job_.micro_batches),
                  "the model's loss is one mean over a batch, so that rows that fill a shorter one up would count",
                  "let it give the loss of each sample (reduction=\"none\"), or take a train.batch, or data.samples_max, that divides");
  }

  // What a checkpoint holds, and which rank writes which slice of it.
  Status DivideStates() {
    if (job_.checkpoint.folder.empty()) return {};
    for (const StateInfo& state : graph_.states) {
      if (IsKept(state)) kept_.push_back({state.name, state.type.dtype, Evaluate(state.logical, {rows_}), state.sharding});
    }
    ASSIGN_OR_RETURN(writers_, WritersOf(kept_, graph_.mesh, gang_.ranks(), hooks_.spread_bytes));
    together_ = std::any_of(writers_.begin() + 1, writers_.end(), [](const auto& slices) { return !slices.empty(); });
    return {};
  }

  void MakeSaver() {
    if (!job_.checkpoint.folder.empty()) saver_ = MakeSaverFor(job_.checkpoint.folder, job_.checkpoint.keep, saved_);
  }
  std::unique_ptr<Saver> MakeSaverFor(const std::string& folder, std::int64_t keep, std::int64_t stands_on) {
    Saver::Options options{
        .files = files_, .folder = folder, .keep = keep, .stands_on = stands_on, .forming = gang_.epoch(), .rank = gang_.rank()};
    if (together_) options.exchange = Exchanging();
    return std::make_unique<Saver>(std::move(options));
  }

  static std::string VocabularyIn(const std::string& folder) { return folder + "/vocabulary"; }
  // Where a checkpoint is gone on from, its text's tokens are those that were learnt when it began.
  std::string KeptVocabulary() const {
    const CheckpointSpec& spec = job_.checkpoint;
    if (spec.folder.empty() || !spec.resume) return "";
    const auto checkpoints = ListCheckpoints(*files_, spec.folder);
    return checkpoints.ok() && !checkpoints->empty() ? VocabularyIn(spec.folder) : "";
  }

  Status TryFolder() {
    const CheckpointWriter writer{.run = hooks_.run, .forming = gang_.epoch(), .rank = gang_.rank()};
    if (together_) return TryFolderTogether(*files_, job_.checkpoint.folder, writer, Exchanging());
    return gang_.rank() == 0 ? TryCheckpointFolder(*files_, job_.checkpoint.folder, writer) : Status();
  }

  ExchangeBytes Exchanging() {
    return [this](std::string mine) { return gang_.Exchange(std::move(mine)); };
  }

  // Do all ranks train the same, and from where? Rank 0 says which checkpoint it is.
  Status Meet() {
    Hello mine;
    ASSIGN_OR_RETURN(Graph whole, gang_.ranks() == 1 ? Result<Graph>(graph_) : StepGraph(job_, *data_.training, 1));
    mine.model = HashCombine(Fingerprint(whole), Hash(beginning_.first_values));
    training_hash_ = data_.training->content_hash();
    mine.data = HashCombine(training_hash_, data_.held_out == nullptr ? 0 : data_.held_out->content_hash());
    mine.machine = gang_.machine();
    std::vector<Status> passed_over;
    std::unique_ptr<CheckpointReader> newest;
    // One that shall not begin at what it finds goes on from what earlier formings of its own gang have written all the same.
    const bool of_any = job_.checkpoint.resume, of_its_own = gang_.epoch() > 0 && hooks_.run != 0;
    if (!job_.checkpoint.folder.empty() && (of_any || of_its_own) && gang_.rank() == 0) {
      ASSIGN_OR_RETURN(newest, OpenNewestCheckpoint(*files_, job_.checkpoint.folder, &passed_over, of_any ? 0 : hooks_.run));
      for (const Status& status : passed_over) Warn(fmt::format("passed over: {} ({})", status.what(), status.why()));
      if (newest != nullptr) mine.resume_from = newest->about().step;
    }
    ASSIGN_OR_RETURN(std::vector<std::string> all, gang_.Exchange(Encode(mine)));
    std::vector<Hello> hellos;
    for (const std::string& bytes : all) {
      ASSIGN_OR_RETURN(Hello hello, DecodeHello(bytes));
      hellos.push_back(std::move(hello));
    }
    for (std::size_t rank = 1; rank < hellos.size(); ++rank) {
      const char* what = hellos[rank].model != hellos[0].model ? "model" : hellos[rank].data != hellos[0].data ? "data" : nullptr;
      if (what != nullptr)
        return Status(Code::kUserError, "TRAIN02",
                      fmt::format("rank {} on {} has another {} than rank 0 on {}", rank, hellos[rank].machine, what, hellos[0].machine),
                      "all ranks train the same model on the same data", "let data.path mean the same files on every machine");
    }
    neighbours_ = static_cast<int>(std::count_if(hellos.begin(), hellos.end(), [&](const Hello& h) { return h.machine == mine.machine; }));
    place_ = static_cast<std::int32_t>(
        std::count_if(hellos.begin(), hellos.begin() + gang_.rank(), [&](const Hello& h) { return h.machine == mine.machine; }));
    const FirstValues first_values = std::exchange(beginning_.first_values, {});  // not held beside the states
    if (hellos[0].resume_from < 0) return SetFirstValues(first_values, graph_, gang_.rank(), &states_);
    if (gang_.rank() == 0) {
      RETURN_IF_ERROR(Resume(*newest));
      if (hooks_.on_resumed) hooks_.on_resumed(step_, newest->path());
      return {};
    }
    const Status status = ResumeFrom(CheckpointPath(job_.checkpoint.folder, hellos[0].resume_from));
    if (status.ok() || status.tag() == "CKPT03") return status;
    return Status(status.code(), "CKPT04",  // a disk that fails for once is no mistake of the job
                  fmt::format("rank {} on {} cannot read the checkpoint that rank 0 on {} goes on from", gang_.rank(), mine.machine,
                              hellos[0].machine),
                  status.what() + ": " + status.why(), "let checkpoint.folder be a folder that all machines share");
  }

  Status ResumeFrom(const std::string& path) {
    ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> reader, CheckpointReader::Open(*files_, path));
    return Resume(*reader);
  }

  // Takes this rank's slices of all states, and the place in the data.
  Status Resume(CheckpointReader& reader) {
    const Checkpoint& checkpoint = reader.about();
    auto misfit = [&](const std::string& why) { return CheckpointMisfit(reader.path(), why); };
    if (checkpoint.seed != job_.seed) return misfit(fmt::format("its train.seed was {} and is {} now", checkpoint.seed, job_.seed));
    const std::uint64_t vocabulary = data_.training->vocabulary_hash();
    if (checkpoint.vocabulary != 0 && vocabulary != 0 && checkpoint.vocabulary != vocabulary)
      return misfit(
          fmt::format("it has learnt a text of other characters or tokens: what it takes for one is another in \"{}\"", job_.data.path));
    if (checkpoint.samples != 0 && checkpoint.samples != samples_)
      return misfit(fmt::format("it has learnt from {} samples, and there are {} now", checkpoint.samples, samples_));
    if (checkpoint.data != 0 && checkpoint.data != training_hash_)
      return misfit("it has learnt from other samples than those that there are now, or from the same in another order");
    if (checkpoint.position.offset > samples_)
      return misfit(fmt::format("it had taken {} samples of an epoch, and there are {} now", checkpoint.position.offset, samples_));
    for (const LogicalState& state : kept_) {
      const Slice slice = SliceOf(state.dims, state.sharding, graph_.mesh, gang_.rank());
      ASSIGN_OR_RETURN(Tensor tensor, reader.Take(state.name, state.dtype, state.dims, slice));
      states_.Set(state.name, std::move(tensor));
    }
    if (const std::size_t held = reader.index().tensors.size(); held != kept_.size())
      return misfit(fmt::format("it holds {} states, and the job has {}", held, kept_.size()));
    step_ = saved_ = checkpoint.step;
    position_ = checkpoint.position;
    steps_in_all_ = StepsInAll();
    summary_.resumed_from = step_;
    summary_.loss = checkpoint.loss;
    best_step_ = summary_.best_step = checkpoint.best_step;
    best_loss_ = checkpoint.best_loss;
    if (best_step_ >= 0) summary_.best_loss = best_loss_;
    return {};
  }

  Status Connect() {
    std::size_t state_bytes = 0;
    for (const StateInfo& state : graph_.states) {
      if (state.kind == StateKind::kParameter)
        state_bytes += static_cast<std::size_t>(NumElements(Evaluate(state.type.shape, {rows_}))) * SizeOf(state.type.dtype);
    }
    collective::CommunicatorOptions options;
    options.pool_bytes = std::max(options.pool_bytes, 4 * state_bytes);
    options.timeout_ms = job_.timeout * 1000;
    options.choose_by = job_.choose_by == ChooseBy::kFixedSizes  ? collective::ChooseBy::kFixedSizes
                        : job_.choose_by == ChooseBy::kKeptCosts ? collective::ChooseBy::kKeptCosts
                                                                 : collective::ChooseBy::kMeasuredCosts;
    if (hooks_.connect) {
      ASSIGN_OR_RETURN(ranks_, hooks_.connect(gang_, options));
    } else {
      ASSIGN_OR_RETURN(ranks_, collective::Communicator::Connect(collective::RendezvousOf(&gang_), options));
    }
    if (gang_.rank() == 0) SayHowSumsAreChosen();
    return {};
  }

  // Of those by costs, of a bucket: fixed sizes are in the docs.
  void SayHowSumsAreChosen() {
    const collective::Chooser* chooser = ranks_->chooser();
    if (chooser == nullptr || chooser->costs().from == collective::CostsFrom::kNowhere) return;
    if (!chooser->costs().not_kept.empty()) Warn(chooser->costs().not_kept);
    const collective::CollectiveCall bucket{.count = static_cast<std::int64_t>(job_.bucket_bytes / SizeOf(job_.dtype)),
                                            .dtype = job_.dtype,
                                            .deterministic = job_.deterministic};
    gang_.Report(fmt::format("sums of {} bytes by {}", job_.bucket_bytes, Explain(chooser->Explain(bucket))));
  }

  Status Lost() {
    std::lock_guard lock(mutex_);
    return lost_;
  }

  int Threads() const {
    if (job_.threads > 0) return job_.threads;
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / std::max(1, neighbours_));
  }

  // The kernels of the device that the job asks for, where there is one.
  KernelTable Kernels() const {
    KernelTable table = CpuKernels();
    if (gpu_ != nullptr) AddGpuKernels(&table, gpu_);
    if (hooks_.kernels) hooks_.kernels(&table);
    return table;
  }
  // In the layouts that the CPU's kernels are fastest with; those of a GPU take rows.
  Graph Laid(const Graph& graph) const { return gpu_ == nullptr ? AssignLayouts(graph, CpuLayouts()) : graph; }
  ExecutorOptions Options() const { return {.device = gpu_ == nullptr ? Device::kCpu : Device::kGpu, .num_threads = Threads()}; }

  // Ranks of one machine take its GPUs in turn.
  void FindGpu() {
    if (!job_.gpu) return;
    const char* named = std::getenv("ROPEWALK_GPU_PLUGIN");
    gpu_ = GpuOrSay(named == nullptr ? "" : named, {.device = place_}, [this](const Status& why) {
      if (place_ != 0) return;  // once for each machine
      Warn(fmt::format("{} computes on the CPU: {} ({})", gang_.machine(), why.what(), why.why()));
    });
  }

  // What is reported makes way for the next line, and is not shown where there is no terminal.
  void Warn(const std::string& line) {
    gang_.Report(line);
    std::fputs(("warning: " + line + "\n").c_str(), stderr);
  }

  Status CompileStep() {
    FindGpu();
    KernelTable table = Kernels();
    ExecutorOptions options = Options();
    if (ranks_ != nullptr) {
      AddSumKernels(&table, ranks_.get(), job_.deterministic);
      options.registered_memory = [this](std::size_t bytes) { return ranks_->Allocate(bytes); };
    }
    graph_ = Laid(graph_);
    ASSIGN_OR_RETURN(executable_, Compile(graph_, {rows_}, StepProgram(graph_, job_.micro_batches), table, options));
    return {};
  }

  // What is written beside the steps, and whether it can be.
  Status OpenFiles() {
    if (job_.evaluate_every > 0 && data_.held_out == nullptr)
      return Status(Code::kUserError, "TRAIN07",
                    fmt::format("train.evaluate_every is {}, and there is nothing to evaluate on", job_.evaluate_every),
                    "no samples are held out", "give Train a second dataset, or leave the key out");
    if (!job_.trace.empty()) RETURN_IF_ERROR(WriteTrace(""));
    if (job_.anatomy && job_.dtype == Dtype::kF32) {
      ASSIGN_OR_RETURN(anatomy_.peak_flops, PeakFlops(Kernels(), Options()));
    }
    anatomy_.step_flops = FlopsOf(graph_, {rows_}, StepProgram(graph_, job_.micro_batches));
    if (gang_.rank() != 0 || (job_.metrics.empty() && job_.tensorboard.empty())) return {};
    ASSIGN_OR_RETURN(metrics_, Metrics::Open(job_.metrics, job_.tensorboard));
    return {};
  }

  Status WriteTrace(const std::string& text) const {
    const std::string path = job_.trace + (gang_.rank() == 0 ? "" : ".rank" + std::to_string(gang_.rank()));
    std::ofstream file(path, std::ios::binary);
    file << text;
    file.close();
    if (file) return {};
    return Status(Code::kUserError, "TRAIN07", "the trace of a step cannot be written to " + storage::QuotedPath(path),
                  "its folder is missing, full or not ours", "name another file in train.trace");
  }

  // Where the time of the steps went, of all ranks. A save may exchange too: it has ended.
  Status TellAnatomy() {
    if (!job_.anatomy) return {};
    RETURN_IF_ERROR(Saved(Wait::kYes));
    ASSIGN_OR_RETURN(const std::vector<std::string> all, gang_.Exchange(mlrunner::Encode(anatomy_)));
    for (const std::string& bytes : all) {
      ASSIGN_OR_RETURN(const RankAnatomy rank, DecodeRankAnatomy(bytes));
      summary_.anatomy.push_back(rank);
    }
    return {};
  }

  bool IsOver() const {
    if (summary_.stopped_early) return true;
    if (job_.steps > 0) return step_ >= job_.steps;
    return position_.epoch >= job_.epochs || (position_.epoch == job_.epochs - 1 && position_.offset >= samples_);
  }
  // With those that were made to come here, perhaps with another train.batch.
  std::int64_t StepsInAll() const {
    if (job_.steps > 0) return job_.steps;
    if (position_.epoch >= job_.epochs) return step_;
    auto steps_for = [&](std::int64_t samples) { return (samples + batch_ - 1) / batch_; };
    return step_ + steps_for(samples_ - position_.offset) + (job_.epochs - position_.epoch - 1) * steps_for(samples_);
  }

  void SetLearningRate() {
    const double rate = LearningRateAt(job_.optimizer, step_, steps_in_all_);
    if (rate == rate_) return;
    rate_ = rate;
    states_.Set(kLearningRate, ToTensor(job_.dtype, RefTensor::Scalar(rate)));
  }

  Status Steps() {
    const auto start = Clock::now();
    auto shown = start - std::chrono::seconds(1), paced = start;
    std::int64_t paced_step = step_;
    StepPace pace;
    const std::string resumed = summary_.resumed_from < 0 ? "" : fmt::format(", resumed at {}", summary_.resumed_from);
    Batches batches(*data_.training,
                    {.seed = job_.seed,
                     .samples = samples_,
                     .batch = batch_,
                     .rows = rows_,
                     .micro_batches = job_.micro_batches,
                     .rank = gang_.rank(),
                     .ranks = gang_.ranks(),
                     .dtype = job_.dtype,
                     .ahead = job_.prefetch},
                    position_);
    std::int64_t taken = 0;
    summary_.stopped_early = PatienceIsOver(step_);
    for (; !IsOver(); ++step_) {
      const auto begun = Clock::now();
      RETURN_IF_ERROR(Lost());
      RETURN_IF_ERROR(Saved(Wait::kNo));
      SetLearningRate();
      auto next = batches.Next();
      if (!next.ok()) return next.status().WithContext(fmt::format("step {}", step_));
      const StepBatch& batch = **next;
      position_ = batch.behind;
      const std::int64_t count = batch.count;
      RunInputs inputs;
      inputs.run = {.seed = job_.seed,
                    .step = static_cast<std::uint64_t>(step_),
                    .sample_offset = position_.epoch * samples_ + position_.offset - count + batch.share.begin};
      inputs.micro_batches.clear();
      for (std::size_t i = 0; i < batch.tensors.size(); ++i) {
        inputs.micro_batches.push_back(batch.tensors[i].inputs());
        inputs.sample_offsets.push_back(inputs.run.sample_offset + batch.cuts[i].begin);
      }
      if (hooks_.times != nullptr || job_.anatomy || metrics_ != nullptr || !job_.trace.empty()) {
        inputs.times = hooks_.times != nullptr ? hooks_.times : &times_;
        inputs.times->clear();
      }
      StepFigures figures{.step = step_ + 1, .epoch = position_.epoch, .learning_rate = rate_};
      figures.seconds.data = SecondsSince(begun);
      auto outputs = executable_->Run(inputs, states_);
      if (!outputs.ok()) return outputs.status().WithContext(fmt::format("step {}", step_));
      figures.loss = Scalar(outputs->outputs[0][0]);
      if (metrics_ != nullptr) figures.more = MoreOf(outputs->outputs[0]);
      const std::string wrong = WhatIsNoNumber(figures.loss, outputs->outputs[0], &figures.gradient_norm);
      if (job_.nan == NanPolicy::kSkip && !wrong.empty()) {
        RETURN_IF_ERROR(Skipped(wrong));
      } else {
        skipped_in_a_row_ = 0;
        summary_.loss = figures.loss;
      }
      if (!std::isfinite(summary_.loss) && job_.nan == NanPolicy::kStop) {
        const std::string spoilt = Spoilt();
        return NoNumber(step_, fmt::format("the loss is {}", summary_.loss),
                        spoilt.empty() ? "all parameters are still numbers" : "after its update " + spoilt);
      }
      if (hooks_.on_step) hooks_.on_step(step_, figures.loss);
      taken += count;
      figures.seconds.all = SecondsSince(begun);
      figures.samples_per_s = static_cast<double>(count) / figures.seconds.all;
      if (inputs.times != nullptr) RETURN_IF_ERROR(Tell(*inputs.times, figures));
      if (job_.evaluate_every > 0 && (step_ + 1) % job_.evaluate_every == 0) RETURN_IF_ERROR(EvaluateOnTheWay(step_ + 1));
      if (job_.checkpoint.every_steps > 0 && (step_ + 1) % job_.checkpoint.every_steps == 0) {
        RETURN_IF_ERROR(Save(step_ + 1));
      }
      if (gang_.rank() == 0 && Clock::now() - shown > std::chrono::milliseconds(200)) {
        shown = Clock::now();
        pace.Made(step_ + 1 - paced_step, std::chrono::duration<double>(shown - paced).count());
        paced = shown;
        paced_step = step_ + 1;
        const std::string left = LeftText(pace.SecondsFor(steps_in_all_ - step_ - 1));
        gang_.Report(fmt::format("step {} of {}{}, {}epoch {}, loss {:.4f}, {:.0f} samples/s", step_ + 1, steps_in_all_, resumed,
                                 left.empty() ? "" : left + ", ", position_.epoch + 1, summary_.loss,
                                 static_cast<double>(taken) / SecondsSince(start)));
      }
    }
    summary_.steps = step_;
    summary_.seconds = SecondsSince(start);
    summary_.samples_per_s = taken == 0 ? 0 : static_cast<double>(taken) / summary_.seconds;
    if (taken == 0) return {};
    // No loss of a next step tells what the last update has done.
    if (const std::string spoilt = Spoilt(); !spoilt.empty()) return NoNumber(step_ - 1, spoilt, "its loss was a number");
    if (!job_.trace.empty() && !trace_.empty()) RETURN_IF_ERROR(WriteTrace(trace_));
    if (job_.evaluate_every > 0 && counted_ != step_) RETURN_IF_ERROR(EvaluateOnTheWay(step_));
    if (saved_ != step_) RETURN_IF_ERROR(Save(step_));
    return Saved(Wait::kYes);
  }

  std::size_t NumGradients() const { return beginning_.num_trained; }

  // What the model's family counts: the outputs behind the loss, and the squares of gradients where there are some.
  std::vector<std::pair<std::string, double>> MoreOf(const std::vector<Tensor>& outputs) const {
    std::vector<std::pair<std::string, double>> more;
    for (std::size_t i = 1 + (WatchesGradients(job_) ? NumGradients() : 0); i < outputs.size(); ++i)
      more.emplace_back(graph_.outputs[i].name, Scalar(outputs[i]));
    return more;
  }

  // What of a step is no number, in words, and the norm of all gradients where the step gives their squares. Losses and gradients are sums
  // over the ranks: all find the same.
  std::string WhatIsNoNumber(double loss, const std::vector<Tensor>& outputs, double* norm) const {
    *norm = std::numeric_limits<double>::quiet_NaN();
    std::string wrong = std::isfinite(loss) ? "" : fmt::format("the loss is {}", loss);
    if (!WatchesGradients(job_)) return wrong;
    double sum = 0;
    std::size_t bad = 0;
    std::string first;
    const std::size_t gradients = NumGradients();
    for (std::size_t i = 1; i <= gradients; ++i) {
      const double squares = Scalar(outputs[i]);
      sum += squares;
      if (!std::isfinite(squares) && bad++ == 0) first = graph_.outputs[i].name;
    }
    *norm = std::sqrt(sum);
    if (bad > 0)
      wrong += fmt::format("{}{} of {} gradients hold what is no number or too large, the first is that of {}", wrong.empty() ? "" : "; ",
                           bad, gradients, first);
    return wrong;
  }

  Status Skipped(const std::string& why) {
    constexpr std::int64_t kInARowMax = 100;
    if (++summary_.skipped == 1 && gang_.rank() == 0) Warn(fmt::format("step {} is skipped: {}", step_, why));
    if (metrics_ != nullptr) RETURN_IF_ERROR(metrics_->AddSkipped(step_ + 1, why));
    if (++skipped_in_a_row_ < kInARowMax) return {};
    return NoNumber(step_, why, fmt::format("it is the {}th step in a row that train.nan = \"skip\" has left out", kInARowMax));
  }

  // What the files that are written beside the steps get of one.
  Status Tell(const std::vector<OpTime>& times, StepFigures& figures) {
    constexpr std::int64_t kTracedStep = 10;  // by then memory and threads are warm
    AddTimes(times, &figures.seconds);
    for (auto part : {&StepSeconds::all, &StepSeconds::data, &StepSeconds::compute, &StepSeconds::communication, &StepSeconds::optimizer})
      anatomy_.seconds.*part += figures.seconds.*part;
    if (!job_.trace.empty() && anatomy_.steps <= kTracedStep) trace_ = ChromeTrace(times, gang_.rank(), step_ + 1);
    ++anatomy_.steps;
    return metrics_ == nullptr ? Status() : metrics_->Add(figures);
  }

  bool PatienceIsOver(std::int64_t steps) const {
    return job_.patience > 0 && best_step_ >= 0 && (steps - best_step_) / job_.evaluate_every >= job_.patience;
  }

  // Evaluates, and keeps the best. A save may exchange too: it ends first.
  Status EvaluateOnTheWay(std::int64_t steps) {
    RETURN_IF_ERROR(Saved(Wait::kYes));
    RETURN_IF_ERROR(CountHeldOut());
    counted_ = steps;
    const bool is_best = std::isfinite(summary_.held_out_loss) && (best_step_ < 0 || summary_.held_out_loss < best_loss_);
    if (metrics_ != nullptr)
      RETURN_IF_ERROR(metrics_->Add(
          Evaluation{steps, summary_.held_out_loss, summary_.held_out_hits, summary_.held_out_labels, summary_.held_out_auc, is_best}));
    if (gang_.rank() == 0)
      gang_.Report(fmt::format("step {} of {}, held-out loss {:.4f}{}{}", steps, steps_in_all_, summary_.held_out_loss,
                               std::isnan(summary_.held_out_auc) ? "" : fmt::format(", AUC {:.4f}", summary_.held_out_auc),
                               is_best ? ", the best" : ""));
    if (is_best) {
      const std::int64_t before = best_step_;
      best_step_ = summary_.best_step = steps;
      best_loss_ = summary_.best_loss = summary_.held_out_loss;
      RETURN_IF_ERROR(SaveBest(steps, before));
    }
    summary_.stopped_early = PatienceIsOver(steps);
    return {};
  }

  // Into a folder of its own, where it takes the place of the best one before.
  Status SaveBest(std::int64_t steps, std::int64_t before) {
    if (!job_.checkpoint.best || saver_ == nullptr) return {};
    const std::string folder = job_.checkpoint.folder + "/best";
    if (best_saver_ == nullptr) {
      RETURN_IF_ERROR(MakeCheckpointFolder(*files_, folder));
      best_saver_ = MakeSaverFor(folder, 1, before);
    }
    if (!together_ && gang_.rank() != 0) return {};
    best_saver_->Begin(About(steps), WrittenHere(steps));
    return best_saver_->Take().status();
  }

  // Which parameters are no numbers, in words; empty: none. Sums are the same on all ranks, so all of them find the same.
  std::string Spoilt() const {
    std::size_t parameters = 0, bad = 0;
    std::string first;
    for (const StateInfo& state : graph_.states) {
      if (state.kind != StateKind::kParameter) continue;
      ++parameters;
      if (IsFinite(states_.Get(state.name))) continue;
      if (bad++ == 0) first = state.name;
    }
    return bad == 0 ? "" : fmt::format("{} of {} parameters hold what is no number, the first is {}", bad, parameters, first);
  }

  Status NoNumber(std::int64_t step, const std::string& what, const std::string& why) const {
    return Status(Code::kUserError, "TRAIN01", fmt::format("step {}: {}", step, what), why,
                  std::string("take a smaller optimizer.learning_rate, or optimizer.warmup_steps") +
                      (job_.checkpoint.folder.empty() ? "" : "; the newest checkpoint is from before this step"));
  }

  // The slices that this rank writes. A loss that is a number can still have spoilt a parameter: then there is no checkpoint of it, and the
  // one before is the good one.
  Result<std::vector<StateSlice>> WrittenHere(std::int64_t steps) const {
    std::vector<StateSlice> slices;
    for (const WrittenSlice& written : writers_[static_cast<std::size_t>(gang_.rank())]) {
      const LogicalState& state = kept_[written.state];
      Tensor tensor = states_.Get(state.name);
      if (tensor.bytes.empty()) continue;  // nothing was trained yet
      if (mlrunner::IsFloat(state.dtype) && !IsFinite(tensor))
        return NoNumber(steps - 1, fmt::format("state {} holds what is no number", state.name), "so it is not checkpointed");
      slices.push_back({state.name, state.dims, written.slice, std::move(tensor)});
    }
    return slices;
  }

  // Begins to save what is there after `steps` steps. Where rank 0 holds all that is to be written it does so alone, into one file.
  Status Save(std::int64_t steps) {
    if (saver_ == nullptr) return {};
    RETURN_IF_ERROR(Saved(Wait::kYes));
    saved_ = steps;
    if (!together_ && gang_.rank() != 0) return {};
    auto mine = WrittenHere(steps);
    const bool can = mine.ok();
    if (!together_ && can && mine->empty()) return {};
    saver_->Begin(About(steps), std::move(mine));
    return can ? Status() : Saved(Wait::kYes);
  }

  Checkpoint About(std::int64_t steps) const {
    return {.step = steps,
            .position = position_,
            .seed = job_.seed,
            .tensors = {},
            .vocabulary = data_.training->vocabulary_hash(),
            .data = training_hash_,
            .samples = samples_,
            .run = hooks_.run,
            .loss = summary_.loss,
            .best_step = best_step_,
            .best_loss = best_loss_};
  }

  enum class Wait : std::uint8_t { kNo, kYes };
  // What became of the save that is under way, if it has ended.
  Status Saved(Wait wait) {
    if (saver_ == nullptr || !saver_->IsUnderWay() || (wait == Wait::kNo && !saver_->HasEnded())) return {};
    ASSIGN_OR_RETURN(const Saver::Outcome outcome, saver_->Take());
    if (gang_.rank() != 0) return {};
    const SavedCheckpoint& saved = outcome.saved;
    if (const std::size_t count = saved.aside.size(); count > 0) {
      const std::string newest = storage::QuotedPath(saved.aside[0]);
      Warn(count == 1
               ? "a checkpoint that this training does not go on from was set aside as " + newest
               : fmt::format("{} checkpoints that this training does not go on from were set aside, the newest as {}", count, newest));
    }
    if (!saved.left.ok()) Warn(fmt::format("{} ({})", saved.left.what(), saved.left.why()));
    // What is over would not be done any faster by more ranks (GangOptions::ranks_min).
    if (job_.ranks_min == 0 || !IsOver()) gang_.Reached(static_cast<std::uint64_t>(outcome.step));
    return {};
  }

  // What counts the held-out samples of this rank, made once.
  struct Counting {
    std::vector<std::int64_t> mine;
    std::int64_t rows = 0;
    Graph graph;
    std::unique_ptr<Executable> executable;
    std::unique_ptr<BatchTensors> tensors;
  };
  Status MakeCounting() {
    Samples& samples = *data_.held_out;
    const Share share = ShareOf(samples.count(), gang_.rank(), gang_.ranks());
    auto counting = std::make_unique<Counting>();
    counting->mine.resize(static_cast<std::size_t>(share.count));
    std::iota(counting->mine.begin(), counting->mine.end(), share.begin);
    counting->rows = std::max<std::int64_t>(1, std::min(job_.evaluate_batch > 0 ? job_.evaluate_batch : rows_, share.count));
    while (beginning_.needs_whole_batches && share.count % counting->rows != 0) --counting->rows;
    ASSIGN_OR_RETURN(const Graph graph, CountGraph(job_, samples));
    counting->graph = Laid(graph);
    ASSIGN_OR_RETURN(counting->executable,
                     Compile(counting->graph, {counting->rows}, DefaultProgram(counting->graph), Kernels(), Options()));
    counting->tensors = std::make_unique<BatchTensors>(samples, counting->rows, job_.dtype);
    counting_ = std::move(counting);
    return {};
  }

  // The averages in the places of the parameters, and what else the counting reads.
  StateStore Averaged() const {
    StateStore averaged;
    for (const StateInfo& state : graph_.states) {
      if (state.kind != StateKind::kParameter && state.kind != StateKind::kStatistic) continue;
      Tensor value = state.kind == StateKind::kParameter ? states_.Get(state.name + kAverage) : Tensor();
      if (value.bytes.empty()) value = states_.Get(state.name);              // a statistic, or a parameter that is frozen
      if (!value.bytes.empty()) averaged.Set(state.name, std::move(value));  // else no step was made: it begins as it does
    }
    return averaged;
  }

  // Of the first `count` samples of the batch that was counted last; the last field are the labels, 0 or 1.
  void AddScores(const Tensor& scores, std::size_t count, AucCounts* auc) const {
    const std::vector<const Tensor*> inputs = counting_->tensors->inputs();
    const RefTensor said = ToRef(scores), labels = ToRef(*inputs[inputs.size() - 2]);
    const std::size_t each = said.data.size() / static_cast<std::size_t>(counting_->rows);
    for (std::size_t i = 0; i < count * each; ++i) auc->Add(said.data[i], labels.data[i] > .5);
  }
  // Over all ranks. They are too many numbers for the master's Exchange.
  Status SumCounts(AucCounts* auc) {
    if (ranks_ == nullptr) return {};
    std::vector<double>& counts = auc->counts();
    return ranks_->AllReduce({.in = counts.data(),
                              .out = counts.data(),
                              .count = static_cast<std::int64_t>(counts.size()),
                              .dtype = Dtype::kF64,
                              .name = "counts of scores"});
  }

  // The held-out samples, each on one rank; counts and sums of all ranks.
  Status CountHeldOut() {
    if (counting_ == nullptr) RETURN_IF_ERROR(MakeCounting());
    const Samples& samples = *data_.held_out;
    const std::span<const std::int64_t> mine(counting_->mine);
    RETURN_IF_ERROR(data_.held_out->Prepare(mine));
    StateStore averaged;
    const bool averages = job_.optimizer.average > 0;
    if (averages) averaged = Averaged();
    double loss = 0, hits = 0;
    const bool judges = counting_->graph.outputs.size() > 2;
    AucCounts auc;
    for (std::size_t done = 0; done < mine.size(); done += static_cast<std::size_t>(counting_->rows)) {
      RETURN_IF_ERROR(Lost());
      const std::size_t count = std::min(static_cast<std::size_t>(counting_->rows), mine.size() - done);
      if (const Status filled = counting_->tensors->Fill(mine.subspan(done, count), 0, 1); !filled.ok())
        return filled.WithContext("counting the held-out samples");
      RunInputs inputs;
      inputs.micro_batches[0] = counting_->tensors->inputs();
      inputs.run.seed = job_.seed;
      auto outputs = counting_->executable->Run(inputs, averages ? averaged : states_);
      if (!outputs.ok()) return outputs.status().WithContext("counting the held-out samples");
      loss += Scalar(outputs->outputs[0][0]);
      hits += Scalar(outputs->outputs[0][1]);
      if (judges) AddScores(outputs->outputs[0][2], count, &auc);
    }
    if (judges) {
      RETURN_IF_ERROR(SumCounts(&auc));
      summary_.held_out_auc = auc.Auc();
    }
    std::string bytes;
    ByteWriter writer(&bytes);
    writer.Fixed(loss);
    writer.Fixed(static_cast<std::int64_t>(std::llround(hits)));
    writer.Fixed(samples.NumLabels(mine));
    ASSIGN_OR_RETURN(std::vector<std::string> all, gang_.Exchange(std::move(bytes)));
    summary_.held_out_loss = 0;
    summary_.held_out_hits = summary_.held_out_labels = 0;
    for (const std::string& each : all) {
      ByteReader reader(each);
      summary_.held_out_loss += reader.Fixed<double>();
      summary_.held_out_hits += reader.Fixed<std::int64_t>();
      summary_.held_out_labels += reader.Fixed<std::int64_t>();
      if (!reader.ok() || !reader.empty()) return Status(Code::kInternal, "TRAIN02", "a rank's counts cannot be read");
    }
    summary_.held_out_loss /= static_cast<double>(std::max<std::int64_t>(1, summary_.held_out_labels));
    summary_.labels_are = samples.labels_are();
    return {};
  }

  dag::GangContext& gang_;
  const TrainJob& job_;
  const TrainHooks& hooks_;
  storage::LocalFileSystem local_files_;
  storage::FileSystem* files_;
  DataSet data_;
  std::int64_t samples_ = 0, batch_ = 0;
  std::int64_t rows_ = 0;   // of a step on each rank
  int neighbours_ = 1;      // ranks on this machine, this one included
  std::int32_t place_ = 0;  // of this rank among them
  Graph graph_;
  Beginning beginning_;
  StateStore states_;
  std::vector<LogicalState> kept_;                  // in checkpoints
  std::vector<std::vector<WrittenSlice>> writers_;  // by rank: what it writes of them
  bool together_ = false;                           // other ranks than 0 write too
  std::int64_t step_ = 0, steps_in_all_ = 0;
  std::uint64_t training_hash_ = 0;
  std::int64_t saved_ = -1;  // the step of the newest checkpoint that this training stands on, or is writing; -1: none
  SamplePosition position_;
  double rate_ = -1;
  std::unique_ptr<collective::Communicator> ranks_;
  std::shared_ptr<Gpu> gpu_;                // null: the CPU computes
  std::unique_ptr<Executable> executable_;  // it uses the ranks' memory, and goes first
  TrainSummary summary_;
  std::unique_ptr<Counting> counting_;
  std::int64_t counted_ = -1;    // after so many steps the held-out samples were counted last
  std::int64_t best_step_ = -1;  // after which the held-out loss was smallest; -1: nothing was evaluated on the way
  double best_loss_ = 0;         // then
  std::int64_t skipped_in_a_row_ = 0;
  std::unique_ptr<Metrics> metrics_;  // rank 0's; null: none are written
  std::vector<OpTime> times_;         // of the last step
  RankAnatomy anatomy_;
  std::string trace_;                          // of the last step that was traced
  std::unique_ptr<Saver> saver_, best_saver_;  // null: no checkpoints
  bool watches_ = false;
  std::mutex mutex_;  // of what follows
  Status lost_;
};

}  // namespace

std::uint64_t RunOf(const dag::Settings& settings, std::uint64_t number) {
  const std::uint64_t job = HashCombine(settings.seed, static_cast<std::uint64_t>(settings.now_us));
  return HashCombine(HashCombine(job, settings.job.value), number) | 1;  // 0 has a meaning
}

Result<std::string> TrainRank(dag::GangContext& gang, const TrainJob& job, const TrainHooks& hooks) { return Rank(gang, job, hooks).Run(); }

}  // namespace ropewalk::mlrunner
