// A program bound to sizes, memory and a transport: what runs.
//
//   Instance instance = ...Make(header, program, {.count = n}, &transport);
//   RETURN_IF_ERROR(instance.Bind({in, out}));   // pointers, as often as they change
//   RETURN_IF_ERROR(instance.Run());
//
// Run() drives it to the end; who drives several at a time calls Start() and then Advance() while it can go. After Make() nothing
// allocates, but for the staging of buffers that are bound and that peers cannot read, and for frames of one-sided work. Native steps need
// a library (native_desk.h), one-sided ones and counters a OneSided; plans that need what is not there are refused (COLL12).
//
// Owner: the caller. Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/interpreter.h"
#include "mlrunner/collective/run/kernels.h"
#include "mlrunner/collective/run/native_desk.h"
#include "mlrunner/collective/run/one_sided.h"
#include "mlrunner/collective/run/transport.h"
#include "mlrunner/collective/trace.h"

namespace ropewalk::collective {

// What some steps need beyond the transport. Must outlive the instances.
struct Means {
  NativeDesk* native = nullptr;
  OneSided* one_sided = nullptr;
  // By rank: how often it raises counters of this one in a run. Then a wait for a rank that has left fails; without, it goes on for ever.
  std::vector<std::int64_t> raises{};
  // A run may end while peers still read its scratch. Where they do that without this rank's help, in a mapping of their own, and where
  // whoever destroys an instance waits until it IsAtRest().
  bool leaves_scratch = false;
};
// From the programs of all ranks.
std::vector<std::int64_t> RaisesOf(const Plan& plan, std::int32_t rank);

class Instance : private Machine {
 public:
  // Header and program must outlive it; so must the transport.
  static Result<std::unique_ptr<Instance>> Make(const Header* header, const Program* program, const Sizes& sizes, Transport* transport,
                                                const Means& means = {});

  ~Instance() override;

  // Memory of the caller's buffers, in the order of the header's (others null). `in` and `out` may share memory where the plan allows it
  // and no other way (COLL10). What is sent from memory that peers cannot read is copied, message by message, to where they can;
  // kResourceExhausted (COLL13) when there is no room for that.
  Status Bind(std::span<void* const> buffers);
  // Which window a buffer of the plan is. kInvalid COLL27 when it is too short on this rank.
  Status BindWindow(std::int32_t buffer, std::int32_t window);
  // All-to-all-v: what this rank has for each, and how many elements it has room for; allgather-v: what it has. Before Bind().
  Status SetCounts(std::span<const std::int64_t> counts, std::int64_t room);
  // What `from` had for this rank. After the end.
  std::int64_t received(std::int32_t from) const { return layout_.sizes().table[from * header_->request.ranks + column_]; }
  void TellReceived(std::int64_t* by_rank) const {
    for (std::int32_t from = 0; from < header_->request.ranks; ++from) by_rank[from] = received(from);
  }
  // Runs once, to the end: everything is received, and what was posted is consumed. After a failure the other ranks are
  // freed (Abort) and the transport is of no more use.
  Status Run();

  // From the start, on the transport's channels `first_channel` and following. Plans with channels that messages start (eager) may begin
  // before this rank's own call has come: then `is_called` is false, and Come() says that it came.
  void Start(std::int32_t first_channel, const CallLabel& label, bool is_called = true);
  // True: the call takes part in this run. False: this rank's contribution was made without it; what `in` holds now is put into the state,
  // for the next run that is without its call, or, where the plan has no state, is left out. The run then goes on, or is taken up again.
  bool Come();
  // As far as it can go, or to the next border. kDone: everything is received, and the caller's buffers are its own again; kFailed:
  // status() says why.
  Outcome Advance();
  // Whether peers have read all that the last run left in scratch; the next run waits for that. From any thread, once the run is done.
  bool IsAtRest() const;
  const Status& status() const {
    if (!failure_.ok()) return failure_;
    return means_.one_sided != nullptr && !means_.one_sided->status().ok() ? means_.one_sided->status() : transport_->status();
  }
  // Ranks without which it cannot go on now, as far as it knows.
  std::vector<std::int32_t> WaitsFor();
  // Those that messages between two steps go through.
  std::int32_t channels() const { return channels_; }
  // Whether a library does some of its steps, of which nobody knows how long it stays in them.
  bool is_native() const { return is_native_; }
  const Header& header() const { return *header_; }
  std::uint64_t plan_fingerprint() const { return plan_fingerprint_; }
  // The bytes of the vector it was bound to.
  std::int64_t count() const { return layout_.sizes().count; }

  // Steps that the interpreter did, over all runs.
  std::uint64_t steps() const { return interpreter_->steps_done(); }
  // Notes sends and receives of the following runs (allocates).
  void Record(std::vector<TraceEntry>* trace) { trace_ = trace; }

 private:
  Instance(const Header* header, const Program* program, Layout layout, Transport* transport, const Means& means);
  Outcome Try(const Interpreter& at, const Step& step) override;
  Status RunToTheEnd();
  // Where messages land, and whose turn it is.
  Status Prepare();
  bool IsInScratch(std::int32_t chunk) const;
  void MeasureStages();
  std::int64_t LengthOf(std::int32_t buffer) const;
  Status CheckPlaces() const;
  void DecodeRows(const Interpreter& at, const Step& step);
  void EncodeRow(const Interpreter& at, const Step& step);
  Outcome LearnCounts(const Interpreter& at, const Step& step);
  std::int32_t CountChannels() const;
  std::vector<std::int32_t> ToTell() const;
  Status CheckOneSided(const Step& step) const;
  Outcome TryOneSided(const Interpreter& at, const Step& step);
  Outcome TryWait(const Step& step);
  Outcome TryContribute(const Interpreter& at, const Step& step);
  // The relaxed window that the step reads; -1: none.
  std::int32_t RelaxedRead(const Step& step) const;
  Status CheckNative(const Step& step) const;
  Outcome TryNative(const Interpreter& at, const Step& step);
  // Those that became ready since the last time.
  bool StartNatives();
  std::span<const std::int32_t> GroupOf(const Step& step) const;
  struct Left {  // messages of an edge that a peer may still read
    std::int32_t peer = 0, channel = 0;
    std::uint64_t messages = 0;
  };
  // Whether the peer has taken them; it fails when the peer has left without.
  bool IsTaken(const Left& posted);
  bool IsFlushed();
  void Post(const Interpreter& at, const Step& step, std::int32_t chunk);
  Dtype DtypeOf(std::int32_t buffer) const { return collective::DtypeOf(*header_, buffer); }
  char* PlaceOf(const Interpreter& at, std::int32_t chunk) const;
  std::size_t BytesOf(const Interpreter& at, std::int32_t chunk) const;

  const Header* header_;
  const std::uint64_t plan_fingerprint_;
  const Program* program_;
  Layout layout_;
  Transport* transport_;
  std::unique_ptr<Interpreter> interpreter_;
  std::vector<char*> memory_;          // by buffer
  std::vector<std::size_t> landings_;  // by operand: where in landing_ it may land
  std::vector<std::int32_t> turns_;    // by operand: how many of its step's earlier operands come from the same peer
  std::vector<std::int32_t> edges_;    // by step: the edge it sends on
  struct Stage {                       // by edge: a copy for each slot
    char* memory = nullptr;
    std::size_t each_bytes = 0, room_bytes = 0;  // of a message: at most; of a copy
    std::uint64_t posted = 0;
  };
  std::vector<Stage> stages_;
  std::vector<bool> is_private_;      // by buffer: peers cannot read it
  std::vector<bool> leaves_scratch_;  // by edge: all its messages lie in scratch
  std::vector<Left> left_;
  std::int32_t first_channel_ = 0;
  bool has_ended_ = true;
  char* landing_ = nullptr;
  std::vector<Row> rows_;       // of the step at hand
  std::vector<float> decoded_;  // of the step at hand
  std::int64_t room_ = 0;       // of `out`, in elements
  std::int64_t counts_ = 0;     // that the caller gives, of plans that learn their count table
  std::int32_t column_ = 0;     // of the table, that is learned
  enum class Native : std::uint8_t { kNone, kReady, kStarted };
  const Means means_;
  std::vector<std::int32_t> all_ranks_;
  std::vector<Native> natives_;           // by channel: of the step at which it stands
  std::vector<NativeCall> native_calls_;  // by channel
  std::vector<NativeCall> ready_;         // to be started
  std::int32_t channels_ = 0;
  bool is_one_sided_ = false;  // it has windows or counters
  bool is_native_ = false;
  std::vector<std::int32_t> missing_;  // by channel: whose message it missed last
  std::vector<std::int32_t> to_tell_;  // ranks that a step waits for before it tells them anything
  std::vector<std::int32_t> windows_;  // by buffer; -1: none
  OneSided::Call call_;
  CallLabel label_;
  const Step* contribution_ = nullptr;
  bool is_called_ = true, has_contributed_ = false;
  Status failure_;
  std::vector<TraceEntry>* trace_ = nullptr;
};

}  // namespace ropewalk::collective
