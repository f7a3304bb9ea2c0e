// Ranks that are processes of their own (this binary again, as `reformer ...`), which come and go and are killed while a communicator is
// formed anew: the test tells each what to do next, and knows who must be there.
//
// Thread rule: one thread calls; it starts and ends what it needs.
#pragma once

#include <sys/time.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <sstream>

#include "tests/unit/collective_kills.h"
#include "tests/unit/collective_lateness.h"

namespace ropewalk::collective::testing {

// ---- a rank ----------------------------------------------------------------------------------------------------------------------------

// What a process must not keep of a communicator: threads, descriptors, mapped memory files.
inline std::string Held() {
  auto count = [](const char* folder) {
    int entries = 0;
    if (DIR* opened = opendir(folder)) {
      while (readdir(opened) != nullptr) ++entries;
      closedir(opened);
    }
    return entries;
  };
  int files = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) files += line.find("memfd:") != std::string::npos ? 1 : 0;
  return std::to_string(count("/proc/self/task")) + " threads, " + std::to_string(count("/proc/self/fd")) + " descriptors, " +
         std::to_string(files) + " memory files";
}

// argv: "reformer", wire, the socket to the test. Does what it is told, and answers each time, until it is told to end.
inline int ReformerMain(char** argv) {
  const auto wire = static_cast<Wire>(std::atoi(argv[2]));
  const int test = std::atoi(argv[3]);
  std::unique_ptr<Communicator> all;
  // A sanitizer has a thread of its own from the first one on.
  std::thread([] {}).join();
  std::string before;
  bool settled = false;
  auto tell = [&](const std::string& word) { return SendWord(test, word) ? 0 : kNeverMet; };
  auto take = [&](Result<std::unique_ptr<Communicator>> made) {
    if (!made.ok()) return tell("no " + made.status().tag() + " " + made.status().ToString());
    all = *std::move(made);
    if (all == nullptr) return tell("left");
    return tell("ok " + std::to_string(all->rank()) + " " + std::to_string(all->ranks()));
  };
  for (;;) {
    std::string command;
    if (!ReceiveWord(test, &command)) return kNeverMet;
    std::istringstream words(command);
    std::string verb;
    words >> verb;
    int failed = 0;
    // Until it stays: a thread that ended before is shown for a moment, and would be missed afterwards.
    for (int look = 0, same = 0; before.empty() || (same < 4 && look < 100 && !settled); ++look) {
      std::string now = Held();
      same = now == before ? same + 1 : 0;
      before = std::move(now);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    settled = true;
    if (verb == "connect") {
      Rendezvous rendezvous{.machine = "here"};
      words >> rendezvous.rank >> rendezvous.ranks;
      rendezvous.exchange = [&](const std::string& mine) -> Result<std::vector<std::string>> {
        std::vector<std::string> said(rendezvous.ranks);
        bool is_well = SendWord(test, mine);
        for (std::string& one : said) is_well = is_well && ReceiveWord(test, &one);
        if (!is_well) return Status(Code::kUnavailable, "TEST01", "the test is gone");
        return said;
      };
      failed = take(Communicator::Connect(rendezvous, {.wire = wire, .pool_bytes = std::size_t{4} << 20, .timeout_ms = 60'000}));
    } else if (verb == "join") {
      std::string ticket;
      JoinOptions options{.machine = "here", .timeout_ms = 60'000};
      words >> ticket >> options.rank;
      failed = take(Communicator::Join(ticket, options));
    } else if (verb == "invite") {
      auto ticket = all->Invite();
      failed = tell(ticket.ok() ? *ticket : "no " + ticket.status().tag());
    } else if (verb == "await") {
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
      while (!all->HasNewcomers() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      failed = tell("ok");
    } else if (verb == "stay" || verb == "leave") {
      failed = take(all->Reform({.leaves = verb == "leave"}));
    } else if (verb == "sum") {
      float value = 0;
      words >> value;
      std::vector<float> x(3'000, value);
      Status status = all->AllReduce({.in = x.data(), .out = x.data(), .count = 3'000, .name = "x"});
      if (status.ok() && x != std::vector<float>(3'000, x[0])) return kWrongSum;
      failed = tell(status.ok() ? "sum " + std::to_string(static_cast<int>(x[0])) : "no " + status.tag() + " " + status.ToString());
    } else if (verb == "end") {
      all.reset();
      std::string after = Held();
      // The system still shows a thread for a moment after it was joined.
      for (int look = 0; look < 200 && after != before; ++look) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        after = Held();
      }
      if (after == before) return 0;
      std::fprintf(stderr, "before: %s; after: %s\n", before.c_str(), after.c_str());
      return kNamedAnother;
    } else {
      return kNeverMet;
    }
    if (failed != 0) return failed;
  }
}

// ---- the test --------------------------------------------------------------------------------------------------------------------------

class Reformer {
 public:
  Reformer(Wire wire, int number) : number_(number) {
    std::array<int, 2> pair{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
    test_ = pair[0];
    // Longer than any wait of a rank that goes on: what comes later is a hang.
    const timeval patience{.tv_sec = 40, .tv_usec = 0};
    EXPECT_EQ(setsockopt(test_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)), 0);
    std::vector<std::string> words = {"reformer", "reformer", std::to_string(static_cast<int>(wire)), std::to_string(pair[1])};
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const pid_t parent = getpid();
    pid_ = fork();
    EXPECT_GE(pid_, 0);
    if (pid_ == 0) {
      (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent || fcntl(pair[1], F_SETFD, 0) != 0) _exit(1);
      execv("/proc/self/exe", argv.data());
      _exit(1);
    }
    close(pair[1]);
  }
  ~Reformer() {
    if (pid_ > 0) Kill();
    close(test_);
  }
  Reformer(const Reformer&) = delete;
  Reformer& operator=(const Reformer&) = delete;

  int number() const { return number_; }
  void Tell(const std::string& word) { EXPECT_TRUE(SendWord(test_, word)) << "rank " << number_ << " is gone"; }
  // Empty: it did not answer.
  std::string Hear() {
    std::string word;
    return ReceiveWord(test_, &word) ? word : "";
  }
  std::string Ask(const std::string& word) {
    Tell(word);
    return Hear();
  }
  bool Pass(const std::vector<std::string>& words) {
    return std::all_of(words.begin(), words.end(), [&](const std::string& word) { return SendWord(test_, word); });
  }
  void Strike() { kill(pid_, SIGKILL); }
  void Stop() { kill(pid_, SIGSTOP); }
  void Kill() {
    Strike();
    (void)waitpid(std::exchange(pid_, -1), nullptr, 0);
  }
  // It has nothing left of what it had, and ends by itself.
  void End() {
    int status = 0;
    Tell("end");
    EXPECT_EQ(waitpid(std::exchange(pid_, -1), &status, 0) > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0)
        << "process " << number_ << " ended with " << status;
  }

 private:
  const int number_;
  int test_ = -1;
  pid_t pid_ = -1;
};

// Rounds in which some leave, some come and some are killed, at the moment when they form their communicator anew.
class ReformRounds {
 public:
  ReformRounds(Wire wire, std::uint64_t seed) : wire_(wire), random_(seed) {}

  void Run(int rounds) {
    const std::set<std::string> before = NamedSegments();
    Begin(3);
    for (int round = 0; round < rounds && !::testing::Test::HasFailure(); ++round) {
      SCOPED_TRACE("round " + std::to_string(round));
      Round();
    }
    // While something is wrong they may be anywhere.
    if (!::testing::Test::HasFailure())
      for (auto* all : {&members_, &outside_})
        for (auto& one : *all) one->End();
    members_.clear();
    outside_.clear();
    EXPECT_EQ(NamedSegments(), before);
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
    std::printf("%d rounds: %d came, %d left, %d were killed, %d could not come, %d times it was formed again\n", rounds, came_, left_,
                killed_, turned_away_, again_);
  }
  int came() const { return came_; }
  int left() const { return left_; }
  int killed() const { return killed_; }

 private:
  using One = std::unique_ptr<Reformer>;

  One New() { return std::make_unique<Reformer>(wire_, next_++); }

  void Begin(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      members_.push_back(New());
      members_.back()->Tell("connect " + std::to_string(rank) + " " + std::to_string(ranks));
    }
    std::vector<std::string> words;
    for (auto& member : members_) words.push_back(member->Hear());
    for (auto& member : members_) EXPECT_TRUE(member->Pass(words));
    for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(members_[rank]->Hear(), "ok " + std::to_string(rank) + " " + std::to_string(ranks));
  }

  void Round() {
    // All but one have left, and that one was killed.
    if (members_.empty()) Begin(3);
    std::vector<One> come;
    const std::uint64_t comers = members_.size() >= 5 ? 0 : random_.Below(3);
    for (std::uint64_t i = 0; i < comers; ++i) {
      // One that was there before comes back, or a new one comes.
      if (!outside_.empty() && random_.OneIn(2)) {
        come.push_back(std::move(outside_.back()));
        outside_.pop_back();
      } else {
        come.push_back(New());
      }
    }
    Reformer* const host = members_[random_.Below(members_.size())].get();
    if (!come.empty()) {
      const std::string ticket = host->Ask("invite");
      ASSERT_TRUE(ticket.starts_with("ropewalk-")) << ticket;
      for (auto& one : come) one->Tell("join " + ticket + " " + (random_.OneIn(3) ? "0" : "-1"));
      ASSERT_EQ(host->Ask("await"), "ok");
    }
    std::vector<bool> leaves(members_.size());
    for (std::size_t i = 0; i + 1 < members_.size(); ++i) leaves[i] = random_.OneIn(5);
    for (std::size_t i = 0; i < members_.size(); ++i) members_[i]->Tell(leaves[i] ? "leave" : "stay");
    Reformer* victim = nullptr;
    if (members_.size() > 2 && random_.OneIn(2)) {
      const std::uint64_t number = random_.Below(members_.size() + come.size());
      victim = number < members_.size() ? members_[number].get() : come[number - members_.size()].get();
      std::this_thread::sleep_for(std::chrono::microseconds(random_.Below(random_.OneIn(2) ? 3'000 : 30'000)));
      victim->Strike();
      ++killed_;
    }
    Settle(std::move(come), std::move(leaves), victim);
  }

  // All that live say how it went; where somebody was killed, until a sum goes through.
  void Settle(std::vector<One> come, std::vector<bool> leaves, const Reformer* victim) {
    std::vector<One> next;
    int in = 0, out = 0, failed = 0, ranks = 0;
    std::vector<int> numbers;
    auto is_in = [&](const std::string& answer) {
      int rank = -1, of = 0;
      if (std::sscanf(answer.c_str(), "ok %d %d", &rank, &of) != 2) return false;
      EXPECT_TRUE(ranks == 0 || ranks == of) << "they count " << ranks << " and " << of;
      ranks = of;
      numbers.push_back(rank);
      return true;
    };
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (members_[i].get() == victim) continue;
      const std::string answer = members_[i]->Hear();
      ASSERT_NE(answer, "") << "process " << members_[i]->number() << " hangs, or has died";
      if (is_in(answer)) {
        EXPECT_FALSE(leaves[i]);
        ++in;
        next.push_back(std::move(members_[i]));
      } else if (answer == "left") {
        EXPECT_TRUE(leaves[i]);
        ++out;
        ++left_;
        outside_.push_back(std::move(members_[i]));
      } else {
        EXPECT_TRUE(answer.starts_with("no ")) << answer;
        EXPECT_NE(victim, nullptr) << answer;
        ++failed;
        next.push_back(std::move(members_[i]));
      }
    }
    // It is formed on all of its ranks or on none.
    EXPECT_TRUE(failed == 0 || in + out == 0) << in << " are in, " << out << " left, " << failed << " failed";
    for (auto& one : come) {
      if (one.get() == victim) continue;
      const std::string answer = one->Hear();
      ASSERT_NE(answer, "") << "process " << one->number() << " hangs, or has died";
      if (is_in(answer)) {
        EXPECT_EQ(failed, 0);
        ++came_;
        next.push_back(std::move(one));
      } else {
        // It was too late for this time, wants a number that is taken, or was turned away because somebody else has died.
        EXPECT_TRUE(answer.starts_with("no COLL31") || answer.starts_with("no COLL30")) << answer;
        ++turned_away_;
        outside_.push_back(std::move(one));
      }
    }
    std::sort(numbers.begin(), numbers.end());
    EXPECT_EQ(std::adjacent_find(numbers.begin(), numbers.end()), numbers.end()) << "two have one number";
    if (ranks > 0 && victim == nullptr) {
      EXPECT_EQ(static_cast<std::size_t>(ranks), next.size());
    }
    for (auto* all : {&members_, &come})
      for (auto& one : *all)
        if (one != nullptr && one.get() == victim) one->Kill();
    members_ = std::move(next);
    Sum(victim != nullptr);
  }

  void Sum(bool may_fail) {
    for (int attempt = 0; attempt < 5 && !::testing::Test::HasFailure(); ++attempt) {
      int expected = 0, right = 0;
      for (auto& member : members_) {
        member->Tell("sum " + std::to_string(member->number() + 1));
        expected += member->number() + 1;
      }
      for (auto& member : members_) {
        const std::string answer = member->Hear();
        ASSERT_NE(answer, "") << "process " << member->number() << " hangs, or has died";
        if (answer == "sum " + std::to_string(expected))
          ++right;
        else
          EXPECT_TRUE(may_fail && answer.starts_with("no COLL")) << answer;
      }
      if (right == static_cast<int>(members_.size())) return;
      // One of them has died: the others go on without it.
      ++again_;
      for (auto& member : members_) member->Tell("stay");
      for (auto& member : members_) EXPECT_TRUE(member->Hear().starts_with("ok ")) << "process " << member->number();
    }
    ADD_FAILURE() << "the ranks do not come together again";
  }

  const Wire wire_;
  Random random_;
  std::vector<One> members_, outside_;
  int next_ = 0;
  int came_ = 0, left_ = 0, killed_ = 0, turned_away_ = 0, again_ = 0;
};

// A rank is stopped before the others form their communicator anew: they wait no longer than for one that is stopped in a call, and name
// it. When it is dead they go on without it.
inline void RunStopped(Wire wire, int victim) {
  SCOPED_TRACE("rank " + std::to_string(victim));
  std::vector<std::unique_ptr<Reformer>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(std::make_unique<Reformer>(wire, rank));
    ranks.back()->Tell("connect " + std::to_string(rank) + " 3");
  }
  std::vector<std::string> words;
  for (auto& rank : ranks) words.push_back(rank->Hear());
  for (auto& rank : ranks) EXPECT_TRUE(rank->Pass(words));
  for (auto& rank : ranks) EXPECT_TRUE(rank->Hear().starts_with("ok "));
  const Lateness late;
  const auto began = std::chrono::steady_clock::now();
  ranks[victim]->Stop();
  for (int rank = 0; rank < 3; ++rank)
    if (rank != victim) ranks[rank]->Tell("stay");
  for (int rank = 0; rank < 3; ++rank) {
    if (rank == victim) continue;
    const std::string answer = ranks[rank]->Hear();
    EXPECT_TRUE(answer.starts_with("no COLL28")) << answer;
    EXPECT_NE(answer.find("rank " + std::to_string(victim) + " did not come"), std::string::npos) << answer;
    EXPECT_NE(answer.find("its process does not answer"), std::string::npos) << answer;
    EXPECT_NE(answer.find("rank " + std::to_string(victim) + " is on \"here\" (127.0.0.1)"), std::string::npos) << answer;
  }
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - began).count();
  EXPECT_LE(took, late.Allowed(kSilentMsMax));
  std::printf("they knew of rank %d, which was stopped, %lld ms later\n", victim, static_cast<long long>(took));
  ranks[victim]->Kill();
  for (int rank = 0; rank < 3; ++rank)
    if (rank != victim) ranks[rank]->Tell("stay");
  for (int rank = 0; rank < 3; ++rank)
    if (rank != victim) {
      EXPECT_EQ(ranks[rank]->Hear(), "ok " + std::to_string(rank > victim ? rank - 1 : rank) + " 2");
    }
  for (int rank = 0; rank < 3; ++rank)
    if (rank != victim) ranks[rank]->End();
}

inline void RunReforms(Wire wire, std::uint64_t seed, int rounds) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  SCOPED_TRACE("seed " + std::to_string(seed));
  ReformRounds all(wire, seed);
  all.Run(rounds);
  EXPECT_GT(all.came(), 0);
  EXPECT_GT(all.left(), 0);
  EXPECT_GT(all.killed(), 0);
}

}  // namespace ropewalk::collective::testing
