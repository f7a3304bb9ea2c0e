#include "mlrunner/collective/run/one_sided.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "mlrunner/collective/run/kernels.h"

namespace ropewalk::collective {
namespace {

// A peer that is so many calls ahead does not wait for anything, and something is wrong.
constexpr std::uint64_t kCallsAheadMax = 1 << 16;
constexpr std::int32_t kCountersMax = 1 << 10;
constexpr std::size_t kWindowBytesMax = std::size_t{1} << 48;

}  // namespace

OneSided::OneSided(std::int32_t rank, std::int32_t ranks, Transport* transport, std::int32_t channel)
    : rank_(rank), ranks_(ranks), channel_(channel), transport_(transport), peers_(ranks), recent_(kRecent) {
  transport_->SetListening(channel_);
  for (Peer& peer : peers_) peer.kept.resize(kSlotsMax);
}

OneSided::~OneSided() {
  for (Peer& peer : peers_) transport_->Free(peer.frames);
  for (Window& window : windows_) transport_->Free(window.memory - kHeadBytes);
}

// ---- windows -----------------------------------------------------------------------------------------------------------------------

Result<std::int32_t> OneSided::AddWindow(std::size_t bytes) {
  // The frames, too: a rank that finds no room for these later can only end everything.
  bool has_frames = true;
  for (std::int32_t peer = 0; peer < ranks_; ++peer) has_frames = has_frames && (peer == rank_ || HasFrames(peer));
  char* memory = has_frames && bytes <= kWindowBytesMax ? transport_->Allocate(kHeadBytes + bytes) : nullptr;
  if (memory == nullptr)
    return Status(Code::kResourceExhausted, "COLL13", "no room for a window of " + std::to_string(bytes) + " bytes",
                  "the transport's pool is full", "give it a larger pool (pool_bytes)");
  std::memset(memory, 0, kHeadBytes + bytes);
  new (memory) Head{};
  std::lock_guard lock(mutex_);
  windows_.push_back({.memory = memory + kHeadBytes, .bytes = static_cast<std::int64_t>(bytes)});
  windows_.back().places.resize(ranks_);
  windows_.back().mapped.resize(ranks_);
  return static_cast<std::int32_t>(windows_.size()) - 1;
}

void OneSided::DropWindow(std::int32_t window) {
  std::lock_guard lock(mutex_);
  if (window != static_cast<std::int32_t>(windows_.size()) - 1) return;
  transport_->Free(windows_.back().memory - kHeadBytes);
  windows_.pop_back();
}

const OneSided::Window* OneSided::Find(std::int32_t window) const {
  std::lock_guard lock(mutex_);
  return window < 0 || window >= static_cast<std::int32_t>(windows_.size()) ? nullptr : &windows_[window];
}

OneSided::Place OneSided::PlaceOf(std::int32_t window) const {
  const Window& mine = *Find(window);
  return {transport_->PlaceOf(mine.memory), mine.bytes};
}
bool OneSided::IsOurs(std::int32_t window, const char* memory) const {
  const Window* found = Find(window);
  return found != nullptr && found->memory == memory;
}
char* OneSided::MemoryOf(std::int32_t window) const { return Find(window)->memory; }
std::int64_t OneSided::BytesOf(std::int32_t window) const { return Find(window)->bytes; }

Status OneSided::SetPlaces(std::int32_t window, std::span<const Place> places) {
  std::lock_guard lock(mutex_);
  Window& mine = windows_[window];
  for (std::int32_t rank = 0; rank < ranks_; ++rank) {
    // A peer's word; where windows are mapped, the lock lies before this one.
    const std::uint64_t place = places[rank].place;
    char* mapped = transport_->MappedAt(rank, place, static_cast<std::size_t>(places[rank].bytes));
    if (mapped != nullptr && (place < kHeadBytes || place % alignof(Head) != 0))
      return Status(Code::kInvalid, "COLL27", "rank " + std::to_string(rank) + " has its window where none can be",
                    "it runs another version, or its memory is damaged", "run the same program on all ranks");
    mine.places[rank] = places[rank];
    mine.mapped[rank] = rank == rank_ ? mine.memory : mapped;
  }
  return {};
}

bool OneSided::TryLock(Head* head) {
  for (int tries = 0; tries < 2; ++tries) {
    std::uint32_t nobody = 0;
    if (head->holder.compare_exchange_strong(nobody, static_cast<std::uint32_t>(rank_) + 1)) return true;
    // In one order with Unlock(): it sees the wish, or the second try sees the lock free.
    head->wanted.store(1);
  }
  refused_.fetch_add(1, std::memory_order_relaxed);
  return false;
}

void OneSided::Unlock(Head* head) {
  head->holder.store(0);
  if (head->wanted.exchange(0) != 0) transport_->RingPeers();
}

Outcome OneSided::Lock(std::int32_t window, std::int32_t lane, const CallLabel& label) {
  Head* head = HeadOf(MemoryOf(window));
  if (!TryLock(head)) return Outcome::kBlocked;
  const std::uint32_t order = OrderOf(window, lane);
  bool is_of_kind = IsOfKind(head, window, rank_, order, label);
  // A peer that mixes through another window of the same kind shows there.
  for (std::int32_t other = 0; is_of_kind && order > 0 && Find(other) != nullptr; ++other) {
    const Head& there = *HeadOf(MemoryOf(other));
    is_of_kind = other == window || there.first.load(std::memory_order_acquire) == 0 || there.order != order;
    if (!is_of_kind) FailByKind(there, other, rank_, label);
  }
  if (is_of_kind) return Outcome::kDone;
  Unlock(head);
  return Outcome::kFailed;
}
void OneSided::Unlock(std::int32_t window) { Unlock(HeadOf(MemoryOf(window))); }

// ---- do all mean the same? -----------------------------------------------------------------------------------------------------------

void OneSided::SetBlocking(const CallLabel& label) {
  if (label.sequence == kUncounted) return;
  recent_[label.sequence % kRecent] = label;
  for (std::int32_t peer = 0; peer < ranks_; ++peer) {
    const CallLabel& theirs = peers_[peer].ahead;
    if (theirs.fingerprint != 0 && theirs.sequence == label.sequence) Meet(peer, theirs);
  }
}

void OneSided::Meet(std::int32_t peer, const CallLabel& theirs) {
  if (theirs.fingerprint == 0 || theirs.sequence == kUncounted) return;
  const CallLabel& mine = recent_[theirs.sequence % kRecent];
  if (mine.fingerprint == 0 || mine.sequence < theirs.sequence)
    peers_[peer].ahead = theirs;
  else if (mine.sequence == theirs.sequence && mine.fingerprint != theirs.fingerprint && status_.ok())
    status_ = Mismatch(peer, theirs, rank_, mine);
}

std::uint32_t OneSided::OrderOf(std::int32_t window, std::int32_t lane) {
  if (lane != 0) return 0;  // submitted calls begin in an order of their own
  auto found = std::find(in_order_.begin(), in_order_.end(), window);
  if (found == in_order_.end()) found = in_order_.insert(found, window);
  return static_cast<std::uint32_t>(found - in_order_.begin()) + 1;
}

bool OneSided::IsOfKind(Head* head, std::int32_t window, std::int32_t rank, std::uint32_t order, const CallLabel& label) {
  if (head->first.load(std::memory_order_acquire) == 0) {
    head->order = order;
    head->kind = label;
    head->first.store(static_cast<std::uint32_t>(rank) + 1, std::memory_order_release);
    return true;
  }
  if (head->kind.fingerprint == label.fingerprint) return true;
  FailByKind(*head, window, rank, label);
  return false;
}

void OneSided::FailByKind(const Head& head, std::int32_t window, std::int32_t rank, const CallLabel& label) {
  if (!status_.ok()) return;
  status_ = Status(Code::kInvalid, "COLL21",
                   "rank " + std::to_string(head.first.load() - 1) + " uses window " + std::to_string(window) + " for " +
                       Describe(head.kind) + ", and rank " + std::to_string(rank) + " is at " + Describe(label),
                   "a relaxed window belongs to calls of one type, count and mixing matrix, and all ranks use their windows in one order",
                   "make all ranks call the same, and another window for another kind of call");
}

// ---- what this rank does -----------------------------------------------------------------------------------------------------------

std::uint64_t OneSided::Begin(std::int32_t lane, const CallLabel& label) {
  Lane& at = lanes_[lane];
  const std::uint64_t number = at.begun++;
  at.label = label;
  at.raised.erase(at.raised.begin(), at.raised.lower_bound(number));
  if (auto early = at.raised.find(number); early != at.raised.end())
    for (const auto& [peer, theirs] : early->second.labels)
      if (theirs.fingerprint != label.fingerprint && status_.ok()) status_ = Mismatch(peer, theirs, rank_, label);
  return number;
}

std::int64_t OneSided::CountOf(const Call& call, std::int32_t counter) const {
  const auto& raised = lanes_.at(call.lane).raised;
  const auto found = raised.find(call.number);
  if (found == raised.end() || counter >= static_cast<std::int32_t>(found->second.counts.size())) return 0;
  return found->second.counts[counter];
}

void OneSided::MissWhoLeft(const Call& call, std::span<const std::int64_t> raises) {
  const auto& raised = lanes_.at(call.lane).raised;
  for (std::int32_t peer = 0; peer < static_cast<std::int32_t>(raises.size()); ++peer) {
    if (peer == rank_ || raises[peer] == 0 || !transport_->HasLeft(peer, channel_)) continue;
    // It may have said so as its last word.
    while (TakeOne(peer)) continue;
    const auto found = raised.find(call.number);
    const std::int64_t so_far = found == raised.end() ? 0 : found->second.by_rank[peer];
    if (so_far < raises[peer]) Lost(peer);
  }
}

std::vector<std::int32_t> OneSided::Missing(const Call& call, std::span<const std::int64_t> raises) const {
  std::vector<std::int32_t> missing;
  const auto& raised = lanes_.at(call.lane).raised;
  const auto found = raised.find(call.number);
  for (std::int32_t peer = 0; peer < static_cast<std::int32_t>(raises.size()); ++peer)
    if ((found == raised.end() ? 0 : found->second.by_rank[peer]) < raises[peer]) missing.push_back(peer);
  return missing;
}

void OneSided::Raise(std::int32_t from, const Frame& frame) {
  Lane& lane = lanes_[frame.lane];
  if (frame.call + 1 < lane.begun) return;  // over
  Raised& raised = lane.raised[frame.call];
  if (static_cast<std::int32_t>(raised.counts.size()) <= frame.counter) raised.counts.resize(frame.counter + 1);
  raised.by_rank.resize(ranks_);
  ++raised.counts[frame.counter];
  ++raised.by_rank[from];
  if (from == rank_) return;
  auto is_from = [&](const auto& said) { return said.first == from; };
  if (frame.call < lane.begun) {
    if (frame.label.fingerprint != lane.label.fingerprint && status_.ok()) status_ = Mismatch(from, frame.label, rank_, lane.label);
  } else if (std::none_of(raised.labels.begin(), raised.labels.end(), is_from)) {
    raised.labels.emplace_back(from, frame.label);
  }
}

Outcome OneSided::Notify(const Call& call, std::int32_t peer, std::int32_t counter, const CallLabel& label) {
  Frame frame{.kind = Kind::kNotify, .lane = call.lane, .counter = counter, .call = call.number, .label = label};
  if (peer == rank_) {
    Raise(peer, frame);
    return Outcome::kDone;
  }
  if (peers_[peer].out.size() >= kToldMax) return Outcome::kBlocked;
  peers_[peer].out.push_back({.frame = frame});
  SendOut(peer);
  return Outcome::kDone;
}

void OneSided::Announce(const Call& call, std::int32_t peer, const CallLabel& label) {
  peers_[peer].out.push_back({.frame = {.kind = Kind::kCall, .lane = call.lane, .call = call.number, .label = label}});
  SendOut(peer);
}

void OneSided::Apply(const Work& work, char* at) {
  const auto bytes = static_cast<std::size_t>(work.bytes);
  if (bytes == 0) return;
  if (work.op == Op::kPut) {
    std::memcpy(at, work.from, bytes);
  } else if (work.op == Op::kGet) {
    std::memcpy(work.into, at, bytes);
  } else {
    const Row rows[] = {{at, work.dtype, 1}, {work.from, work.dtype, 1}};
    FoldRows(work.fold, work.accumulator, rows, 1, work.dtype, at, work.bytes / static_cast<std::int64_t>(SizeOf(work.dtype)));
  }
}

Outcome OneSided::Do(const Work& work, const CallLabel& label) {
  const Window* window = Find(work.window);
  const Place place = window == nullptr ? Place{} : window->places[work.peer];
  if (work.offset_bytes < 0 || work.bytes < 0 || work.bytes > place.bytes || work.offset_bytes > place.bytes - work.bytes) {
    if (status_.ok())
      status_ = Status(Code::kInvalid, "COLL27",
                       "bytes " + std::to_string(work.offset_bytes) + " to " + std::to_string(work.offset_bytes + work.bytes) +
                           " lie outside of the window of rank " + std::to_string(work.peer),
                       "it has " + std::to_string(place.bytes) + " bytes", "make the window longer on all ranks");
    return Outcome::kFailed;
  }
  if (char* mapped = window->mapped[work.peer]; mapped != nullptr) {
    const bool locks = work.relaxed || work.op == Op::kAccumulate;
    if (locks && !TryLock(HeadOf(mapped))) return Outcome::kBlocked;
    const bool may = !work.relaxed || IsOfKind(HeadOf(mapped), work.window, rank_, OrderOf(work.window, work.lane), label);
    if (may) Apply(work, mapped + work.offset_bytes);
    if (locks) Unlock(HeadOf(mapped));
    return may ? Outcome::kDone : Outcome::kFailed;
  }
  Peer& peer = peers_[work.peer];
  auto is_too_much = [&] {
    return !peer.asked.empty() && (peer.asked.size() >= kAskedMax || peer.asked_bytes + work.bytes > kAskedBytesMax);
  };
  if (is_too_much()) {
    if (!transport_->HasLeft(work.peer, channel_)) return Outcome::kBlocked;
    while (TakeOne(work.peer)) continue;
    if (is_too_much()) Lost(work.peer);
    if (!status_.ok()) return Outcome::kFailed;
  }
  Frame frame{.kind = work.op == Op::kPut   ? Kind::kPut
                      : work.op == Op::kGet ? Kind::kGet
                                            : Kind::kAccumulate,
              .window = work.window,
              .offset_bytes = work.offset_bytes,
              .bytes = work.bytes,
              .lane = work.lane,
              .channel = work.channel,
              .dtype = static_cast<std::uint8_t>(work.dtype),
              .accumulator = static_cast<std::uint8_t>(work.accumulator),
              .fold = static_cast<std::uint8_t>(work.fold),
              .relaxed = work.relaxed,
              .order = work.relaxed ? OrderOf(work.window, work.lane) : 0,
              .label = label};
  peer.asked.push_back(work);
  peer.asked_bytes += work.bytes;
  peer.out.push_back({.frame = frame, .payload = work.op == Op::kGet ? nullptr : work.from});
  ++under_way_[{work.lane, work.channel, work.peer}];
  SendOut(work.peer);
  return Outcome::kDone;
}

bool OneSided::IsDone(std::int32_t lane, std::int32_t channel, std::int32_t peer) {
  const auto found = under_way_.find({lane, channel, peer});
  if (found == under_way_.end() || found->second == 0) return true;
  if (transport_->HasLeft(peer, channel_)) {
    while (TakeOne(peer)) continue;
    if (found->second > 0) Lost(peer);
  }
  return found->second == 0;
}

bool OneSided::IsIdle(std::int32_t lane) const {
  for (auto it = under_way_.lower_bound({lane, 0, 0}); it != under_way_.end() && std::get<0>(it->first) == lane; ++it)
    if (it->second > 0) return false;
  return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.out.empty(); });
}

// ---- what is asked of it -----------------------------------------------------------------------------------------------------------

void OneSided::Fail(std::int32_t peer, const char* what) {
  if (status_.ok())
    status_ = Status(Code::kInvalid, "COLL27", "rank " + std::to_string(peer) + " " + what,
                     "the ranks run different collectives, or made different windows", "make all ranks call the same");
}

void OneSided::Lost(std::int32_t peer) {
  if (status_.ok())
    status_ = Status(Code::kUnavailable, "COLL20", "rank " + std::to_string(peer) + " is lost", "its program has ended", "");
}

// A peer's word: it says where this rank's memory is read or written.
bool OneSided::IsGood(std::int32_t peer, const Frame& frame) {
  bool good = frame.lane >= 0 && frame.lane < channel_;
  if (frame.kind == Kind::kCall) {
    good = good && frame.lane == 0;
  } else if (frame.kind == Kind::kNotify) {
    good = good && frame.counter >= 0 && frame.counter < kCountersMax;
    good = good && frame.call < (lanes_[frame.lane].begun + kCallsAheadMax);
  } else if (frame.kind == Kind::kDone || frame.kind == Kind::kGot) {
    // Answers come in the order of the questions.
    good = good && !peers_[peer].asked.empty();
    if (good) {
      const Work& asked = peers_[peer].asked.front();
      good = (asked.op == Op::kGet) == (frame.kind == Kind::kGot) && asked.lane == frame.lane && asked.channel == frame.channel &&
             frame.bytes == (frame.kind == Kind::kGot ? asked.bytes : 0);
    }
  } else {
    const Window* window = Find(frame.window);
    good = good && frame.kind >= Kind::kPut && frame.kind <= Kind::kGet && window != nullptr && frame.offset_bytes >= 0 &&
           frame.bytes >= 0 && frame.bytes <= window->bytes && frame.offset_bytes <= window->bytes - frame.bytes;
    if (frame.kind == Kind::kAccumulate)
      good = good && frame.dtype <= static_cast<std::uint8_t>(Dtype::kHandle) && IsNumber(Dtype{frame.dtype}) &&
             frame.accumulator == static_cast<std::uint8_t>(AccumulatorOf(Dtype{frame.dtype})) &&
             frame.fold < static_cast<std::uint8_t>(ReduceOp::kAvg) &&
             frame.bytes % static_cast<std::int64_t>(SizeOf(Dtype{frame.dtype})) == 0;
    const Peer& from = peers_[peer];
    const std::int64_t more = frame.kind == Kind::kGet ? frame.bytes : 0;
    if (from.answers > 0 && (from.answers >= kAskedMax || from.answers_bytes + more > kAskedBytesMax)) {
      Fail(peer, "asks for more one-sided work at once than it may");
      return false;
    }
  }
  if (!good) Fail(peer, "asks for one-sided work that has no place here");
  return good;
}

bool OneSided::TakeOne(std::int32_t p) {
  if (!status_.ok()) return false;
  Peer& peer = peers_[p];
  if (peer.has_frame) return TakePayload(p);
  const void* came = transport_->Peek(p, channel_, 0, &peer.landing, sizeof(Frame));
  if (came == nullptr) return false;
  std::memcpy(&peer.frame, came, sizeof(Frame));
  transport_->Consume(p, channel_);
  Frame& frame = peer.frame;
  if (!IsGood(p, frame)) return false;
  if (frame.lane == 0 && frame.kind != Kind::kDone && frame.kind != Kind::kGot) Meet(p, frame.label);
  // Nobody else is there: where windows are not mapped, all that touches them is done by this thread.
  const bool touches = frame.kind == Kind::kPut || frame.kind == Kind::kAccumulate || frame.kind == Kind::kGet;
  if (touches && frame.relaxed != 0 && !IsOfKind(HeadOf(MemoryOf(frame.window)), frame.window, p, frame.order, frame.label)) return false;
  switch (frame.kind) {
    case Kind::kCall:
      return true;
    case Kind::kNotify:
      Raise(p, frame);
      return true;
    case Kind::kDone:
      Answered(p);
      return true;
    case Kind::kGet: {
      const char* from = Find(frame.window)->memory + frame.offset_bytes;
      Out answer{.frame = frame, .owned = std::vector<char>(from, from + frame.bytes)};
      answer.frame.kind = Kind::kGot;
      answer.payload = answer.owned.data();
      Answer(p, std::move(answer));
      return true;
    }
    default:
      peer.has_frame = true;
      return true;
  }
}

bool OneSided::TakePayload(std::int32_t p) {
  Peer& peer = peers_[p];
  const Frame& frame = peer.frame;
  const bool is_own = frame.kind == Kind::kGot;
  const Side side = SideOf(is_own, is_own ? peer.asked.front().relaxed : frame.relaxed != 0);
  const auto bytes = static_cast<std::size_t>(frame.bytes);
  const void* came = this;
  if (bytes > 0) {
    peer.staged.resize(bytes);
    const std::uint64_t before = transport_->MovedBytes(p, channel_).in;
    came = transport_->Peek(p, channel_, 0, peer.staged.data(), bytes);
    Count(side, transport_->MovedBytes(p, channel_).in - before);
    if (came == nullptr) return false;
  }
  if (frame.kind == Kind::kGot) {
    if (bytes > 0) std::memcpy(peer.asked.front().into, came, bytes);
    Answered(p);
  } else {
    const Work work{.op = frame.kind == Kind::kPut ? Op::kPut : Op::kAccumulate,
                    .bytes = frame.bytes,
                    .from = static_cast<const char*>(came),
                    .dtype = Dtype{frame.dtype},
                    .accumulator = Dtype{frame.accumulator},
                    .fold = ReduceOp{frame.fold}};
    is_applying_.store(side == kOrdered, std::memory_order_relaxed);
    Apply(work, Find(frame.window)->memory + frame.offset_bytes);
    is_applying_.store(false, std::memory_order_relaxed);
    Count(side, 1);
    Out done{.frame = frame};
    done.frame.kind = Kind::kDone;
    done.frame.bytes = 0;
    Answer(p, std::move(done));
  }
  if (bytes > 0) transport_->Consume(p, channel_);
  peer.has_frame = false;
  return true;
}

void OneSided::Answer(std::int32_t p, Out answer) {
  Peer& peer = peers_[p];
  ++peer.answers;
  peer.answers_bytes += answer.frame.bytes;
  peer.out.push_back(std::move(answer));
  SendOut(p);
}

void OneSided::Answered(std::int32_t p) {
  Peer& peer = peers_[p];
  const Work& done = peer.asked.front();
  --under_way_[{done.lane, done.channel, p}];
  Count(done.relaxed ? kRelaxed : kOrdered, 1);
  peer.asked_bytes -= done.bytes;
  peer.asked.pop_front();
}

bool OneSided::HasFrames(std::int32_t p) {
  Peer& peer = peers_[p];
  if (peer.frames == nullptr) peer.frames = transport_->Allocate(sizeof(Frame) * kSlotsMax);
  return peer.frames != nullptr;
}

bool OneSided::SendOut(std::int32_t p) {
  Peer& peer = peers_[p];
  bool moved = false;
  while (!peer.out.empty()) {
    if (!transport_->HasSlot(p, channel_, kSlotsMax)) {
      // Nobody will take it any more; who waits for what it was about finds that out.
      if (transport_->HasLeft(p, channel_)) {
        peer.out.clear();
        peer.answers = 0;
        peer.answers_bytes = 0;
      }
      break;
    }
    if (!HasFrames(p)) {
      if (status_.ok())
        status_ = Status(Code::kResourceExhausted, "COLL13",
                         "no room for " + std::to_string(sizeof(Frame) * kSlotsMax) + " bytes of frames of one-sided work",
                         "the transport's pool is full", "give it a larger pool (pool_bytes)");
      break;
    }
    Out& out = peer.out.front();
    // There was a slot, so what lay in this place has been consumed.
    const std::uint64_t place = peer.posted++ % kSlotsMax;
    moved = true;
    if (!out.frame_is_out) {
      char* frame = peer.frames + sizeof(Frame) * place;
      std::memcpy(frame, &out.frame, sizeof(Frame));
      transport_->Post(p, channel_, frame, sizeof(Frame));
      out.frame_is_out = true;
      if (out.payload != nullptr && out.frame.bytes > 0) continue;
    } else {
      peer.keeps = peer.keeps || !out.owned.empty();
      peer.kept[place] = std::move(out.owned);
      if (const Side side = SideOf(out.frame.kind != Kind::kGot, out.frame.relaxed != 0); side != kNotOurs) {
        peer.last_message[side] = transport_->Posted(p, channel_) + 1;
        peer.is_on_its_way[side] = true;
      }
      transport_->Post(p, channel_, out.payload, static_cast<std::size_t>(out.frame.bytes));
    }
    if (out.frame.kind == Kind::kDone || out.frame.kind == Kind::kGot) {
      --peer.answers;
      peer.answers_bytes -= out.frame.bytes;
    }
    peer.out.pop_front();
  }
  // What was answered may be long; it is not kept until its place is wanted again.
  if (peer.keeps && peer.out.empty() && transport_->IsFlushed(p, channel_, transport_->Posted(p, channel_))) {
    for (std::vector<char>& kept : peer.kept) std::vector<char>().swap(kept);
    peer.keeps = false;
  }
  return moved;
}

void OneSided::Count(Side side, std::uint64_t bytes) {
  if (side == kNotOurs || bytes == 0) return;
  moved_[side].store(moved_[side].load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
}

void OneSided::CountOut(std::int32_t p) {
  Peer& peer = peers_[p];
  const std::uint64_t so_far = transport_->MovedBytes(p, channel_).out;
  const std::uint64_t bytes = so_far - std::exchange(peer.bytes_out, so_far);
  if (bytes == 0) return;
  // What goes out before such a message counts, too: it waits its turn.
  for (const Side side : {kOrdered, kRelaxed}) {
    if (!peer.is_on_its_way[side]) continue;
    Count(side, bytes);
    peer.is_on_its_way[side] = !transport_->IsFlushed(p, channel_, peer.last_message[side]);
  }
}

bool OneSided::Serve() {
  bool moved = false;
  for (std::int32_t peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_) continue;
    while (TakeOne(peer)) moved = true;
    moved = SendOut(peer) || moved;
    CountOut(peer);
  }
  return moved;
}

}  // namespace ropewalk::collective
