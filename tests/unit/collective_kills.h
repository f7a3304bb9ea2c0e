// Ranks that are processes of their own (this binary again, as `rank ...`) and one of them that is killed at a random moment: while they
// connect; while they call, submit and mix through windows; in barriers; while it computes and the others wait for its window; while they
// split into groups; while one of the others aborts. Or it is stopped, and they wait for it no longer than they were told to. But for that
// one nobody calls Abort(); after the ranks have met, nobody tells them either. Or all are killed.
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

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"
#include "mlrunner/collective/communicator.h"
#include "tests/unit/collective_lateness.h"

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

enum Exit : int { kNamedTheDead = 42, kNamedAnother = 43, kWrongSum = 44, kNeverMet = 45, kNamedTheStopped = 46, kSawTheAbort = 47 };

// What the ranks do until the strike.
enum class Doing { kCalls, kStandsStill, kSplits, kAborts, kShrinks, kBarriers };

// Whether it says where that rank is, and at what this one was: the operation, its name and its number.
inline bool Explains(const Status& status, std::int32_t rank, std::int32_t me) {
  const std::string all = status.what() + "\n" + status.why(), mine = "rank " + std::to_string(me);
  auto has = [&](const std::string& part) { return all.find(part) != std::string::npos; };
  const bool is_well = has("rank " + std::to_string(rank) + " is on \"here\" (127.0.0.1)") &&
                       (has(mine + " was at ") || has(mine + " has been at ")) && (has("(call ") || has("mix \"mix\"")) && has(" \"");
  if (!is_well) std::fprintf(stderr, "rank %d: not enough is said by: %s\n", me, status.ToString().c_str());
  return is_well;
}

// Groups that come and go, some of groups, and sums in them.
inline int SplitUntilLost(Communicator& all, Random shared, const std::string& dead) {
  constexpr std::int64_t kCount = 4'000;
  std::vector<float> x(kCount);
  auto sum_in = [&](Communicator& group) -> Status {
    std::fill(x.begin(), x.end(), static_cast<float>(all.rank()));
    RETURN_IF_ERROR(group.AllReduce({.in = x.data(), .out = x.data(), .count = kCount, .name = "of a group"}));
    float sum = 0;
    for (std::int32_t member : group.members()) sum += static_cast<float>(member);
    if (x[0] != sum || x[kCount - 1] != sum) std::exit(kWrongSum);
    return {};
  };
  for (;;) {
    // Any rank may be in none.
    const auto salt = static_cast<std::int32_t>(shared.Below(60));
    const bool is_nested = shared.OneIn(3);
    auto made = all.Split({.color = (all.rank() * 7 + salt) % 3 - 1, .key = -all.rank()});
    if (!made.ok() && made.status().what() != dead) {
      std::fprintf(stderr, "rank %d: %s\n", all.rank(), made.status().ToString().c_str());
      return kNamedAnother;
    }
    Status status = made.status();
    if (status.ok() && *made != nullptr) {
      Communicator& group = **made;
      for (int call = 0; call < 5 && status.ok(); ++call) status = sum_in(group);
      if (status.ok() && is_nested) {
        auto nested = group.Split({.color = 0});
        status = nested.ok() ? sum_in(**nested) : nested.status();
      }
      std::int32_t lost = 0;
      while (lost < group.ranks() && dead != "rank " + std::to_string(group.members()[lost]) + " is lost") ++lost;
      if (!status.ok() && (lost == group.ranks() || status.what() != "rank " + std::to_string(lost) + " is lost")) {
        std::fprintf(stderr, "rank %d, in a group: %s\n", all.rank(), status.ToString().c_str());
        return kNamedAnother;
      }
    }
    // Whatever a group has said, the gang says it, too.
    if (const Status of_gang = all.Barrier(); !of_gang.ok()) return of_gang.what() == dead ? kNamedTheDead : kNamedAnother;
    if (!status.ok()) return kNamedAnother;
  }
}

// Sums, and goes on among those that are left, until the victim and the rank after it are gone.
inline int ShrinkUntilBothAreGone(Communicator* all, std::int32_t victim) {
  constexpr std::int64_t kCount = 20'000;
  const std::int32_t me = all->rank(), ranks = all->ranks(), second = (victim + 1) % ranks;
  std::unique_ptr<Communicator> smaller;
  std::vector<float> x(kCount);
  for (;;) {
    std::fill(x.begin(), x.end(), static_cast<float>(me));
    Status status = all->AllReduce({.in = x.data(), .out = x.data(), .count = kCount, .name = "of those that are left"});
    if (status.ok()) {
      float sum = 0;
      bool are_gone = true;
      for (std::int32_t member : all->members()) {
        sum += static_cast<float>(member);
        are_gone = are_gone && member != victim && member != second;
      }
      if (x[0] != sum || x[kCount - 1] != sum) return kWrongSum;
      // What is left is all that can be.
      if (are_gone) return all->ranks() == ranks - 2 ? kNamedTheDead : kNamedAnother;
      continue;
    }
    auto made = all->Shrink();
    if (!made.ok()) {
      std::fprintf(stderr, "rank %d: %s\n", me, made.status().ToString().c_str());
      return kNamedAnother;
    }
    smaller = *std::move(made);
    all = smaller.get();
  }
}

// argv: "rank", its number, ranks, wire, the socket to the test, seed, who will be killed, what is done until then, and the longest wait.
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
  const auto doing = static_cast<Doing>(std::atoi(argv[8]));
  const std::int32_t victim = std::atoi(argv[7]);
  const bool stands_still = doing == Doing::kStandsStill;
  while (stands_still && rank == victim) pause();
  if (doing == Doing::kSplits) return SplitUntilLost(all, shared, dead);
  if (doing == Doing::kShrinks) return ShrinkUntilBothAreGone(&all, victim);
  std::thread aborter;
  const auto abort_us = std::chrono::microseconds(shared.Below(20'000));
  if (doing == Doing::kAborts && rank == (victim + 1) % ranks)
    aborter = std::thread([&all, abort_us] {
      std::this_thread::sleep_for(abort_us);
      all.Abort(Status(Code::kCancelled, "TEST01", "enough"));
    });
  struct Joined {
    std::thread& thread;
    ~Joined() {
      if (thread.joinable()) thread.join();
    }
  } const joined{aborter};

  std::vector<float> now(kCount), later(kCount);
  for (;;) {
    if (stands_still) {
      Status status = all.Mix(shared.OneIn(2) ? mixing_relaxed : mixing);
      if (status.ok()) continue;  // relaxed calls wait for nobody
      std::fprintf(stderr, "%s", status.what() == dead ? "" : (status.ToString() + "\n").c_str());
      return status.what() == dead && Explains(status, victim, rank) ? kNamedTheDead : kNamedAnother;
    }
    if (doing == Doing::kBarriers) {
      Status status = all.Barrier();
      if (status.ok()) continue;
      std::fprintf(stderr, "%s", status.what() == dead ? "" : (status.ToString() + "\n").c_str());
      return status.what() == dead && Explains(status, victim, rank) ? kNamedTheDead : kNamedAnother;
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
    if (!status.ok() && status.what() == dead) return Explains(status, victim, rank) ? kNamedTheDead : kNamedAnother;
    while (status.tag() == "TEST01" && rank == victim) pause();
    const std::string aborts = "rank " + std::to_string((victim + 1) % ranks) + ", which is on \"here\" (127.0.0.1), has aborted it";
    if (status.tag() == "TEST01" && status.why().find(aborts) != std::string::npos) return kSawTheAbort;
    if (status.tag() == "COLL28" && status.what().starts_with("rank " + std::string(argv[7]) + " is waited for: ") &&
        status.why().starts_with("its process does not answer") && Explains(status, victim, rank))
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
  bool after_they_met = true, is_stopped = false, all_are_killed = false;
  Doing doing = Doing::kCalls;
  std::int64_t delay_us = 0;
  std::int64_t second_delay_us = 0;  // where they shrink: the rank after the victim is killed so much later
  std::int64_t timeout_ms = 0;       // 0: none
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
  constexpr Doing kDoing[] = {Doing::kCalls, Doing::kCalls, Doing::kStandsStill, Doing::kSplits, Doing::kAborts, Doing::kBarriers};
  kill.doing = kDoing[random.Below(std::size(kDoing))];
  return kill;
}

// How long after the strike a survivor may still be there: where a socket closes, and where a rank falls silent.
inline constexpr std::int64_t kClosedMsMax = 1'000, kSilentMsMax = 10'000;

// How long the last survivor took.
inline std::int64_t RunKill(const Kill& kill_of) {
  SCOPED_TRACE("seed " + std::to_string(kill_of.seed) + ": " + std::to_string(kill_of.ranks) + " ranks, " +
               (kill_of.wire == Wire::kShared ? "shared memory" : "TCP") + ", rank " + std::to_string(kill_of.victim) +
               (!kill_of.after_they_met                ? " while they connect"
                : kill_of.doing == Doing::kStandsStill ? " that stands still"
                : kill_of.doing == Doing::kSplits      ? " while they split"
                : kill_of.doing == Doing::kAborts      ? " while another aborts"
                : kill_of.doing == Doing::kShrinks     ? " and the next while they shrink"
                : kill_of.doing == Doing::kBarriers    ? " in barriers"
                                                       : " after they met"));
  std::vector<int> sockets(kill_of.ranks);
  std::vector<pid_t> pids(kill_of.ranks);
  for (std::int32_t rank = 0; rank < kill_of.ranks; ++rank) {
    std::array<int, 2> pair{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
    sockets[rank] = pair[0];
    std::vector<std::string> words = {"rank",
                                      "rank",
                                      std::to_string(rank),
                                      std::to_string(kill_of.ranks),
                                      std::to_string(static_cast<int>(kill_of.wire)),
                                      std::to_string(pair[1]),
                                      std::to_string(kill_of.seed),
                                      std::to_string(kill_of.victim),
                                      std::to_string(static_cast<int>(kill_of.doing)),
                                      std::to_string(kill_of.timeout_ms)};
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const pid_t parent = getpid();
    pids[rank] = fork();
    EXPECT_GE(pids[rank], 0);
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
  using Clock = std::chrono::steady_clock;
  Clock::time_point struck_at;
  std::optional<Lateness> late;
  auto is_victim = [&](std::int32_t rank) {
    return kill_of.all_are_killed || rank == kill_of.victim ||
           (kill_of.doing == Doing::kShrinks && rank == (kill_of.victim + 1) % kill_of.ranks);
  };
  auto strike = [&] {
    std::this_thread::sleep_for(std::chrono::microseconds(kill_of.delay_us));
    late.emplace();
    struck_at = Clock::now();
    if (kill_of.doing == Doing::kShrinks) {
      kill(pids[kill_of.victim], SIGKILL);
      std::this_thread::sleep_for(std::chrono::microseconds(kill_of.second_delay_us));
      struck_at = Clock::now();
    }
    for (std::int32_t rank = 0; rank < kill_of.ranks; ++rank)
      if (is_victim(rank)) kill(pids[rank], kill_of.is_stopped ? SIGSTOP : SIGKILL);
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

  // All at once: how long each takes is what counts.
  auto since_ms = [&] { return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - struck_at).count(); };
  const std::int64_t promised_ms = kill_of.is_stopped ? kSilentMsMax : kClosedMsMax;
  std::vector<int> statuses(kill_of.ranks);
  std::vector<std::int64_t> took_ms(kill_of.ranks, -1);
  auto look = [&](std::int32_t rank, int options) {
    if (took_ms[rank] < 0 && waitpid(pids[rank], &statuses[rank], options) == pids[rank]) took_ms[rank] = since_ms();
    return took_ms[rank] >= 0;
  };
  // Beyond the bound, too: late is another thing than never.
  for (bool all_gone = false; !all_gone && since_ms() < 5'000 + 3 * late->Allowed(promised_ms);) {
    all_gone = true;
    for (std::int32_t rank = 0; rank < kill_of.ranks; ++rank) all_gone = (is_victim(rank) || look(rank, WNOHANG)) && all_gone;
    if (!all_gone) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const std::int64_t ms_max = late->Allowed(promised_ms);
  std::int64_t worst_ms = 0;
  for (std::int32_t rank = 0; rank < kill_of.ranks; ++rank) {
    close(sockets[rank]);
    if (is_victim(rank)) {
      if (kill_of.is_stopped) kill(pids[rank], SIGKILL);
      EXPECT_TRUE(look(rank, 0));
      // Of a whole gang the last ones may have seen the end of another, whichever it was, before their own.
      const int code = WIFEXITED(statuses[rank]) ? WEXITSTATUS(statuses[rank]) : 0;
      const bool saw_it = kill_of.all_are_killed && (code == kNamedTheDead || code == kNamedAnother || code == kNeverMet);
      EXPECT_TRUE(WIFSIGNALED(statuses[rank]) || saw_it) << "rank " << rank << " ended with status " << statuses[rank];
      continue;
    }
    if (took_ms[rank] < 0) {
      ADD_FAILURE() << "rank " << rank << " hangs";
      kill(pids[rank], SIGKILL);
      (void)look(rank, 0);
      continue;
    }
    worst_ms = std::max(worst_ms, took_ms[rank]);
    EXPECT_LE(took_ms[rank], ms_max) << "rank " << rank << " was there for that long";
    const int code = WIFEXITED(statuses[rank]) ? WEXITSTATUS(statuses[rank]) : -WTERMSIG(statuses[rank]);
    if (kill_of.after_they_met) {
      EXPECT_TRUE(code == (kill_of.is_stopped ? kNamedTheStopped : kNamedTheDead) ||
                  (kill_of.doing == Doing::kAborts && code == kSawTheAbort))
          << "rank " << rank << " ended with " << code;
    } else {
      // The kill may have come later than they met.
      EXPECT_TRUE(code == kNeverMet || code == kNamedTheDead || (kill_of.doing == Doing::kAborts && code == kSawTheAbort))
          << "rank " << rank << " ended with " << code;
    }
  }
  return worst_ms;
}

// Jobs of which all ranks are killed: nobody is left to clear up.
inline void RunKillsOfAll(std::uint64_t first_seed, int kills) {
  const std::set<std::string> before = NamedSegments();
  for (int i = 0; i < kills && !::testing::Test::HasFailure(); ++i) {
    Kill kill = DrawKill(first_seed + static_cast<std::uint64_t>(i));
    kill.wire = Wire::kShared;
    kill.all_are_killed = true;
    if (kill.doing == Doing::kAborts) kill.doing = Doing::kCalls;  // or some end by themselves
    (void)RunKill(kill);
  }
  EXPECT_EQ(NamedSegments(), before);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
}

// Of two ranks, the second at some moment of the agreement among those that the first has left.
inline void RunKillsOfTwo(std::uint64_t first_seed, int kills) {
  std::int64_t worst_ms = 0;
  for (int i = 0; i < kills && !::testing::Test::HasFailure(); ++i) {
    Random random(first_seed + static_cast<std::uint64_t>(i));
    Kill kill{.seed = first_seed + static_cast<std::uint64_t>(i), .ranks = static_cast<std::int32_t>(3 + random.Below(3))};
    kill.victim = static_cast<std::int32_t>(random.Below(static_cast<std::uint64_t>(kill.ranks)));
    kill.wire = random.OneIn(2) ? Wire::kShared : Wire::kTcp;
    kill.doing = Doing::kShrinks;
    kill.delay_us = static_cast<std::int64_t>(random.Below(5'000));
    kill.second_delay_us = static_cast<std::int64_t>(random.Below(random.OneIn(2) ? 2'000 : 20'000));
    worst_ms = std::max(worst_ms, RunKill(kill));
  }
  std::printf("%d kills of two, seeds from %llu: the last survivor had its sum %lld ms after the second strike\n", kills,
              static_cast<unsigned long long>(first_seed), static_cast<long long>(worst_ms));
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
}

inline void RunKills(std::uint64_t first_seed, int kills) {
  const std::set<std::string> before = NamedSegments();
  std::int64_t worst_ms = 0;
  for (int i = 0; i < kills && !::testing::Test::HasFailure(); ++i)
    worst_ms = std::max(worst_ms, RunKill(DrawKill(first_seed + static_cast<std::uint64_t>(i))));
  std::printf("%d kills, seeds from %llu: the last survivor was gone %lld ms after the strike, of %lld\n", kills,
              static_cast<unsigned long long>(first_seed), static_cast<long long>(worst_ms), static_cast<long long>(kClosedMsMax));
  EXPECT_EQ(NamedSegments(), before);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
}

}  // namespace ropewalk::collective::testing
