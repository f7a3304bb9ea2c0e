// A rank in a long step gets on, and its peers wait for it; one that is busy with what is no affair of theirs does not.
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <ctime>
#include <thread>
#include <vector>

#include "tests/unit/collective_gang.h"
#include "tests/unit/collective_library.h"
#include "tests/unit/collective_plans.h"

namespace ropewalk::collective::testing {
namespace {

constexpr std::int64_t kTimeoutMs = 400;

CommunicatorOptions Patient(Wire wire) {
  CommunicatorOptions options = Over(wire);
  options.timeout_ms = kTimeoutMs;
  return options;
}

// What a peer does to a relaxed window all the while is no progress of who waits for that peer.
TEST(LongSteps, RelaxedCallsOfTheOneThatIsWaitedForAreNoProgress) {
  for (Wire wire : {Wire::kShared, Wire::kTcp})
    WithRanks(2, Patient(wire), [&](Communicator& all, Meeting& meeting) {
      constexpr std::int64_t kShort = 20'000;
      auto window = all.MakeWindow(2 * kShort * sizeof(float));
      ASSERT_TRUE(window.ok()) << window.status().ToString();
      Status status;
      if (all.rank() == 0) status = all.Barrier();
      const auto weights = RingOfNeighbours(2);
      std::vector<float> in(kShort), out(kShort);
      while (all.rank() == 1 && status.ok())
        status = all.Mix({.in = in.data(),
                          .out = out.data(),
                          .count = kShort,
                          .name = "m",
                          .algorithm = "window_relaxed",
                          .mixing = &weights,
                          .window = &*window});
      EXPECT_EQ(status.tag(), "COLL28") << status.ToString();
      EXPECT_TRUE(status.what().starts_with("rank 1 is waited for: rank 0 has been at barrier")) << status.ToString();
      meeting.Barrier(all.rank());
    });
}

// Memory whose first touch takes a while, as if it came from a slow disk: a step that reads it is one long step.
class SlowMemory {
 public:
  explicit SlowMemory(std::size_t bytes) : bytes_(bytes) {
    void* made = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(made, MAP_FAILED);
    begin_ = static_cast<char*>(made);
    struct sigaction action{};
    action.sa_sigaction = Touched;
    action.sa_flags = SA_SIGINFO;
    EXPECT_EQ(sigaction(SIGSEGV, &action, &before_), 0);
    current_ = this;
  }
  ~SlowMemory() {
    EXPECT_EQ(sigaction(SIGSEGV, &before_, nullptr), 0);
    current_ = nullptr;
    munmap(begin_, bytes_);
  }
  SlowMemory(const SlowMemory&) = delete;
  SlowMemory& operator=(const SlowMemory&) = delete;
  float* data() const { return reinterpret_cast<float*>(begin_); }

 private:
  static void Touched(int, siginfo_t* info, void*) {
    const char* at = static_cast<const char*>(info->si_addr);
    if (current_ == nullptr || at < current_->begin_ || at >= current_->begin_ + current_->bytes_) _exit(99);
    const timespec while_ms{.tv_sec = 1, .tv_nsec = 500'000'000};
    (void)nanosleep(&while_ms, nullptr);
    if (mprotect(current_->begin_, current_->bytes_, PROT_READ | PROT_WRITE) != 0) _exit(98);
  }
  static SlowMemory* current_;
  const std::size_t bytes_;
  char* begin_ = nullptr;
  struct sigaction before_{};
};
SlowMemory* SlowMemory::current_ = nullptr;

TEST(LongSteps, APeerInALongStepIsWaitedFor) {
  SlowMemory slow(std::size_t{1} << 20);
  const auto begin = std::chrono::steady_clock::now();
  WithRanks(3, Patient(Wire::kShared), [&](Communicator& all, Meeting& meeting) {
    std::vector<float> mine(1000, 1);
    float* x = all.rank() == 1 ? slow.data() : mine.data();
    Status status = all.AllReduce({.in = x, .out = x, .count = 1000, .name = "grad"});
    EXPECT_TRUE(status.ok()) << status.ToString();
    meeting.Barrier(all.rank());
  });
  EXPECT_GT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(2 * kTimeoutMs)) << "the step was not long";
}

// The control: the same memory, touched by the program before its call.
TEST(LongSteps, AProgramThatTakesAsLongIsNot) {
  SlowMemory slow(std::size_t{1} << 20);
  WithRanks(3, Patient(Wire::kShared), [&](Communicator& all, Meeting& meeting) {
    std::vector<float> mine(1000, 1);
    float* x = all.rank() == 1 ? slow.data() : mine.data();
    *x = 1;
    Status status = all.AllReduce({.in = x, .out = x, .count = 1000, .name = "grad"});
    EXPECT_EQ(status.tag(), "COLL28") << status.ToString();
    EXPECT_TRUE(status.what().starts_with("rank 1 is waited for: ")) << status.ToString();
    meeting.Barrier(all.rank());
  });
}

// Nobody sees what a library does, so there its time-out is the length of a step.
TEST(LongSteps, ALibraryThatDoesNotEndIsNotWaitedFor) {
  class Endless : public CpuLibrary {
   public:
    using CpuLibrary::CpuLibrary;
    Result<bool> IsDone(const NativeCall&) override { return false; }
  };
  Meeting meeting(2);
  LibraryMeeting library;
  std::vector<std::thread> threads;
  for (std::int32_t rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      Endless mine(rank, &library);
      CommunicatorOptions options = Patient(Wire::kShared);
      options.native = &mine;
      auto all = Communicator::Connect(meeting.Of(rank), options);
      ASSERT_TRUE(all.ok()) << all.status().ToString();
      std::vector<float> x(1000, 1);
      Status status = (*all)->AllReduce({.in = x.data(), .out = x.data(), .count = 1000, .name = "grad", .algorithm = "native"});
      EXPECT_EQ(status.tag(), "COLL28") << status.ToString();
      EXPECT_TRUE(status.what().starts_with("the library is waited for: ")) << status.ToString();
      meeting.Barrier(rank);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace ropewalk::collective::testing
