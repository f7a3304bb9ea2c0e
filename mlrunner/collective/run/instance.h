// A program bound to sizes, memory and a transport: what runs.
//
//   Instance instance = ...Make(header, program, {.count = n}, &transport);
//   instance.Bind({in, out});   // pointers, as often as they change
//   RETURN_IF_ERROR(instance.Run());
//
// The calling thread drives it. After Make() nothing allocates. Plans with one-sided, encoding or native steps are refused for now
// (COLL12): they are proved and simulated, and get their machines with the systems that need them.
//
// Owner: the caller. Thread rule: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/huge_pages.h"
#include "base/status.h"
#include "mlrunner/collective/interpreter.h"
#include "mlrunner/collective/run/kernels.h"
#include "mlrunner/collective/run/transport.h"
#include "mlrunner/collective/trace.h"

namespace ropewalk::collective {

class Instance : private Machine {
 public:
  // Header and program must outlive it; so must the transport.
  static Result<std::unique_ptr<Instance>> Make(const Header* header, const Program* program, const Sizes& sizes, Transport* transport);

  // Memory of the caller's buffers, in the order of the header's (others null). In and out may be the same where the plan allows it.
  void Bind(std::span<void* const> buffers);
  // Runs once, to the end: everything is received, and what was posted is consumed. After a failure the other ranks are
  // freed (Abort) and the transport is of no more use.
  Status Run();

  // Steps that the interpreter did, over all runs.
  std::uint64_t steps() const { return interpreter_->steps_done(); }
  // Notes sends and receives of the following runs (allocates).
  void Record(std::vector<TraceEntry>* trace) { trace_ = trace; }

 private:
  Instance(const Header* header, const Program* program, Layout layout, Transport* transport);
  Outcome Try(const Interpreter& at, const Step& step) override;
  Status RunToTheEnd();
  // Where messages land, and whose turn it is.
  void Prepare();
  Dtype DtypeOf(std::int32_t buffer) const;
  char* PlaceOf(const Interpreter& at, std::int32_t chunk) const;
  std::size_t BytesOf(const Interpreter& at, std::int32_t chunk) const;

  const Header* header_;
  const Program* program_;
  Layout layout_;
  Transport* transport_;
  std::unique_ptr<Interpreter> interpreter_;
  std::vector<char*> memory_;          // by buffer
  std::vector<std::size_t> landings_;  // by operand: where in landing_ it may land
  std::vector<std::int32_t> turns_;    // by operand: how many of its step's earlier operands come from the same peer
  std::vector<std::int32_t> slots_;    // by step: of the edge it sends on
  HugeBuffer landing_;
  std::vector<Row> rows_;  // of the step at hand
  std::vector<TraceEntry>* trace_ = nullptr;
};

}  // namespace ropewalk::collective
