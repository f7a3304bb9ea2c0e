// The ranks of a gang that exchange vectors.
//
//   ASSIGN_OR_RETURN(auto ranks, Communicator::Connect(RendezvousOf(&gang), {}));
//   char* memory; ASSIGN_OR_RETURN(memory, ranks->Allocate(bytes));             // peers read it where it lies
//   RETURN_IF_ERROR(ranks->AllReduce({.in = g, .out = g, .count = n, .op = ReduceOp::kAvg, .name = "grad"}));
//
//   ASSIGN_OR_RETURN(Handle early, ranks->Submit({.in = g, .out = g, .count = n, .name = "layer7"}, {.priority = 7}));
//   ... backward goes on ...
//   RETURN_IF_ERROR(ranks->Wait(&early));
//
// Matching is by sequence, names are only verified: all ranks make the same blocking calls in the same order, and submit the same calls in
// the same order. The two sequences are independent of each other; when ranks wait is their own affair. Ranks that call different
// things (operation, type, count, operation of the sum, root, codec, algorithm, mixing matrix, neighbours, window, name) all fail with a
// status that names both calls.
//
// Between ranks of one machine vectors are read where they lie, in memory that both map; if the ranks are on several machines all of
// them speak TCP, those of one machine, too. Vectors may lie anywhere: what is not from Allocate() is copied once, segment by segment,
// where a peer of the same machine must read it. What lies in them, P ranks, this one r, N = count, the same on all ranks unless said:
//
//                      in                     out                            may share memory: `out` begins
//   AllReduce          N                      N, on all the same bits        where `in` does
//   ReduceScatter      N                      part r of N                    where part r of `in` does
//   AllGather          part r of N            N                              where `in` is its part r
//   AllGatherV         counts[0], its own     room for N, its own: all       no
//   Reduce             N                      N on the root, else unused     where `in` does
//   Gather             part r of N            N on the root, else unused     where `in` is its part r, on the root
//   Scatter            N on the root          part r of N                    where part r of `in` does, on the root
//   AllToAll           N for each rank: P · N N of each rank: P · N          no
//   AllToAllV          counts[i] for rank i   room for N, its own: all       no
//   NeighborExchange   N                      N of each that it hears from   no
//   Mix, Broadcast     N (of the root)        N                              where `in` does
//   SendRecv           N of the root          N on the peer, else unused     where `in` does
//
// So N is the length of the one vector that all ranks speak of, whether each has it or a part of it. Part r of N is PartOf(N, P, r): parts
// follow each other in the order of ranks, and where N is no multiple of P the first N mod P are one element longer; with fewer elements
// than ranks the last ones are empty. Where N is P · n, each part is the n elements that MPI and NCCL call count. What several ranks give
// lies side by side in the order of ranks (NeighborExchange: of the list). Buffers that share memory in any other way are refused (COLL10),
// and what is unused may be null.
//
// A call whose ranks do not all come is waited for no longer than timeout_ms, and no longer than silence_ms where a process does not
// answer; then all ranks fail with a status that names the ranks that are waited for and the call (COLL28). Where a process does not answer
// that is kUnavailable, and a gang is formed anew; where programs do not come it is kDeadlineExceeded, for they would not come the next
// time either.
//
// When a rank dies, leaves or fails, or Abort() is called, all waiting and all later calls of the others fail with a status that names it
// (COLL20, kUnavailable); then the communicator is of no more use. A new one of the same ranks needs a new epoch; those that are left can
// make one of themselves (Shrink). A status says at which call this rank was, and on which machines the ranks are that it names.
//
// Ranks come and go between two calls, when all of them form the communicator anew (Reform): some of them leave, and newcomers that a rank
// has invited are taken in.
//
//   ASSIGN_OR_RETURN(std::string ticket, ranks->Invite());                      // of any rank; bring it to the newcomer
//   ASSIGN_OR_RETURN(auto mine, Communicator::Join(ticket, {.machine = host})); // the newcomer waits until it is taken in
//   ASSIGN_OR_RETURN(auto more, ranks->Reform({}));                             // all ranks; Leave() on one that goes
//
// A part of the ranks makes a communicator of its own (Split), with its own numbers of ranks, sequences, memory and failures:
//
//   ASSIGN_OR_RETURN(auto row, ranks->Split({.color = ranks->rank() / 4, .key = ranks->rank()}));   // null where the colour is kNoGroup
//
// Calls of one communicator know nothing of another's: they may be under way at once, in any number, from several threads. A rank that is
// lost is missed by every communicator that it belongs to, and by no other; one that fails or is aborted takes no other with it.
//
// Owner: the rank's program; it must be destroyed before the gang's context, a group and what it came of in any order. It has a thread that
// drives what was submitted while nobody waits, and one that watches the peers; both sleep when there is nothing to do.
// Thread rule: blocking calls belong to one thread at a time, Submit() to one thread at a time (which may be another); Wait(), Allocate(),
// Free(), Working() and Abort() may be called from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "mlrunner/collective/algorithms.h"
#include "mlrunner/collective/layout.h"
#include "mlrunner/collective/link_order.h"
#include "mlrunner/collective/trace.h"
#include "mlrunner/collective/types.h"

namespace ropewalk::dag {
class GangContext;
}

namespace ropewalk::collective {

class NativeBackend;  // run/native_backend.h
class Chooser;        // run/chooser.h

// How the ranks find each other. What is exchanged must be secret: who knows it may join.
struct Rendezvous {
  std::int32_t rank = 0, ranks = 1;
  std::uint32_t epoch = 0;            // another forming of the same gang has another
  std::string address = "127.0.0.1";  // numeric: where the other machines reach this one
  std::string machine;                // ranks with the same one share memory
  // Gives every rank the bytes of all, by rank. Called once.
  std::function<Result<std::vector<std::string>>(std::string mine)> exchange;
  // Takes a function to call, from any thread, when a rank is known to be lost; an empty one takes it back. May be empty.
  std::function<void(std::function<void(const Status&)>)> on_lost;
  // What the ranks have in secret already: who has only read what they exchange cannot join then. May be empty.
  std::string secret;
};
// `gang` must outlive the communicator and all groups that come of it.
Rendezvous RendezvousOf(dag::GangContext* gang);

// Memory of this rank that the others put into: one of the same number on each rank.
struct Window {
  char* memory = nullptr;
  std::size_t bytes = 0;
  std::int32_t number = 0;
};

enum class Wire : std::uint8_t { kByMachine, kShared, kTcp };

// How an algorithm is chosen for calls that name none.
enum class ChooseBy : std::uint8_t {
  kFixedSizes,     // small vectors by one, large ones by another (run/choose.h)
  kKeptCosts,      // the one of the least predicted time, by what messages cost: as measured before on the same machines, else measured now
  kMeasuredCosts,  // as measured now, and kept for later
};

struct CommunicatorOptions {
  Wire wire = Wire::kByMachine;
  // Shared memory that this rank may allocate, staging and scratch included. Only what is touched takes memory.
  std::size_t pool_bytes = std::size_t{1} << 30;
  // Vectors are cut into segments of at most this many bytes; between two a submitted call may give way. 0: by the wire.
  std::int64_t segment_bytes = 0;
  // How many bytes of submitted calls may be on their way before less urgent ones wait. Rank 0's counts.
  std::int64_t credit_bytes = std::int64_t{16} << 20;
  std::int32_t connect_ms_max = 30'000;
  // How long a rank waits in Run(), Wait() or MakeWindow() while neither any of its calls nor a rank that is in one gets on: each step that
  // is done counts, each byte of a message that moves, and a long sum or copy (but for relaxed windows of others, and for what a library
  // does in native steps, which nobody sees). 0: for ever. Time in which this process itself is stopped does not count. Where one rank may
  // compute for longer than this while the others wait for it, give more, or let it say now and then that it gets on (Working).
  std::int64_t timeout_ms = 30 * 60'000;
  // How long the process of another rank may say nothing while this one waits: one that is stopped, or whose machine hangs, is not waited
  // for any longer. One that computes answers all the time. 0: for ever, for ranks that are looked at in a debugger.
  std::int64_t silence_ms = 7'000;
  bool checksum_payload = false;  // TCP
  // By costs Connect() takes two or three seconds longer where they are measured (calibrate.h says what that needs), and sums in another
  // order than that of the ranks may be rounded in another way when they are measured again. The same on all ranks. Groups of a
  // communicator, and what it is formed anew to (Shrink, Reform, Join), choose by fixed sizes.
  ChooseBy choose_by = ChooseBy::kFixedSizes;
  std::string costs_folder;  // of costs that are kept; rank 0's counts. Empty: "links" in the home folder
  // In which order rings and chains pass messages on, where deterministic mode leaves them one; the same on all ranks, and for this
  // communicator only: those that come of it have theirs measured, or none.
  Orders orders;
  // Over TCP, with three ranks or more, ranks measure what messages cost between each two of them when they connect (CalibratePairs, which
  // takes a while) and have `orders` from that, so that rings and chains leave slow links alone; and where every rank is on a machine of
  // its own, also the nodes of hierarchical algorithms, if links show nodes of one size. The same on all ranks; communicators that come of
  // this one (groups, those that are left, newcomers, too) do likewise.
  bool measures_links = false;
  // Runs the steps of plans that are a library's own (algorithms "native" and "native_..."); without one such calls are refused (COLL12).
  // It must outlive the communicator.
  NativeBackend* native = nullptr;
  // Those that calls may run by, chosen or named: a strategy adds its own, and what is not here cannot be run (COLL11). The same on all
  // ranks; it must outlive the communicator.
  std::span<const Algorithm> algorithms = Algorithms();
};

inline constexpr std::int32_t kNoGroup = -1;

struct GroupOptions {
  std::int32_t color = kNoGroup;  // ranks of one colour make a group; a negative one: this rank is in none
  std::int32_t key = 0;           // the group's ranks are counted in this order, then in that of the ranks that they were
  // As in CommunicatorOptions, the same on all ranks of the group; 0: as much as the communicator that it comes of. All else is as there,
  // also the wire: what was left to the machines is so again, and a group on one machine shares memory.
  std::size_t pool_bytes = 0;
  NativeBackend* native = nullptr;  // a library for this group; that of the communicator knows other ranks
};

struct CollectiveCall {
  Collective collective = Collective::kAllreduce;
  const void* in = nullptr;
  void* out = nullptr;
  std::int64_t count = 0;  // elements; see above
  Dtype dtype = Dtype::kF32;
  ReduceOp op = ReduceOp::kSum;
  std::int32_t root = 0;  // broadcast, scatter, send/recv: the source; reduce, gather: the destination
  std::int32_t peer = 0;  // send/recv: the destination
  std::string_view name;
  bool deterministic = false;    // the left fold over the ranks
  std::string_view algorithm{};  // empty: chosen (CommunicatorOptions::choose_by)
  // What goes with an algorithm: vectors are cut into segments of so many bytes at most, which travel on so many channels. 0: as chosen, or
  // by the wire.
  std::int64_t segment_bytes = 0;
  std::int32_t channels = 0;
  // Allreduce by "sra": how the numbers travel (MinMaxCodec, SignCodec). Any other algorithm, and any other collective, refuses a codec
  // (COLL10). With error feedback `residual` is memory of 2 · count f32, zero at first, that stays with this vector from call to call.
  const Codec* codec = nullptr;
  float* residual = nullptr;
  // All-to-all-v: how many elements of `in` are for each rank, in the order of ranks; `count` is what `out` has room for. What the others
  // have for this one lies in `out` in their order; how much each had is put into `received`, if that is given. Allgather-v: likewise, with
  // one number, how many elements of `in` are for all.
  const std::int64_t* counts = nullptr;
  std::int64_t* received = nullptr;
  // Mixing with neighbours: out of rank i = the sum over j of mixing[i][j] times in of rank j; the same matrix on all ranks. The window has
  // room for one vector of each rank that this one takes from, and belongs to calls of one kind. "window" waits for this round's vectors,
  // "window_relaxed" takes what is there, whoever stands still; ranks may make more or fewer of such calls, and call them by any name, but
  // each comes to its relaxed windows for the first time in the same order (blocking calls; submitted ones are matched as all are).
  const std::vector<std::vector<double>>* mixing = nullptr;
  const Window* window = nullptr;
  // Neighbour exchange, the same on all ranks: (*neighbors)[i] says whose vectors rank i receives, each rank once at most, in the order in
  // which they are to lie in its `out`; it may be among them. A rank may hear from nobody, or be heard by nobody.
  const Neighbors* neighbors = nullptr;
};

struct SubmitOptions {
  std::int64_t priority = 0;  // smaller goes first; rank 0's counts
};

// What was submitted. Cheap to copy.
struct Submission;
using Handle = std::shared_ptr<Submission>;

struct ReformOptions {
  bool leaves = false;              // this rank goes
  NativeBackend* native = nullptr;  // a library for the new communicator; that of this one knows other ranks
};

// What is not here the newcomer has as the ranks that it comes to: memory, segments, times.
struct JoinOptions {
  std::string address = "127.0.0.1";  // as in Rendezvous
  std::string machine;
  std::int32_t rank = -1;                 // the number that it wants, as after it has left and come back; -1: the next one that is free
  std::int64_t timeout_ms = 30 * 60'000;  // how long it waits to be taken in; 0: for ever
  std::int32_t connect_ms_max = 30'000;
  NativeBackend* native = nullptr;
  std::span<const Algorithm> algorithms = Algorithms();
};

class Communicator {
 public:
  // kInvalid (COLL30) for a rendezvous that makes no sense, kUnavailable (COLL31) when a rank cannot be reached or does not come in time.
  static Result<std::unique_ptr<Communicator>> Connect(Rendezvous rendezvous, const CommunicatorOptions& options);
  // Makes this process a rank of a communicator whose rank gave it this ticket, as soon as that is formed anew. kInvalid (COLL30) for what
  // is no ticket, or a number that cannot be had; kUnauthenticated (COLL32) for a ticket of another job, kVersionSkew (COLL23);
  // kUnavailable (COLL31) when the ranks are gone, have been formed anew without it, or could not be connected with it: take a new ticket;
  // kDeadlineExceeded (COLL28) when nobody has taken it in within timeout_ms. It is part of nothing then.
  static Result<std::unique_ptr<Communicator>> Join(const std::string& ticket, const JoinOptions& options);
  virtual ~Communicator() = default;

  virtual std::int32_t rank() const = 0;
  virtual std::int32_t ranks() const = 0;
  virtual bool shares_memory() const = 0;
  // By rank: which rank of the gang it is. Statuses of a group name its own ranks, and say these.
  virtual std::span<const std::int32_t> members() const = 0;
  // The machines, or what the links show (measures_links), as hierarchical algorithms see them.
  virtual const Nodes& nodes() const = 0;
  // In which rings and chains pass messages on; empty: that of the ranks.
  virtual const Orders& orders() const = 0;

  // A blocking call: makes communicators of the ranks of each colour, as MPI_Comm_split does. All ranks call it. They find each other by
  // calls of this one. Where a rank cannot join its group (COLL31, it is named) no rank of that group has it, and this communicator goes
  // on. Null for a rank that is in none.
  virtual Result<std::unique_ptr<Communicator>> Split(const GroupOptions& group) = 0;

  // Of a communicator that has failed (for whatever reason, also by Abort): makes one of the ranks that are left, in their order. A
  // blocking call; each of these ranks makes it, or ends, or destroys this communicator, which means that it is not among them. Nobody else
  // is asked: they agree over the links by which they watch each other on who is gone, also on those that go meanwhile. The new one hears
  // of losses by its own links only. kInvalid (COLL30) when it has not failed; kDeadlineExceeded (COLL28) when a rank does neither within
  // timeout_ms; kUnavailable when its process does not answer for silence_ms (COLL28), for a rank that the others are cut off from
  // (COLL20), or when one that is there cannot join (COLL31).
  virtual Result<std::unique_ptr<Communicator>> Shrink() = 0;

  // Forms this communicator anew, whether it has failed or not: of the ranks that stay, without those that leave (they get null) or are
  // gone, and with newcomers. A blocking call of all ranks, between their other calls. What has been submitted is ended first, so that of
  // one who leaves nothing is missing; its handles say how it ended. The ranks that stay keep their order, newcomers follow them, unless
  // they want a number; all have the same. It is a gang of its own: members() counts it from 0. A newcomer that fails is left out, and so
  // is a rank that dies meanwhile. Errors as of Shrink(), and after one this communicator is as it was. After success it is retired: its
  // memory is there until it is destroyed, and calls of it fail (COLL33), but nobody's leaving is a failure any more.
  virtual Result<std::unique_ptr<Communicator>> Reform(const ReformOptions& options) = 0;
  // Reform() of a rank that goes; the others call it, too, at the same time.
  Status Leave() { return Reform({.leaves = true}).status(); }

  // A ticket for newcomers, good until this communicator is formed anew or destroyed. Who has it may join: it is a secret. Any rank may
  // invite, and any number of newcomers may have its ticket; they wait at this rank's door until all ranks call Reform(). The door is a
  // port of its own at the rendezvous' address.
  virtual Result<std::string> Invite() = 0;
  // Whether somebody waits at this rank's door. Costs a system call or two; belongs to one thread at a time with the calls above.
  virtual bool HasNewcomers() = 0;

  // Memory that peers read without a copy; 64-byte aligned, not zeroed. kResourceExhausted (COLL13) when the pool is used up. It lives as
  // long as the communicator, or until Free().
  virtual Result<char*> Allocate(std::size_t bytes) = 0;
  virtual void Free(char* memory) = 0;

  // A blocking call: all ranks make their windows in the same order, of lengths of their own. Zeroed; it lives as long as the communicator.
  // From then on this rank serves its peers while its program computes. kResourceExhausted (COLL13) on all ranks when one has no room: it
  // is named, no rank has the window then, and the next one may be made.
  virtual Result<Window> MakeWindow(std::size_t bytes) = 0;

  // Runs `call` to the end. The calling thread drives it, and what was submitted beside it.
  virtual Status Run(const CollectiveCall& call) = 0;
  Status AllReduce(CollectiveCall call) { return As(Collective::kAllreduce, call); }
  Status ReduceScatter(CollectiveCall call) { return As(Collective::kReduceScatter, call); }
  Status AllGather(CollectiveCall call) { return As(Collective::kAllgather, call); }
  Status AllGatherV(CollectiveCall call) { return As(Collective::kAllgatherV, call); }
  Status Broadcast(CollectiveCall call) { return As(Collective::kBroadcast, call); }
  Status Reduce(CollectiveCall call) { return As(Collective::kReduce, call); }
  Status Gather(CollectiveCall call) { return As(Collective::kGather, call); }
  Status Scatter(CollectiveCall call) { return As(Collective::kScatter, call); }
  Status SendRecv(CollectiveCall call) { return As(Collective::kSendRecv, call); }
  Status AllToAll(CollectiveCall call) { return As(Collective::kAllToAll, call); }
  Status AllToAllV(CollectiveCall call) { return As(Collective::kAllToAllV, call); }
  Status NeighborExchange(CollectiveCall call) { return As(Collective::kNeighborExchange, call); }
  Status Mix(CollectiveCall call) { return As(Collective::kMix, call); }
  Status Barrier() { return As(Collective::kBarrier, {.name = "barrier"}); }

  // Begins `call`; its buffers belong to the communicator until Wait() has returned for it.
  virtual Result<Handle> Submit(const CollectiveCall& call, const SubmitOptions& options) = 0;
  // Returns when it is done, with how it ended; also for a handle that was waited for already. The calling thread helps.
  virtual Status Wait(const Handle& handle) = 0;
  virtual bool IsDone(const Handle& handle) const = 0;

  // Says that this rank's program gets on, though the others may wait for it in a call: while it says so more often than once in
  // timeout_ms, nobody is named for being late because of it. Costs next to nothing.
  virtual void Working() = 0;

  // Ends all calls of all ranks with this status.
  virtual void Abort(const Status& why) = 0;

  // What its calls run by when they name no algorithm, and why (Chooser::Explain): by fixed sizes where its costs() are from nowhere.
  virtual const Chooser* chooser() const { return nullptr; }

  // Steps that interpreters did for this rank, over all calls.
  virtual std::uint64_t steps() const = 0;

 private:
  Status As(Collective collective, CollectiveCall call) {
    call.collective = collective;
    return Run(call);
  }
};

}  // namespace ropewalk::collective
