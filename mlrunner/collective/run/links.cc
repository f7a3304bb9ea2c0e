#include "mlrunner/collective/run/links.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/monotonic.h"
#include "mlrunner/collective/run/status_bytes.h"

namespace ropewalk::collective {
namespace {

// A frame: u32 length of what follows, u8 kind, then for kFailed the status: u8 code and its four texts; for kAsk u64 the question's
// number; for kHere u64 the number of the question, 0 where nobody asked, and what it is at: u8 whether it waits, u8 whether it is in a
// step, u64 looks, u64 moved, u64 worked_ms_ago; for kWord and kAgreed u64 the agreement's number and its bytes; for kGivenUp u64 how many
// agreements there were.
enum class Kind : std::uint8_t { kLeft = 1, kFailed = 2, kAsk = 3, kHere = 4, kWord = 5, kAgreed = 6, kGivenUp = 7 };
constexpr std::size_t kFrameBytesMax = 128 << 10;
// Beside the word itself, in what all are told of it.
constexpr std::size_t kBesideWordBytesMax = 32;
// A process that is well takes what is sent at once: its thread does nothing but read.
constexpr std::int64_t kSendMsMax = 2'000;
// While a word is missed: the peers are asked so often whether they are there.
constexpr std::int64_t kBetweenLooksMs = 500;
// How much longer than the one that gathers the others wait for what it says when the time is over.
constexpr std::int64_t kVerdictMsMax = 2'000;
// A wait of so long counts as no longer, however late it ends: then this process stood still itself.
constexpr std::int64_t kWaitMs = 100;

std::string Framed(const std::string& body) {
  std::string frame;
  ByteWriter(&frame).Fixed(static_cast<std::uint32_t>(body.size()));
  return frame + body;
}

std::string LeftFrame() { return Framed(std::string(1, static_cast<char>(Kind::kLeft))); }

std::string FailedFrame(const Status& why) {
  std::string body;
  ByteWriter writer(&body);
  writer.Fixed(static_cast<std::uint8_t>(Kind::kFailed));
  Write(why, &writer);
  return Framed(body);
}

std::string AskFrame(std::uint64_t question) {
  std::string body;
  ByteWriter writer(&body);
  writer.Fixed(static_cast<std::uint8_t>(Kind::kAsk));
  writer.Fixed(question);
  return Framed(body);
}

std::string HereFrame(std::uint64_t question, const Activity& activity) {
  std::string body;
  ByteWriter writer(&body);
  writer.Fixed(static_cast<std::uint8_t>(Kind::kHere));
  writer.Fixed(question);
  writer.Fixed(static_cast<std::uint8_t>(activity.waits));
  writer.Fixed(static_cast<std::uint8_t>(activity.is_in_step));
  writer.Fixed(activity.looks);
  writer.Fixed(activity.moved);
  writer.Fixed(activity.worked_ms_ago);
  return Framed(body);
}

std::string FrameOf(const Agreements::Message& message) {
  std::string body;
  ByteWriter writer(&body);
  writer.Fixed(static_cast<std::uint8_t>(message.kind == Agreements::Kind::kWord ? Kind::kWord : Kind::kAgreed));
  writer.Fixed(message.number);
  writer.Sized(message.bytes);
  return Framed(body);
}

// The status in a frame's body after its kind; none when it cannot be read.
std::optional<Status> DecodeFailed(ByteReader reader) {
  std::optional<Status> why = ReadStatus(&reader);
  return reader.empty() ? why : std::nullopt;
}

// What a frame of kind kHere says after the number; none when it cannot be read.
std::optional<Activity> DecodeHere(ByteReader reader) {
  Activity activity;
  activity.waits = reader.Fixed<std::uint8_t>() != 0;
  activity.is_in_step = reader.Fixed<std::uint8_t>() != 0;
  activity.looks = reader.Fixed<std::uint64_t>();
  activity.moved = reader.Fixed<std::uint64_t>();
  activity.worked_ms_ago = reader.Fixed<std::uint64_t>();
  if (!reader.ok() || !reader.empty()) return std::nullopt;
  return activity;
}

Status Lost(std::int32_t peer, const std::string& why) {
  return Status(Code::kUnavailable, "COLL20", "rank " + std::to_string(peer) + " is lost", why);
}

}  // namespace

Links::Links(std::int32_t rank, std::vector<UniqueFd> links, std::int64_t begin_ms_max, Events events)
    : rank_(rank),
      begin_ms_max_(begin_ms_max),
      events_(std::move(events)),
      peers_(links.size()),
      stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      asked_(links.size()),
      over_(links.size()),
      agreements_(rank, static_cast<std::int32_t>(links.size())) {
  for (std::size_t peer = 0; peer < links.size(); ++peer) peers_[peer].link = std::move(links[peer]);
  Tell(HereFrame(0, events_.activity()));
  thread_ = std::thread([this] { Watch(); });
}

Links::~Links() {
  {
    std::lock_guard lock(agreed_mutex_);
    Agreements::Messages last;
    agreements_.Leave(&last);
    Send(last);
  }
  {
    std::lock_guard lock(tell_mutex_);
    if (!has_failed_) Tell(LeftFrame());
  }
  const std::uint64_t one = 1;
  (void)!write(stop_.get(), &one, sizeof(one));  // a fresh counter is never full
  thread_.join();
}

void Links::TellFailed(const Status& why) {
  std::lock_guard lock(tell_mutex_);
  if (std::exchange(has_failed_, true)) return;
  Tell(FailedFrame(why));
}

std::vector<std::optional<Activity>> Links::Ask(std::int64_t ms_max) {
  std::uint64_t question = 0;
  {
    std::lock_guard lock(asked_mutex_);
    // What a peer said to an earlier question it may have said before the caller came to ask.
    question = last_ask_ = ++questions_;
    for (Asked& asked : asked_) asked.answer.reset();
    asked_[rank_].can_be = false;
  }
  {
    std::lock_guard lock(tell_mutex_);
    Tell(AskFrame(question));
  }
  std::unique_lock lock(asked_mutex_);
  auto has_answered = [](const Asked& asked) { return !asked.can_be || asked.answer.has_value(); };
  auto all_have = [&] { return std::all_of(asked_.begin(), asked_.end(), has_answered); };
  for (std::int64_t waited_ms = 0; waited_ms < ms_max; waited_ms += kWaitMs)
    if (answered_.wait_for(lock, std::chrono::milliseconds(std::min(kWaitMs, ms_max - waited_ms)), all_have)) break;
  std::vector<std::optional<Activity>> answers;
  for (const Asked& asked : asked_) answers.push_back(asked.can_be ? asked.answer : Activity{.waits = true});
  return answers;
}

std::vector<std::int64_t> Links::Listen(std::int64_t since_ms) {
  std::vector<std::int64_t> silent_ms;
  std::vector<std::size_t> to_ask;
  std::uint64_t question = 0;
  {
    std::lock_guard lock(asked_mutex_);
    question = ++questions_;
    asked_[rank_].can_be = false;
    for (std::size_t peer = 0; peer < asked_.size(); ++peer) {
      Asked& asked = asked_[peer];
      const bool is_well = std::exchange(asked.was_heard, false) || !asked.can_be || since_ms == 0;
      asked.silent_ms = is_well ? 0 : asked.silent_ms + since_ms;
      silent_ms.push_back(std::max<std::int64_t>(asked.silent_ms - (asked.has_begun ? 0 : begin_ms_max_), 0));
      // Who is owed answers to some will be heard when one comes.
      if (asked.can_be && asked.unanswered < kUnansweredMax) {
        ++asked.unanswered;
        to_ask.push_back(peer);
      }
    }
  }
  const std::string frame = AskFrame(question);
  std::lock_guard lock(tell_mutex_);
  for (std::size_t peer : to_ask) TellOne(peers_[peer], frame);
  return silent_ms;
}

void Links::TellOne(Peer& peer, std::string_view frame) {
  // A link carries few frames at a time, also to a peer that is stopped: who waits for one asks some times and no more. So there is room. A
  // peer that is gone needs no news, and one that gets none learns it from the closed link.
  if (peer.link) (void)!send(peer.link.get(), frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Links::Tell(std::string_view frame) {
  for (Peer& peer : peers_) TellOne(peer, frame);
}

void Links::Send(const Agreements::Messages& messages) {
  for (const Agreements::Message& message : messages) {
    const std::string frame = FrameOf(message);
    const int link = peers_[message.to].link.get();
    std::lock_guard lock(tell_mutex_);
    std::string_view left = frame;
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(kSendMsMax);
    while (!left.empty()) {
      const ssize_t n = send(link, left.data(), left.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) left.remove_prefix(static_cast<std::size_t>(n));
      if (n > 0 || errno == EINTR) continue;
      if (errno != EAGAIN) break;  // it is gone, which its link's end says
      const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now()).count();
      pollfd room{link, POLLOUT, 0};
      if (ms > 0 && poll(&room, 1, static_cast<int>(ms)) != 0) continue;
      // What it has of this frame is of no use, and nothing can follow it.
      (void)shutdown(link, SHUT_RDWR);
      break;
    }
  }
}

void Links::Watch() {
  std::vector<pollfd> polls;
  std::vector<std::int32_t> ranks;
  for (;;) {
    polls.assign(1, {stop_.get(), POLLIN, 0});
    ranks.assign(1, rank_);
    for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
      if (!peers_[peer].link || peers_[peer].is_over) continue;
      polls.push_back({peers_[peer].link.get(), POLLIN, 0});
      ranks.push_back(static_cast<std::int32_t>(peer));
    }
    if (poll(polls.data(), polls.size(), -1) < 0) continue;  // EINTR: nothing else can be
    if (polls[0].revents != 0) return;
    for (std::size_t i = 1; i < polls.size(); ++i)
      if (polls[i].revents != 0) Hear(ranks[i]);
  }
}

void Links::Hear(std::int32_t rank) {
  Peer& peer = peers_[rank];
  char bytes[4096];
  const ssize_t n = recv(peer.link.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
  if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (n <= 0) {
    const int error = errno;
    End(rank);
    if (!peer.has_left) events_.on_failed(Lost(rank, n == 0 ? "its process has ended" : std::strerror(error)));
    events_.on_over(rank);
    return;
  }
  peer.got.append(bytes, static_cast<std::size_t>(n));
  for (;;) {
    ByteReader reader(peer.got);
    const auto length = reader.Fixed<std::uint32_t>();
    if (!reader.ok() || (length <= kFrameBytesMax && reader.remaining() < length)) return;
    const bool is_short = length <= kFrameBytesMax && length > 0;
    ByteReader body(is_short ? std::string_view(peer.got).substr(sizeof(length), length) : std::string_view());
    const auto kind = Kind{body.Fixed<std::uint8_t>()};
    std::optional<Status> why = kind == Kind::kFailed ? DecodeFailed(body) : std::nullopt;
    const std::uint64_t question = kind == Kind::kAsk || kind == Kind::kHere ? body.Fixed<std::uint64_t>() : 0;
    std::optional<Activity> here = kind == Kind::kHere ? DecodeHere(body) : std::nullopt;
    auto note = [&](bool can_be, const std::optional<Activity>& answer) {
      {
        std::lock_guard lock(asked_mutex_);
        Asked& asked = asked_[rank];
        asked.can_be = can_be;
        if (question >= last_ask_) asked.answer = answer;
        asked.was_heard = asked.has_begun = true;
        asked.unanswered = 0;
      }
      answered_.notify_all();
    };
    if (kind == Kind::kLeft && body.empty()) {
      peer.has_left = true;
      note(false, std::nullopt);
      events_.on_left(rank);
    } else if (kind == Kind::kAsk && body.ok() && body.empty()) {
      const std::string mine = HereFrame(question, events_.activity());
      std::lock_guard lock(tell_mutex_);
      TellOne(peer, mine);
    } else if (here.has_value()) {
      note(!peer.has_left, here);
    } else if (why.has_value()) {
      peer.has_left = true;  // what comes now is not worth another word
      events_.on_failed(*why);
    } else if (kind == Kind::kWord || kind == Kind::kAgreed) {
      const auto number = body.Fixed<std::uint64_t>();
      const std::string_view bytes = body.Sized();
      if (!body.ok() || !body.empty()) return Nonsense(rank);
      std::unique_lock lock(agreed_mutex_);
      Agreements::Messages out;
      const bool is_good =
          agreements_.Hear(rank, kind == Kind::kWord ? Agreements::Kind::kWord : Agreements::Kind::kAgreed, number, bytes, &out);
      Send(out);
      lock.unlock();
      if (!is_good) return Nonsense(rank);
      agreed_.notify_all();
    } else if (kind == Kind::kGivenUp) {
      const auto agreements = body.Fixed<std::uint64_t>();
      if (!body.ok() || !body.empty()) return Nonsense(rank);
      bool is_ours;
      {
        std::lock_guard lock(agreed_mutex_);
        is_ours = agreements == next_agreement_;
        if (is_ours) given_up_ = agreements;
      }
      if (is_ours) events_.on_given_up(rank);
    } else {
      return Nonsense(rank);
    }
    peer.got.erase(0, sizeof(length) + length);
  }
}

void Links::Nonsense(std::int32_t rank) {
  End(rank);
  events_.on_failed(Lost(rank, "it said what nobody understands"));
  events_.on_over(rank);
}

void Links::End(std::int32_t rank) {
  peers_[rank].is_over = true;
  {
    std::lock_guard lock(asked_mutex_);
    asked_[rank].can_be = false;
    over_[rank] = true;
  }
  answered_.notify_all();
  {
    std::lock_guard lock(agreed_mutex_);
    Agreements::Messages out;
    agreements_.Over(rank, &out);
    Send(out);
  }
  agreed_.notify_all();
}

std::vector<bool> Links::Over() {
  std::lock_guard lock(asked_mutex_);
  return over_;
}

void Links::GiveUp() {
  std::string body;
  ByteWriter writer(&body);
  writer.Fixed(static_cast<std::uint8_t>(Kind::kGivenUp));
  {
    std::lock_guard lock(agreed_mutex_);
    writer.Fixed(next_agreement_);
  }
  std::lock_guard lock(tell_mutex_);
  Tell(Framed(body));
}

bool Links::IsGivenUp() {
  std::lock_guard lock(agreed_mutex_);
  return given_up_ == next_agreement_ && given_up_ > 0;
}

std::size_t Links::word_bytes_max() const { return kFrameBytesMax / peers_.size() - kBesideWordBytesMax; }

Result<std::vector<std::optional<std::string>>> Links::Agree(std::string word, const std::vector<bool>& without, std::int64_t ms_max,
                                                             std::int64_t silence_ms) {
  if (word.size() > word_bytes_max())
    return Status(Code::kInvalid, "COLL30", "a rank has " + std::to_string(word.size()) + " bytes to say to the others",
                  "what all " + std::to_string(peers_.size()) + " ranks say must fit " + std::to_string(kFrameBytesMax) + " bytes",
                  "give shorter names of machines and addresses to the rendezvous");
  std::unique_lock lock(agreed_mutex_);
  const std::uint64_t number = next_agreement_++;
  Agreements::Messages out;
  agreements_.Propose(number, std::move(word), without, &out);
  Send(std::exchange(out, {}));
  auto is_agreed = [&] { return agreements_.Find(number) != nullptr; };
  const std::int64_t began_ms = MonotonicMs();
  // The others leave it to the one that gathers to say when the time is over, and give it a while for that.
  auto left_ms = [&] {
    const std::int64_t more_ms = agreements_.gatherer() == rank_ ? 0 : kVerdictMsMax;
    return ms_max <= 0 ? kBetweenLooksMs : std::max<std::int64_t>(began_ms + ms_max + more_ms - MonotonicMs(), 0);
  };
  std::vector<bool> silent(peers_.size());
  bool is_silent = false;  // the one that gathers
  std::int64_t looked_at_ms = began_ms;
  for (bool has_asked = false; !is_silent && left_ms() > 0; has_asked = true) {
    if (agreed_.wait_for(lock, std::chrono::milliseconds(std::min(left_ms(), kBetweenLooksMs)), is_agreed)) break;
    if (silence_ms <= 0) continue;
    lock.unlock();
    const std::int64_t now_ms = MonotonicMs(), since_ms = now_ms - std::exchange(looked_at_ms, now_ms);
    // A look that comes so late says that this process itself stood still.
    const std::vector<std::int64_t> silent_ms = Listen(has_asked ? std::min(since_ms, 2 * kBetweenLooksMs) : 0);
    lock.lock();
    const std::vector<bool> missing = agreements_.missing();
    for (std::size_t peer = 0; peer < peers_.size(); ++peer) silent[peer] = missing[peer] && silent_ms[peer] >= silence_ms;
    is_silent = silent_ms[agreements_.gatherer()] >= silence_ms;
    if (std::find(silent.begin(), silent.end(), true) != silent.end()) agreements_.GiveUp(silent, true, &out);
    Send(std::exchange(out, {}));
  }
  if (!is_agreed()) agreements_.GiveUp(agreements_.missing(), false, &out);
  Send(out);
  const Agreed* agreed = agreements_.Find(number);
  if (agreed != nullptr && !agreed->is_given_up()) return agreed->words;
  std::string missed;
  for (std::int32_t peer = 0; peer < static_cast<std::int32_t>(peers_.size()); ++peer)
    if (agreed == nullptr ? peer == agreements_.gatherer() : agreed->missed[peer])
      missed += (missed.empty() ? "" : ", ") + ("rank " + std::to_string(peer));
  const std::string what = missed + " did not come to those that form the communicator anew";
  if (agreed == nullptr ? is_silent : agreed->are_silent)
    return Status(Code::kUnavailable, "COLL28", what, "its process does not answer: it is stopped, or its machine hangs",
                  "end that process; where one may be stopped for longer (in a debugger), raise silence_ms");
  return Status(Code::kDeadlineExceeded, "COLL28", what,
                "its process is there, and has not called Shrink() or Reform() within " + std::to_string(ms_max) + " ms",
                "call it on all ranks, or end those that do not go on; if they may take so long, raise the time-out (timeout_ms)");
}

}  // namespace ropewalk::collective
