#include "mlrunner/collective/run/door.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "base/escape.h"
#include "base/monotonic.h"
#include "mlrunner/collective/run/status_bytes.h"
#include "rpc/address.h"
#include "rpc/frame.h"

namespace ropewalk::collective {
namespace {

constexpr std::string_view kTicketBegin = "ropewalk-", kRole = "newcomer";
constexpr std::uint16_t kDoorVersion = 1;
// A newcomer says who it is as soon as it has connected; one that speaks our language answers at once, also on a busy machine.
constexpr int kHelloMsMax = 200, kAnswerMsMax = 3'000;
constexpr std::int64_t kTakeInMsMax = 5'000;
// Who connects and says nothing: the oldest gives way.
constexpr std::size_t kStrangersMax = 64;
// A welcome fits, so that nobody waits for a newcomer that takes nothing.
constexpr int kSendBytes = 256 << 10;

enum class Kind : std::uint8_t { kNewcomer = 1, kWelcome = 2, kReport = 3, kGo = 4, kRefused = 5, kGiveUp = 6 };

std::string WordOf(Kind kind) { return std::string(1, static_cast<char>(kind)); }

std::string Encode(const Newcomer& newcomer) {
  std::string word = WordOf(Kind::kNewcomer);
  ByteWriter writer(&word);
  writer.Fixed(kDoorVersion);
  writer.Fixed(newcomer.wish);
  writer.Sized(newcomer.place);
  return word;
}

std::string Encode(const Welcome& welcome) {
  std::string word = WordOf(Kind::kWelcome);
  ByteWriter writer(&word);
  const CommunicatorOptions& options = welcome.options;
  writer.Fixed(welcome.attempt);
  writer.Fixed(welcome.rank);
  writer.Fixed(welcome.epoch);
  writer.Fixed(static_cast<std::uint8_t>(options.wire));
  writer.Fixed(static_cast<std::uint64_t>(options.pool_bytes));
  for (std::int64_t number : {options.segment_bytes, options.credit_bytes, options.timeout_ms, options.silence_ms}) writer.Fixed(number);
  for (bool flag : {options.checksum_payload, options.measures_links}) writer.Fixed(static_cast<std::uint8_t>(flag));
  writer.Varint(welcome.words.size());
  for (const std::string& place : welcome.words) writer.Sized(place);
  return word;
}

std::optional<Welcome> DecodeWelcome(ByteReader reader) {
  Welcome welcome{.attempt = reader.Fixed<std::uint32_t>()};
  CommunicatorOptions& options = welcome.options;
  welcome.rank = reader.Fixed<std::int32_t>();
  welcome.epoch = reader.Fixed<std::uint32_t>();
  options.wire = Wire{reader.Fixed<std::uint8_t>()};
  options.pool_bytes = reader.Fixed<std::uint64_t>();
  for (std::int64_t* number : {&options.segment_bytes, &options.credit_bytes, &options.timeout_ms, &options.silence_ms})
    *number = reader.Fixed<std::int64_t>();
  for (bool* flag : {&options.checksum_payload, &options.measures_links}) *flag = reader.Fixed<std::uint8_t>() != 0;
  for (std::uint64_t left = reader.Varint(); left > 0 && reader.ok(); --left) welcome.words.emplace_back(reader.Sized());
  welcome.ranks = static_cast<std::int32_t>(welcome.words.size());
  if (!reader.ok() || !reader.empty() || options.wire > Wire::kTcp || welcome.rank < 0 || welcome.rank >= welcome.ranks)
    return std::nullopt;
  return welcome;
}

std::string Refusal(const Status& why) {
  std::string word = WordOf(Kind::kRefused);
  ByteWriter writer(&word);
  Write(why, &writer);
  return word;
}

// Who is told so may have gone already, and then needs it not.
void Say(rpc::Channel* channel, std::string_view word) { (void)channel->Send(rpc::FrameKind::kMessage, word); }

int TimeoutOf(std::int64_t ms_max) {
  return ms_max <= 0 ? -1 : static_cast<int>(std::min<std::int64_t>(ms_max, std::numeric_limits<int>::max()));
}

Status DoorIsGone(const std::string& why) {
  return Status(Code::kUnavailable, "COLL31", "the door is closed", why,
                "take a new ticket: one is good until the communicator that it is for has been formed anew, and knock again");
}

}  // namespace

// ---- tickets ---------------------------------------------------------------------------------------------------------------------------

std::string Encode(const Ticket& ticket) {
  return std::string(kTicketBegin) + std::to_string(kDoorVersion) + "/" + ticket.address + "/" + HexString(ticket.secret);
}

Result<Ticket> DecodeTicket(std::string_view text) {
  const Status none(Code::kInvalid, "COLL30", "\"" + EscapeForLog(text.substr(0, text.find('/')), 64) + "...\" is no ticket",
                    "a ticket is what Invite() returned on a rank of the communicator", "bring it to the newcomer as it is");
  if (!text.starts_with(kTicketBegin)) return none;
  text.remove_prefix(kTicketBegin.size());
  const std::size_t first = text.find('/'), last = text.rfind('/');
  if (first == std::string_view::npos || first == last) return none;
  if (text.substr(0, first) != std::to_string(kDoorVersion))
    return Status(Code::kVersionSkew, "COLL23", "the ticket is of version " + EscapeForLog(text.substr(0, first), 16),
                  "this process is of version " + std::to_string(kDoorVersion), "run one version on all ranks");
  Ticket ticket{.address = std::string(text.substr(first + 1, last - first - 1))};
  if (!ParseHex(text.substr(last + 1), &ticket.secret) || ticket.secret.empty()) return none;
  RETURN_IF_ERROR(rpc::ParseHostPort(ticket.address).status());
  return ticket;
}

// ---- the door --------------------------------------------------------------------------------------------------------------------------

Door::Door(UniqueFd listener, Ticket ticket)
    : listener_(std::move(listener)), secret_(ticket.secret), ticket_(collective::Encode(ticket)) {}

Result<std::unique_ptr<Door>> Door::Open(const std::string& address, std::string secret) {
  ASSIGN_OR_RETURN(MeshListener listener, ListenForMesh("", address, Wire::kTcp));
  rpc::SocketAddress at;
  at.size = sizeof(at.storage);
  if (getsockname(listener.on_tcp.get(), reinterpret_cast<sockaddr*>(&at.storage), &at.size) != 0)
    return Status(Code::kInternal, "COLL31", "getsockname", std::strerror(errno));
  Ticket ticket{.address = rpc::ToString(at.host_port()), .secret = std::move(secret)};
  return std::unique_ptr<Door>(new Door(std::move(listener.on_tcp), std::move(ticket)));
}

void Door::Accept() {
  for (;;) {
    UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd && (errno == EINTR || errno == ECONNABORTED)) continue;
    if (!fd) return;
    (void)setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &kSendBytes, sizeof(kSendBytes));
    if (strangers_.size() == kStrangersMax) strangers_.erase(strangers_.begin());
    strangers_.push_back({.channel = std::make_unique<rpc::Channel>(fd.release()), .says = {}});
  }
}

int Door::Readable(int ms_max, std::vector<bool>* readable) const {
  const std::int64_t end_ms = MonotonicMs() + ms_max;
  for (;;) {
    std::vector<pollfd> polls;
    for (const Guest& stranger : strangers_) polls.push_back({stranger.channel->fd(), POLLIN, 0});
    (void)poll(polls.data(), polls.size(), 0);  // an interrupted one finds none
    readable->clear();
    for (const pollfd& one : polls) readable->push_back(one.revents != 0);
    const auto count = static_cast<int>(std::count(readable->begin(), readable->end(), true));
    if (count == static_cast<int>(polls.size()) || MonotonicMs() >= end_ms) return count;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool Door::IsKnockedAt() {
  Accept();
  std::vector<bool> readable;
  return Readable(0, &readable) > 0 || !guests_.empty();
}

bool Door::Hear(Guest* guest) const {
  rpc::Channel* const channel = guest->channel.get();
  auto frame = channel->Receive(kAnswerMsMax);
  if (!frame.ok()) return false;
  auto hello = rpc::DecodeAuthHello(frame->payload);
  if (frame->kind != rpc::FrameKind::kAuth || !hello.ok()) return false;
  rpc::AuthChallenge challenge{.nonce = rpc::NewNonce(), .proof = {}};
  challenge.proof = rpc::AuthProof(secret_, "server", hello->role, hello->nonce, challenge.nonce);
  if (!channel->Send(rpc::FrameKind::kAuth, rpc::Encode(challenge)).ok()) return false;
  frame = channel->Receive(kAnswerMsMax);
  if (!frame.ok()) return false;
  const std::string expected = rpc::AuthProof(secret_, "client", hello->role, hello->nonce, challenge.nonce);
  if (frame->kind != rpc::FrameKind::kAuth || hello->role != kRole || !rpc::EqualInConstantTime(frame->payload, expected)) {
    (void)channel->Send(rpc::FrameKind::kAuth, "");  // it need not hear it
    return false;
  }
  if (!channel->Send(rpc::FrameKind::kAuthOk, "").ok()) return false;
  frame = channel->Receive(kAnswerMsMax);
  if (!frame.ok()) return false;
  ByteReader reader(frame->payload);
  const auto kind = Kind{reader.Fixed<std::uint8_t>()};
  const auto version = reader.Fixed<std::uint16_t>();
  if (reader.ok() && kind == Kind::kNewcomer && version != kDoorVersion) {
    Say(channel, Refusal(Status(Code::kVersionSkew, "COLL23", "this newcomer is of version " + std::to_string(version),
                                "the ranks are of version " + std::to_string(kDoorVersion) + ", and these do not understand each other",
                                "run one version on all ranks")));
    return false;
  }
  guest->says.wish = reader.Fixed<std::int32_t>();
  guest->says.place = std::string(reader.Sized());
  return kind == Kind::kNewcomer && reader.ok() && reader.empty() && !guest->says.place.empty();
}

void Door::TakeIn() {
  Accept();
  std::vector<bool> readable;
  if (Readable(kHelloMsMax, &readable) == 0) return;
  const std::int64_t end_ms = MonotonicMs() + kTakeInMsMax;
  std::vector<Guest> others;
  for (std::size_t i = 0; i < strangers_.size(); ++i) {
    const bool is_heard = readable[i] && MonotonicMs() < end_ms;
    if (!is_heard)
      others.push_back(std::move(strangers_[i]));
    else if (Hear(&strangers_[i]))
      guests_.push_back(std::move(strangers_[i]));
  }
  strangers_ = std::move(others);
}

std::vector<Newcomer> Door::newcomers() const {
  std::vector<Newcomer> all;
  for (const Guest& guest : guests_) all.push_back(guest.says);
  return all;
}

void Door::Greet(std::size_t newcomer, const Welcome& welcome) { Say(guests_[newcomer].channel.get(), Encode(welcome)); }

void Door::GiveUp(std::size_t newcomer) { Say(guests_[newcomer].channel.get(), WordOf(Kind::kGiveUp)); }

Status Door::Report(std::size_t newcomer, std::uint32_t attempt, std::int64_t deadline_ms) {
  Guest& guest = guests_[newcomer];
  for (;;) {
    auto frame = guest.channel->Receive(static_cast<int>(std::max<std::int64_t>(deadline_ms - MonotonicMs(), 0)));
    ByteReader reader(frame.ok() ? std::string_view(frame->payload) : std::string_view());
    const auto kind = Kind{reader.Fixed<std::uint8_t>()};
    const auto of = reader.Fixed<std::uint32_t>();
    const std::string_view place = reader.Sized();
    const bool has_failed = reader.Fixed<std::uint8_t>() != 0;
    if (!reader.ok() || kind != Kind::kReport || place.empty()) {
      guest.is_over = true;
      return Status(Code::kUnavailable, "COLL31", "a newcomer does not say that it has connected",
                    frame.ok() ? "it says something that nobody understands" : frame.status().why());
    }
    if (of != attempt) continue;  // of one before
    guest.says.place = std::string(place);
    if (!has_failed) return {};
    std::optional<Status> why = ReadStatus(&reader);
    return why.has_value() ? *why : Status(Code::kUnavailable, "COLL31", "a newcomer cannot connect");
  }
}

void Door::Refuse(std::size_t newcomer, const Status& why) {
  Say(guests_[newcomer].channel.get(), Refusal(why));
  guests_[newcomer].is_refused = true;
}

bool Door::HasLostOne() {
  for (Guest& guest : guests_) {
    pollfd one{guest.channel->fd(), POLLRDHUP, 0};
    if (poll(&one, 1, 0) > 0) guest.is_over = true;
  }
  return std::any_of(guests_.begin(), guests_.end(), [](const Guest& guest) { return guest.is_over && !guest.is_refused; });
}

void Door::DropLost() {
  std::erase_if(guests_, [](const Guest& guest) { return !guest.is_in(); });
}

void Door::Go() {
  for (Guest& guest : guests_)
    if (guest.is_in()) Say(guest.channel.get(), WordOf(Kind::kGo));
  guests_.clear();
}

void Door::RefuseAll(const Status& why) {
  for (Guest& guest : guests_)
    if (guest.is_in()) Say(guest.channel.get(), Refusal(why));
  guests_.clear();
}

// ---- while ranks connect ---------------------------------------------------------------------------------------------------------------

Reports::Reports(Door* door, std::vector<std::size_t> newcomers, std::uint32_t attempt, MeshCancel* cancel)
    : door_(door), attempt_(attempt), cancel_(cancel), missing_(std::move(newcomers)), stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (missing_.empty()) return;
  thread_ = std::thread([this] {
    while (!missing_.empty() && Hear(stop_.get(), std::numeric_limits<std::int64_t>::max())) continue;
  });
}

bool Reports::Hear(int other, std::int64_t deadline_ms) {
  std::vector<pollfd> polls;
  for (std::size_t newcomer : missing_) polls.push_back({door_->connection(newcomer), POLLIN | POLLRDHUP, 0});
  polls.push_back({other, POLLIN, 0});
  const std::int64_t left_ms = deadline_ms - MonotonicMs();
  if (left_ms <= 0) return false;
  if (poll(polls.data(), polls.size(), static_cast<int>(std::min<std::int64_t>(left_ms, 1'000))) <= 0) return true;  // looks again
  if (polls.back().revents != 0) return false;
  for (std::size_t i = missing_.size(); i-- > 0;) {
    if (polls[i].revents == 0) continue;
    Take(missing_[i], MonotonicMs() + kAnswerMsMax);
    missing_.erase(missing_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return true;
}

void Reports::Take(std::size_t newcomer, std::int64_t deadline_ms) {
  const Status status = door_->Report(newcomer, attempt_, deadline_ms);
  if (status.ok() || !first_.ok()) return;
  first_ = status;
  cancel_->Set(status);
}

Status Reports::Rest(bool has_given_up, std::int64_t deadline_ms) {
  Stop();
  if (!has_given_up) {
    while (!missing_.empty() && !cancel_->is_set() && Hear(cancel_->fd(), deadline_ms)) continue;
  }
  // They end it at once, or are gone.
  for (std::size_t newcomer : missing_) door_->GiveUp(newcomer);
  const std::int64_t end_ms = MonotonicMs() + kAnswerMsMax;
  for (std::size_t newcomer : std::exchange(missing_, {})) Take(newcomer, end_ms);
  return first_;
}

void Reports::Stop() {
  const std::uint64_t one = 1;
  (void)!write(stop_.get(), &one, sizeof(one));  // only a counter that is full refuses, and that stops it, too
  if (thread_.joinable()) thread_.join();
}

Lookout::Lookout(int connection, MeshCancel* cancel) : stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  thread_ = std::thread([this, connection, cancel] {
    pollfd polls[2] = {{stop_.get(), POLLIN, 0}, {connection, POLLIN | POLLRDHUP, 0}};
    while (poll(polls, 2, -1) < 0) continue;  // EINTR: nothing else can be
    if (polls[0].revents == 0) cancel->Set(DoorIsGone("it is closed, or has something else to say"));
  });
}

Lookout::~Lookout() {
  const std::uint64_t one = 1;
  (void)!write(stop_.get(), &one, sizeof(one));  // a fresh counter is never full
  thread_.join();
}

// ---- the newcomer ----------------------------------------------------------------------------------------------------------------------

Result<std::unique_ptr<Visit>> Visit::Knock(const Ticket& ticket, const Newcomer& newcomer, std::int64_t ms_max) {
  const std::int64_t began_ms = MonotonicMs();
  auto channel = rpc::Channel::Connect(ticket.address, ticket.secret, std::string(kRole), TimeoutOf(ms_max));
  if (!channel.ok()) {
    const Status& why = channel.status();
    if (why.code() == Code::kUnauthenticated)
      return Status(Code::kUnauthenticated, "COLL32", "the door at " + ticket.address + " is not the one of this ticket",
                    "what listens there does not know its secret: it is another job's, or of an earlier forming of the same one",
                    "take a new ticket from a rank of the communicator that is to be joined");
    if (ms_max > 0 && MonotonicMs() - began_ms >= ms_max)
      return Status(Code::kDeadlineExceeded, "COLL28", "nobody has taken this newcomer in within " + std::to_string(ms_max) + " ms",
                    "the ranks at " + ticket.address + " have not formed their communicator anew",
                    "let all of them call Reform(), or wait longer (timeout_ms)");
    return DoorIsGone("at " + ticket.address + ": " + why.what() + (why.why().empty() ? "" : ", " + why.why()));
  }
  if (Status status = (*channel)->Send(rpc::FrameKind::kMessage, Encode(newcomer)); !status.ok()) return DoorIsGone(status.why());
  return std::unique_ptr<Visit>(new Visit(*std::move(channel), TimeoutOf(ms_max)));
}

Result<Visit::Word> Visit::Hear() {
  auto frame = channel_->Receive(timeout_ms_);
  if (!frame.ok()) return DoorIsGone(frame.status().what() + ": " + frame.status().why());
  ByteReader reader(frame->payload);
  const auto kind = Kind{reader.Fixed<std::uint8_t>()};
  if (kind == Kind::kGo && reader.empty()) return Word(Go{});
  if (kind == Kind::kGiveUp && reader.empty()) return Word(GiveUp{});
  if (kind == Kind::kWelcome) {
    if (std::optional<Welcome> welcome = DecodeWelcome(reader)) return Word(*std::move(welcome));
  }
  if (kind == Kind::kRefused) {
    if (std::optional<Status> why = ReadStatus(&reader)) return *why;
  }
  return DoorIsGone("it says something that nobody understands: it runs another version");
}

Status Visit::Report(std::uint32_t attempt, const Status& how, const std::string& place) {
  std::string word = WordOf(Kind::kReport);
  ByteWriter writer(&word);
  writer.Fixed(attempt);
  writer.Sized(place);
  writer.Fixed(static_cast<std::uint8_t>(!how.ok()));
  if (!how.ok()) Write(how, &writer);
  return channel_->Send(rpc::FrameKind::kMessage, word);
}

}  // namespace ropewalk::collective
