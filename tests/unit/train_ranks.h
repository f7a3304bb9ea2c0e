// Ranks of a training as threads of this process: a gang in memory, and sums over its ranks in memory, so that the trainer is tested
// without a cluster and without sockets. Everything is added in the order of the ranks.
//
// Thread rule: one thread calls; it starts and joins the others.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "mlrunner/train/trainer.h"
#include "tests/unit/temp_folder.h"

namespace ropewalk::mlrunner::testing {

// What the ranks of one gang share.
class Hall {
 public:
  explicit Hall(std::int32_t ranks) : ranks_(ranks) {}

  // A barrier that gives everybody the bytes of all.
  Result<std::vector<std::string>> Exchange(std::int32_t rank, std::string mine) {
    std::unique_lock lock(mutex_);
    std::uint64_t round = round_;
    given_[rank] = std::move(mine);
    if (static_cast<std::int32_t>(given_.size()) == ranks_) {
      results_.clear();
      for (auto& [from, bytes] : given_) results_.push_back(std::move(bytes));
      given_.clear();
      ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ > round || lost_; });
    if (round_ == round) return Lost();
    return results_;
  }
  void Lose() {
    std::lock_guard lock(mutex_);
    lost_ = true;
    changed_.notify_all();
  }
  Status Lost() const { return Status(Code::kUnavailable, "COLL20", "a rank is lost"); }

  // The number-th sum that a rank asks for; the last one to ask adds up.
  void Begin(std::uint64_t number, std::int32_t rank, const collective::CollectiveCall& call) {
    std::lock_guard lock(mutex_);
    auto& calls = sums_[number];
    calls[rank] = {call, std::string(call.name)};
    if (static_cast<std::int32_t>(calls.size()) < ranks_) return;
    const auto& first = calls.at(0);
    for (const auto& [from, other] : calls) {
      EXPECT_EQ(other.name, first.name) << "sum " << number << " of rank " << from;
      EXPECT_EQ(other.call.count, first.call.count);
    }
    if (first.call.collective == collective::Collective::kAllgather) {
      Gather(calls);
    } else if (first.call.dtype == Dtype::kF64) {
      Add<double>(calls);
    } else {
      Add<float>(calls);
    }
    sums_.erase(number);
    done_.push_back(number);
    changed_.notify_all();
  }
  bool IsDone(std::uint64_t number) {
    std::lock_guard lock(mutex_);
    return std::find(done_.begin(), done_.end(), number) != done_.end();
  }
  Status Wait(std::uint64_t number) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return lost_ || std::find(done_.begin(), done_.end(), number) != done_.end(); });
    return std::find(done_.begin(), done_.end(), number) != done_.end() ? Status() : Lost();
  }

 private:
  struct Asked {
    collective::CollectiveCall call;
    std::string name;
  };
  template <class T>
  void Add(const std::map<std::int32_t, Asked>& calls) {
    std::vector<T> sum(static_cast<std::size_t>(calls.at(0).call.count));
    for (const auto& [rank, asked] : calls) {
      for (std::size_t i = 0; i < sum.size(); ++i)
        sum[i] = rank == 0 ? static_cast<const T*>(asked.call.in)[i] : sum[i] + static_cast<const T*>(asked.call.in)[i];
    }
    for (const auto& [rank, asked] : calls) std::memcpy(asked.call.out, sum.data(), sum.size() * sizeof(T));
  }

  // Parts of equal size, in the order of the ranks.
  void Gather(const std::map<std::int32_t, Asked>& calls) {
    const collective::CollectiveCall& call = calls.at(0).call;
    EXPECT_EQ(call.count % ranks_, 0);
    const std::size_t part = static_cast<std::size_t>(call.count / ranks_) * SizeOf(call.dtype);
    std::string all;
    for (const auto& [rank, asked] : calls) all.append(static_cast<const char*>(asked.call.in), part);
    for (const auto& [rank, asked] : calls) std::memcpy(asked.call.out, all.data(), all.size());
  }

  std::int32_t ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool lost_ = false;
  std::uint64_t round_ = 0;
  std::map<std::int32_t, std::string> given_;
  std::vector<std::string> results_;
  std::map<std::uint64_t, std::map<std::int32_t, Asked>> sums_;
  std::vector<std::uint64_t> done_;
};

// By series: the figures of each call, by name.
using Measured = std::map<std::string, std::vector<std::map<std::string, double>>>;

class ThreadGang final : public dag::GangContext {
 public:
  ThreadGang(std::int32_t rank, std::int32_t ranks, std::uint32_t epoch, Hall* hall, std::string machine)
      : rank_(rank), ranks_(ranks), epoch_(epoch), hall_(hall), machine_(std::move(machine)) {}
  std::int32_t rank() const override { return rank_; }
  std::int32_t ranks() const override { return ranks_; }
  std::uint32_t epoch() const override { return epoch_; }
  const std::string& address() const override { return address_; }
  const std::string& machine() const override { return machine_; }
  Result<std::vector<std::string>> Exchange(std::string mine) override { return hall_->Exchange(rank_, std::move(mine)); }
  void OnLost(std::function<void(const Status&)> lost) override { on_lost = std::move(lost); }
  void Report(std::string line) override { lines.push_back(std::move(line)); }
  void Reached(std::uint64_t milestone) override { milestones.push_back(milestone); }

  void Measure(std::string_view series, std::uint64_t, std::span<const dag::GangFigure> figures) override {
    std::map<std::string, double>& kept = measured[std::string(series)].emplace_back();
    for (const dag::GangFigure& figure : figures) kept[std::string(figure.name)] = figure.value;
  }
  void Notice(dag::GangNotice notice) override { notices.push_back(std::move(notice)); }

  std::vector<std::string> lines;
  std::vector<std::uint64_t> milestones;
  Measured measured;
  std::vector<dag::GangNotice> notices;
  std::function<void(const Status&)> on_lost;  // what the program gave, as of now

 private:
  std::int32_t rank_, ranks_;
  std::uint32_t epoch_;
  Hall* hall_;
  std::string address_ = "127.0.0.1", machine_;
};

// Sums in memory. `sums` false: each rank keeps its own, as if nothing were exchanged (for controls that must fail).
class ThreadCommunicator final : public collective::Communicator {
 public:
  ThreadCommunicator(std::int32_t rank, std::int32_t ranks, Hall* hall, bool sums)
      : rank_(rank),
        ranks_(ranks),
        members_(static_cast<std::size_t>(ranks)),
        nodes_(static_cast<std::size_t>(ranks)),
        hall_(hall),
        sums_(sums) {
    std::iota(members_.begin(), members_.end(), 0);
  }
  std::int32_t rank() const override { return rank_; }
  std::int32_t ranks() const override { return ranks_; }
  bool shares_memory() const override { return true; }
  std::span<const std::int32_t> members() const override { return members_; }
  const collective::Nodes& nodes() const override { return nodes_; }
  const collective::Orders& orders() const override { return orders_; }
  Result<std::unique_ptr<Communicator>> Split(const collective::GroupOptions&) override { return None("make no groups"); }
  Result<std::unique_ptr<Communicator>> Shrink() override { return None("do not go on without one"); }
  Result<std::unique_ptr<Communicator>> Reform(const collective::ReformOptions&) override { return None("neither come nor go"); }
  Result<std::string> Invite() override { return None("invite nobody"); }
  bool HasNewcomers() override { return false; }
  Result<char*> Allocate(std::size_t bytes) override {
    owned_.emplace_back(static_cast<char*>(aligned_alloc(64, (bytes + 63) / 64 * 64)), &free);
    return owned_.back().get();
  }
  void Free(char*) override {}
  Result<collective::Window> MakeWindow(std::size_t) override { return None("have no windows"); }
  Status Run(const collective::CollectiveCall& call) override {
    ASSIGN_OR_RETURN(collective::Handle handle, Submit(call, {}));
    return Wait(handle);
  }
  Result<collective::Handle> Submit(const collective::CollectiveCall& call, const collective::SubmitOptions&) override {
    auto number = std::make_shared<std::uint64_t>(next_++);
    if (sums_) {
      hall_->Begin(*number, rank_, call);
    } else if (call.collective == collective::Collective::kAllgather) {
      const std::size_t part = static_cast<std::size_t>(call.count / ranks_) * SizeOf(call.dtype);
      for (std::int32_t i = 0; i < ranks_; ++i)
        std::memcpy(static_cast<char*>(call.out) + static_cast<std::size_t>(i) * part, call.in, part);
    } else {
      std::memcpy(call.out, call.in, static_cast<std::size_t>(call.count) * SizeOf(call.dtype));
    }
    return collective::Handle(number, reinterpret_cast<collective::Submission*>(number.get()));
  }
  Status Wait(const collective::Handle& handle) override { return sums_ ? hall_->Wait(NumberOf(handle)) : Status(); }
  bool IsDone(const collective::Handle& handle) const override { return !sums_ || hall_->IsDone(NumberOf(handle)); }
  void Working() override {}
  void Abort(const Status&) override { hall_->Lose(); }
  std::uint64_t steps() const override { return next_; }

 private:
  static Status None(const std::string& what) {
    return Status(Code::kInvalid, "TEST15", "ranks that are threads of a test " + what, "no trainer asks for it", "use Connect()");
  }
  static std::uint64_t NumberOf(const collective::Handle& handle) { return *reinterpret_cast<const std::uint64_t*>(handle.get()); }
  std::int32_t rank_, ranks_;
  std::vector<std::int32_t> members_;
  collective::Nodes nodes_;  // all on one
  collective::Orders orders_;
  Hall* hall_;
  bool sums_;
  std::uint64_t next_ = 0;
  std::vector<std::unique_ptr<char, decltype(&free)>> owned_;
};

// What is kept of an OpTime, whose op is gone when the training has ended.
struct RanOp {
  const OpDef* def = nullptr;
  Half half = Half::kWhole;
  Phase phase = Phase::kForward;
  std::int32_t micro_batch = 0;
  std::int64_t begin_ns = 0, end_ns = 0;
};

struct RankResult {
  Status status;
  TrainSummary summary;        // of rank 0
  std::vector<double> losses;  // of each step
  std::vector<RanOp> times;    // of the last step
  std::vector<std::string> lines;
  std::vector<std::string> resumed;  // what TrainHooks::on_resumed was told: "12 PATH", and how many steps had been made then
  std::vector<std::uint64_t> milestones;
  Measured measured;
  std::vector<dag::GangNotice> notices;
};

enum class Sums { kInMemory, kNone, kSharedMemory, kTcp };  // the last two: the real communicator

struct RunOptions {
  Sums sums = Sums::kInMemory;
  storage::FileSystem* files = nullptr;
  std::function<void(ThreadGang& gang, std::int64_t step)> on_step;  // on the rank's thread
  std::uint64_t run = 0;                                             // TrainHooks::run
  std::uint32_t epoch = 0;                                           // of the gang
  bool together = false;                                             // checkpoints are written by all ranks, however small
  std::function<Result<DataSet>(ThreadGang& gang)> load;
  std::function<void(ThreadGang& gang, KernelTable* table)> kernels;  // puts others in the places of the trainer's
};

// The job on `ranks` threads; one result a rank.
inline std::vector<RankResult> TrainOnThreads(const TrainJob& job, std::int32_t ranks, const RunOptions& options = {}) {
  Hall hall(ranks);
  std::vector<RankResult> results(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      RankResult& result = results[static_cast<std::size_t>(rank)];
      ThreadGang gang(rank, ranks, options.epoch, &hall, options.sums == Sums::kTcp ? "machine" + std::to_string(rank) : "here");
      TrainHooks hooks;
      hooks.files = options.files;
      hooks.run = options.run;
      if (options.together) hooks.spread_bytes = 0;
      if (options.load) hooks.load = [&] { return options.load(gang); };
      if (options.kernels) hooks.kernels = [&](KernelTable* table) { options.kernels(gang, table); };
      hooks.on_resumed = [&](std::int64_t step, const std::string& path) {
        result.resumed.push_back(std::to_string(step) + " " + path + ", " + std::to_string(result.losses.size()));
      };
      std::vector<OpTime> times;
      hooks.times = &times;
      hooks.on_step = [&](std::int64_t step, double loss) {
        result.losses.push_back(loss);
        result.times.clear();
        for (const OpTime& time : times)
          result.times.push_back({time.op->def, time.op->half, time.op->provenance.phase, time.micro_batch, time.begin_ns, time.end_ns});
        if (options.on_step) options.on_step(gang, step);
      };
      if (options.sums == Sums::kInMemory || options.sums == Sums::kNone)
        hooks.connect = [&](dag::GangContext&,
                            const collective::CommunicatorOptions&) -> Result<std::unique_ptr<collective::Communicator>> {
          return std::unique_ptr<collective::Communicator>(
              std::make_unique<ThreadCommunicator>(rank, ranks, &hall, options.sums == Sums::kInMemory));
        };
      Result<std::string> bytes = std::string();
      try {
        bytes = TrainRank(gang, job, hooks);
      } catch (const std::exception& error) {  // as the border around a task does
        bytes = Status(Code::kUserError, "TEST01", error.what());
      }
      result.lines = gang.lines;
      result.milestones = gang.milestones;
      result.measured = std::move(gang.measured);
      result.notices = std::move(gang.notices);
      EXPECT_FALSE(gang.on_lost) << "a function is left that points to what is gone";
      if (!bytes.ok()) {
        result.status = bytes.status();
        hall.Lose();
      } else if (rank == 0) {
        auto summary = DecodeTrainSummary(*bytes);
        EXPECT_TRUE(summary.ok());
        if (summary.ok()) result.summary = *summary;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

// A job from "section.key=value" settings.
inline TrainJob JobOf(const std::vector<std::string>& settings) {
  Config config(TrainKeys());
  for (const std::string& setting : settings) {
    Status status = ApplySetting(&config, setting);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  auto job = ReadTrainJob(config);
  EXPECT_TRUE(job.ok()) << job.status().ToString();
  return job.ok() ? *job : TrainJob();
}

// Settings of a GPT of one block that learns characters of the text in `path`, and `more`, which win. Its table of characters is read by
// Gather, whose gradient is rows.
inline std::vector<std::string> TinyGpt(const std::string& path, int steps, std::initializer_list<std::vector<std::string>> more) {
  std::vector<std::string> settings = {
      "model.kind=gpt",         "model.layers=1", "model.width=8",     "model.heads=2",
      "model.length=6",         "data.kind=text", "data.path=" + path, "train.steps=" + std::to_string(steps),
      "train.bucket_bytes=512", "train.threads=1"};
  for (const std::vector<std::string>& part : more) settings.insert(settings.end(), part.begin(), part.end());
  return settings;
}

}  // namespace ropewalk::mlrunner::testing
