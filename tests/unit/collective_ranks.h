// All ranks of a plan as threads of this process, over one of the transports, with data that is drawn from a seed.
//
// Thread rule: one thread calls; it starts and joins the others.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "mlrunner/collective/algorithms.h"
#include "mlrunner/collective/run/instance.h"
#include "mlrunner/collective/run/shared_transport.h"
#include "mlrunner/collective/run/tcp_transport.h"

namespace ropewalk::collective::testing {

enum class Kind { kThreads, kPools, kSockets };

// The endpoints of all ranks.
class Fabric {
 public:
  Fabric(Kind kind, std::int32_t ranks, std::int32_t channels, std::size_t pool_bytes = std::size_t{1} << 22)
      : ranks_(ranks), channels_(channels) {
    if (kind == Kind::kSockets) {
      std::vector<std::vector<int>> sockets(ranks, std::vector<int>(static_cast<std::size_t>(ranks * channels), -1));
      for (std::int32_t a = 0; a < ranks; ++a)
        for (std::int32_t b = a + 1; b < ranks; ++b)
          for (std::int32_t channel = 0; channel < channels; ++channel) {
            int pair[2];
            if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) std::abort();
            sockets[a][b * channels + channel] = pair[0];
            sockets[b][a * channels + channel] = pair[1];
          }
      for (std::int32_t rank = 0; rank < ranks; ++rank)
        endpoints_.push_back(std::make_unique<TcpTransport>(rank, ranks, channels, sockets[rank],
                                                            TcpOptions{.checksum_payload = true, .ranks_on_machine = ranks}));
      return;
    }
    auto memory = SharedMemory::Create(Board::BytesFor(ranks, channels));
    if (!memory.ok()) std::abort();
    board_ = *std::move(memory);
    std::vector<char*> pools(ranks, nullptr);
    if (kind == Kind::kPools)
      for (auto& pool : pools) {
        auto made = SharedMemory::Create(pool_bytes);
        if (!made.ok()) std::abort();
        pool = made->data();
        pools_.push_back(*std::move(made));
      }
    for (std::int32_t rank = 0; rank < ranks; ++rank)
      endpoints_.push_back(std::make_unique<SharedTransport>(rank, board(), pools, kind == Kind::kPools ? pool_bytes : 0));
  }
  Board board() const { return Board(board_.data(), ranks_, channels_); }
  Transport& endpoint(std::int32_t rank) { return *endpoints_[rank]; }

 private:
  std::int32_t ranks_, channels_;
  SharedMemory board_;
  std::vector<SharedMemory> pools_;
  std::vector<std::unique_ptr<Transport>> endpoints_;
};

inline void OnAllRanks(std::int32_t ranks, const std::function<void(std::int32_t)>& body) {
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < ranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace ropewalk::collective::testing
