// The floor: the bare exchange, by hand. Two rounds without a library: each rank sums its part of all vectors, then takes the others'
// parts. Over shared memory all vectors lie in one mapping and flags are spun upon (yielding when ranks outnumber cores); over TCP
// the parts go through non-blocking sockets.
//
// usage: floor_allreduce RANKS shared|tcp SECONDS_OF_SIZE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "bench/collectives/sweep.h"

namespace {

struct alignas(64) Flag {
  std::atomic<unsigned> value{0};
};

struct Mesh {
  int rank, ranks;
  bool yields;
  Flag* flags;
  float* vectors[16][2];  // in, out of each rank
  int sockets[16];
  std::vector<float> landing;
};

void Meet(Mesh* mesh) {
  const unsigned now = mesh->flags[mesh->rank].value.load(std::memory_order_relaxed) + 1;
  mesh->flags[mesh->rank].value.store(now, std::memory_order_release);
  for (int r = 0; r < mesh->ranks; ++r)
    while (static_cast<int>(mesh->flags[r].value.load(std::memory_order_acquire) - now) < 0)
      if (mesh->yields) sched_yield();
}

void Sum(float* out, const float* const* in, int ranks, std::size_t begin, std::size_t end) {
  if (ranks == 2)
    for (std::size_t i = begin; i < end; ++i) out[i] = in[0][i] + in[1][i];
  else
    for (std::size_t i = begin; i < end; ++i) {
      float sum = in[0][i];
      for (int r = 1; r < ranks; ++r) sum += in[r][i];
      out[i] = sum;
    }
}

void ReduceShared(Mesh* mesh, std::size_t count) {
  const std::size_t begin = count * mesh->rank / mesh->ranks, end = count * (mesh->rank + 1) / mesh->ranks;
  const float* in[16];
  for (int r = 0; r < mesh->ranks; ++r) in[r] = mesh->vectors[r][0];
  Meet(mesh);
  Sum(mesh->vectors[mesh->rank][1], in, mesh->ranks, begin, end);
  Meet(mesh);
  for (int r = 0; r < mesh->ranks; ++r) {
    if (r == mesh->rank) continue;
    const std::size_t from = count * r / mesh->ranks, to = count * (r + 1) / mesh->ranks;
    std::memcpy(mesh->vectors[mesh->rank][1] + from, mesh->vectors[r][1] + from, (to - from) * sizeof(float));
  }
  Meet(mesh);
}

struct Way {
  char* at;
  std::size_t left;
};

// All that is to be sent and received, to and from all, as sockets take and give it.
void Move(Mesh* mesh, Way* out, Way* in) {
  for (bool is_over = false; !is_over;) {
    is_over = true;
    bool moved = false;
    for (int r = 0; r < mesh->ranks; ++r) {
      if (r == mesh->rank) continue;
      if (out[r].left > 0) {
        const ssize_t n = send(mesh->sockets[r], out[r].at, out[r].left, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) out[r].at += n, out[r].left -= static_cast<std::size_t>(n), moved = true;
        if (n < 0 && errno != EAGAIN) std::_Exit(1);
      }
      if (in[r].left > 0) {
        const ssize_t n = recv(mesh->sockets[r], in[r].at, in[r].left, MSG_DONTWAIT);
        if (n > 0) in[r].at += n, in[r].left -= static_cast<std::size_t>(n), moved = true;
        if (n == 0 || (n < 0 && errno != EAGAIN)) std::_Exit(1);
      }
      is_over = is_over && out[r].left == 0 && in[r].left == 0;
    }
    if (!moved && mesh->yields) sched_yield();
  }
}

void ReduceTcp(Mesh* mesh, std::size_t count) {
  const int rank = mesh->rank, ranks = mesh->ranks;
  auto begin = [&](int r) { return count * static_cast<std::size_t>(r) / static_cast<std::size_t>(ranks); };
  float *in = mesh->vectors[rank][0], *out = mesh->vectors[rank][1];
  const std::size_t mine = begin(rank + 1) - begin(rank);
  Way send_to[16] = {}, take[16] = {};
  const float* rows[16];
  for (int r = 0; r < ranks; ++r) {
    rows[r] = r == rank ? in : mesh->landing.data() + mine * static_cast<std::size_t>(r) - begin(rank);
    if (r == rank) continue;
    send_to[r] = {reinterpret_cast<char*>(in + begin(r)), (begin(r + 1) - begin(r)) * 4};
    take[r] = {reinterpret_cast<char*>(mesh->landing.data() + mine * static_cast<std::size_t>(r)), mine * 4};
  }
  Move(mesh, send_to, take);
  Sum(out, rows, ranks, begin(rank), begin(rank + 1));
  for (int r = 0; r < ranks; ++r) {
    if (r == rank) continue;
    send_to[r] = {reinterpret_cast<char*>(out + begin(rank)), mine * 4};
    take[r] = {reinterpret_cast<char*>(out + begin(r)), (begin(r + 1) - begin(r)) * 4};
  }
  Move(mesh, send_to, take);
}

void Connect(int ranks, std::vector<std::vector<int>>* sockets) {
  sockets->assign(ranks, std::vector<int>(ranks, -1));
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(listener, 16) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    std::abort();
  for (int a = 0; a < ranks; ++a)
    for (int b = a + 1; b < ranks; ++b) {
      (*sockets)[a][b] = socket(AF_INET, SOCK_STREAM, 0);
      if (connect((*sockets)[a][b], reinterpret_cast<sockaddr*>(&address), length) != 0) std::abort();
      (*sockets)[b][a] = accept(listener, nullptr, nullptr);
      const int on = 1;
      for (int fd : {(*sockets)[a][b], (*sockets)[b][a]}) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    }
}

char* Map(std::size_t bytes, int kind) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  madvise(memory, bytes, MADV_HUGEPAGE);
  return static_cast<char*>(memory);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: floor_allreduce RANKS shared|tcp SECONDS_OF_SIZE\n");
    return 2;
  }
  const int ranks = std::atoi(argv[1]);
  const bool is_tcp = std::strcmp(argv[2], "tcp") == 0;
  sweep::Shared* shared = sweep::MakeShared();
  Mesh mesh{};
  mesh.ranks = ranks;
  mesh.yields = ranks > sysconf(_SC_NPROCESSORS_ONLN);
  mesh.flags = reinterpret_cast<Flag*>(Map(sizeof(Flag) * 16, MAP_SHARED));
  for (int r = 0; r < ranks; ++r)
    for (float*& vector : mesh.vectors[r]) vector = reinterpret_cast<float*>(Map(sweep::kBytesMax, is_tcp ? MAP_PRIVATE : MAP_SHARED));
  std::vector<std::vector<int>> sockets;
  if (is_tcp) Connect(ranks, &sockets);
  for (int rank = 0; rank < ranks; ++rank) {
    if (fork() != 0) continue;
    mesh.rank = rank;
    if (is_tcp) {
      std::copy(sockets[rank].begin(), sockets[rank].end(), mesh.sockets);
      mesh.landing.resize(sweep::kBytesMax / 4 + 16);
    }
    sweep::Contestant contestant{.rank = rank, .ranks = ranks, .in = mesh.vectors[rank][0], .out = mesh.vectors[rank][1]};
    contestant.meet = [&] { Meet(&mesh); };
    contestant.reduce = [&](std::size_t count) { is_tcp ? ReduceTcp(&mesh, count) : ReduceShared(&mesh, count); };
    sweep::Run(contestant, shared, std::atof(argv[3]));
    _exit(0);
  }
  int worst = 0;
  for (int rank = 0, status = 0; rank < ranks && wait(&status) > 0; ++rank) worst |= status;
  return worst == 0 ? 0 : 1;
}
