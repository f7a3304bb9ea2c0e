// mlrunner::Train on a dataset with real processes: a batch job makes features of text, two ranks on two machines train on its blocks. What
// is killed in the middle changes no bit of what main gets.
#include <bit>
#include <cstdio>

#include "base/hash.h"
#include "job/ropewalk.h"
#include "mlrunner/train/train.h"
#include "tests/cluster/cluster.h"
#include "tests/cluster/job_main.h"

namespace ropewalk::cluster {
namespace {

// ---- the job -----------------------------------------------------------------------------------------------------------------------

struct Sample {
  std::vector<float> features;
  std::int32_t label = 0;
};

// "LABEL WORDS...": how often each letter occurs.
Sample ToSample(const std::string& line) {
  Sample sample{std::vector<float>(26), std::atoi(line.c_str())};
  for (char c : line)
    if (c >= 'a' && c <= 'z') sample.features[static_cast<std::size_t>(c - 'a')] += .125f;
  return sample;
}

// job TEXT STEPS WEIGHT_DECAY
int RunJob(int argc, char** argv) {
  Job job = Init(argc, argv);
  auto samples = job.ReadLines(argv[2]).Distinct({.partitions = 6}).Map(ToSample);
  mlrunner::TrainJob config{.model = {.hidden = {64}},
                            .optimizer = {.weight_decay = std::atof(argv[4])},
                            .ranks = 2,
                            .batch = 60,
                            .steps = std::atoi(argv[3]),
                            .threads = 1};
  const mlrunner::Trained trained = mlrunner::Train(samples, config, {.whole_bytes_max = 0, .spread = true});
  std::uint64_t digest = 0;
  for (double loss : trained.losses) digest = HashCombine(digest, std::bit_cast<std::uint64_t>(loss));
  for (const auto& [name, parameter] : trained.parameters)
    for (double value : parameter.values) digest = HashCombine(digest, std::bit_cast<std::uint64_t>(value));
  std::printf("%zu losses, the first %.4f, the last %.4f, digest %016llx\n", trained.losses.size(), trained.losses.front(),
              trained.losses.back(), static_cast<unsigned long long>(digest));
  std::printf("%llu samples\n", static_cast<unsigned long long>(samples.Count()));  // the next action is replayed behind it
  return 0;
}

// ---- the test ------------------------------------------------------------------------------------------------------------------------

class TrainData : public testing::Test {
 protected:
  TrainData() : cluster_({.workers = 3, .slots = 1}) {
    std::ofstream text(cluster_.dir() / "text");
    std::uint64_t state = 1;
    auto letter = [&](std::uint64_t letters) { return static_cast<char>('a' + (state = Mix64(state)) % letters); };
    for (int i = 0; i < 3000; ++i) {
      std::string line = std::to_string(i % 3) + " ";
      for (int c = 0; c < 24; ++c) line += letter(i % 3 == 0 ? 9 : i % 3 == 1 ? 17 : 26);
      text << line << "\n" << line << "\n";  // the batch job takes the second one out
    }
  }
  std::vector<std::string> Call(int steps, const char* weight_decay = "0") {
    return {fs::read_symlink("/proc/self/exe"), "job", "text", std::to_string(steps), weight_decay};
  }
  // Its output without a master.
  std::string Undisturbed(int steps) {
    Process here({Call(steps),
                  {"HOME=" + (cluster_.dir() / "home").string()},
                  cluster_.dir(),
                  cluster_.dir() / ("here" + std::to_string(calls_++))});
    EXPECT_EQ(here.Wait(60'000), 0) << here.err();
    return here.out();
  }
  // Whether the ranks train: rank 0 has said what step it makes.
  bool Trains(JobId id) {
    wire::ClientRequest request;
    request.mutable_list_jobs()->set_limit(1000);
    auto response = cluster_.link().Call(&request);
    if (response.ok())
      for (const auto& job : response->job_list().jobs())
        if (job.job() == id.value && job.note().find("step ") != std::string::npos) return true;
    return false;
  }
  // The machines of a forming's ranks, by rank: indexes of workers.
  std::vector<int> Machines(JobId job) {
    wire::ClientRequest request;
    request.mutable_list_workers();
    auto response = cluster_.link().Call(&request);
    std::map<std::string, int> names;
    if (response.ok())
      for (const auto& worker : response->worker_list().workers())
        names[std::to_string(worker.worker())] = std::atoi(worker.name().c_str() + 1);
    std::vector<int> machines;
    std::string stage;  // of the ranks: other tasks are verified beside them
    for (const Event& event : cluster_.Events(job)) {
      if (event.kind == "gang_formed") stage = event.Get("stage"), machines.clear();
      if (event.kind == "task_started" && event.Get("stage") == stage) machines.push_back(names[event.Get("worker")]);
    }
    return machines;
  }

  bool Disturb(int steps, bool whole_worker);

  Cluster cluster_;
  int calls_ = 0;
};

// Of `steps` steps, with a kill as soon as the ranks train. False: they were through before anything was killed, or no block was lost with
// the worker.
bool TrainData::Disturb(int steps, bool whole_worker) {
  const std::string undisturbed = Undisturbed(steps);
  EXPECT_NE(undisturbed.find(std::to_string(steps) + " losses"), std::string::npos) << undisturbed;
  EXPECT_NE(undisturbed.find("\n3000 samples\n"), std::string::npos) << undisturbed;
  auto [client, job] = cluster_.SubmitAccepted(Call(steps));
  EXPECT_TRUE(Eventually([&, id = job] { return Trains(id) || !client->running(); }, 60'000)) << cluster_.Logs();
  std::vector<int> machines = Machines(job);
  if (!client->running() || machines.size() != 2) {
    EXPECT_EQ(client->Wait(90'000), 0) << client->err() << cluster_.Logs();
    EXPECT_EQ(client->out(), undisturbed);
    return false;
  }
  if (whole_worker) {
    cluster_.KillWorker(machines[1]);  // the blocks that it has are lost with it
    cluster_.StartWorker(machines[1]);
  } else if (!cluster_.KillExecutor(machines[1], "text")) {
    EXPECT_EQ(client->Wait(90'000), 0) << client->err() << cluster_.Logs();
    return false;
  }
  EXPECT_EQ(client->Wait(90'000), 0) << client->err() << cluster_.Logs();
  EXPECT_EQ(client->out(), undisturbed);
  if (cluster_.CountEvents(job, "gang_formed") < 2) return false;
  if (whole_worker && cluster_.CountEvents(job, "segments_lost") == 0) return false;  // it had run none of the batch job's tasks
  EXPECT_EQ(cluster_.CountEvents(job, "segments_lost") > 0, whole_worker);
  EXPECT_EQ(cluster_.CountEvents(job, "rerun") > 0, whole_worker);
  return true;
}

// How long a training lasts depends on the machine: one that was over too soon is made longer.
TEST_F(TrainData, AKilledExecutorAndAKilledWorkerChangeNoBit) {
  for (bool whole_worker : {false, true}) {
    SCOPED_TRACE(whole_worker ? "a worker" : "an executor");
    bool disturbed = false;
    for (int steps = 6000; !disturbed && steps <= 96'000; steps *= 4) disturbed = Disturb(steps, whole_worker);
    EXPECT_TRUE(disturbed) << "every training was over before anything was killed, or no worker that was killed had a block";
  }
}

// A loss that is no number will be none the next time: the gang is not formed again, as it would be for a lost rank.
TEST_F(TrainData, AnErrorOfTheTrainingIsFinal) {
  auto [client, job] = cluster_.SubmitAccepted(Call(500, "1e5"));
  EXPECT_EQ(client->Wait(60'000), 1) << cluster_.Logs();
  EXPECT_NE(client->err().find("[TRAIN01]"), std::string::npos) << client->err();
  EXPECT_EQ(cluster_.CountEvents(job, "gang_formed"), 1u);
  EXPECT_EQ(client->out(), "");
}

}  // namespace
}  // namespace ropewalk::cluster

int main(int argc, char** argv) { return ropewalk::cluster::TestOrJob(argc, argv, ropewalk::cluster::RunJob); }
