// The machine that moves symbols: all ranks of a plan, their memories, edges and counters.
//
// Owner: Check(). Thread rule: one thread.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "mlrunner/collective/check/check.h"
#include "mlrunner/collective/check/expressions.h"
#include "mlrunner/collective/check/memory.h"
#include "mlrunner/collective/interpreter.h"

namespace ropewalk::collective {

class SymbolicMachine : public Machine {
 public:
  SymbolicMachine(const Plan& plan, const CheckOptions& options, std::vector<Layout>* layouts);
  // Before Run().
  Status PreparePost();

  // All ranks until nothing moves; then whether all came to their ends.
  Status Run();
  // Whether the end state is what the postcondition says. After Run().
  Status CheckPost();
  const CheckReport& report() const { return report_; }

  Outcome Try(const Interpreter& at, const Step& step) override;

 private:
  struct Message {
    std::int32_t post = kNone;
    Pieces pieces;
    Element element = Element::kPayload;
    std::int64_t count = 0;
    Clock clock;
  };
  struct Line {  // an edge
    std::int64_t slots = 0;
    std::deque<Message> messages;
  };
  struct Raise {
    std::int32_t agent = 0;
    Clock clock;
  };
  struct Rendezvous {  // of a native collective
    std::set<std::int32_t> arrived, released;
    std::int32_t instance = 0;
  };
  struct Place {  // where a buffer lies
    std::int32_t memory = 0;
    std::int64_t shift = 0;
  };

  std::int32_t ThreadOf(std::int32_t rank, std::int32_t channel) const { return (rank * plan_.header.channel_count + channel) * 2; }
  Moment Tick(std::int32_t thread) { return {thread, ++clocks_[thread][thread]}; }
  Status Fail(const Interpreter& at, const Step& step, const char* tag, const std::string& what, const std::string& why) const;
  // An access to `buffer` of rank `owner` that memory has refused.
  Status FailAccess(const Interpreter& at, const Step& step, const Buffer& buffer, std::int32_t owner, const std::string& how) const;
  Outcome Stop(Status status) {
    failure_ = std::move(status);
    return Outcome::kFailed;
  }
  Place PlaceOf(std::int32_t rank, std::int32_t buffer) const { return places_[rank * plan_.header.buffers.size() + buffer]; }
  Line* LineOf(std::int32_t from, std::int32_t to, std::int32_t channel);
  const Buffer& BufferOf(const Interpreter& at, std::int32_t chunk) const {
    return plan_.header.buffers[at.program().chunks[chunk].buffer];
  }
  const std::string& BufferName(const Interpreter& at, std::int32_t chunk) const { return BufferOf(at, chunk).name; }

  bool CountsAreKnown(const Interpreter& at, const Step& step);
  void JoinDependencies(const Interpreter& at, const Step& step, Clock* clock);
  // Reads a chunk of `owner`'s memory; nullopt after a failure that is noted.
  std::optional<Pieces> Read(const Interpreter& at, const Step& step, std::int32_t owner, std::int32_t chunk, std::int32_t thread,
                             std::int32_t post);
  // Whether a step may store there at all: false after a failure that is noted.
  bool MayStore(const Interpreter& at, const Step& step, std::int32_t chunk);
  bool Write(const Interpreter& at, const Step& step, std::int32_t owner, std::int32_t chunk, const Pieces& pieces, std::int32_t thread,
             bool accumulate);
  std::optional<Pieces> Decode(const Interpreter& at, const Step& step, const Pieces& bytes, std::int64_t count);
  Outcome TryData(const Interpreter& at, const Step& step);
  Outcome TryContribute(const Interpreter& at, const Step& step);
  Outcome TryOneSided(const Interpreter& at, const Step& step);
  Outcome TryWait(const Interpreter& at, const Step& step);
  Outcome TryFlush(const Interpreter& at, const Step& step);
  Outcome TryCounts(const Interpreter& at, const Step& step);
  Outcome TryNative(const Interpreter& at, const Step& step);
  void Consume(Message* message, std::int32_t thread);
  Status CheckWindowPut(std::int32_t rank, std::int32_t buffer, std::int64_t offset, const Pieces& pieces);
  Status CheckCounter(const Claim& claim, std::int32_t rank);
  Status CheckFold(const Claim& claim, std::int32_t rank, Extent out, const Piece& piece, std::int64_t position);
  bool IsAbsent(std::int32_t rank) const;

  const Plan& plan_;
  const CheckOptions& options_;
  std::vector<Layout>& layouts_;
  Expressions expressions_;
  std::vector<Post> posts_;
  std::vector<Place> places_;  // by rank and buffer
  std::vector<Memory> memories_;
  std::vector<Clock> clocks_;  // by thread: channels and, behind each, its agent for one-sided work
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, Line> lines_;                  // (from, to, channel)
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<Raise>> raises_;                  // (rank, counter)
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, std::vector<Clock>> history_;  // of steps that others depend on
  std::map<std::pair<std::int32_t, std::int32_t>, Rendezvous> natives_;                         // (group, channel)
  std::vector<std::unique_ptr<Interpreter>> interpreters_;
  std::vector<std::vector<std::int32_t>> posted_;  // by thread: posts that kFlush waits for
  // How often each counter (rank, counter) is raised in a whole run.
  std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> totals_;
  std::map<std::int32_t, Moment> counts_known_;  // by rank that learns its counts on the way: when
  std::optional<Layout> post_layout_;
  Status failure_;
  CheckReport report_;
};

}  // namespace ropewalk::collective
