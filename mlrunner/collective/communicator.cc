#include "mlrunner/collective/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>

#include "base/home_process.h"
#include "base/monotonic.h"
#include "dag/gang.h"
#include "mlrunner/collective/calibrate.h"
#include "mlrunner/collective/run/blame.h"
#include "mlrunner/collective/run/chooser.h"
#include "mlrunner/collective/run/door.h"
#include "mlrunner/collective/run/engine.h"
#include "mlrunner/collective/run/forming.h"
#include "mlrunner/collective/run/groups.h"
#include "mlrunner/collective/run/hosts.h"
#include "mlrunner/collective/run/link_costs.h"
#include "mlrunner/collective/run/links.h"
#include "mlrunner/collective/run/mesh.h"
#include "mlrunner/collective/run/shared_transport.h"
#include "mlrunner/collective/run/tcp_transport.h"
#include "rpc/frame.h"

namespace ropewalk::collective {
namespace {

// A process that is well answers at once, also on a busy machine.
constexpr std::int64_t kAnswerMsMax = 3'000;
// As often as newcomers that have gone make the ranks begin again, they do so with others; then without any.
constexpr std::uint32_t kAttemptsMax = 8;
// Between two questions what a rank is at: whoever gets on shows it, and a driver that sleeps has looked again.
constexpr std::chrono::milliseconds kBetweenQuestions{150};

// A child that the program forked has left the function that forked it. It has no thread that could be joined, and nothing to say to the
// peers: its parent goes on.
[[noreturn]] void EndForkedChild() {
  const Status status(Code::kUserError, "COLL29", "a process that a rank's program forked came out of the function that forked it",
                      "it is no rank: its parent is, and goes on", "end it by exec() or _exit() in that function");
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  ::_exit(ExitCode(status.code()));
}

Status CannotJoin(std::int32_t rank, const std::string& why) {
  return Status(Code::kUnavailable, "COLL31", "rank " + std::to_string(rank) + " cannot join the new communicator", why,
                "mend that; the one that it was to come of is as it was, and the call can be made again");
}

Status Retired() {
  return Status(Code::kInvalid, "COLL33", "this communicator has been formed anew", "its ranks go on in the new one",
                "call the one that Reform() returned; this one's memory is there until it is destroyed");
}

class Connected : public Communicator {
 public:
  // `members`: the gang's ranks by those of a group; empty: they are the same.
  Connected(Rendezvous rendezvous, const CommunicatorOptions& options, Mesh mesh, std::shared_ptr<Losses> losses,
            std::vector<std::int32_t> members)
      : rendezvous_(std::move(rendezvous)),
        options_(options),
        losses_(std::move(losses)),
        group_(members.empty() ? "" : OfGroup(members)),
        members_(std::move(members)),
        board_(std::move(mesh.board)),
        pools_(std::move(mesh.pools)),
        shares_memory_(mesh.shares_memory),
        secret_(std::move(mesh.secret)),
        hosts_(std::move(mesh.hosts)),
        machines_(std::move(mesh.machines)),
        nodes_(std::move(mesh.nodes)),
        orders_(options.orders) {
    for (std::int32_t rank = 0; members_.size() < static_cast<std::size_t>(ranks()); ++rank) members_.push_back(rank);
    transport_ = MakeTransport(&mesh);
    one_sided_ = std::make_unique<OneSided>(rank(), ranks(), transport_.get(), Engine::kOneSided);
    native_ = std::make_unique<NativeDesk>(options_.native, transport_.get());
    cache_ = std::make_unique<InstanceCache>(
        rank(), transport_.get(), Means{.native = native_.get(), .one_sided = one_sided_.get(), .leaves_scratch = shares_memory_},
        options_.algorithms, nodes_, orders_);
    engine_ = std::make_unique<Engine>(
        rank(), ranks(), options_.credit_bytes, transport_.get(), one_sided_.get(), cache_.get(), [this](const Status& why) { Fail(why); },
        Engine::Timeout{.ms = options_.timeout_ms,
                        .verdict = [this](const Engine::Stall& stall) { return StatusOf(stall); },
                        .listen = [this](const Engine::Stall& stall, std::int64_t since_ms) { return Listen(stall, since_ms); }});
    std::lock_guard lock(links_mutex_);
    links_ = std::make_unique<Links>(rank(), std::move(mesh.links), options_.connect_ms_max,
                                     Links::Events{.on_failed = [this](const Status& why) { Fail(why); },
                                                   .on_left = [this](std::int32_t peer) { transport_->SetLeft(peer); },
                                                   .activity = [this] { return SayHere(); },
                                                   .on_over = [this](std::int32_t peer) { CancelJoining(peer, LossOf(peer)); },
                                                   .on_given_up = [this](std::int32_t peer) { CancelJoining(peer, GivenUpBy(peer)); }});
  }

  // What it takes to make windows on all ranks or on none, set aside while there is room.
  Status SetUp() {
    chooser_ = std::make_unique<Chooser>(GroundHere());
    static_assert(sizeof(OneSided::Place) == 2 * sizeof(std::int64_t));
    const std::int64_t count = 2 * ranks();
    ASSIGN_OR_RETURN(char* memory, Allocate(static_cast<std::size_t>(count) * sizeof(std::int64_t)));
    places_ = {reinterpret_cast<OneSided::Place*>(memory), static_cast<std::size_t>(ranks())};
    ASSIGN_OR_RETURN(agreement_, Prepare({.in = memory, .out = memory, .count = count, .dtype = Dtype::kI64}));
    return {};
  }

  // Before its program has it.
  Status LearnCosts() {
    if (options_.choose_by == ChooseBy::kFixedSizes) return {};
    ASSIGN_OR_RETURN(Costs costs, CostsOf(this, options_.choose_by, GroundHere(), machines_, options_.costs_folder));
    chooser_ = std::make_unique<Chooser>(GroundHere(), std::move(costs));
    return {};
  }
  // What the links show, and what follows from that.
  Status MeasureLinks() {
    if (!options_.measures_links || shares_memory_ || ranks() < 3) return {};
    ASSIGN_OR_RETURN(const PairLines pairs, CalibratePairs(this));
    orders_ = OrdersFor(pairs);
    Nodes shown = FindNodes(pairs);
    const std::int32_t machines = *std::max_element(nodes_.begin(), nodes_.end()) + 1;
    if (machines == ranks() && !shown.empty() && AreOfOneSize(shown)) nodes_ = std::move(shown);
    cache_->Arrange(nodes_, orders_);
    chooser_ = std::make_unique<Chooser>(GroundHere());
    return {};
  }

  // Hears of losses from now on, also of one that came before.
  void Listen() {
    losses_->Add(this, [this](const Status& why) { Fail(why); });
  }

  ~Connected() override {
    if (!home_.here()) EndForkedChild();
    losses_->Remove(this);
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
  std::span<const std::int32_t> members() const override { return members_; }
  const Nodes& nodes() const override { return nodes_; }
  const Orders& orders() const override { return orders_; }

  Result<std::unique_ptr<Communicator>> Split(const GroupOptions& group) override;
  Result<std::unique_ptr<Communicator>> Shrink() override;
  Result<std::unique_ptr<Communicator>> Reform(const ReformOptions& options) override;
  Result<std::string> Invite() override {
    if (is_retired_) return Retired();
    if (door_ == nullptr) {
      ASSIGN_OR_RETURN(door_, Door::Open(rendezvous_.address, DoorSecret()));
    }
    return door_->ticket();
  }
  bool HasNewcomers() override { return door_ != nullptr && door_->IsKnockedAt(); }

  Result<char*> Allocate(std::size_t bytes) override {
    char* memory = transport_->Allocate(bytes);
    while (memory == nullptr && MakeRoomFor(bytes)) memory = transport_->Allocate(bytes);
    if (memory != nullptr) return memory;
    return Status(Code::kResourceExhausted, "COLL13", "no room for " + std::to_string(bytes) + " bytes in the pool",
                  "it has " + std::to_string(options_.pool_bytes) + " bytes", "raise pool_bytes");
  }
  void Free(char* memory) override { transport_->Free(memory); }

  Result<Window> MakeWindow(std::size_t bytes) override {
    Result<std::int32_t> made = [&] {
      const Engine::Preparing prepares(engine_.get());  // a long window takes a while
      auto window = one_sided_->AddWindow(bytes);
      while (!window.ok() && MakeRoomFor(bytes)) window = one_sided_->AddWindow(bytes);
      return window;
    }();
    engine_->ServePeers();
    // A rank without room says so to all: what one cannot have is made on none, or the numbers of later windows would differ.
    std::fill(places_.begin(), places_.end(), OneSided::Place{});
    places_[rank()] = made.ok() ? one_sided_->PlaceOf(*made) : OneSided::Place{.place = bytes, .bytes = -1};
    RETURN_IF_ERROR(
        engine_->Run(agreement_, LabelOf(agreement_->header(), agreement_->plan_fingerprint(), agreement_->count(), "window", 0)));
    for (std::int32_t peer = 0; peer < ranks(); ++peer) {
      if (places_[peer].bytes >= 0) continue;
      if (made.ok()) one_sided_->DropWindow(*made);
      return Status(Code::kResourceExhausted, "COLL13",
                    "rank " + std::to_string(peer) + " has no room for its window of " + std::to_string(places_[peer].place) + " bytes",
                    "its pool is full", "give it a larger pool (pool_bytes); no rank has this window now");
    }
    if (Status status = one_sided_->SetPlaces(*made, places_); !status.ok()) {
      Fail(status);  // the others have theirs
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
    return engine_->Submit(instance, LabelFor(call, *instance), options.priority, BytesOf(call), call.received);
  }

  Status Wait(const Handle& handle) override { return engine_->Wait(handle.get()); }
  bool IsDone(const Handle& handle) const override { return handle->is_done.load(); }

  void Working() override { worked_at_ms_.store(MonotonicMs(), std::memory_order_relaxed); }

  // Whoever is told of it learns by whom.
  void Abort(const Status& why) override {
    Fail(WithReason(why, "rank " + std::to_string(rank()) + ", which is on " + hosts_[rank()] + ", has aborted it" + group_));
  }

  const Chooser* chooser() const override { return chooser_.get(); }
  std::uint64_t steps() const override { return engine_->steps(); }

 private:
  Ground GroundHere() const {
    return {.ranks = ranks(),
            .shares_memory = shares_memory_,
            .segment_bytes = options_.segment_bytes,
            .algorithms = options_.algorithms,
            .nodes = nodes_,
            .orders = orders_};
  }

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
                                                     .communicator = mesh->name,
                                                     .checksum_payload = options_.checksum_payload,
                                                     .ranks_on_machine = mesh->ranks_on_machine_max,
                                                     .is_told = true});
  }

  Activity SayHere() const {
    Activity here = engine_->activity();
    if (const std::int64_t worked_at_ms = worked_at_ms_.load(std::memory_order_relaxed); worked_at_ms >= 0)
      here.worked_ms_ago = static_cast<std::uint64_t>(std::max<std::int64_t>(MonotonicMs() - worked_at_ms, 0));
    return here;
  }

  // The first failure ends everything, here and on the other ranks.
  void Fail(const Status& why) {
    // Before any call ends: its caller takes its memory back then.
    native_->Abort(why);
    // Under the mutex: the program may end as soon as its call has failed, and must not leave before the peers were told why. The links
    // may not be there yet, or not any more; then their end says it.
    std::lock_guard lock(links_mutex_);
    const Status shown = Shown(why);
    if (!engine_->Fail(shown)) return;
    if (links_ != nullptr) links_->TellFailed(shown);
    // Those who form it anew know who is gone, and go on.
    if (joining_ != nullptr && joining_without_.empty()) joining_->Set(shown);
  }

  // Where the ranks are that it names. Ranks of a group have numbers of their own: what is said of them says whose they are, once.
  Status Shown(const Status& why) const {
    if (!why.tag().starts_with("COLL")) return why;
    const Status shown = WithHosts(why, hosts_);
    if (group_.empty() || shown.why().ends_with(group_)) return shown;
    return Status(shown.code(), shown.tag(), shown.what(), shown.why() + group_, shown.fix());
  }

  // Ends with the failure of this communicator what connects ranks meanwhile, but not with what becomes of ranks that have no part in it.
  void SetJoining(MeshCancel* joining, std::vector<bool> without = {}) {
    std::lock_guard lock(links_mutex_);
    joining_ = joining;
    joining_without_ = std::move(without);
  }
  void CancelJoining(std::int32_t peer, const Status& why) {
    std::lock_guard lock(links_mutex_);
    const bool has_part = joining_without_.empty() || !joining_without_[peer];
    if (joining_ != nullptr && has_part) joining_->Set(why);
  }
  static Status LossOf(std::int32_t peer) {
    return Status(Code::kUnavailable, "COLL20", "rank " + std::to_string(peer) + " is lost", "its process has ended");
  }
  static Status GivenUpBy(std::int32_t peer) { return CannotJoin(peer, "it has given up"); }
  // What ranks of this communicator say to each other when they make another one. Where this rank is not among them its number is theirs.
  Rendezvous RendezvousAmong(const std::vector<std::int32_t>& ranks) const {
    const auto me = std::find(ranks.begin(), ranks.end(), rank());
    return {.rank = static_cast<std::int32_t>(me - ranks.begin()),
            .ranks = static_cast<std::int32_t>(ranks.size()),
            .epoch = rendezvous_.epoch,
            .address = rendezvous_.address,
            .machine = rendezvous_.machine,
            .exchange = {},
            .on_lost = {},
            .secret = secret_};
  }
  std::vector<std::int32_t> OfTheGang(const std::vector<std::int32_t>& ranks) const {
    std::vector<std::int32_t> members;
    for (std::int32_t rank : ranks) members.push_back(members_[rank]);
    return members;
  }
  Result<std::unique_ptr<Communicator>> SplitUntil(const GroupOptions& group, MeshCancel* cancel);

  // Newcomers know it, too.
  std::string DoorSecret() const { return rpc::AuthProof(secret_, "door", "", "", ""); }
  Result<std::unique_ptr<Communicator>> FormAnew(const ReformOptions& how, bool shrinks);
  std::string FirstWord(bool leaves, bool shrinks, bool takes_in, const std::string& place);
  // Connects this rank with the others of the new communicator, if it stays, and sees that the newcomers at its door are connected.
  Result<std::unique_ptr<Connected>> Meet(const Forming& forming, const ReformOptions& how, bool shrinks, std::uint32_t attempt,
                                          Result<MeshListener> listener);
  Result<std::unique_ptr<Connected>> MeetUntil(const Forming& forming, const CommunicatorOptions& options, bool shrinks,
                                               Result<MeshListener> listener, const MeshCancel& cancel);
  // Nobody comes in by this rank's door, for this reason; which is returned.
  Status TurnAway(const Status& why);
  void Retire();

  // A blocking call: gives `mine` to the ranks of `to`, and returns what each rank gave to this one, by rank.
  Result<std::vector<std::string>> Pass(const std::string& mine, std::span<const std::int32_t> to);

  Links* links() {
    std::lock_guard lock(links_mutex_);
    return links_.get();  // there as long as a call is
  }

  // Fails when a rank has not answered for too long.
  Status Listen(const Engine::Stall& stall, std::int64_t since_ms) {
    if (options_.silence_ms <= 0) return {};
    return BlameSilent(rank(), stall, links()->Listen(since_ms), options_.silence_ms);
  }

  Status StatusOf(const Engine::Stall& stall) {
    const std::vector<std::optional<Activity>> before = links()->Ask(kAnswerMsMax);
    const bool all_are_there = std::all_of(before.begin(), before.end(), [](const auto& answer) { return answer.has_value(); });
    if (!all_are_there) return Blame(rank(), stall, before, before, options_.timeout_ms);
    std::this_thread::sleep_for(kBetweenQuestions);
    return Blame(rank(), stall, before, links()->Ask(kAnswerMsMax), options_.timeout_ms);
  }

  // What rests between calls makes way, where the pool could hold as much. False: nothing more does.
  bool MakeRoomFor(std::size_t bytes) { return bytes <= options_.pool_bytes && cache_->MakeRoom(); }

  // An instance that is bound to the call's memory.
  Result<Instance*> Prepare(const CollectiveCall& call) {
    const bool is_counted = LearnsCounts(call.collective);
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
                        ? "counts belong to an all-to-all-v or an allgather-v, which cannot do without; received only to these"
                        : "a residual belongs to a codec with error feedback, which cannot do without",
                    "give the call what it needs, and leave the rest null");
    const Chosen chosen = chooser_->For(call);
    ASSIGN_OR_RETURN(Instance * instance, cache_->Take({.algorithm = chosen.algorithm,
                                                        .request = &chosen.request,
                                                        .codec = call.codec,
                                                        .mixing = call.mixing,
                                                        .neighbors = call.neighbors},
                                                       CountOf(call)));
    Status status;
    if (instance->channels() > Engine::kChannelsOfLane)
      status =
          Status(Code::kInvalid, "COLL12", std::string(chosen.algorithm) + " has " + std::to_string(instance->channels()) + " channels",
                 "a communicator's calls have " + std::to_string(Engine::kChannelsOfLane) + " at most",
                 "take an algorithm with fewer channels, or leave the choice to the communicator");
    const std::size_t counts = call.collective == Collective::kAllToAllV ? static_cast<std::size_t>(ranks()) : 1;
    if (status.ok() && is_counted) status = instance->SetCounts({call.counts, counts}, call.count);
    if (status.ok()) status = Bind(instance, call);
    while (status.code() == Code::kResourceExhausted && cache_->MakeRoom()) status = Bind(instance, call);
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
    if (call.window != nullptr)
      return LabelOfWindow(instance.header(), instance.plan_fingerprint(), CountOf(call), call.name, call.window->number);
    return LabelOf(instance.header(), instance.plan_fingerprint(), CountOf(call), call.name, 0);
  }

  // Of the longer of its two vectors, about.
  std::int64_t BytesOf(const CollectiveCall& call) const {
    const std::int64_t vectors = call.collective == Collective::kAllToAll ? ranks() : 1;
    return vectors * call.count * static_cast<std::int64_t>(SizeOf(call.dtype));
  }

  // What all ranks must agree on: a count that is only room is a rank's own affair.
  static std::int64_t CountOf(const CollectiveCall& call) { return LearnsCounts(call.collective) ? 0 : call.count; }

  const HomeProcess home_;
  const Rendezvous rendezvous_;
  const CommunicatorOptions options_;
  const std::shared_ptr<Losses> losses_;
  const std::string group_;
  std::vector<std::int32_t> members_;
  const SharedMemory board_;
  const std::vector<SharedMemory> pools_;
  const bool shares_memory_;
  const std::string secret_;
  const Hosts hosts_;
  const std::vector<std::string> machines_;  // by rank
  Nodes nodes_;                              // these two are there when the communicator is
  Orders orders_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<OneSided> one_sided_;
  std::unique_ptr<NativeDesk> native_;
  std::unique_ptr<InstanceCache> cache_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<const Chooser> chooser_;
  std::span<OneSided::Place> places_;  // by rank, of the window that is being made
  Instance* agreement_ = nullptr;      // their sum; it is never given back
  std::atomic<std::int64_t> worked_at_ms_{-1};
  std::mutex links_mutex_;
  std::unique_ptr<Links> links_;
  MeshCancel* joining_ = nullptr;      // of the communicator that is being made; both under the links' mutex
  std::vector<bool> joining_without_;  // by rank
  std::unique_ptr<Door> door_;
  bool is_retired_ = false;
};

// Makes a rank of what has been connected.
Result<std::unique_ptr<Connected>> MakeConnected(Rendezvous rendezvous, const CommunicatorOptions& options,
                                                 const std::shared_ptr<Losses>& losses, std::vector<std::int32_t> members, Mesh mesh) {
  // What it refers to may be gone before the communicator is.
  rendezvous.exchange = nullptr;
  auto connected = std::make_unique<Connected>(std::move(rendezvous), options, std::move(mesh), losses, std::move(members));
  connected->Listen();
  RETURN_IF_ERROR(connected->SetUp());
  RETURN_IF_ERROR(connected->MeasureLinks());
  return connected;
}

// `cancel` ends it, and so does a loss.
Result<std::unique_ptr<Connected>> Connect(Rendezvous rendezvous, const CommunicatorOptions& options, const std::shared_ptr<Losses>& losses,
                                           std::vector<std::int32_t> members, MeshCancel* cancel) {
  losses->Add(cancel, [cancel](const Status& why) { cancel->Set(why); });
  auto mesh = ConnectMesh(rendezvous, options, Engine::kChannels, *cancel);
  losses->Remove(cancel);
  RETURN_IF_ERROR(mesh.status());
  return MakeConnected(std::move(rendezvous), options, losses, std::move(members), *std::move(mesh));
}

Result<std::vector<std::string>> Connected::Pass(const std::string& mine, std::span<const std::int32_t> to) {
  auto longest = static_cast<std::int64_t>(mine.size());
  RETURN_IF_ERROR(AllReduce({.in = &longest, .out = &longest, .count = 1, .dtype = Dtype::kI64, .op = ReduceOp::kMax, .name = "split"}));
  std::vector<std::int64_t> counts(ranks()), received(ranks());
  std::string in, out(static_cast<std::size_t>(longest * ranks()), '\0');
  for (std::int32_t peer : to) {
    counts[peer] = static_cast<std::int64_t>(mine.size());
    in += mine;
  }
  RETURN_IF_ERROR(AllToAllV({.in = in.data(),
                             .out = out.data(),
                             .count = static_cast<std::int64_t>(out.size()),
                             .dtype = Dtype::kU8,
                             .name = "split",
                             .counts = counts.data(),
                             .received = received.data()}));
  std::vector<std::string> all;
  std::size_t at = 0;
  for (std::int64_t bytes : received) {
    all.push_back(out.substr(at, static_cast<std::size_t>(bytes)));
    at += static_cast<std::size_t>(bytes);
  }
  return all;
}

Result<std::unique_ptr<Communicator>> Connected::Split(const GroupOptions& group) {
  MeshCancel cancel;
  SetJoining(&cancel);
  auto made = SplitUntil(group, &cancel);
  SetJoining(nullptr);
  return made;
}

Result<std::unique_ptr<Communicator>> Connected::SplitUntil(const GroupOptions& group, MeshCancel* cancel) {
  std::vector<Going> going(ranks());
  static_assert(sizeof(Going) == 2 * sizeof(std::int64_t));
  // Zero where others say theirs: a colour counts from 1 on the way.
  for (Going& other : going) other.color = 0;
  going[rank()] = {.color = std::max(group.color, kNoGroup) + std::int64_t{1}, .key = group.key};
  RETURN_IF_ERROR(AllReduce({.in = going.data(), .out = going.data(), .count = 2 * ranks(), .dtype = Dtype::kI64, .name = "split"}));
  for (Going& other : going) --other.color;
  const std::vector<std::int32_t> group_ranks = GroupOf(going, rank());

  bool has_met = false;
  Status passing;  // not OK: this communicator has failed
  auto meet = [&](const std::string& word) -> Result<std::vector<std::string>> {
    has_met = true;
    auto all = Pass(word, group_ranks);
    passing = all.status();
    RETURN_IF_ERROR(passing);
    std::vector<std::string> words;
    for (std::int32_t member : group_ranks) {
      if ((*all)[member].empty()) return CannotJoin(member, "it had no means to begin");
      words.push_back(std::move((*all)[member]));
    }
    return words;
  };
  Result<std::unique_ptr<Connected>> joined = std::unique_ptr<Connected>();
  if (!group_ranks.empty()) {
    CommunicatorOptions options = options_;
    options.native = group.native;
    options.orders = {};
    if (group.pool_bytes > 0) options.pool_bytes = group.pool_bytes;
    Rendezvous rendezvous = RendezvousAmong(group_ranks);
    rendezvous.exchange = meet;
    joined = collective::Connect(std::move(rendezvous), options, losses_, OfTheGang(group_ranks), cancel);
  }
  // Who is in no group takes part, too, and so does who could not even begin.
  if (!has_met) passing = Pass("", {}).status();
  RETURN_IF_ERROR(passing);
  // On all ranks of a group or on none.
  ASSIGN_OR_RETURN(const std::vector<std::string> said, Pass(joined.ok() ? "" : joined.status().ToString(), group_ranks));
  RETURN_IF_ERROR(joined.status());
  for (std::int32_t member : group_ranks)
    if (!said[member].empty()) return CannotJoin(member, said[member]);
  return std::unique_ptr<Communicator>(*std::move(joined));
}

// ---- forming it anew -------------------------------------------------------------------------------------------------------------------

Result<std::unique_ptr<Communicator>> Connected::Shrink() {
  if (is_retired_) return Retired();
  if (!engine_->has_failed())
    return Status(Code::kInvalid, "COLL30", "a communicator that has not failed is not shrunk", "all its ranks are there",
                  "split it, let ranks leave by Reform(), or abort it first");
  return FormAnew({}, true);
}

Result<std::unique_ptr<Communicator>> Connected::Reform(const ReformOptions& options) {
  if (is_retired_) return Retired();
  engine_->Drain();
  return FormAnew(options, false);
}

// All that decides here is agreed upon, so that all who are left go the same way.
Result<std::unique_ptr<Communicator>> Connected::FormAnew(const ReformOptions& how, bool shrinks) {
  std::vector<bool> gone(ranks());
  bool takes_in = !shrinks;
  Status failure;  // of the attempt before, unless it is known why the next one may do better
  for (std::uint32_t attempt = 0;; ++attempt) {
    Result<MeshListener> listener =
        how.leaves ? Result<MeshListener>(MeshListener{}) : ListenForMesh(rendezvous_.machine, rendezvous_.address, options_.wire);
    auto said = links()->Agree(FirstWord(how.leaves, shrinks, takes_in, listener.ok() ? listener->word : ""), gone, options_.timeout_ms,
                               options_.silence_ms);
    if (!said.ok()) return TurnAway(Shown(said.status()));
    auto forming = Form(*said);
    if (!forming.ok()) return TurnAway(forming.status());
    // If nobody more is gone, it would only fail again.
    if (std::exchange(gone, forming->gone) == forming->gone && !failure.ok()) return TurnAway(failure);
    if (gone[rank()])
      return TurnAway(Status(Code::kUnavailable, "COLL20", "rank " + std::to_string(rank()) + " is lost",
                             "the others are cut off from this rank, and go on without it"));
    auto joined = Meet(*forming, how, shrinks, attempt, std::move(listener));
    const bool has_lost_one = door_ != nullptr && door_->HasLostOne();
    auto told = links()->Agree(
        Encode(Formed{.is_well = joined.ok() && !has_lost_one,
                      .has_lost_one = has_lost_one,
                      .why = has_lost_one ? "a newcomer at its door is gone" : joined.status().what() + ": " + joined.status().why()}),
        gone, options_.timeout_ms, options_.silence_ms);
    if (!told.ok()) return TurnAway(Shown(told.status()));

    bool is_well = true, may_do_better = false;
    Status first;  // why it is not well
    for (std::int32_t peer = 0; peer < ranks(); ++peer) {
      if (gone[peer]) continue;
      const std::optional<Formed> formed = (*told)[peer].has_value() ? DecodeFormed(*(*told)[peer]) : std::nullopt;
      is_well = is_well && formed.has_value() && formed->is_well;
      may_do_better = may_do_better || !(*told)[peer].has_value() || (formed.has_value() && formed->has_lost_one);
      if (first.ok() && !is_well)
        first = CannotJoin(peer, formed.has_value() ? "it is there, and failed: " + formed->why : "it is gone, or at another call");
    }
    if (is_well) {
      if (door_ != nullptr) door_->Go();
      Retire();
      return std::unique_ptr<Communicator>(*std::move(joined));
    }
    if (door_ != nullptr) door_->DropLost();
    // It may be the fault of newcomers that are still there.
    const bool is_theirs = forming->newcomers > 0 && (!may_do_better || attempt >= kAttemptsMax);
    if (is_theirs) {
      (void)TurnAway(first);
      takes_in = false;
    }
    failure = may_do_better || is_theirs ? Status() : joined.ok() ? first : joined.status();
  }
}

std::string Connected::FirstWord(bool leaves, bool shrinks, bool takes_in, const std::string& place) {
  Intent intent{.leaves = leaves, .shrinks = shrinks, .over = links()->Over(), .place = place, .newcomers = {}};
  if (takes_in && door_ != nullptr) {
    door_->TakeIn();
    intent.newcomers = door_->newcomers();
  }
  std::string word = Encode(intent);
  // A rank that says nothing would be waited for.
  if (word.size() > links()->word_bytes_max() && !intent.newcomers.empty()) {
    (void)TurnAway(Status(Code::kResourceExhausted, "COLL13", "too many newcomers have come at once",
                          "what they say does not fit beside what the ranks say to each other", "let fewer come, or by more doors"));
    intent.newcomers.clear();
    word = Encode(intent);
  }
  if (word.size() <= links()->word_bytes_max()) return word;
  intent.place.clear();
  return Encode(intent);
}

Result<std::unique_ptr<Connected>> Connected::Meet(const Forming& forming, const ReformOptions& how, bool shrinks, std::uint32_t attempt,
                                                   Result<MeshListener> listener) {
  CommunicatorOptions options = options_;
  options.native = how.native;
  options.orders = {};
  std::vector<std::size_t> mine;  // newcomers
  for (std::size_t rank_to_be = 0; rank_to_be < forming.ranks.size(); ++rank_to_be) {
    const Forming::Place& place = forming.ranks[rank_to_be];
    if (place.door != rank()) continue;
    mine.push_back(static_cast<std::size_t>(place.newcomer));
    door_->Greet(mine.back(), {.attempt = attempt,
                               .rank = static_cast<std::int32_t>(rank_to_be),
                               .ranks = static_cast<std::int32_t>(forming.ranks.size()),
                               .epoch = rendezvous_.epoch,
                               .options = options,
                               .words = forming.words()});
  }
  for (const Forming::Place& place : forming.refused)
    if (place.door == rank())
      door_->Refuse(static_cast<std::size_t>(place.newcomer),
                    Status(Code::kInvalid, "COLL30", "this newcomer cannot have the number that it wants",
                           "there are " + std::to_string(forming.ranks.size()) + " ranks now, or an earlier newcomer has it",
                           "want another one, or any (-1)"));

  MeshCancel cancel;
  SetJoining(&cancel, forming.gone);
  // What came before the line above cancels nothing.
  const std::vector<bool> over = links()->Over();
  for (std::int32_t peer = 0; peer < ranks(); ++peer)
    if (over[peer]) CancelJoining(peer, LossOf(peer));
  if (links()->IsGivenUp()) cancel.Set(Status(Code::kUnavailable, "COLL31", "another rank cannot join the new communicator"));
  Reports reports(door_.get(), mine, attempt, &cancel);
  auto joined = MeetUntil(forming, options, shrinks, std::move(listener), cancel);
  if (!joined.ok()) links()->GiveUp();
  const Status reported = reports.Rest(!joined.ok(), MonotonicMs() + options.connect_ms_max);
  SetJoining(nullptr);
  if (!joined.ok() || reported.ok()) return joined;
  links()->GiveUp();
  return reported;
}

Result<std::unique_ptr<Connected>> Connected::MeetUntil(const Forming& forming, const CommunicatorOptions& options, bool shrinks,
                                                        Result<MeshListener> listener, const MeshCancel& cancel) {
  std::vector<std::int32_t> members;  // those of this communicator
  for (const Forming::Place& place : forming.ranks) members.push_back(place.member);
  Rendezvous rendezvous = RendezvousAmong(members);
  if (rendezvous.rank == rendezvous.ranks) return std::unique_ptr<Connected>();  // it stays away
  rendezvous.secret = DoorSecret();
  RETURN_IF_ERROR(listener.status());
  for (const Forming::Place& place : forming.ranks)
    if (place.word.empty()) return CannotJoin(place.member, "it had no means to begin");
  ASSIGN_OR_RETURN(Mesh mesh, ConnectMesh(*listener, forming.words(), rendezvous, options, Engine::kChannels, cancel));
  return MakeConnected(std::move(rendezvous), options, std::make_shared<Losses>(nullptr),
                       shrinks ? OfTheGang(members) : std::vector<std::int32_t>(), std::move(mesh));
}

Status Connected::TurnAway(const Status& why) {
  if (door_ != nullptr)
    door_->RefuseAll(Status(Code::kUnavailable, "COLL31", "the ranks have not taken this newcomer in",
                            why.what() + (why.why().empty() ? "" : ": " + why.why()), "take a new ticket, and knock again"));
  return why;
}

void Connected::Retire() {
  door_.reset();
  std::lock_guard lock(links_mutex_);
  // One that has failed stays as it is.
  is_retired_ = engine_->Fail(Retired());
}

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
  const auto losses = std::make_shared<Losses>(rendezvous.on_lost);
  MeshCancel cancel;
  ASSIGN_OR_RETURN(auto connected, collective::Connect(std::move(rendezvous), options, losses, {}, &cancel));
  RETURN_IF_ERROR(connected->LearnCosts());
  return std::unique_ptr<Communicator>(std::move(connected));
}

Result<std::unique_ptr<Communicator>> Communicator::Join(const std::string& ticket, const JoinOptions& options) {
  ASSIGN_OR_RETURN(const Ticket at, DecodeTicket(ticket));
  auto listen = [&options] { return ListenForMesh(options.machine, options.address, Wire::kByMachine); };
  ASSIGN_OR_RETURN(MeshListener listener, listen());
  ASSIGN_OR_RETURN(const auto visit, Visit::Knock(at, {.wish = options.rank, .place = listener.word}, options.timeout_ms));
  std::unique_ptr<Connected> joined;
  for (;;) {
    ASSIGN_OR_RETURN(Visit::Word word, visit->Hear());
    if (std::holds_alternative<Visit::Go>(word) && joined != nullptr) return std::unique_ptr<Communicator>(std::move(joined));
    joined.reset();
    if (!std::holds_alternative<Welcome>(word)) continue;
    const Welcome& welcome = std::get<Welcome>(word);
    CommunicatorOptions all = welcome.options;
    all.connect_ms_max = options.connect_ms_max;
    all.native = options.native;
    all.algorithms = options.algorithms;
    auto meet = [&]() -> Result<std::unique_ptr<Connected>> {
      Rendezvous rendezvous{.rank = welcome.rank,
                            .ranks = welcome.ranks,
                            .epoch = welcome.epoch,
                            .address = options.address,
                            .machine = options.machine,
                            .exchange = {},
                            .on_lost = {},
                            .secret = at.secret};
      MeshCancel cancel;
      const Lookout lookout(visit->connection(), &cancel);
      ASSIGN_OR_RETURN(Mesh mesh, ConnectMesh(listener, welcome.words, rendezvous, all, Engine::kChannels, cancel));
      return MakeConnected(std::move(rendezvous), all, std::make_shared<Losses>(nullptr), {}, std::move(mesh));
    };
    auto met = meet();
    if (!met.ok()) {
      // Whoever waits for this one there learns that it comes no more.
      ASSIGN_OR_RETURN(listener, listen());
    }
    // If the door is gone, it says so when it is heard.
    (void)visit->Report(welcome.attempt, met.status(), listener.word);
    if (met.ok()) joined = *std::move(met);
  }
}

}  // namespace ropewalk::collective
