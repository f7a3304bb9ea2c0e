// The transport over stream sockets: one connected, non-blocking socket for each peer and channel (so that no channel waits behind
// another's bytes). Messages go out from where they lie, as the socket takes them, and come in where they are wanted.
//
// Who connects the sockets is not its business (rpc/ does, with Asio); it is not on the way of the bytes.
//
// Wire: a header of 64 bytes, host byte order (little-endian machines only), then the payload.
//    0 magic u32         4 version u16       6 channel u16         8 job epoch u64        16 communicator u32     20 from u32
//   24 sequence u64 (within the channel)    32 bytes u64          40 fingerprint u64 (of the instance: operation, types, count)
//   48 payload checksum u64 (0: none)       56 header checksum u64
//
// Owner: a rank. Thread rule: one thread.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/huge_pages.h"
#include "base/status.h"
#include "mlrunner/collective/run/transport.h"

namespace ropewalk::collective {

struct TcpOptions {
  std::uint64_t job_epoch = 0;
  std::uint32_t communicator = 0;
  bool checksum_payload = false;
  std::int32_t ranks_on_machine = 1;  // for the time to spin
};

class TcpTransport : public Transport {
 public:
  // sockets[peer · channels + channel]; -1 for the rank itself. They become this object's and are closed by it.
  TcpTransport(std::int32_t rank, std::int32_t ranks, std::int32_t channels, std::vector<int> sockets, TcpOptions options);
  ~TcpTransport() override;
  TcpTransport(const TcpTransport&) = delete;
  TcpTransport& operator=(const TcpTransport&) = delete;

  // Sent with each message and compared with the peer's, so that ranks which call different collectives find out on the first message.
  void SetFingerprint(std::uint64_t fingerprint) { fingerprint_ = fingerprint; }

  bool HasSlot(std::int32_t peer, std::int32_t channel, std::int32_t slots) override;
  void Post(std::int32_t peer, std::int32_t channel, const void* data, std::size_t bytes) override;
  const void* Peek(std::int32_t peer, std::int32_t channel, std::size_t index, void* landing, std::size_t bytes) override;
  void Consume(std::int32_t peer, std::int32_t channel) override;
  bool IsFlushed(std::int32_t peer, std::int32_t channel) override;
  char* Allocate(std::size_t bytes) override;
  void Wait() override;
  void Abort() override;
  const Status& status() const override { return status_; }

 private:
  static constexpr std::size_t kHeaderBytes = 64, kSlotsMax = 8, kTurnsMax = 4;
  struct Out {
    unsigned char header[kHeaderBytes];
    const char* data = nullptr;
    std::size_t bytes = 0;
  };
  struct In {  // a message that comes in, or is there
    unsigned char header[kHeaderBytes];
    std::size_t header_got = 0, bytes = 0, got = 0;
    char* landing = nullptr;
  };
  struct Line {
    int socket = -1;
    Out out[kSlotsMax];
    std::uint64_t posted = 0, written = 0;  // messages
    std::size_t out_done = 0;               // bytes of the first, header included
    In in[kTurnsMax];
    std::uint64_t taken = 0;  // messages consumed
    bool wants_in = false;    // a step waits for it
  };
  Line& LineOf(std::int32_t peer, std::int32_t channel) { return lines_[peer * channels_ + channel]; }
  void WriteOut(std::int32_t peer, std::int32_t channel);
  bool ReadHeader(std::int32_t peer, std::int32_t channel, In* in, std::size_t bytes);
  std::ptrdiff_t Receive(std::int32_t peer, const Line& line, void* into, std::size_t bytes);
  void Lost(std::int32_t peer, const char* why);

  std::int32_t rank_, channels_;
  TcpOptions options_;
  std::vector<Line> lines_;
  std::vector<HugeBuffer> owned_;
  std::vector<struct pollfd> polls_;
  std::uint64_t fingerprint_ = 0;
  std::uint32_t spins_, spun_ = 0;
  Status status_;
};

}  // namespace ropewalk::collective
