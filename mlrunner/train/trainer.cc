#include "mlrunner/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/hash.h"
#include "dag/failure_tags.h"
#include "mlrunner/collective/run/chooser.h"
#include "mlrunner/data/sampler.h"
#include "mlrunner/gpu/kernels.h"
#include "mlrunner/graph/optimizers.h"
#include "mlrunner/train/anatomy.h"
#include "mlrunner/train/batches.h"
#include "mlrunner/train/best_so_far.h"
#include "mlrunner/train/checkpoint.h"
#include "mlrunner/train/checkpoint_reader.h"
#include "mlrunner/train/export_model.h"
#include "mlrunner/train/family.h"
#include "mlrunner/train/first_values.h"
#include "mlrunner/train/held_out.h"
#include "mlrunner/train/meeting.h"
#include "mlrunner/train/nan_watch.h"
#include "mlrunner/train/pace.h"
#include "mlrunner/train/rank_checkpoints.h"
#include "mlrunner/train/schedule.h"
#include "mlrunner/train/step_graph.h"
#include "mlrunner/train/step_recorder.h"

namespace ropewalk::mlrunner {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double Scalar(const Tensor& tensor) { return ToRef(tensor).data.at(0); }

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
    RETURN_IF_ERROR(MakeCheckpoints());
    RETURN_IF_ERROR(MeetRanks());
    // Where nothing is left to do nothing will be written: such a folder may be of others, and only read.
    if (checkpoints_ != nullptr && !IsOver()) RETURN_IF_ERROR(checkpoints_->TryFolder());
    // Behind MeetRanks(): all ranks have loaded what they found there.
    if (checkpoints_ != nullptr && !IsOver() && gang_.rank() == 0)
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
  using Wait = RankCheckpoints::Wait;

  Status Connected() {
    if (gang_.ranks() > 1) {
      RETURN_IF_ERROR(Connect());
    } else {
      Watch();  // nobody else notices: with several ranks the communicator does, and ends what waits
    }
    RETURN_IF_ERROR(CompileStep());
    RETURN_IF_ERROR(OpenRecorder());
    RETURN_IF_ERROR(Steps());
    RETURN_IF_ERROR(TellAnatomy());
    if (hooks_.on_parameter && gang_.rank() == 0) {
      for (const StateInfo& state : graph_.states)
        if (state.kind == StateKind::kParameter) hooks_.on_parameter(state.name, states_.Get(state.name));
    }
    if (!job_.export_to.empty() && gang_.rank() == 0) {
      const bool averages = job_.optimizer.average > 0;
      const StateStore averaged = averages ? Averaged(graph_, states_) : StateStore();
      RETURN_IF_ERROR(ExportTrained(*files_, job_, *data_.training, averages ? averaged : states_));
    }
    if (data_.held_out != nullptr && counted_ != step_) {
      Watch();  // no sum is waited for any more, so that the communicator would not say it
      RETURN_IF_ERROR(CountHeldOut());
    }
    return recorder_->Flush();
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

  static std::string VocabularyIn(const std::string& folder) { return folder + "/vocabulary"; }
  // Where a checkpoint is gone on from, its text's tokens are those that were learnt when it began.
  std::string KeptVocabulary() const {
    const CheckpointSpec& spec = job_.checkpoint;
    if (spec.folder.empty() || !spec.resume) return "";
    const auto checkpoints = ListCheckpoints(*files_, spec.folder);
    return checkpoints.ok() && !checkpoints->empty() ? VocabularyIn(spec.folder) : "";
  }

  Status MakeCheckpoints() {
    if (job_.checkpoint.folder.empty()) return {};
    RankCheckpoints::Options options{.files = files_,
                                     .gang = &gang_,
                                     .job = &job_,
                                     .run = hooks_.run,
                                     .spread_bytes = hooks_.spread_bytes,
                                     .warn = [this](const std::string& line) { Warn(line); },
                                     .on_safe = [this](std::int64_t step) { Reached(step); }};
    ASSIGN_OR_RETURN(checkpoints_, RankCheckpoints::Make(std::move(options), graph_, rows_));
    return {};
  }
  // What is over would not be done any faster by more ranks (GangOptions::ranks_min).
  void Reached(std::int64_t step) {
    if (job_.ranks_min == 0 || !IsOver()) gang_.Reached(static_cast<std::uint64_t>(step));
  }

  // Do all ranks train the same, and from where? Rank 0 says which checkpoint it is.
  Status MeetRanks() {
    Hello mine;
    mine.model = HashCombine(Fingerprint(graph_), Hash(beginning_.first_values));
    training_hash_ = data_.training->content_hash();
    mine.data = HashCombine(training_hash_, data_.held_out == nullptr ? 0 : data_.held_out->content_hash());
    std::unique_ptr<CheckpointReader> newest;
    if (checkpoints_ != nullptr && gang_.rank() == 0) {
      ASSIGN_OR_RETURN(newest, checkpoints_->OpenNewest());
      if (newest != nullptr) mine.resume_from = newest->about().step;
    }
    ASSIGN_OR_RETURN(meeting_, Meet(gang_, mine));
    const FirstValues first_values = std::exchange(beginning_.first_values, {});  // not held beside the states
    if (meeting_.resume_from < 0) return SetFirstValues(first_values, graph_, gang_.rank(), &states_);
    if (gang_.rank() == 0) {
      RETURN_IF_ERROR(Resume(*newest));
      if (hooks_.on_resumed) hooks_.on_resumed(step_, newest->path());
      return {};
    }
    const Status status = ResumeFrom(CheckpointPath(job_.checkpoint.folder, meeting_.resume_from));
    if (status.ok() || status.tag() == "CKPT03") return status;
    return Status(status.code(), "CKPT04",  // a disk that fails for once is no mistake of the job
                  fmt::format("rank {} on {} cannot read the checkpoint that rank 0 on {} goes on from", gang_.rank(), gang_.machine(),
                              meeting_.machines[0]),
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
    RETURN_IF_ERROR(checkpoints_->Take(reader, &states_));
    step_ = checkpoint.step;
    position_ = checkpoint.position;
    steps_in_all_ = StepsInAll();
    summary_.resumed_from = step_;
    summary_.loss = checkpoint.loss;
    if (hooks_.losses != nullptr) *hooks_.losses = checkpoint.losses;
    best_ = {checkpoint.best_step, checkpoint.best_loss};
    ShowBest();
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
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / std::max(1, meeting_.neighbours));
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
    gpu_ = GpuOrSay(named == nullptr ? "" : named, {.device = meeting_.place}, [this](const Status& why) {
      if (meeting_.place != 0) return;  // once for each machine
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
    if (job_.gpu && gpu_ == nullptr) {
      // From here on it is a job of the CPU, which wants the graphs of one: those of GPUs keep products that its kernels take as one op.
      job_.gpu = false;
      ASSIGN_OR_RETURN(graph_, StepGraph(job_, *data_.training, gang_.ranks()));
    }
    KernelTable table = Kernels();
    ExecutorOptions options = Options();
    if (ranks_ != nullptr) {
      AddSumKernels(&table, ranks_.get(), job_.deterministic);
      options.registered_memory = [this](std::size_t bytes) { return ranks_->Allocate(bytes); };
    }
    graph_ = Laid(graph_);
    auto compiled = Compile(graph_, {rows_}, StepProgram(graph_, job_.micro_batches), table, options);
    if (!compiled.ok()) return compiled.status().code() == Code::kResourceExhausted ? OutOfMemory(compiled.status()) : compiled.status();
    executable_ = *std::move(compiled);
    return {};
  }

  // Other machines have no more.
  Status OutOfMemory(const Status& status) const {
    return Status(
        status.code(), dag::kOutOfMemoryTag,
        fmt::format("rank {} on {} has {}, with {} rows of a batch at a time", gang_.rank(), gang_.machine(), status.what(), rows_),
        status.why(), "take a smaller train.batch or model, more train.micro_batches, or more ranks");
  }

  // What is said of the steps, and whether it can be.
  Status OpenRecorder() {
    if (job_.evaluate_every > 0 && data_.held_out == nullptr)
      return Status(Code::kUserError, "TRAIN07",
                    fmt::format("train.evaluate_every is {}, and there is nothing to evaluate on", job_.evaluate_every),
                    "no samples are held out", "give Train a second dataset, or leave the key out");
    StepRecorder::Options options{.job = &job_,
                                  .gang = &gang_,
                                  .ranks = ranks_.get(),
                                  .machines = meeting_.machines,
                                  .step_flops = FlopsOf(graph_, {rows_}, StepProgram(graph_, job_.micro_batches)),
                                  .peak_flops = [this] { return PeakFlops(Kernels(), Options()); },
                                  .warn = [this](const std::string& line) { Warn(line); }};
    ASSIGN_OR_RETURN(recorder_, StepRecorder::Open(std::move(options)));
    return {};
  }

  // Where the time of the steps went, of all ranks. A save may exchange too: it has ended.
  Status TellAnatomy() {
    if (!job_.anatomy) return {};
    RETURN_IF_ERROR(Saved(Wait::kYes));
    ASSIGN_OR_RETURN(const std::vector<std::string> all, gang_.Exchange(mlrunner::Encode(recorder_->anatomy())));
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

  Batches MakeBatches() {
    return Batches(*data_.training,
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
  }

  RunInputs InputsOf(const StepBatch& batch) {
    RunInputs inputs;
    inputs.run = {.seed = job_.seed,
                  .step = static_cast<std::uint64_t>(step_),
                  .sample_offset = position_.epoch * samples_ + position_.offset - batch.count + batch.share.begin};
    inputs.micro_batches.clear();
    for (std::size_t i = 0; i < batch.tensors.size(); ++i) {
      inputs.micro_batches.push_back(batch.tensors[i].inputs());
      inputs.sample_offsets.push_back(inputs.run.sample_offset + batch.cuts[i].begin);
    }
    inputs.times = hooks_.times != nullptr ? hooks_.times : &times_;
    inputs.times->clear();
    return inputs;
  }

  Status Steps() {
    const auto start = Clock::now();
    Progress progress(*this, start);
    Batches batches = MakeBatches();
    std::int64_t taken = 0;
    summary_.stopped_early = best_.PatienceIsOver(job_, step_);
    for (; !IsOver(); ++step_) {
      RETURN_IF_ERROR(Lost());
      RETURN_IF_ERROR(Saved(Wait::kNo));
      ASSIGN_OR_RETURN(const std::int64_t count, Step(batches));
      taken += count;
      if (job_.evaluate_every > 0 && (step_ + 1) % job_.evaluate_every == 0) RETURN_IF_ERROR(EvaluateOnTheWay(step_ + 1));
      if (job_.checkpoint.every_steps > 0 && (step_ + 1) % job_.checkpoint.every_steps == 0) RETURN_IF_ERROR(Save(step_ + 1));
      progress.Made(taken);
    }
    summary_.steps = step_;
    summary_.skipped = nan_.skipped();
    summary_.seconds = SecondsSince(start);
    summary_.samples_per_s = taken == 0 ? 0 : static_cast<double>(taken) / summary_.seconds;
    if (taken == 0) return {};
    // No loss of a next step tells what the last update has done.
    if (const std::string spoilt = SpoiltParameters(graph_, states_); !spoilt.empty())
      return NoNumber(job_, step_ - 1, spoilt, "its loss was a number");
    RETURN_IF_ERROR(recorder_->Finish());
    if (job_.evaluate_every > 0 && counted_ != step_) RETURN_IF_ERROR(EvaluateOnTheWay(step_));
    if (checkpoints_ != nullptr && checkpoints_->newest() != step_) RETURN_IF_ERROR(Save(step_));
    return Saved(Wait::kYes);
  }

  // How many samples it took.
  Result<std::int64_t> Step(Batches& batches) {
    const auto begun = Clock::now();
    SetLearningRate();
    auto next = batches.Next();
    if (!next.ok()) return next.status().WithContext(fmt::format("step {}", step_));
    const StepBatch& batch = **next;
    position_ = batch.behind;
    const RunInputs inputs = InputsOf(batch);
    StepFigures figures{.step = step_ + 1, .epoch = position_.epoch, .learning_rate = rate_, .batch_seconds = batch.seconds};
    RETURN_IF_ERROR(nan_.Begin({rows_}, inputs.run, &states_));
    figures.seconds.data = SecondsSince(begun);
    auto outputs = executable_->Run(inputs, states_);
    if (!outputs.ok()) return outputs.status().WithContext(fmt::format("step {}", step_));
    figures.loss = Scalar(outputs->outputs[0][0]);
    // What the model's family counts, and the scale of the loss.
    for (std::size_t i = 1 + nan_.num_squares(); i < outputs->outputs[0].size(); ++i)
      figures.more.emplace_back(graph_.outputs[i].name, Scalar(outputs->outputs[0][i]));
    const NanWatch::Found found = nan_.Look(figures.loss, outputs->outputs[0]);
    figures.gradient_norm = found.gradient_norm;
    const double loss_scale = ScalesLoss(job_) ? Scalar(outputs->outputs[0].back()) : 0;
    // Gradients that a scale has made too large are what dynamic scaling looks for; a loss that is no number is no matter of scales.
    const bool skips = job_.nan == NanPolicy::kSkip || (ScalesLoss(job_) && std::isfinite(figures.loss));
    if (skips && !found.wrong.empty()) {
      RETURN_IF_ERROR(Skip(found.wrong, loss_scale));
    } else {
      nan_.Passed();
      summary_.loss = figures.loss;
    }
    if (!std::isfinite(figures.loss) && job_.nan == NanPolicy::kStop) {
      const std::string spoilt = SpoiltParameters(graph_, states_);
      return NoNumber(job_, step_, fmt::format("the loss is {}", figures.loss),
                      spoilt.empty() ? "all parameters are still numbers" : "after its update " + spoilt);
    }
    if (hooks_.on_step) hooks_.on_step(step_, figures.loss);
    if (hooks_.losses != nullptr) hooks_.losses->push_back(figures.loss);
    figures.seconds.all = SecondsSince(begun);
    figures.samples_per_s = static_cast<double>(batch.count) / figures.seconds.all;
    RETURN_IF_ERROR(recorder_->Step(*inputs.times, figures));
    return batch.count;
  }

  Status Skip(std::string why, double loss_scale) {
    if (loss_scale > 0) why += fmt::format("; the loss was scaled by {:g}, which is halved", loss_scale);
    if (nan_.skipped() == 0 && gang_.rank() == 0) Warn(fmt::format("step {} is skipped: {}", step_, why));
    RETURN_IF_ERROR(recorder_->Skipped(step_ + 1, why));
    return nan_.Skip(step_, why, &states_);
  }

  // What rank 0 says of itself, a few times a second.
  class Progress {
   public:
    Progress(Rank& rank, Clock::time_point start)
        : rank_(rank), start_(start), shown_(start - std::chrono::seconds(1)), paced_(start), paced_step_(rank.step_) {}

    // `taken` samples since it began, with the step that was just made.
    void Made(std::int64_t taken) {
      if (rank_.gang_.rank() != 0 || Clock::now() - shown_ <= std::chrono::milliseconds(200)) return;
      const std::int64_t steps = rank_.step_ + 1;
      shown_ = Clock::now();
      pace_.Made(steps - paced_step_, std::chrono::duration<double>(shown_ - paced_).count());
      paced_ = shown_;
      paced_step_ = steps;
      const std::string left = LeftText(pace_.SecondsFor(rank_.steps_in_all_ - steps));
      const std::int64_t from = rank_.summary_.resumed_from;
      rank_.gang_.Report(fmt::format("step {} of {}{}, {}epoch {}, loss {:.4f}, {:.0f} samples/s", steps, rank_.steps_in_all_,
                                     from < 0 ? "" : fmt::format(", resumed at {}", from), left.empty() ? "" : left + ", ",
                                     rank_.position_.epoch + 1, rank_.summary_.loss, static_cast<double>(taken) / SecondsSince(start_)));
    }

   private:
    Rank& rank_;
    const Clock::time_point start_;
    Clock::time_point shown_, paced_;
    std::int64_t paced_step_;
    StepPace pace_;
  };

  void ShowBest() {
    summary_.best_step = best_.step;
    if (best_.step >= 0) summary_.best_loss = best_.loss;
  }

  // Evaluates, and keeps the best. A save may exchange too: it ends first.
  Status EvaluateOnTheWay(std::int64_t steps) {
    RETURN_IF_ERROR(Saved(Wait::kYes));
    RETURN_IF_ERROR(CountHeldOut());
    counted_ = steps;
    const std::int64_t before = best_.step;
    const bool is_best = best_.Take(steps, summary_.held_out_loss);
    ShowBest();
    RETURN_IF_ERROR(recorder_->Evaluated(
        {steps, summary_.held_out_loss, summary_.held_out_hits, summary_.held_out_labels, summary_.held_out_auc, is_best}));
    if (gang_.rank() == 0)
      gang_.Report(fmt::format("step {} of {}, held-out loss {:.4f}{}{}", steps, steps_in_all_, summary_.held_out_loss,
                               std::isnan(summary_.held_out_auc) ? "" : fmt::format(", AUC {:.4f}", summary_.held_out_auc),
                               is_best ? ", the best" : ""));
    if (is_best && job_.checkpoint.best && checkpoints_ != nullptr) RETURN_IF_ERROR(checkpoints_->SaveBest(About(steps), states_, before));
    summary_.stopped_early = best_.PatienceIsOver(job_, steps);
    return {};
  }

  // Begins to save what is there after `steps` steps.
  Status Save(std::int64_t steps) { return checkpoints_ == nullptr ? Status() : checkpoints_->Begin(About(steps), states_); }
  Status Saved(Wait wait) { return checkpoints_ == nullptr ? Status() : checkpoints_->Ended(wait); }

  std::vector<double> NewestLosses() const {
    if (hooks_.losses == nullptr) return {};
    const std::size_t count = std::min(hooks_.losses->size(), kKeptLossesMax);
    return {hooks_.losses->end() - static_cast<std::ptrdiff_t>(count), hooks_.losses->end()};
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
            .best_step = best_.step,
            .best_loss = best_.loss,
            .losses = NewestLosses()};
  }

  Status CountHeldOut() {
    if (held_out_ == nullptr) {
      HeldOut::Options options{
          .job = &job_,
          .samples = data_.held_out.get(),
          .gang = &gang_,
          .ranks = ranks_.get(),
          .rows = rows_,
          .needs_whole_batches = beginning_.needs_whole_batches,
          .compile = [this](const Graph& graph,
                            const Bindings& bindings) { return Compile(graph, bindings, DefaultProgram(graph), Kernels(), Options()); },
          .lay = [this](const Graph& graph) { return Laid(graph); },
          .lost = [this] { return Lost(); }};
      ASSIGN_OR_RETURN(held_out_, HeldOut::Make(std::move(options)));
    }
    StateStore averaged;
    const bool averages = job_.optimizer.average > 0;
    if (averages) averaged = Averaged(graph_, states_);
    ASSIGN_OR_RETURN(const HeldOutCount count, held_out_->Count(averages ? averaged : states_));
    summary_.held_out_loss = count.loss;
    summary_.held_out_hits = count.hits;
    summary_.held_out_labels = count.labels;
    summary_.held_out_auc = count.auc;
    summary_.labels_are = data_.held_out->labels_are();
    return {};
  }

  dag::GangContext& gang_;
  TrainJob job_;  // `gpu`: it asks for one, and none has been missing
  const TrainHooks& hooks_;
  storage::LocalFileSystem local_files_;
  storage::FileSystem* files_;
  DataSet data_;
  std::int64_t samples_ = 0, batch_ = 0;
  std::int64_t rows_ = 0;  // of a step on each rank
  Meeting meeting_;
  Graph graph_;
  Beginning beginning_;
  StateStore states_;
  std::int64_t step_ = 0, steps_in_all_ = 0;
  std::uint64_t training_hash_ = 0;
  SamplePosition position_;
  double rate_ = -1;
  std::unique_ptr<collective::Communicator> ranks_;
  std::shared_ptr<Gpu> gpu_;                // null: the CPU computes
  std::unique_ptr<Executable> executable_;  // it uses the ranks' memory, and goes first
  TrainSummary summary_;
  std::unique_ptr<HeldOut> held_out_;  // made when they are first counted
  std::int64_t counted_ = -1;          // after so many steps the held-out samples were counted last
  BestSoFar best_;
  NanWatch nan_{job_, graph_, beginning_};
  std::vector<OpTime> times_;  // of the last step
  std::unique_ptr<StepRecorder> recorder_;
  std::unique_ptr<RankCheckpoints> checkpoints_;  // null: none are written
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
