// Where newcomers ask to become ranks of a communicator that is there, and the newcomer's side of it.
//
//   rank with the door    ticket: where it listens, and a secret ─▶ (the program brings it to the newcomer)
//   newcomer              connects; both prove that they know the secret (rpc/frame.h); says where it listens itself; waits
//   all ranks             form the communicator anew: then only the door is looked at
//   rank with the door    ─▶ welcome: its number, the options, where all listen; the newcomer connects with them ─▶ report
//   all ranks             agree on whether all are connected
//   rank with the door    ─▶ go; or welcome again, without one that is gone; or refused, with the reason
//
// So who is not part of the agreement has no go, and does not know what the ranks of the new communicator know of each other.
//
// Owner: the communicator, and the newcomer's call. Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "mlrunner/collective/communicator.h"
#include "mlrunner/collective/run/forming.h"
#include "mlrunner/collective/run/mesh.h"
#include "rpc/channel.h"

namespace ropewalk::collective {

// What a newcomer needs to find the door, as text: "ropewalk-1/ADDRESS:PORT/SECRET". Who has it may join.
struct Ticket {
  std::string address;  // "host:port"
  std::string secret;
};
std::string Encode(const Ticket& ticket);
Result<Ticket> DecodeTicket(std::string_view text);  // kInvalid COLL30, kVersionSkew COLL23

// What a newcomer needs to connect with all.
struct Welcome {
  std::uint32_t attempt = 0;
  std::int32_t rank = 0, ranks = 1;
  std::uint32_t epoch = 0;
  CommunicatorOptions options;  // those that are not a process's own
  std::vector<std::string> words;
};

class Door {
 public:
  static Result<std::unique_ptr<Door>> Open(const std::string& address, std::string secret);
  const std::string& ticket() const { return ticket_; }

  // Whether anybody is there who says something; it may be somebody who cannot prove anything. Waits for nothing.
  bool IsKnockedAt();
  // Lets in all who are there and prove that they know the secret; those who say nothing hold it up for a moment. A few seconds at most.
  void TakeIn();
  // Those who are in, in the order of their coming; their places in it hold until somebody is taken in or dropped.
  std::vector<Newcomer> newcomers() const;
  int connection(std::size_t newcomer) const { return guests_[newcomer].channel->fd(); }

  void Greet(std::size_t newcomer, const Welcome& welcome);
  // Somebody else cannot: it is to end that, and to say so.
  void GiveUp(std::size_t newcomer);
  // How it got on with that; it is waited for until then.
  Status Report(std::size_t newcomer, std::uint32_t attempt, std::int64_t deadline_ms);
  void Refuse(std::size_t newcomer, const Status& why);
  // Whether any has gone that was not refused; forgetting both.
  bool HasLostOne();
  void DropLost();
  // To all who are in; then nobody is.
  void Go();
  void RefuseAll(const Status& why);

 private:
  struct Guest {
    std::unique_ptr<rpc::Channel> channel;
    Newcomer says;
    bool is_over = false, is_refused = false;
    bool is_in() const { return !is_over && !is_refused; }
  };
  Door(UniqueFd listener, Ticket ticket);
  void Accept();
  // By stranger, whether it has said something, or is gone; waits so long until all have. How many have.
  int Readable(int ms_max, std::vector<bool>* readable) const;
  // False: it is none of ours.
  bool Hear(Guest* guest) const;

  const UniqueFd listener_;
  const std::string secret_, ticket_;
  std::vector<Guest> strangers_, guests_;
};

// Hears what newcomers report while this rank is connecting itself, and ends that by the first that has failed or is gone. The door is left
// alone meanwhile.
class Reports {
 public:
  Reports(Door* door, std::vector<std::size_t> newcomers, std::uint32_t attempt, MeshCancel* cancel);
  ~Reports() { Stop(); }
  Reports(const Reports&) = delete;
  Reports& operator=(const Reports&) = delete;
  // The rest of them are waited for: until then or, when this rank has given up or is told that another one has, until they have ended it,
  // too. The first failure.
  Status Rest(bool has_given_up, std::int64_t deadline_ms);

 private:
  // Waits on those that are missing and on `other`, and takes what they say; false: `other` is readable, or the time is over.
  bool Hear(int other, std::int64_t deadline_ms);
  void Take(std::size_t newcomer, std::int64_t deadline_ms);
  void Stop();
  Door* const door_;
  const std::uint32_t attempt_;
  MeshCancel* const cancel_;
  std::vector<std::size_t> missing_;
  Status first_;
  UniqueFd stop_;
  std::thread thread_;
};

// Ends a newcomer's connecting when the door says anything, or is gone. Until this is destroyed.
class Lookout {
 public:
  Lookout(int connection, MeshCancel* cancel);
  ~Lookout();
  Lookout(const Lookout&) = delete;
  Lookout& operator=(const Lookout&) = delete;

 private:
  UniqueFd stop_;
  std::thread thread_;
};

// The newcomer's side.
class Visit {
 public:
  // Waits until it is let in. kInvalid COLL30, kUnauthenticated COLL32, kUnavailable COLL31, kDeadlineExceeded COLL28.
  static Result<std::unique_ptr<Visit>> Knock(const Ticket& ticket, const Newcomer& newcomer, std::int64_t ms_max);

  struct Go {};      // it is a rank now
  struct GiveUp {};  // what the last welcome was for is not
  using Word = std::variant<Welcome, Go, GiveUp>;
  // What the rank with the door says next; not OK: it is refused, or the door is gone.
  Result<Word> Hear();
  // `place`: where it listens from now on.
  Status Report(std::uint32_t attempt, const Status& how, const std::string& place);
  int connection() const { return channel_->fd(); }

 private:
  Visit(std::unique_ptr<rpc::Channel> channel, int timeout_ms) : channel_(std::move(channel)), timeout_ms_(timeout_ms) {}
  const std::unique_ptr<rpc::Channel> channel_;
  const int timeout_ms_;
};

}  // namespace ropewalk::collective
