#include "job/gang_ranks.h"

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "job/metric_buffer.h"
#include "worker/task/exception.h"

namespace ropewalk::job {
namespace {

constexpr std::chrono::milliseconds kBetweenFarther{100};

}  // namespace

struct GangRanks::Impl {
  Say say;
  Farther farther;
  mutable std::mutex mutex;  // guards all below; never held while a rank's own is asked for
  std::map<TaskAttempt, std::weak_ptr<Rank>> ranks;
  std::deque<std::weak_ptr<Rank>> to_tell;
  std::condition_variable work;
  bool stopping = false;
  std::thread teller;  // started when there is something to tell

  void Tell(std::weak_ptr<Rank> rank);
  void StartTeller();  // with `mutex` held
  void Loop();
  std::shared_ptr<Rank> Find(const TaskAttempt& id) const {
    std::lock_guard lock(mutex);
    auto at = ranks.find(id);
    return at == ranks.end() ? nullptr : at->second.lock();
  }
};

class GangRanks::Rank final : public dag::GangContext, public std::enable_shared_from_this<Rank> {
 public:
  Rank(Impl* impl, const TaskAttempt& id, dag::GangPlace place) : impl_(impl), id_(id), place_(std::move(place)) {}

  std::int32_t rank() const override { return static_cast<std::int32_t>(place_.rank); }
  std::int32_t ranks() const override { return static_cast<std::int32_t>(place_.ranks); }
  std::uint32_t epoch() const override { return place_.epoch; }
  const std::string& address() const override { return place_.address; }
  const std::string& machine() const override { return place_.machine; }

  Result<std::vector<std::string>> Exchange(std::string mine) override {
    if (mine.size() > kExchangeBytesMax)
      return Status(Code::kInvalid, "GANG09", "an Exchange of " + std::to_string(mine.size()) + " bytes by rank " + std::to_string(rank()),
                    "it goes through the master; the limit is " + std::to_string(kExchangeBytesMax),
                    "exchange addresses, and send what is large from rank to rank");
    std::uint64_t round = 0;
    {
      std::lock_guard lock(mutex_);
      if (!lost_.ok()) return lost_;
      round = ++round_;
      answer_ = nullptr;
    }
    impl_->say(id_, place_.epoch, round, std::move(mine));
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return answer_ != nullptr || !lost_.ok(); });
    if (answer_ == nullptr) return lost_;
    return *std::exchange(answer_, nullptr);
  }

  void OnLost(std::function<void(const Status&)> lost) override {
    {
      std::unique_lock lock(mutex_);
      // A function that is taken back has ended, unless it takes itself back.
      changed_.wait(lock, [&] { return !telling_ || std::this_thread::get_id() == teller_; });
      on_lost_ = std::move(lost);
      if (on_lost_ == nullptr || lost_.ok()) return;
    }
    impl_->Tell(weak_from_this());
  }

  void Report(std::string line) override {
    if (line.size() > kReportBytesMax) line.resize(kReportBytesMax);
    std::lock_guard lock(mutex_);
    said_.line = std::move(line);
  }

  void Reached(std::uint64_t milestone) override {
    {
      std::lock_guard lock(mutex_);
      if (milestone <= said_.reached) return;
      said_.reached = milestone;
      const auto now = std::chrono::steady_clock::now();
      if (now < farther_from_) return;
      farther_from_ = now + kBetweenFarther;
    }
    if (impl_->farther) impl_->farther(id_);
  }

  void Measure(std::string_view series, std::uint64_t step, std::span<const dag::GangFigure> figures) override {
    std::lock_guard lock(mutex_);
    measured_.Measure(series, step, figures);
  }

  void Notice(dag::GangNotice notice) override {
    std::lock_guard lock(mutex_);
    measured_.Notice(std::move(notice));
  }

  // ---- from the other side ---------------------------------------------------------------------------------------------------------

  const TaskAttempt& id() const { return id_; }
  Said said() const {
    std::lock_guard lock(mutex_);
    return said_;
  }
  storage::Metrics TakeMetrics() {
    std::lock_guard lock(mutex_);
    return measured_.Take(id_.stage.value, place_.rank);
  }
  void Gathered(std::uint64_t round, std::shared_ptr<const std::vector<std::string>> values) {
    std::lock_guard lock(mutex_);
    if (round != round_) return;
    answer_ = std::move(values);
    changed_.notify_all();
  }
  // True: there is a function to call.
  bool Lose(const Status& status) {
    std::lock_guard lock(mutex_);
    if (!lost_.ok()) return false;
    lost_ = status;
    changed_.notify_all();
    return on_lost_ != nullptr;
  }
  void Call() {
    std::unique_lock lock(mutex_);
    std::function<void(const Status&)> call = std::exchange(on_lost_, nullptr);
    if (call == nullptr) return;
    const Status status = lost_;
    telling_ = true;
    teller_ = std::this_thread::get_id();
    lock.unlock();
    // However it ends, by pthread_exit() too: whoever takes the function back waits for it.
    struct Told {
      Rank* const rank;
      ~Told() {
        std::lock_guard lock(rank->mutex_);
        rank->telling_ = false;
        rank->changed_.notify_all();
      }
    } told{this};
    try {
      // Gone before it counts as told, and so is what it captured.
      std::exchange(call, nullptr)(status);
    } catch (...) {
      // The rank hears of the loss by its next Exchange too; a process must not end for it.
      std::fprintf(stderr, "ropewalk: the function that rank %d gave to OnLost threw %s\n", rank(),
                   task::DescribeCurrentException().c_str());
    }
  }

 private:
  Impl* const impl_;
  const TaskAttempt id_;
  const dag::GangPlace place_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Status lost_;  // not OK: why
  std::uint64_t round_ = 0;
  std::shared_ptr<const std::vector<std::string>> answer_;
  std::function<void(const Status&)> on_lost_;
  bool telling_ = false;
  std::thread::id teller_;
  Said said_;
  MetricBuffer measured_;
  std::chrono::steady_clock::time_point farther_from_;  // when news of it may be told again
};

void GangRanks::Impl::Tell(std::weak_ptr<Rank> rank) {
  std::lock_guard lock(mutex);
  to_tell.push_back(std::move(rank));
  if (!teller.joinable()) StartTeller();
  work.notify_one();
}

void GangRanks::Impl::StartTeller() {
  teller = std::thread([this, before = std::move(teller)]() mutable {
    if (before.joinable()) before.join();
    Loop();
  });
}

void GangRanks::Impl::Loop() {
  // User code may end the thread that it was called in (pthread_exit): others wait to be told.
  struct Successor {
    Impl* const impl;
    ~Successor() {
      std::lock_guard lock(impl->mutex);
      if (!impl->stopping) impl->StartTeller();
    }
  } successor{this};
  std::unique_lock lock(mutex);
  for (;;) {
    work.wait(lock, [&] { return stopping || !to_tell.empty(); });
    if (stopping) return;
    std::shared_ptr<Rank> rank = to_tell.front().lock();
    to_tell.pop_front();
    lock.unlock();
    if (rank != nullptr) rank->Call();
    rank.reset();
    lock.lock();
  }
}

GangRanks::GangRanks(Say say, Farther farther) : impl_(std::make_unique<Impl>()) {
  impl_->say = std::move(say);
  impl_->farther = std::move(farther);
}

GangRanks::~GangRanks() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->work.notify_all();
  if (impl_->teller.joinable()) impl_->teller.join();
}

std::shared_ptr<dag::GangContext> GangRanks::Add(const TaskAttempt& id, dag::GangPlace place) {
  auto rank = std::make_shared<Rank>(impl_.get(), id, std::move(place));
  std::lock_guard lock(impl_->mutex);
  std::erase_if(impl_->ranks, [](const auto& entry) { return entry.second.expired(); });
  impl_->ranks[id] = rank;
  return rank;
}

void GangRanks::Gathered(StageId stage, std::uint32_t epoch, std::uint64_t round, std::shared_ptr<const std::vector<std::string>> values) {
  std::vector<std::shared_ptr<Rank>> of_forming;
  {
    std::lock_guard lock(impl_->mutex);
    for (const auto& [id, weak] : impl_->ranks)
      if (std::shared_ptr<Rank> rank = id.stage == stage ? weak.lock() : nullptr; rank != nullptr && rank->epoch() == epoch)
        of_forming.push_back(std::move(rank));
  }
  for (const std::shared_ptr<Rank>& rank : of_forming) rank->Gathered(round, values);
}

void GangRanks::Lose(const TaskAttempt& id, const Status& status) {
  std::shared_ptr<Rank> rank = impl_->Find(id);
  if (rank != nullptr && rank->Lose(status)) impl_->Tell(rank);
}

void GangRanks::LoseAll(const Status& status) {
  std::vector<TaskAttempt> ids;
  {
    std::lock_guard lock(impl_->mutex);
    for (const auto& [id, rank] : impl_->ranks) ids.push_back(id);
  }
  for (const TaskAttempt& id : ids) Lose(id, status);
}

bool GangRanks::Has(const TaskAttempt& id) const { return impl_->Find(id) != nullptr; }

GangRanks::Said GangRanks::SaidBy(const TaskAttempt& id) const {
  std::shared_ptr<Rank> rank = impl_->Find(id);
  return rank == nullptr ? Said() : rank->said();
}

storage::Metrics GangRanks::TakeMetrics(const TaskAttempt& id) {
  std::shared_ptr<Rank> rank = impl_->Find(id);
  return rank == nullptr ? storage::Metrics() : rank->TakeMetrics();
}

}  // namespace ropewalk::job
