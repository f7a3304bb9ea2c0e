// The transport over stream sockets: one connected, non-blocking socket for each peer and channel (so that no channel waits behind
// another's bytes). Messages go out from where they lie, as the socket takes them, and come in where they are wanted.
//
// Who connects the sockets is not its business (mesh.h does).
//
// Wire: a header of 128 bytes, host byte order (little-endian machines only), then the payload.
//    0 magic u32         4 version u16       6 channel u16         8 job epoch u64        16 unused u32           20 from u32
//   24 sequence u64 (within the channel)    32 bytes u64          40 payload checksum u64 (0: none)
//   48 header checksum u64                  56 communicator u64   64 the sender's CallLabel
//
// Owner: a rank. Thread rule: as transport.h says.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/run/pool.h"
#include "mlrunner/collective/run/sleeper.h"
#include "mlrunner/collective/run/transport.h"

namespace ropewalk::collective {

struct TcpOptions {
  std::uint64_t job_epoch = 0;
  std::uint64_t communicator = 0;  // its name: another one for each group and each forming
  bool checksum_payload = false;
  std::int32_t ranks_on_machine = 1;  // for the time to spin
  // Somebody watches the peers and tells why one is lost (Interrupt, SetLeft): a closed connection alone is no verdict for a while.
  bool is_told = false;
};

class TcpTransport : public Transport {
 public:
  // sockets[peer · channels + channel]; -1 for the rank itself. They become this object's and are closed by it.
  TcpTransport(std::int32_t rank, std::int32_t ranks, std::int32_t channels, std::vector<int> sockets, TcpOptions options);
  ~TcpTransport() override;
  TcpTransport(const TcpTransport&) = delete;
  TcpTransport& operator=(const TcpTransport&) = delete;

  void SetLabel(std::int32_t first_channel, std::int32_t channels, const CallLabel& label) override;
  bool HasSlot(std::int32_t peer, std::int32_t channel, std::int32_t slots) override;
  void Post(std::int32_t peer, std::int32_t channel, const void* data, std::size_t bytes) override;
  const void* Peek(std::int32_t peer, std::int32_t channel, std::size_t index, void* landing, std::size_t bytes) override;
  void Consume(std::int32_t peer, std::int32_t channel) override;
  // What was written is the kernel's, and the rest of a message is never written: nobody reads this rank's memory.
  void Revoke() override {}
  bool IsSound(std::int32_t /*peer*/) override { return true; }
  std::uint64_t Posted(std::int32_t peer, std::int32_t channel) const override { return lines_[peer * channels_ + channel].posted; }
  bool IsFlushed(std::int32_t peer, std::int32_t channel, std::uint64_t messages) override;
  Moved MovedBytes(std::int32_t peer, std::int32_t channel) const override;
  std::uint64_t UnsentBytes(std::int32_t peer, std::int32_t channel) override;
  char* Allocate(std::size_t bytes) override { return pool_.Allocate(bytes); }
  void Free(char* memory) override { pool_.Free(memory); }
  bool LandsMessages() const override { return true; }
  bool CanPost(const void* /*data*/, std::size_t /*bytes*/) const override { return true; }
  void SetListening(std::int32_t channel) override { listening_ = channel; }
  bool HasLeft(std::int32_t peer, std::int32_t channel) const override;
  std::uint64_t PlaceOf(const char* /*memory*/) const override { return 0; }
  char* MappedAt(std::int32_t /*peer*/, std::uint64_t /*place*/, std::size_t /*bytes*/) const override { return nullptr; }
  void RingPeers() override {}
  void Wait(bool spin) override;
  void Ring() override;
  void SetLeft(std::int32_t peer) override;
  void Interrupt(const Status& why) override;
  void Abort() override;
  const Status& status() const override { return status_; }

 private:
  static constexpr std::size_t kHeaderBytes = 128, kTurnsMax = 4;
  struct Out {
    unsigned char header[kHeaderBytes];
    const char* data = nullptr;
    std::size_t bytes = 0;
  };
  struct In {  // a message that comes in, or is there
    unsigned char header[kHeaderBytes];
    std::size_t got = 0;  // bytes, header included
    bool known = false;   // the header was looked at, and is good
    char* landing = nullptr;
  };
  struct Line {
    int socket = -1;
    Out out[kSlotsMax];
    std::uint64_t posted = 0, written = 0;  // messages
    std::size_t out_done = 0;               // bytes of the first, header included
    In in[kTurnsMax];
    std::uint64_t taken = 0;                               // messages consumed
    std::atomic<std::uint64_t> bytes_in{0}, bytes_out{0};  // one writes: the driver
    bool wants_in = false;                                 // a step waits for it
    bool may_be_unsent = false;
    bool closed = false;
  };
  Line& LineOf(std::int32_t peer, std::int32_t channel) { return lines_[peer * channels_ + channel]; }
  void WriteOut(std::int32_t peer, std::int32_t channel);
  bool IsHeaderGood(std::int32_t peer, std::int32_t channel, const In& in, std::uint64_t sequence, std::size_t bytes);
  void Closed(std::int32_t peer, std::int32_t channel, const char* why);
  void Lost(std::int32_t peer, const char* why);

  std::int32_t rank_, channels_;
  TcpOptions options_;
  std::vector<Line> lines_;
  Pool pool_;
  std::vector<CallLabel> labels_;        // by channel
  std::vector<std::atomic<bool>> left_;  // by rank
  std::vector<struct pollfd> polls_;
  int bell_;  // an eventfd
  const Patience patience_;
  std::int32_t listening_ = -1;
  bool has_moved_ = false;  // since the last Wait()
  std::uint32_t looks_ = 0;
  std::int32_t closed_peer_ = -1;  // the first whose connection broke; why is not known yet
  std::int64_t closed_at_ms_ = 0;
  Interruption interruption_;
  Status status_;
};

}  // namespace ropewalk::collective
