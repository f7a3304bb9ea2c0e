// Ranks that are processes of their own (this binary again, as `rank ...`) and one of them that is killed at a random moment: while they
// connect, or while they call, submit and mix through windows, or while it computes and the others wait for its window. Or it is stopped,
// and they wait for it no longer than they were told to. Nobody calls Abort(); after the ranks have met, nobody tells them either.
//
// Thread rule: one thread calls; it starts and ends what it needs.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"
#include "mlrunner/collective/communicator.h"

namespace ropewalk::collective::testing {

// ---- words between the test and its ranks: u32 length, bytes ---------------------------------------------------------------------------

inline bool SendWord(int fd, std::string_view word) {
  std::string bytes;
  ByteWriter writer(&bytes);
  writer.Fixed(static_cast<std::uint32_t>(word.size()));
  writer.Raw(word);
  return send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

inline bool ReceiveWord(int fd, std::string* word) {
  std::uint32_t length = 0;
  if (recv(fd, &length, sizeof(length), MSG_WAITALL) != static_cast<ssize_t>(sizeof(length)) || length > 1 << 16) return false;
  word->resize(length);
  return length == 0 || recv(fd, word->data(), length, MSG_WAITALL) == static_cast<ssize_t>(length);
}

// ---- a rank ----------------------------------------------------------------------------------------------------------------------------

enum Exit : int { kNamedTheDead = 42, kNamedAnother = 43, kWrongSum = 44, kNeverMet = 45, kNamedTheStopped = 46 };

// argv: "rank", its number, ranks, wire, the socket to the test, seed, who will be killed, what it does until then, and the longest wait.
inline int RankMain(char** argv) {
  const std::int32_t rank = std::atoi(argv[2]), ranks = std::atoi(argv[3]);
  const auto wire = static_cast<Wire>(std::atoi(argv[4]));
  const int test = std::atoi(argv[5]);
  Random shared(std::strtoull(argv[6], nullptr, 10));
  const std::string dead = "rank " + std::string(argv[7]) + " is lost";
  std::thread teller;
  std::array<int, 2> met{-1, -1};
  if (pipe2(met.data(), O_CLOEXEC) != 0) return kNeverMet;
  Rendezvous rendezvous{.rank = rank, .ranks = ranks, .machine = "here"};
  rendezvous.exchange = [&](const std::string& mine) -> Result<std::vector<std::string>> {
    std::vector<std::string> all(ranks);
    bool is_well = SendWord(test, mine);
    for (std::string& one : all) is_well = is_well && ReceiveWord(test, &one);
    if (!is_well) return Status(Code::kUnavailable, "GANG01", dead);
    return all;
  };
  // The gang tells of a loss until the ranks have met; from then on they have to notice it.
  rendezvous.on_lost = [&](std::function<void(const Status&)> lost) {
    if (teller.joinable()) {
      (void)!write(met[1], "x", 1);
      teller.join();
    }
    if (!lost) return;
    teller = std::thread([&, lost] {
      std::array<pollfd, 2> polls{{{test, POLLRDHUP, 0}, {met[0], POLLIN, 0}}};
      while (poll(polls.data(), 2, -1) < 0) {
      }
      if (polls[0].revents != 0) lost(Status(Code::kUnavailable, "GANG01", dead));
    });
  };
  auto connected = Communicator::Connect(
      rendezvous, {.wire = wire, .pool_bytes = std::size_t{16} << 20, .segment_bytes = 8 << 10, .timeout_ms = std::atoi(argv[9])});
  if (!connected.ok()) return kNeverMet;
  Communicator& all = **connected;
  constexpr std::int64_t kCount = 30'000, kMixed = 5'000;
  auto ordered = all.MakeWindow(kMixed * sizeof(float) * ranks), relaxed = all.MakeWindow(kMixed * sizeof(float) * ranks);
  if (!ordered.ok() || !relaxed.ok() || !all.Barrier().ok()) return kNeverMet;
  rendezvous.on_lost({});
  if (!SendWord(test, "met")) return kNeverMet;

  const std::vector<std::vector<double>> weights(ranks, std::vector<double>(ranks, 1));
  std::vector<float> mine(kMixed, static_cast<float>(rank)), mixed(kMixed);
  CollectiveCall mixing{.in = mine.data(), .out = mixed.data(), .count = kMixed, .name = "mix", .mixing = &weights, .window = &*ordered};
  CollectiveCall mixing_relaxed = mixing;
  mixing_relaxed.algorithm = "window_relaxed";
  mixing_relaxed.window = &*relaxed;
  const bool stands_still = std::string_view(argv[8]) == "stands";
  while (stands_still && std::to_string(rank) == argv[7]) pause();

  std::vector<float> now(kCount), later(kCount);
  for (;;) {
    if (stands_still) {
      Status status = all.Mix(shared.OneIn(2) ? mixing_relaxed : mixing);
      if (status.ok()) continue;  // relaxed calls wait for nobody
      std::fprintf(stderr, "%s", status.what() == dead ? "" : (status.ToString() + "\n").c_str());
      return status.what() == dead ? kNamedTheDead : kNamedAnother;
    }
    std::fill(later.begin(), later.end(), static_cast<float>(rank));
    std::fill(now.begin(), now.end(), static_cast<float>(rank + 1));
    const auto lengths =
        std::array<std::int64_t, 2>{static_cast<std::int64_t>(1 + shared.Below(kCount)), 1 + static_cast<std::int64_t>(shared.Below(100))};
    auto handle = all.Submit({.in = later.data(), .out = later.data(), .count = lengths[0], .name = "later"}, {});
    Status status = handle.ok() ? Status() : handle.status();
    if (status.ok()) status = all.AllReduce({.in = now.data(), .out = now.data(), .count = lengths[1], .name = "now"});
    if (status.ok() && shared.OneIn(3)) status = all.Barrier();
    const bool mixes = shared.OneIn(2), mixes_relaxed = shared.OneIn(3);
    if (status.ok() && mixes_relaxed) status = all.Mix(mixing_relaxed);
    if (status.ok() && mixes) status = all.Mix(mixing);
    if (handle.ok()) {
      // Also when the blocking call failed: a wait must end then, too.
      Status waited = all.Wait(*handle);
      if (status.ok()) status = waited;
    }
    if (!status.ok() && status.what() == dead) return kNamedTheDead;
    if (status.tag() == "COLL28" && status.what().starts_with("rank " + std::string(argv[7]) + " is waited for: ") &&
        status.why().starts_with("its process does not answer"))
      return kNamedTheStopped;
    if (!status.ok()) {
      std::fprintf(stderr, "rank %d: %s\n", rank, status.ToString().c_str());
      return kNamedAnother;
    }
    const auto sum = static_cast<float>(ranks * (ranks - 1) / 2);
    if (mixes && (mixed[0] != sum || mixed[kMixed - 1] != sum)) return kWrongSum;
    if (later[0] != sum || later[lengths[0] - 1] != sum || now[0] != sum + static_cast<float>(ranks)) return kWrongSum;
  }
}

// ---- the test --------------------------------------------------------------------------------------------------------------------------

// Segments of shared memory that have a name, of either kind; what is a folder there is another test's.
inline std::set<std::string> NamedSegments() {
  std::set<std::string> names;
  if (DIR* folder = opendir("/dev/shm")) {
    while (dirent* entry = readdir(folder))
      if (entry->d_type != DT_DIR && std::string(entry->d_name).find("ropewalk") != std::string::npos) names.insert(entry->d_name);
    closedir(folder);
  }
  return names;
}

struct Kill {
  std::uint64_t seed = 0;
  std::int32_t ranks = 2, victim = 0;
  Wire wire = Wire::kShared;
  bool after_they_met = true, stands_still = false, is_stopped = false;
  std::int64_t delay_us = 0;
};

// The same seed gives the same kill.
inline Kill DrawKill(std::uint64_t seed) {
  Random random(seed);
  Kill kill{.seed = seed};
  kill.ranks = static_cast<std::int32_t>(2 + random.Below(3));
  kill.victim = static_cast<std::int32_t>(random.Below(static_cast<std::uint64_t>(kill.ranks)));
  kill.wire = random.OneIn(2) ? Wire::kShared : Wire::kTcp;
  kill.after_they_met = !random.OneIn(4);
  kill.delay_us = static_cast<std::int64_t>(random.Below(20'000));
  kill.stands_still = random.OneIn(3);
  return kill;
}

inline void RunKill(const Kill& kill_of) {
  SCOPED_TRACE("seed " + std::to_string(kill_of.seed) + ": " + std::to_string(kill_of.ranks) + " ranks, " +
               (kill_of.wire == Wire::kShared ? "shared memory" : "TCP") + ", rank " + std::to_string(kill_of.victim) +
               (!kill_of.after_they_met ? " while they connect"
                : kill_of.stands_still  ? " that stands still"
                                        : " after they met"));
  std::vector<int> sockets(kill_of.ranks);
  std::vector<pid_t> pids(kill_of.ranks);
  for (std::int32_t rank = 0; rank < kill_of.ranks; ++rank) {
    std::array<int, 2> pair{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
    sockets[rank] = pair[0];
    std::vector<std::string> words = {"rank",
                                      "rank",
                                      std::to_string(rank),
                                      std::to_string(kill_of.ranks),
                                      std::to_string(static_cast<int>(kill_of.wire)),
                                      std::to_string(pair[1]),
                                      std::to_string(kill_of.seed),
                                      std::to_string(kill_of.victim),
                                      kill_of.stands_still ? "stands" : "calls",
                                      kill_of.is_stopped ? "400" : "0"};
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const pid_t parent = getpid();
    pids[rank] = fork();
    ASSERT_GE(pids[rank], 0);
    if (pids[rank] == 0) {
      (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent || fcntl(pair[1], F_SETFD, 0) != 0) _exit(1);
      execv("/proc/self/exe", argv.data());
      _exit(1);
    }
    close(pair[1]);
  }

  // The rendezvous, for as long as all are there.
  std::vector<std::string> words(kill_of.ranks);
  auto strike = [&] {
    std::this_thread::sleep_for(std::chrono::microseconds(kill_of.delay_us));
    kill(pids[kill_of.victim], kill_of.is_stopped ? SIGSTOP : SIGKILL);
  };
  std::thread early;
  if (!kill_of.after_they_met) early = std::thread(strike);
  bool is_well = true;
  for (std::int32_t rank = 0; rank < kill_of.ranks && is_well; ++rank) is_well = ReceiveWord(sockets[rank], &words[rank]);
  for (std::int32_t rank = 0; rank < kill_of.ranks && is_well; ++rank)
    for (const std::string& word : words) is_well = is_well && SendWord(sockets[rank], word);
  if (kill_of.after_they_met) {
    std::string word;
    for (int socket : sockets) EXPECT_TRUE(is_well && ReceiveWord(socket, &word) && word == "met");
    strike();
  } else {
    early.join();
  }
  // What a master does that saw the death.
  if (!kill_of.is_stopped)
    for (int socket : sockets) shutdown(socket, SHUT_WR);

  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (std::int32_t i = 1; i <= kill_of.ranks; ++i) {
    const std::int32_t rank = (kill_of.victim + i) % kill_of.ranks;  // the victim comes last
    if (rank == kill_of.victim && kill_of.is_stopped) kill(pids[rank], SIGKILL);
    int status = 0;
    pid_t ended = 0;
    while ((ended = waitpid(pids[rank], &status, WNOHANG)) == 0 && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (ended == 0) {
      ADD_FAILURE() << "rank " << rank << " hangs";
      kill(pids[rank], SIGKILL);
      waitpid(pids[rank], &status, 0);
    } else if (rank == kill_of.victim) {
      EXPECT_TRUE(WIFSIGNALED(status));
    } else if (kill_of.after_they_met) {
      EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), kill_of.is_stopped ? kNamedTheStopped : kNamedTheDead)
          << "rank " << rank;
    } else {
      // The kill may have come later than they met.
      const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
      EXPECT_TRUE(code == kNeverMet || code == kNamedTheDead) << "rank " << rank << " ended with " << code;
    }
    close(sockets[rank]);
  }
}

inline void RunKills(std::uint64_t first_seed, int kills) {
  const std::set<std::string> before = NamedSegments();
  for (int i = 0; i < kills && !::testing::Test::HasFailure(); ++i) RunKill(DrawKill(first_seed + static_cast<std::uint64_t>(i)));
  EXPECT_EQ(NamedSegments(), before);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
}

}  // namespace ropewalk::collective::testing
