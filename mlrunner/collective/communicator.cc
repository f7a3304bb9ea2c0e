#include "mlrunner/collective/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <span>
#include <utility>

#include "base/home_process.h"
#include "dag/gang.h"
#include "mlrunner/collective/run/choose.h"
#include "mlrunner/collective/run/engine.h"
#include "mlrunner/collective/run/links.h"
#include "mlrunner/collective/run/mesh.h"
#include "mlrunner/collective/run/shared_transport.h"
#include "mlrunner/collective/run/tcp_transport.h"

namespace ropewalk::collective {
namespace {

// Gives news of a lost rank to whoever it concerns now: the one that connects, then the communicator.
struct LossSink {
  MeshCancel cancel;
  std::mutex mutex;
  std::function<void(const Status&)> connected;  // empty: not yet
  void Tell(const Status& why) {
    std::lock_guard lock(mutex);
    cancel.Set(why);
    if (connected) connected(why);
  }
};

// A process that is well answers at once, also on a busy machine.
constexpr std::int64_t kAnswerMsMax = 3'000;

// A child that the program forked has left the function that forked it. It has no thread that could be joined, and nothing to say to the
// peers: its parent goes on.
[[noreturn]] void EndForkedChild() {
  const Status status(Code::kUserError, "COLL29", "a process that a rank's program forked came out of the function that forked it",
                      "it is no rank: its parent is, and goes on", "end it by exec() or _exit() in that function");
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  ::_exit(ExitCode(status.code()));
}

class Connected : public Communicator {
 public:
  Connected(Rendezvous rendezvous, const CommunicatorOptions& options, Mesh mesh, std::unique_ptr<LossSink> losses)
      : rendezvous_(std::move(rendezvous)),
        options_(options),
        losses_(std::move(losses)),
        board_(std::move(mesh.board)),
        pools_(std::move(mesh.pools)),
        shares_memory_(mesh.shares_memory) {
    transport_ = MakeTransport(&mesh);
    one_sided_ = std::make_unique<OneSided>(rank(), ranks(), transport_.get(), Engine::kOneSided);
    native_ = std::make_unique<NativeDesk>(options_.native, transport_.get());
    cache_ = std::make_unique<InstanceCache>(
        rank(), transport_.get(), Means{.native = native_.get(), .one_sided = one_sided_.get(), .leaves_scratch = shares_memory_},
        options_.algorithms);
    engine_ = std::make_unique<Engine>(
        rank(), ranks(), options_.credit_bytes, transport_.get(), one_sided_.get(), cache_.get(), [this](const Status& why) { Abort(why); },
        Engine::Timeout{.ms = options_.timeout_ms, .verdict = [this](const Engine::Stall& stall) { return StatusOf(stall); }});
    std::lock_guard lock(links_mutex_);
    links_ = std::make_unique<Links>(rank(), std::move(mesh.links),
                                     Links::Events{.on_failed = [this](const Status& why) { Abort(why); },
                                                   .on_left = [this](std::int32_t peer) { transport_->SetLeft(peer); },
                                                   .is_waiting = [this] { return engine_->IsWaitedFor(); }});
  }

  // What it takes to make windows on all ranks or on none, set aside while there is room.
  Status SetUp() {
    static_assert(sizeof(OneSided::Place) == 2 * sizeof(std::int64_t));
    const std::int64_t count = 2 * ranks();
    ASSIGN_OR_RETURN(char* memory, Allocate(static_cast<std::size_t>(count) * sizeof(std::int64_t)));
    places_ = {reinterpret_cast<OneSided::Place*>(memory), static_cast<std::size_t>(ranks())};
    ASSIGN_OR_RETURN(agreement_, Prepare({.in = memory, .out = memory, .count = count, .dtype = Dtype::kI64}));
    return {};
  }

  // Hears of losses from now on, also of one that came before.
  void Listen() {
    std::lock_guard lock(losses_->mutex);
    losses_->connected = [this](const Status& why) { Abort(why); };
    if (losses_->cancel.is_set()) Abort(losses_->cancel.why());
  }

  ~Connected() override {
    if (!home_.here()) EndForkedChild();
    if (rendezvous_.on_lost) rendezvous_.on_lost({});
    // While the peers are still watched: a call that is under way may end with their failure.
    engine_->Stop();
    std::unique_ptr<Links> links;
    {
      std::lock_guard lock(links_mutex_);
      links = std::move(links_);
    }
    links.reset();
    engine_.reset();
  }

  std::int32_t rank() const override { return rendezvous_.rank; }
  std::int32_t ranks() const override { return rendezvous_.ranks; }
  bool shares_memory() const override { return shares_memory_; }

  Result<char*> Allocate(std::size_t bytes) override {
    char* memory = transport_->Allocate(bytes);
    if (memory != nullptr) return memory;
    return Status(Code::kResourceExhausted, "COLL13", "no room for " + std::to_string(bytes) + " bytes in the pool",
                  "it has " + std::to_string(options_.pool_bytes) + " bytes", "raise pool_bytes");
  }
  void Free(char* memory) override { transport_->Free(memory); }

  Result<Window> MakeWindow(std::size_t bytes) override {
    Result<std::int32_t> made = one_sided_->AddWindow(bytes);
    engine_->ServePeers();
    // A rank without room says so to all: what one cannot have is made on none, or the numbers of later windows would differ.
    std::fill(places_.begin(), places_.end(), OneSided::Place{});
    places_[rank()] = made.ok() ? one_sided_->PlaceOf(*made) : OneSided::Place{.place = bytes, .bytes = -1};
    RETURN_IF_ERROR(engine_->Run(agreement_, LabelOf(agreement_->header(), agreement_->count(), "window", 0)));
    for (std::int32_t peer = 0; peer < ranks(); ++peer) {
      if (places_[peer].bytes >= 0) continue;
      if (made.ok()) one_sided_->DropWindow(*made);
      return Status(Code::kResourceExhausted, "COLL13",
                    "rank " + std::to_string(peer) + " has no room for its window of " + std::to_string(places_[peer].place) + " bytes",
                    "its pool is full", "give it a larger pool (pool_bytes); no rank has this window now");
    }
    if (Status status = one_sided_->SetPlaces(*made, places_); !status.ok()) {
      Abort(status);  // the others have theirs
      return status;
    }
    return Window{.memory = one_sided_->MemoryOf(*made), .bytes = bytes, .number = *made};
  }

  Status Run(const CollectiveCall& call) override {
    ASSIGN_OR_RETURN(Instance * instance, Prepare(call));
    Status status = engine_->Run(instance, LabelFor(call, *instance));
    if (!status.ok()) return status;
    if (call.received != nullptr) instance->TellReceived(call.received);
    cache_->GiveBack(instance);
    return {};
  }

  Result<Handle> Submit(const CollectiveCall& call, const SubmitOptions& options) override {
    ASSIGN_OR_RETURN(Instance * instance, Prepare(call));
    return engine_->Submit(instance, LabelFor(call, *instance), options.priority,
                           call.count * static_cast<std::int64_t>(SizeOf(call.dtype)), call.received);
  }

  Status Wait(const Handle& handle) override { return engine_->Wait(handle.get()); }
  bool IsDone(const Handle& handle) const override { return handle->is_done.load(); }

  void Abort(const Status& why) override {
    // Before any call ends: its caller takes its memory back then.
    native_->Abort(why);
    // Under the mutex: the program may end as soon as its call has failed, and must not leave before the peers were told why. The links
    // may not be there yet, or not any more; then their end says it.
    std::lock_guard lock(links_mutex_);
    if (engine_->Fail(why) && links_ != nullptr) links_->TellFailed(why);
  }

  std::uint64_t steps() const override { return engine_->steps(); }

 private:
  std::unique_ptr<Transport> MakeTransport(Mesh* mesh) {
    if (shares_memory_) {
      std::vector<char*> begins;
      for (const SharedMemory& pool : pools_) begins.push_back(pool.data());
      return std::make_unique<SharedTransport>(rank(), Board(board_.data(), ranks(), Engine::kChannels), std::move(begins),
                                               options_.pool_bytes);
    }
    std::vector<int> sockets;
    for (auto& socket : mesh->data) sockets.push_back(socket.release());
    return std::make_unique<TcpTransport>(rank(), ranks(), Engine::kChannels, std::move(sockets),
                                          TcpOptions{.job_epoch = rendezvous_.epoch,
                                                     .checksum_payload = options_.checksum_payload,
                                                     .ranks_on_machine = mesh->ranks_on_machine_max,
                                                     .is_told = true});
  }

  // Who is to blame for it, as far as the ranks themselves can say: one whose process stands still, else one whose program is in no call,
  // else one that this rank waits for.
  Status StatusOf(const Engine::Stall& stall) {
    Links* links;
    {
      std::lock_guard lock(links_mutex_);
      links = links_.get();  // there as long as a call is
    }
    const std::vector<Links::Answer> answers = links->Ask(kAnswerMsMax);
    auto those = [&](Links::Answer answer) {
      std::vector<std::int32_t> ranks;
      for (std::int32_t peer = 0; peer < this->ranks(); ++peer)
        if (answers[peer] == answer && peer != rank()) ranks.push_back(peer);
      return ranks;
    };
    std::vector<std::int32_t> blamed = stall.ranks;
    std::string why = "they wait in calls, too: of other ranks, or in another order";
    Code code = Code::kDeadlineExceeded;  // of the programs: formed anew, they would come to the same place
    if (auto silent = those(Links::Answer::kNone); !silent.empty()) {
      blamed = silent;
      code = Code::kUnavailable;
      why = "its process does not answer: it is stopped, or its machine hangs";
    } else if (auto elsewhere = those(Links::Answer::kElsewhere); !elsewhere.empty()) {
      auto is_missed = [&](std::int32_t peer) { return std::find(stall.ranks.begin(), stall.ranks.end(), peer) != stall.ranks.end(); };
      if (std::any_of(elsewhere.begin(), elsewhere.end(), is_missed))
        std::erase_if(elsewhere, [&](std::int32_t peer) { return !is_missed(peer); });
      blamed = elsewhere;
      why = "its program is in no call: it computes, waits for something else, or has forgotten this call";
    }
    std::string names;
    for (std::int32_t peer : blamed) names += (names.empty() ? "" : ", ") + ("rank " + std::to_string(peer));
    if (names.empty()) names = "the library";
    return Status(code, "COLL28",
                  names + (blamed.size() > 1 ? " are" : " is") + " waited for: rank " + std::to_string(rank()) + " has been at " +
                      (stall.call.fingerprint == 0 ? "its last orders" : Describe(stall.call)) + " for " + std::to_string(stall.waited_ms) +
                      " ms" + (stall.has_begun ? "" : ", which has not begun"),
                  why, "look at that rank; if it may take so long, raise the time-out (timeout_ms; of a training: train.timeout)");
  }

  // An instance that is bound to the call's memory.
  Result<Instance*> Prepare(const CollectiveCall& call) {
    Request request{.collective = call.collective,
                    .dtype = call.dtype,
                    .op = call.op,
                    .ranks = ranks(),
                    .root = call.root,
                    .peer = call.peer,
                    .deterministic = call.deterministic};
    const bool is_counted = call.collective == Collective::kAllToAllV;
    const bool mixes = call.collective == Collective::kMix;
    if (mixes != (call.mixing != nullptr) || mixes != (call.window != nullptr))
      return Status(Code::kInvalid, "COLL10",
                    std::string(Name(call.collective)) + ": a mixing matrix or a window is missing, or has no place",
                    std::string("the call has ") + (call.mixing != nullptr ? "a" : "no") + " matrix and " +
                        (call.window != nullptr ? "a" : "no") + " window",
                    "give both to a mixing call, and to no other");
    if (mixes && !one_sided_->IsOurs(call.window->number, call.window->memory))
      return Status(Code::kInvalid, "COLL10", "the window of a mixing call is none of this communicator", "MakeWindow() has not made it",
                    "give the one that MakeWindow() of this communicator returned");
    const auto is_finite = [](const std::vector<double>& row) {
      return std::all_of(row.begin(), row.end(), [](double weight) { return std::isfinite(weight); });
    };
    if (mixes && !std::all_of(call.mixing->begin(), call.mixing->end(), is_finite))
      return Status(Code::kInvalid, "COLL10", "a weight of the mixing matrix is no finite number", "sums of such are none", "mend it");
    if ((is_counted != (call.counts != nullptr)) || (call.received != nullptr && !is_counted) ||
        (call.codec != nullptr && call.codec->error_feedback != (call.residual != nullptr)))
      return Status(Code::kInvalid, "COLL10", std::string(Name(call.collective)) + ": counts or residual are missing, or have no place",
                    is_counted != (call.counts != nullptr) || (call.received != nullptr && !is_counted)
                        ? "counts belong to an all-to-all-v, which cannot do without; received only to it"
                        : "a residual belongs to a codec with error feedback, which cannot do without",
                    "give the call what it needs, and leave the rest null");
    Choice choice = Choose(request, call.codec != nullptr, call.count, shares_memory_, options_.segment_bytes);
    if (!call.algorithm.empty()) choice.algorithm = call.algorithm;
    if (choice.algorithm.empty())
      return Status(Code::kInvalid, "COLL10", "no algorithm is chosen for " + std::string(Name(call.collective)),
                    "a communicator chooses for allreduce, broadcast, barrier, send_recv, all_to_all_v and mixing only",
                    "use these: of an allreduce take a part, or let each rank's vector be zero outside of its own part to gather");
    request.segment_bytes = choice.segment_bytes;
    request.channels = choice.channels;
    ASSIGN_OR_RETURN(
        Instance * instance,
        cache_->Take({.algorithm = choice.algorithm, .request = &request, .codec = call.codec, .mixing = call.mixing}, CountOf(call)));
    Status status;
    if (instance->channels() > Engine::kChannelsOfLane)
      status =
          Status(Code::kInvalid, "COLL12", std::string(choice.algorithm) + " has " + std::to_string(instance->channels()) + " channels",
                 "a communicator's calls have " + std::to_string(Engine::kChannelsOfLane) + " at most",
                 "take an algorithm with fewer channels, or leave the choice to the communicator");
    if (status.ok() && is_counted) status = instance->SetCounts({call.counts, static_cast<std::size_t>(ranks())}, call.count);
    if (status.ok()) status = Bind(instance, call);
    if (status.ok()) return instance;
    cache_->GiveBack(instance);
    return status;
  }

  // By name: what a plan has beyond its first two buffers.
  static Status Bind(Instance* instance, const CollectiveCall& call) {
    std::array<void*, 8> buffers{};
    const std::vector<Buffer>& named = instance->header().buffers;
    for (std::size_t b = 0; b < named.size() && b < buffers.size(); ++b) {
      if (named[b].role == Role::kScratch) continue;
      if (named[b].name == "in")
        buffers[b] = const_cast<void*>(call.in);
      else if (named[b].name == "out")
        buffers[b] = call.out;
      else if (named[b].name == "my_counts")
        buffers[b] = const_cast<std::int64_t*>(call.counts);
      else if (named[b].name == "residual")
        buffers[b] = call.residual;
      else if (named[b].name == "sum_residual")
        buffers[b] = call.residual + call.count;
    }
    for (std::size_t b = 0; b < named.size(); ++b)
      if (named[b].role == Role::kWindow) RETURN_IF_ERROR(instance->BindWindow(static_cast<std::int32_t>(b), call.window->number));
    return instance->Bind(buffers);
  }

  static CallLabel LabelFor(const CollectiveCall& call, const Instance& instance) {
    if (call.window != nullptr) return LabelOfWindow(instance.header(), CountOf(call), call.name, call.window->number);
    return LabelOf(instance.header(), CountOf(call), call.name, 0);
  }

  // What all ranks must agree on: a count that is only room is a rank's own affair.
  static std::int64_t CountOf(const CollectiveCall& call) { return call.collective == Collective::kAllToAllV ? 0 : call.count; }

  const HomeProcess home_;
  const Rendezvous rendezvous_;
  const CommunicatorOptions options_;
  const std::unique_ptr<LossSink> losses_;
  const SharedMemory board_;
  const std::vector<SharedMemory> pools_;
  const bool shares_memory_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<OneSided> one_sided_;
  std::unique_ptr<NativeDesk> native_;
  std::unique_ptr<InstanceCache> cache_;
  std::unique_ptr<Engine> engine_;
  std::span<OneSided::Place> places_;  // by rank, of the window that is being made
  Instance* agreement_ = nullptr;      // their sum; it is never given back
  std::mutex links_mutex_;
  std::unique_ptr<Links> links_;
};

}  // namespace

Rendezvous RendezvousOf(dag::GangContext* gang) {
  return {.rank = gang->rank(),
          .ranks = gang->ranks(),
          .epoch = gang->epoch(),
          .address = gang->address(),
          .machine = gang->machine(),
          .exchange = [gang](std::string mine) { return gang->Exchange(std::move(mine)); },
          .on_lost = [gang](std::function<void(const Status&)> lost) { gang->OnLost(std::move(lost)); }};
}

Result<std::unique_ptr<Communicator>> Communicator::Connect(Rendezvous rendezvous, const CommunicatorOptions& options) {
  auto losses = std::make_unique<LossSink>();
  if (rendezvous.on_lost) rendezvous.on_lost([sink = losses.get()](const Status& why) { sink->Tell(why); });
  auto mesh = ConnectMesh(rendezvous, options, Engine::kChannels, losses->cancel);
  if (!mesh.ok()) {
    if (rendezvous.on_lost) rendezvous.on_lost({});
    return mesh.status();
  }
  auto connected = std::make_unique<Connected>(std::move(rendezvous), options, *std::move(mesh), std::move(losses));
  connected->Listen();
  RETURN_IF_ERROR(connected->SetUp());
  return std::unique_ptr<Communicator>(std::move(connected));
}

}  // namespace ropewalk::collective
