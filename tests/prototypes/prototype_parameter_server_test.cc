// An asynchronous embedding parameter server: rank 0 holds the table and serves, the other ranks train. A trainer looks the next step's
// rows up while it computes (a split op), and pushes the rows of its gradient (IndexedRows). With a staleness bound s a lookup for step t
// waits until the slowest trainer has had t - s pushes applied; s = 0 is the synchronous server.
#include <array>
#include <deque>

#include "mlrunner/graph/grad.h"
#include "mlrunner/graph/optimizers.h"
#include "tests/prototypes/ranks.h"

namespace ropewalk::mlrunner::prototypes {
namespace {

// Users and items have a row each; a rating is the product of two rows.
constexpr int kUsers = 24, kItems = 20, kTable = kUsers + kItems, kWidth = 4, kRows = 16, kIds = 2 * kRows;
constexpr float kRate = 1.f;

struct Ratings {
  Tensor ids, ratings;  // (2 B): users, then items; (B)
};
Ratings MakeRatings(std::uint64_t step, std::int32_t trainer) {
  Random truth(7), random = Random::ForPurpose(step + 1, static_cast<std::uint64_t>(trainer));
  std::vector<double> rows(kTable * 2);
  for (double& value : rows) value = truth.Unit() * 2 - 1;
  RefTensor ids{{kIds}, std::vector<double>(kIds)}, ratings{{kRows}, {}};
  for (int i = 0; i < kRows; ++i) {
    std::size_t user = random.Below(kUsers), item = kUsers + random.Below(kItems);
    ids.data[i] = static_cast<double>(user);
    ids.data[kRows + i] = static_cast<double>(item);
    ratings.data.push_back(rows[2 * user] * rows[2 * item] + rows[2 * user + 1] * rows[2 * item + 1]);
  }
  return {ToTensor(Dtype::kI32, ids), ToTensor(Dtype::kF32, ratings)};
}

// Lookup: (channel, ids) -> channel, rows. PushRows: (channel, ids, rows) -> channel.
Result<std::vector<TensorType>> InferLookup(const InferContext&) {
  return std::vector<TensorType>{{Dtype::kToken, {}}, {Dtype::kF32, {kIds, kWidth}}};
}
Result<std::vector<TensorType>> InferPush(const InferContext&) { return std::vector<TensorType>{{Dtype::kToken, {}}}; }
const OpDef kLookup{"Lookup", 2, 2, InferLookup, nullptr, nullptr, {.collective = true}};
const OpDef kPushRows{"PushRows", 3, 1, InferPush, nullptr, nullptr, {.collective = true}};

Value LossOf(const Value& rows, const Value& ratings) {
  return Mean(Square(ReduceSum(SliceAxis(rows, 0, 0, kRows) * SliceAxis(rows, 0, kRows, kIds), {1}) - ratings));
}
Parameter Table(Builder& b) { return b.NewParameter("table", {kTable, kWidth}, Initializer::Normal(.5)); }

// The table as a parameter of this process.
Graph LocalModel() {
  Builder b;
  Value ids = b.Input("ids", Dtype::kI32, {kIds}), ratings = b.Input("ratings", Dtype::kF32, {kRows});
  Parameter table = Table(b);
  Value loss = LossOf(Gather(table, ids), ratings);
  b.Output("loss", loss);
  // As the server does it: rows that come twice are added up before the update, not added to the table one after the other.
  ApplySgd(b, {table}, {Grad(loss, {table})[0].Dense()}, kRate);
  return *b.Finish();
}

// The table at the server. `ids` are those whose rows the last run looked up, `next_ids` those of the next run.
Graph TrainerModel() {
  Builder b;
  StateId lookups = b.NewChannel("lookup"), pushes = b.NewChannel("push");
  StateId prefetched = b.NewState("prefetched", StateKind::kStatistic, {Dtype::kF32, {kIds, kWidth}}, Initializer::Zeros());
  Value ids = b.Input("ids", Dtype::kI32, {kIds}), ratings = b.Input("ratings", Dtype::kF32, {kRows});
  std::vector<Value> found = b.Emit(kLookup, {b.Token(lookups), b.Input("next_ids", Dtype::kI32, {kIds})});
  b.SetToken(lookups, found[0]);
  Parameter table = Table(b);
  Value rows = b.CustomGradient({table}, {b.Read(prefetched)},
                                [ids](const GradientContext& c) { return std::vector<Gradient>{IndexedRows{ids, c.grads[0], kTable}}; })[0];
  Value loss = LossOf(rows, ratings);
  b.Output("loss", loss);
  Gradient gradient = Grad(loss, {table})[0];
  EXPECT_TRUE(gradient.IsRows());
  b.SetToken(pushes, b.EmitOne(kPushRows, {b.Token(pushes), gradient.rows().indices, gradient.rows().rows}));
  b.Assign(prefetched, found[1]);
  auto graph = b.Finish();
  EXPECT_TRUE(graph.ok()) << graph.status().ToString();
  Graph passed = RemoveDeadCode(MergeEqual(Simplify(*graph)));
  for (std::uint32_t i = 0; i < passed.ops.size(); ++i)
    if (passed.ops[i].def == &kLookup) return *SplitStartDone(passed, OpId{i}, passed.ops.size());
  return passed;
}

std::shared_ptr<Bound> Message(World& world, const std::string& channel, std::int32_t rank, std::int32_t from, Dtype dtype) {
  std::int32_t source = world.PlaceIn(channel, from);
  collective::Request request{
      .collective = collective::Collective::kSendRecv, .dtype = dtype, .ranks = 2, .root = source, .peer = 1 - source};
  auto plan = collective::BuildProgram("send_recv", request, world.PlaceIn(channel, rank));
  return *Bound::Make(std::move(plan), dtype == Dtype::kF32 ? kIds * kWidth : kIds, world.EndOf(channel, rank));
}
std::string ChannelOf(const char* what, std::int32_t trainer) { return what + std::to_string(trainer); }

class Server {
 public:
  struct Options {
    int trainers = 1, runs = 0, staleness = 0;
    bool gated = true;
  };
  Server(World& world, Options options, const RefTensor& table)
      : world_(world),
        options_(options),
        table_(table.data.begin(), table.data.end()),
        applied_(options.trainers),
        granted_(options.trainers) {}

  // Serves every trainer's lookups and pushes, each in a thread of its own.
  Status Serve() {
    std::vector<std::future<Status>> threads;
    for (std::int32_t t = 0; t < options_.trainers; ++t) {
      threads.push_back(std::async(std::launch::async, [this, t] { return Failing(Lookups(t)); }));
      threads.push_back(std::async(std::launch::async, [this, t] { return Failing(Pushes(t)); }));
    }
    Status first;
    for (auto& thread : threads) {
      Status status = thread.get();
      if (!status.ok() && (first.ok() || first.tag() == "COLL20")) first = status;
    }
    return first;
  }
  // Until `count` lookups of the trainer were granted.
  void AwaitGranted(std::int32_t trainer, int count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return granted_[trainer] >= count || failed_; });
  }
  int worst() const { return worst_; }
  RefTensor Table() const { return {{kTable, kWidth}, {table_.begin(), table_.end()}}; }

 private:
  Status Failing(Status status) {
    if (status.ok()) return status;
    std::lock_guard lock(mutex_);
    failed_ = true;
    changed_.notify_all();
    world_.Abort();
    return status;
  }
  Status Lookups(std::int32_t trainer) {
    std::string channel = ChannelOf("lookup", trainer + 1);
    auto asked = Message(world_, channel, 0, trainer + 1, Dtype::kI32), answer = Message(world_, channel, 0, 0, Dtype::kF32);
    std::vector<std::int32_t> ids(kIds);
    std::vector<float> rows(kIds * kWidth);
    for (int step = 1; step <= options_.runs; ++step) {
      asked->Start(nullptr, ids.data());
      RETURN_IF_ERROR(asked->Wait());
      {
        std::unique_lock lock(mutex_);
        auto behind = [&] { return step - *std::min_element(applied_.begin(), applied_.end()); };
        changed_.wait(lock, [&] { return !options_.gated || behind() <= options_.staleness || failed_; });
        if (failed_) return Status(Code::kUnavailable, "COLL20", "another thread has failed");  // what came last may be of a dead rank
        worst_ = std::max(worst_, behind());
        if (behind() > options_.staleness) return Status(Code::kInternal, "TEST04", "a lookup is staler than the bound");
        for (int i = 0; i < kIds; ++i) std::copy_n(&table_[ids[i] * kWidth], kWidth, &rows[i * kWidth]);
        ++granted_[trainer];
        changed_.notify_all();
      }
      answer->Start(rows.data(), nullptr);
      RETURN_IF_ERROR(answer->Wait());
    }
    return {};
  }
  Status Pushes(std::int32_t trainer) {
    std::string channel = ChannelOf("push", trainer + 1);
    auto which = Message(world_, channel, 0, trainer + 1, Dtype::kI32), what = Message(world_, channel, 0, trainer + 1, Dtype::kF32);
    std::vector<std::int32_t> ids(kIds);
    std::vector<float> rows(kIds * kWidth);
    for (int run = 0; run < options_.runs; ++run) {
      which->Start(nullptr, ids.data());
      what->Start(nullptr, rows.data());
      RETURN_IF_ERROR(which->Wait());
      RETURN_IF_ERROR(what->Wait());
      std::map<std::int32_t, std::array<float, kWidth>> sums;  // of the rows of one id, in their order
      for (int i = 0; i < kIds; ++i)
        for (int k = 0; k < kWidth; ++k) sums[ids[i]][k] += rows[i * kWidth + k];
      std::lock_guard lock(mutex_);
      if (failed_) return Status(Code::kUnavailable, "COLL20", "another thread has failed");
      for (const auto& [id, sum] : sums)
        for (int k = 0; k < kWidth; ++k) table_[id * kWidth + k] -= kRate * sum[k];
      ++applied_[trainer];
      changed_.notify_all();
    }
    return {};
  }

  World& world_;
  Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<float> table_;
  std::vector<int> applied_, granted_;  // by trainer: pushes, lookups
  int worst_ = 0;
  bool failed_ = false;
};

KernelTable KernelsOf(World& world, std::int32_t rank) {
  KernelTable table = CpuKernels();
  for (const OpDef* def : {&kLookup, &kPushRows}) {
    table.Add(*def, Device::kCpu, Dtype::kF32, [&world, rank, def](const KernelRequest&) -> Result<CompiledKernel> {
      const std::string channel = ChannelOf(def == &kLookup ? "lookup" : "push", rank);
      auto ids = Message(world, channel, rank, rank, Dtype::kI32);
      auto rows = Message(world, channel, rank, def == &kLookup ? 0 : rank, Dtype::kF32);
      CompiledKernel kernel;
      kernel.run = [ids, rows, def](const KernelCall& call) {
        ids->Start(call.in[1], nullptr);
        rows->Start(def == &kLookup ? nullptr : call.in[2], def == &kLookup ? call.out[1] : nullptr);
        return Status();
      };
      kernel.wait = [ids, rows] {
        Status status = ids->Wait();
        return status.ok() ? rows->Wait() : status;
      };
      return kernel;
    });
  }
  return table;
}

struct Trained {
  std::vector<double> losses[2];  // by trainer; the first run has no rows yet
  RefTensor table;
  int worst = 0;  // staleness
};
// The last trainer lets the first get `ahead` lookups ahead of it before each of its runs.
Status Train(Server::Options options, int ahead, Trained* trained) {
  std::map<std::string, std::vector<std::int32_t>> channels;
  for (std::int32_t t = 1; t <= options.trainers; ++t) channels[ChannelOf("lookup", t)] = channels[ChannelOf("push", t)] = {0, t};
  // Ranks of one process read each other's memory where it lies: after a failure, until the last of them has noticed.
  std::vector<std::deque<Ratings>> ratings(static_cast<std::size_t>(options.trainers) + 1);
  World world(options.trainers + 1, channels);
  Graph local = LocalModel();
  Server server(world, options, Initial(local, local.states[0], {}, {}));
  Status status = world.Run([&](std::int32_t rank) -> Status {
    if (rank == 0) return server.Serve();
    Graph graph = TrainerModel();
    ASSIGN_OR_RETURN(auto executable, Compile(graph, {}, {}, KernelsOf(world, rank)));
    StateStore states;
    for (int run = 0; run < options.runs; ++run) {
      if (rank == 2) server.AwaitGranted(0, std::min(run + ahead, options.runs));
      const Ratings &now = ratings[rank].emplace_back(MakeRatings(run, rank)),
                    &next = ratings[rank].emplace_back(MakeRatings(run + 1, rank));
      RunInputs inputs;
      inputs.micro_batches[0] = {&now.ids, &now.ratings, &next.ids};
      ASSIGN_OR_RETURN(RunOutputs outputs, executable->Run(inputs, states));
      trained->losses[rank - 1].push_back(Scalar(outputs.outputs[0][0]));
    }
    EXPECT_TRUE(states.Get("table").bytes.empty());  // no trainer holds the table
    return {};
  });
  trained->table = server.Table();
  trained->worst = server.worst();
  return status;
}

TEST(ParameterServer, OneTrainerWithoutStalenessEqualsTheLocalTable) {
  constexpr int kSteps = 60;
  Trained remote;
  Status status = Train({.trainers = 1, .runs = kSteps + 1}, 0, &remote);
  ASSERT_TRUE(status.ok()) << status.ToString();
  Graph graph = LocalModel();
  auto executable = Compile(graph, {}, DefaultProgram(graph), CpuKernels());
  ASSERT_TRUE(executable.ok()) << executable.status().ToString();
  StateStore states;
  for (int step = 1; step <= kSteps; ++step) {
    Ratings ratings = MakeRatings(step, 1);
    RunInputs inputs;
    inputs.micro_batches[0] = {&ratings.ids, &ratings.ratings};
    auto outputs = (*executable)->Run(inputs, states);
    ASSERT_TRUE(outputs.ok());
    EXPECT_EQ(Scalar(outputs->outputs[0][0]), remote.losses[0][step]) << step;
  }
  EXPECT_EQ(ToRef(states.Get("table")).data, remote.table.data);
  EXPECT_EQ(remote.worst, 0);
}

TEST(ParameterServer, LearnsWithinItsStalenessBound) {
  constexpr int kRuns = 400;
  double last[2];
  for (int staleness : {0, 3}) {
    Trained trained;
    Status status = Train({.trainers = 2, .runs = kRuns, .staleness = staleness}, staleness, &trained);
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_EQ(trained.worst, staleness);  // the bound is reached, and never passed
    last[staleness > 0] = (MeanOfLast(trained.losses[0], 40) + MeanOfLast(trained.losses[1], 40)) / 2;
    std::printf("staleness %d: loss %.4f to %.5f\n", staleness, trained.losses[0][1], last[staleness > 0]);
    EXPECT_LT(last[staleness > 0], .05 * trained.losses[0][1]);
  }
  EXPECT_LT(last[1], last[0] + .01);
}

// The control: a server that does not wait is caught as soon as a trainer runs further ahead than the bound.
TEST(ParameterServer, AServerThatDoesNotWaitIsCaught) {
  Trained trained;
  Status status = Train({.trainers = 2, .runs = 20, .staleness = 2, .gated = false}, 3, &trained);
  EXPECT_EQ(status.tag(), "TEST04") << status.ToString();
  EXPECT_EQ(trained.worst, 3);
}

}  // namespace
}  // namespace ropewalk::mlrunner::prototypes
