#include "mlrunner/collective/run/engine.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/monotonic.h"
#include "mlrunner/collective/run/hosts.h"

namespace ropewalk::collective {
namespace {

// While a rank spins, the clock is looked at now and then; once it sleeps between two looks, each time. Sooner than that nothing stands
// still.
constexpr std::uint32_t kLooksBetweenClocks = 8, kStepsBetweenClocks = 1024;
constexpr std::int64_t kSpinningMsMax = 20;
constexpr std::int64_t kBetweenLooksMsMax = 5'000;
constexpr std::int64_t kSleepMsMax = 100;  // of a transport's Wait()
constexpr std::int64_t kBetweenAsksMs = 500, kCountedMsMax = 1'000;

void Add(std::atomic<std::uint64_t>* count, std::uint64_t more) {
  count->store(count->load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

}  // namespace

Engine::Engine(std::int32_t rank, std::int32_t ranks, std::int64_t credit_bytes, Transport* transport, OneSided* one_sided,
               InstanceCache* cache, std::function<void(const Status&)> on_failed, Timeout timeout)
    : rank_(rank),
      ranks_(ranks),
      transport_(transport),
      one_sided_(one_sided),
      cache_(cache),
      on_failed_(std::move(on_failed)),
      timeout_(std::move(timeout)),
      to_say_(ranks),
      said_memory_(ranks),
      said_(ranks),
      landing_(ranks),
      heard_(ranks),
      order_(kLanes, credit_bytes) {
  for (std::int32_t peer = 0; peer < ranks_; ++peer)
    if (peer != rank_ && (rank_ == 0 || peer == 0)) said_memory_[peer] = transport_->Allocate(sizeof(Message) * kSlotsMax);
  thread_ = std::thread([this] { DriveForNobody(); });
}

Engine::~Engine() { Stop(); }

void Engine::ServePeers() {
  {
    std::lock_guard lock(mutex_);
    serves_.store(true);
  }
  changed_.notify_all();
}

void Engine::Stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  transport_->Ring();
  if (thread_.joinable()) thread_.join();
}

// ---- calls -----------------------------------------------------------------------------------------------------------------------------

Status Engine::Run(Instance* instance, CallLabel label) {
  Submission call;
  call.instance = instance;
  call.label = label;
  std::unique_lock lock = Want();
  if (call.label.sequence != kUncounted) call.label.sequence = called_++;
  if (failure_.ok()) {
    blocking_next_ = &call;
    has_news_.store(true, std::memory_order_release);
    if (has_driver_) transport_->Ring();  // another caller's thread, which may sleep: it is to take this call, too
    Drive(&lock, call.is_done);
  } else {
    call.status = At(call.label, failure_);
  }
  Leave(&lock);
  return std::move(call.status);
}

Result<std::shared_ptr<Submission>> Engine::Submit(Instance* instance, CallLabel label, std::int64_t priority, std::int64_t bytes,
                                                   std::int64_t* received) {
  auto submission = std::make_shared<Submission>();
  submission->instance = instance;
  submission->label = label;
  submission->priority = priority;
  submission->bytes = bytes;
  submission->received = received;
  bool somebody_drives;
  {
    std::lock_guard lock(mutex_);
    submission->number = submission->label.sequence = submitted_++;
    if (!failure_.ok()) return At(submission->label, failure_);
    inbox_.push_back(submission);
    outstanding_.fetch_add(1);
    has_news_.store(true, std::memory_order_release);
    somebody_drives = has_driver_;
  }
  if (somebody_drives)
    transport_->Ring();
  else
    changed_.notify_all();
  return submission;
}

Status Engine::Wait(Submission* submission) {
  if (!submission->is_done.load(std::memory_order_acquire)) {
    std::unique_lock lock = Want();
    Drive(&lock, submission->is_done);
    Leave(&lock);
  }
  return submission->status;
}

void Engine::Drain() {
  std::unique_lock lock = Want();
  changed_.wait(lock, [&] { return !has_driver_; });
  has_driver_ = true;
  lock.unlock();
  DriveUntil([&] { return outstanding_.load() == 0 && unsaid_.load() == 0; });
  lock.lock();
  has_driver_ = false;
  Leave(&lock);
}

bool Engine::Fail(const Status& why) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return false;
    transport_->Revoke();
    failure_ = why;
    has_failed_.store(true, std::memory_order_release);
  }
  transport_->Interrupt(why);
  return true;
}

// ---- who drives ------------------------------------------------------------------------------------------------------------------------

std::unique_lock<std::mutex> Engine::Want() {
  callers_.fetch_add(1);
  if (own_drives_.load()) transport_->Ring();
  return std::unique_lock(mutex_);
}

void Engine::Drive(std::unique_lock<std::mutex>* lock, const std::atomic<bool>& is_done) {
  // In one order with End(): it sees this caller, or this caller sees that it is done.
  auto done = [&] { return is_done.load(); };
  changed_.wait(*lock, [&] { return done() || !has_driver_; });
  if (done()) return;
  has_driver_ = true;
  lock->unlock();
  DriveUntil(done);
  lock->lock();
  has_driver_ = false;
}

template <class IsDone>
void Engine::DriveUntil(const IsDone& is_done) {
  Watch watch;
  std::uint32_t steps = 0;
  while (!is_done()) {
    // A peer may keep this rank busy with what no call here waits for.
    const bool has_moved = Step();
    if (has_moved && ++steps % kStepsBetweenClocks != 0) continue;
    if (!has_moved) transport_->Wait(true);
    if (++watch.looks >= watch.looks_between || !watch.verdict.ok()) LookForStall(&watch);
  }
}

std::uint64_t Engine::MovedInMessages() const {
  std::uint64_t bytes = 0;
  for (std::int32_t peer = 0; peer < ranks_; ++peer)
    for (std::int32_t channel = 0; channel < kControl; ++channel) {
      const Transport::Moved moved = transport_->MovedBytes(peer, channel);
      bytes += moved.in + moved.out;
    }
  return bytes;
}

std::uint64_t Engine::Moved() {
  // What the system took from this rank it may bring to the peer much later.
  std::uint64_t unsent = 0;
  for (std::int32_t peer = 0; peer < ranks_; ++peer) {
    for (std::int32_t channel = 0; channel < kControl; ++channel) unsent += transport_->UnsentBytes(peer, channel);
    if (one_sided_->waits_for(peer)) unsent += transport_->UnsentBytes(peer, kOneSided);
  }
  const OneSided::Progress progress = one_sided_->progress();
  return steps() + MovedInMessages() + progress.ordered + progress.relaxed - unsent;
}

Activity Engine::activity() const {
  const bool prepares = preparing_.load() > 0;
  return {.waits = IsWaitedFor() || prepares,
          .is_in_step = prepares || is_in_step_.load(std::memory_order_relaxed) || one_sided_->is_applying(),
          .looks = prepares ? 0 : looks_.load(std::memory_order_relaxed),
          .moved = counted_steps_.load(std::memory_order_relaxed) + MovedInMessages() + one_sided_->progress().ordered};
}

void Engine::LookForStall(Watch* watch) {
  watch->looks = 0;
  const std::int64_t now_ms = MonotonicMs();
  watch->looks_between = now_ms - std::exchange(watch->clock_ms, now_ms) > kSpinningMsMax ? 1 : kLooksBetweenClocks;
  const bool is_first = watch->looked_at_ms == 0;
  if (!is_first && now_ms - watch->looked_at_ms < kSpinningMsMax && watch->verdict.ok()) return;
  const std::int64_t since_ms = now_ms - std::exchange(watch->looked_at_ms, now_ms);
  if (is_first) return;  // most calls wait no longer, and to ask what has moved takes a while
  const std::uint64_t moved = Moved();
  if (std::exchange(watch->moved, moved) != moved) {
    watch->waited_ms = watch->postponed_ms = watch->unasked_ms = 0;
    watch->has_asked = false;
    watch->verdict = Status();
  }
  if (has_failed_.load(std::memory_order_acquire)) return;
  // A look that comes so late says that this process itself stood still.
  const std::int64_t quarter_ms = timeout_.ms > 0 ? std::max(timeout_.ms / 4, kSleepMsMax) : kBetweenLooksMsMax;
  watch->waited_ms += std::min({since_ms, kBetweenLooksMsMax, quarter_ms});
  watch->unasked_ms += std::min(since_ms, kCountedMsMax);
  if (watch->unasked_ms >= kBetweenAsksMs) {
    const std::int64_t unasked_ms = std::exchange(watch->unasked_ms, 0);
    Status silent = timeout_.listen(WhatStalls(watch->waited_ms), std::exchange(watch->has_asked, true) ? unasked_ms : 0);
    if (!silent.ok()) return on_failed_(silent);
  }
  if (timeout_.ms <= 0 || watch->waited_ms < timeout_.ms + watch->postponed_ms) return;
  // Asking the peers takes a while, in which nobody drives: what came meanwhile is looked at before it counts.
  Stall stall = WhatStalls(watch->waited_ms);
  if (!watch->verdict.ok() && watch->judged.IsSame(stall)) return on_failed_(watch->verdict);
  if (!std::exchange(watch->verdict, Status()).ok()) {
    watch->waited_ms = watch->postponed_ms = 0;  // something has moved
    return;
  }
  watch->verdict = timeout_.verdict(watch->judged = std::move(stall));
  if (watch->verdict.ok()) watch->postponed_ms = watch->waited_ms - timeout_.ms + quarter_ms;
}

Engine::Stall Engine::WhatStalls(std::int64_t waited_ms) const {
  Stall stall{.waited_ms = waited_ms};
  const Submission* call = blocking_;
  if (call == nullptr && !by_urgency_.empty()) call = lanes_[by_urgency_.front()].running.get();
  if (call != nullptr) {
    stall.call = call->label;
    stall.ranks = call->instance->WaitsFor();
    return stall;
  }
  if (pending_.empty()) {
    for (std::int32_t peer = 0; peer < ranks_; ++peer)
      if (!to_say_[peer].empty()) stall.ranks.push_back(peer);
    return stall;
  }
  stall.call = pending_.begin()->second->label;
  stall.has_begun = false;
  // Rank 0 knows who has not submitted it; to the others it may be any.
  for (std::int32_t peer = 0; peer < ranks_; ++peer)
    if (peer != rank_ && (rank_ != 0 || heard_[peer] <= pending_.begin()->first)) stall.ranks.push_back(peer);
  return stall;
}

void Engine::Leave(std::unique_lock<std::mutex>* lock) {
  // Most calls leave nothing behind; then a notice would only wake this object's thread, on a core that a rank wants.
  const bool is_wanted = callers_.fetch_sub(1) > 1 || HasWork();
  lock->unlock();
  if (is_wanted) changed_.notify_all();
}

void Engine::DriveForNobody() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || (HasWork() && !has_driver_ && callers_.load() == 0); });
    // Its peers may have calls in which this rank took no part, and which they cannot begin without its orders.
    auto is_over = [&] { return stop_ && (unsaid_.load() == 0 || has_failed_.load()); };
    if (is_over()) return;
    has_driver_ = true;
    own_drives_.store(true);
    Watch watch;
    while (HasWork() && callers_.load() == 0 && !is_over()) {
      const bool ends = stop_;
      lock.unlock();
      // Whoever computes on this core needs it more than a faster answer does.
      if (!Step()) {
        transport_->Wait(false);
        if (ends) LookForStall(&watch);
      }
      lock.lock();
    }
    own_drives_.store(false);
    has_driver_ = false;
    changed_.notify_all();
  }
}

// ---- driving ---------------------------------------------------------------------------------------------------------------------------

bool Engine::Step() {
  Add(&looks_, 1);
  if (!has_failed_.load(std::memory_order_acquire) && !transport_->status().ok()) on_failed_(transport_->status());
  bool moved = has_news_.load(std::memory_order_acquire) && TakeIn();
  if (has_failed_.load(std::memory_order_acquire)) {
    EndAll();
    return true;
  }
  if (serves_.load(std::memory_order_relaxed)) {
    moved = one_sided_->Serve() || moved;
    if (!one_sided_->status().ok()) {
      on_failed_(one_sided_->status());
      return true;
    }
  }
  if (outstanding_.load(std::memory_order_relaxed) > 0 || unsaid_.load(std::memory_order_relaxed) > 0) moved = Talk() || moved;
  if (blocking_ != nullptr) {
    Submission* call = blocking_;
    const std::uint64_t before = steps();
    const Outcome outcome = Advance(call);
    if (outcome == Outcome::kDone) {
      blocking_ = nullptr;
      End(call, {});
    }
    if (outcome != Outcome::kBlocked) return true;
    moved = moved || steps() != before;
  }
  for (std::int32_t lane : by_urgency_) {
    Submission* running = lanes_[lane].running.get();
    const std::uint64_t before = steps();
    const Outcome outcome = Advance(running);
    if (outcome == Outcome::kDone) {
      std::shared_ptr<Submission> ended = std::move(lanes_[lane].running);
      std::erase(by_urgency_, lane);
      if (ended->received != nullptr) ended->instance->TellReceived(ended->received);
      cache_->GiveBack(std::exchange(ended->instance, nullptr));
      End(ended.get(), {});
      outstanding_.fetch_sub(1);
      if (rank_ == 0) order_.Finish(lane);
      Begin(lane);
    }
    // At a border, and whenever something has changed, the most urgent is looked at first again.
    if (outcome != Outcome::kBlocked || steps() != before) return true;
  }
  return moved;
}

Outcome Engine::Advance(Submission* submission) {
  const std::uint64_t before = submission->instance->steps();
  const bool is_counted = submission->label.sequence != kUncounted;
  is_in_step_.store(is_counted && !submission->instance->is_native(), std::memory_order_relaxed);
  const Outcome outcome = submission->instance->Advance();
  is_in_step_.store(false, std::memory_order_relaxed);
  // One writes at a time: the driver.
  const std::uint64_t steps = submission->instance->steps() - before;
  Add(&steps_, steps);
  if (is_counted) Add(&counted_steps_, steps);
  if (outcome == Outcome::kFailed) on_failed_(submission->instance->status());
  return outcome;
}

void Engine::End(Submission* submission, const Status& status) {
  submission->status = status;
  // From here on the one who waits may free it.
  submission->is_done.store(true);
  if (callers_.load() <= 1) return;
  // The one who waits for it may be asleep, and must not miss this between its look and its sleep.
  std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void Engine::EndAll() {
  Status why;
  {
    std::lock_guard lock(mutex_);
    why = failure_;
  }
  // Nothing is driven any more: what has begun leaves its messages where they are.
  std::vector<std::shared_ptr<Submission>> all;
  for (Lane& lane : lanes_)
    if (lane.running != nullptr) all.push_back(std::exchange(lane.running, nullptr));
  for (auto& [number, submission] : pending_) all.push_back(std::move(submission));
  pending_.clear();
  by_urgency_.clear();
  for (const auto& submission : all) {
    End(submission.get(), At(submission->label, why));
    outstanding_.fetch_sub(1);
  }
  if (blocking_ != nullptr) {
    Submission* call = std::exchange(blocking_, nullptr);
    End(call, At(call->label, why));
  }
  for (std::deque<Message>& unsaid : to_say_) unsaid.clear();
  unsaid_.store(0);
}

Status Engine::At(const CallLabel& label, const Status& why) const {
  const std::string me = "rank " + std::to_string(rank_), call = Describe(label);
  for (const char* is_at : {" is at ", " at ", " has been at "})
    if (why.what().find(me + is_at + call) != std::string::npos) return why;
  return WithReason(why, me + " was at " + call);
}

bool Engine::TakeIn() {
  std::vector<std::shared_ptr<Submission>> taken;
  Submission* called;
  {
    std::lock_guard lock(mutex_);
    has_news_.store(false, std::memory_order_relaxed);
    taken.swap(inbox_);
    called = std::exchange(blocking_next_, nullptr);
  }
  if (called != nullptr) {
    blocking_ = called;
    if (serves_.load(std::memory_order_relaxed)) one_sided_->SetBlocking(called->label);
    called->instance->Start(0, called->label);
  }
  for (auto& submission : taken) {
    ++taken_in_;
    const std::uint64_t number = submission->number;
    const CallLabel label = submission->label;
    if (rank_ != 0) Say(0, {.number = number, .label = label});
    pending_[number] = std::move(submission);
    if (rank_ != 0) continue;
    for (const auto& [peer, theirs] : heard_of_[number]) Compare(peer, theirs, label);
    Count(number);
  }
  return true;
}

// ---- what ranks say about submitted calls ----------------------------------------------------------------------------------------------

void Engine::Compare(std::int32_t peer, const CallLabel& theirs, const CallLabel& mine) {
  if (theirs.fingerprint != mine.fingerprint) on_failed_(Mismatch(peer, theirs, rank_, mine));
}

void Engine::Count(std::uint64_t number) {
  if (++have_it_[number] < ranks_) return;
  have_it_.erase(number);
  heard_of_.erase(number);
  const Submission& submission = *pending_.at(number);
  order_.Add(number, submission.priority, submission.bytes);
}

bool Engine::Talk() {
  bool moved = rank_ == 0 ? HearOfSubmitted() : HearOrders();
  if (rank_ == 0) moved = Order() || moved;
  return SendWhatWaits() || moved;
}

const Engine::Message* Engine::Hear(std::int32_t peer) {
  return static_cast<const Message*>(transport_->Peek(peer, kControl, 0, &landing_[peer], sizeof(Message)));
}

bool Engine::HearOfSubmitted() {
  bool moved = false;
  for (std::int32_t peer = 1; peer < ranks_; ++peer)
    // A rank that has submitted all that this one has may have left.
    while (heard_[peer] < taken_in_) {
      const Message* heard = Hear(peer);
      if (heard == nullptr) break;
      const Message message = *heard;
      transport_->Consume(peer, kControl);
      ++heard_[peer];
      moved = true;
      if (auto mine = pending_.find(message.number); mine != pending_.end()) Compare(peer, message.label, mine->second->label);
      Count(message.number);
    }
  return moved;
}

bool Engine::Order() {
  bool moved = false;
  while (auto start = order_.Next()) {
    for (std::int32_t peer = 1; peer < ranks_; ++peer)
      Say(peer, {.number = start->number, .priority = start->priority, .lane = start->lane});
    lanes_[start->lane].ordered.push_back(start->number);
    Begin(start->lane);
    moved = true;
  }
  return moved;
}

bool Engine::HearOrders() {
  bool moved = false;
  while (ordered_ < taken_in_) {
    const Message* heard = Hear(0);
    if (heard == nullptr) break;
    const Message message = *heard;
    transport_->Consume(0, kControl);
    auto submission = pending_.find(message.number);
    if (message.lane < 0 || message.lane >= kLanes || submission == pending_.end()) {
      on_failed_(Status(Code::kInternal, "COLL25", "rank 0 orders call " + std::to_string(message.number) + ", which is none"));
      break;
    }
    ++ordered_;
    submission->second->priority = message.priority;
    lanes_[message.lane].ordered.push_back(message.number);
    Begin(message.lane);
    moved = true;
  }
  return moved;
}

void Engine::Begin(std::int32_t lane) {
  Lane& at = lanes_[lane];
  if (at.running != nullptr || at.ordered.empty()) return;
  auto next = pending_.find(at.ordered.front());
  at.ordered.pop_front();
  at.running = std::move(next->second);
  pending_.erase(next);
  at.running->instance->Start((1 + lane) * kChannelsOfLane, at.running->label);
  auto urgency = [&](std::int32_t other) { return std::pair(lanes_[other].running->priority, lanes_[other].running->number); };
  by_urgency_.insert(
      std::find_if(by_urgency_.begin(), by_urgency_.end(), [&](std::int32_t other) { return urgency(other) > urgency(lane); }), lane);
}

void Engine::Say(std::int32_t peer, const Message& message) {
  to_say_[peer].push_back(message);
  unsaid_.fetch_add(1, std::memory_order_relaxed);
}

bool Engine::SendWhatWaits() {
  bool moved = false;
  for (std::int32_t peer = 0; peer < ranks_; ++peer)
    while (!to_say_[peer].empty() && transport_->HasSlot(peer, kControl, kSlotsMax)) {
      char* slot = said_memory_[peer] + sizeof(Message) * (said_[peer]++ % kSlotsMax);
      std::memcpy(slot, &to_say_[peer].front(), sizeof(Message));
      to_say_[peer].pop_front();
      unsaid_.fetch_sub(1);
      transport_->Post(peer, kControl, slot, sizeof(Message));
      moved = true;
    }
  return moved;
}

}  // namespace ropewalk::collective
