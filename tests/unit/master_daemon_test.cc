// The whole master, with workers that only speak the protocol.
#include <algorithm>
#include <fstream>
#include <random>

#include "base/random.h"
#include "storage/metrics.h"
#include "tests/unit/master_fixture.h"

namespace ropewalk::master {
namespace {

class MasterTest : public testing::Test {
 protected:
  MasterOptions Options() { return {.state_dir = folder_.path(), .listen_address = "127.0.0.1:0"}; }
  void Start() { master_ = std::make_unique<TestMaster>(Options()); }
  TestClient Client() { return TestClient(master_->address(), TokenOf(folder_.path())); }
  std::unique_ptr<FakeWorker> Worker(const std::string& name, FakeMain main = {}) {
    auto worker = std::make_unique<FakeWorker>(master_->address(), TokenOf(folder_.path()), name, std::move(main));
    EXPECT_TRUE(worker->WaitRegistered());
    return worker;
  }
  TempFolder folder_;
  std::unique_ptr<TestMaster> master_;
};

TEST_F(MasterTest, WhoAsksTooOftenIsTold) {
  MasterOptions options = Options();
  options.requests_per_s_max = 5;  // twenty at once
  master_ = std::make_unique<TestMaster>(options);
  TestClient client = Client(), other = Client();
  wire::ClientRequest ping;
  ping.mutable_ping();
  int answered = 0;
  wire::ClientResponse last;
  for (int i = 0; i < 200; ++i) {
    last = client.Call(ping);
    if (!last.has_pong()) break;
    ++answered;
  }
  EXPECT_GE(answered, 20);
  EXPECT_LT(answered, 200);
  EXPECT_EQ(last.failure().tag(), "MASTER08");
  EXPECT_NE(last.failure().why().find("5 a second"), std::string::npos) << last.failure().why();
  EXPECT_EQ(other.Call(ping).failure().tag(), "MASTER08") << "another connection is no way around it";
  EXPECT_TRUE(Eventually([&] { return client.Call(ping).has_pong(); })) << "time mends it";
}

TEST_F(MasterTest, ArtifactsOfLiveJobsStayAndOthersGiveWay) {
  MasterOptions options = Options();
  options.artifact_bytes_max = 1000;
  master_ = std::make_unique<TestMaster>(options);
  TestClient client = Client();
  const std::string used = client.PutExecutable(std::string(400, 'u'));
  auto accepted = client.Submit(used, "key1", "argument");  // no worker: it waits
  ASSERT_TRUE(accepted.has_job_accepted()) << accepted.failure().what();
  auto missing = [&](const std::string& sha256) {
    wire::ClientRequest have;
    have.mutable_have_artifacts()->add_sha256(sha256);
    return client.Call(have).missing_artifacts().sha256_size() == 1;
  };
  const std::string first = client.PutExecutable(std::string(400, 'a'));
  EXPECT_FALSE(missing(first));
  const std::string second = client.PutExecutable(std::string(400, 'b'));
  EXPECT_FALSE(missing(second));
  EXPECT_TRUE(missing(first)) << "it gave way";
  EXPECT_FALSE(missing(used)) << "a job that has not ended uses it";
  master_.reset();
  master_ = std::make_unique<TestMaster>(options);  // knows it again from the journal
  TestClient after = Client();
  after.PutExecutable(std::string(400, 'c'));
  wire::ClientRequest have;
  have.mutable_have_artifacts()->add_sha256(used);
  EXPECT_EQ(after.Call(have).missing_artifacts().sha256_size(), 0);
  wire::ClientRequest cancel;
  cancel.mutable_cancel_job()->set_job(accepted.job_accepted().job());
  EXPECT_TRUE(after.Call(cancel).has_ok());
  EXPECT_TRUE(Eventually([&] {
    after.PutExecutable(std::string(400, 'd'));
    after.PutExecutable(std::string(400, 'e'));
    return after.Call(have).missing_artifacts().sha256_size() == 1;
  })) << "its job is over";
}

TEST_F(MasterTest, AJobGoesThrough) {
  Start();
  auto worker = Worker("w1", {.before = "hello\n", .after = "bye\n"});
  TestClient client = Client();
  const std::string executable(3u << 20, 'x');
  std::string sha256 = client.PutExecutable(executable);
  EXPECT_EQ(client.uploads, 1);
  EXPECT_EQ(client.PutExecutable(executable), sha256);
  EXPECT_EQ(client.uploads, 1);  // the second time nothing is sent

  auto accepted = client.Submit(sha256, "key1", "argument");
  ASSERT_TRUE(accepted.has_job_accepted()) << accepted.failure().what();
  const std::uint64_t job = accepted.job_accepted().job();
  wire::JobState state = client.Wait(job);
  EXPECT_EQ(state.phase(), "succeeded") << state.failure().what();
  EXPECT_EQ(state.user(), "somebody");
  EXPECT_GT(state.submitted_us(), 0);
  EXPECT_GE(state.finished_us(), state.submitted_us());
  EXPECT_EQ(worker->tasks_run, 3);
  EXPECT_EQ(worker->published_values(), (std::vector<std::string>{"v0", "v1", "v2"}));
  EXPECT_EQ(worker->spec_argument(), "argument");
  EXPECT_EQ(worker->spec().artifacts(0), sha256);
  EXPECT_EQ(worker->spec().artifact_names(0), "job");
  EXPECT_EQ(worker->spec().settings().slots(), 2u);
  EXPECT_NE(worker->spec().settings().seed(), 0u);
  EXPECT_EQ(client.Log(job, "driver"), "hello\nbye\n");
  EXPECT_EQ(client.Log(job, "stderr"), "");
  std::string events = client.Log(job, "events");
  EXPECT_NE(events.find("\"event\":\"job_accepted\""), std::string::npos);
  EXPECT_EQ(std::count(events.begin(), events.end(), '\n'), std::count(events.begin(), events.end(), '{'));
  EXPECT_TRUE(Eventually([&] { return worker->forgotten == 1; }));

  wire::ClientRequest list;
  list.mutable_list_jobs();
  EXPECT_EQ(client.Call(list).job_list().jobs_size(), 1);
  wire::ClientRequest workers;
  workers.mutable_list_workers();
  auto answer = client.Call(workers);
  ASSERT_EQ(answer.worker_list().workers_size(), 1);
  EXPECT_EQ(answer.worker_list().workers(0).name(), "w1");
  EXPECT_EQ(answer.worker_list().workers(0).state(), "ready");
  wire::ClientRequest ping;
  ping.mutable_ping();
  EXPECT_EQ(client.Call(ping).pong().slots(), 2u);
}

TEST_F(MasterTest, AnEmptyJobTakesMilliseconds) {
  Start();
  auto worker = Worker("w1", {.after = "done\n", .empty = true});
  TestClient client = Client();
  std::string sha256 = client.PutExecutable("empty");
  std::vector<double> ms;
  for (int i = 0; i < 41; ++i) {
    auto start = std::chrono::steady_clock::now();
    auto accepted = client.Submit(sha256, "key" + std::to_string(i));
    ASSERT_TRUE(accepted.has_job_accepted()) << accepted.failure().what();
    EXPECT_EQ(client.Wait(accepted.job_accepted().job()).phase(), "succeeded");
    EXPECT_EQ(client.Log(accepted.job_accepted().job(), "driver"), "done\n");
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(ms.begin(), ms.begin() + 20, ms.end());
  std::printf("submit to done, p50 %.1f ms\n", ms[20]);
  EXPECT_LT(ms[20], 50);
}

TEST_F(MasterTest, OneSubmitKeyIsOneJobAlsoAfterARestart) {
  Start();
  auto worker = Worker("w1");
  std::uint64_t job = 0;
  {
    TestClient client = Client(), other = Client();
    std::string sha256 = client.PutExecutable("e");
    job = client.Submit(sha256, "the key").job_accepted().job();
    EXPECT_EQ(other.Submit(sha256, "the key").job_accepted().job(), job);
    EXPECT_NE(other.Submit(sha256, "another").job_accepted().job(), job);
    EXPECT_EQ(client.Wait(job).phase(), "succeeded");
  }
  worker->Kill();
  master_->Stop();
  Start();
  TestClient client = Client();
  EXPECT_EQ(client.Submit(client.PutExecutable("e"), "the key").job_accepted().job(), job);
  EXPECT_EQ(client.Query(job).phase(), "succeeded");
  EXPECT_GT(client.Submit(client.PutExecutable("e"), "a third").job_accepted().job(), job + 1);
}

TEST_F(MasterTest, OnceValuesAreTheDriversForEverybody) {
  Start();
  auto a = Worker("w1", {.once = "listing"}), b = Worker("w2", {.once = "listing"});
  TestClient client = Client();
  auto job = client.Submit(client.PutExecutable("e"), "k").job_accepted().job();
  EXPECT_EQ(client.Wait(job).phase(), "succeeded");
  std::set<std::string> values{a->once_value(), b->once_value()};
  values.erase("");  // the second may have come after the end
  ASSERT_EQ(values.size(), 1u);
  EXPECT_TRUE(values.begin()->starts_with("computed by "));
}

TEST_F(MasterTest, AJobSurvivesTheMaster) {
  Start();
  auto worker = Worker("w1", {.once = "o", .before = "one\n", .after = "two\n"});
  worker->hold_tasks = true;
  std::uint64_t job = 0;
  {
    TestClient client = Client();
    job = client.Submit(client.PutExecutable("e"), "k", "survivor").job_accepted().job();
    ASSERT_TRUE(Eventually([&] { return worker->tasks_run > 0; }));
    // "one" was shown before the master died.
    wire::ClientRequest request;
    request.mutable_read_log()->set_job(job);
    request.mutable_read_log()->set_stream("driver");
    request.mutable_read_log()->set_wait_ms(10'000);
    EXPECT_EQ(client.Call(request).log_chunk().data(), "one\n");
  }
  const std::string once = worker->once_value();
  master_->Stop();
  worker->Kill();
  Start();
  TestClient client = Client();
  EXPECT_EQ(client.Query(job).phase(), "pending");  // no worker is here yet
  auto again = Worker("w1", {.once = "o", .before = "one\n", .after = "two\n"});
  EXPECT_EQ(client.Wait(job).phase(), "succeeded");
  EXPECT_EQ(again->spec_argument(), "survivor");
  EXPECT_EQ(again->once_value(), once);                // from the journal, not computed again
  EXPECT_EQ(client.Log(job, "driver"), "one\ntwo\n");  // each line once
}

TEST_F(MasterTest, LargeResultsAreFilesAndComeBackAfterARestart) {
  Start();
  const std::string large(300'000, 'r');
  auto worker = Worker("w1", {.value = large});
  std::uint64_t job = 0;
  {
    TestClient client = Client();
    job = client.Submit(client.PutExecutable("e"), "k").job_accepted().job();
    EXPECT_EQ(client.Wait(job).phase(), "succeeded");
  }
  EXPECT_EQ(worker->published_values().at(2), large + "2");
  auto files = [&] {
    return std::distance(std::filesystem::directory_iterator(folder_.path() + "/large"), std::filesystem::directory_iterator());
  };
  EXPECT_GT(files(), 0);
  worker->Kill();
  master_->Stop();
  Start();
  EXPECT_EQ(Client().Query(job).phase(), "succeeded");
  // A damaged file is no result: the next start says so instead of going on.
  master_->Stop();
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path() + "/large")) {
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(100'000);
    file.put('X');
  }
  rpc::EventLoop loop;
  auto damaged = Master::Start(loop, Options(), [](const Status&) {});
  EXPECT_EQ(damaged.status().code(), Code::kDataLoss);
}

TEST_F(MasterTest, SnapshotsReplaceTheJournalAndItsFiles) {
  MasterOptions options = Options();
  options.snapshot_records = 8;
  master_ = std::make_unique<TestMaster>(options);
  auto worker = Worker("w1", {.value = std::string(100'000, 's')});
  std::vector<std::uint64_t> jobs;
  {
    TestClient client = Client();
    std::string sha256 = client.PutExecutable("e");
    for (int i = 0; i < 12; ++i) {
      jobs.push_back(client.Submit(sha256, "k" + std::to_string(i)).job_accepted().job());
      EXPECT_EQ(client.Wait(jobs.back()).phase(), "succeeded");
    }
  }
  auto files = std::distance(std::filesystem::directory_iterator(folder_.path() + "/large"), std::filesystem::directory_iterator());
  EXPECT_LT(files, 12 * 4);  // results of finished jobs go with the records that named them
  worker->Kill();
  master_->Stop();
  master_ = std::make_unique<TestMaster>(options);
  TestClient client = Client();
  for (std::uint64_t job : jobs) EXPECT_EQ(client.Query(job).phase(), "succeeded");
}

TEST_F(MasterTest, ALostWorkersTasksRunElsewhereAndOutputContinues) {
  Start();
  auto first = Worker("w1", {.before = "a\n", .after = "b\n"});
  first->hold_tasks = true;
  TestClient client = Client();
  auto job = client.Submit(client.PutExecutable("e"), "k").job_accepted().job();
  ASSERT_TRUE(Eventually([&] { return first->tasks_run > 0; }));
  auto second = Worker("w2", {.before = "a\n", .after = "b\n"});
  first->Kill();
  EXPECT_EQ(client.Wait(job).phase(), "succeeded");
  EXPECT_EQ(second->tasks_run, 3);
  EXPECT_EQ(client.Log(job, "driver"), "a\nb\n");
  EXPECT_NE(client.Log(job, "events").find("worker_lost"), std::string::npos);
}

TEST_F(MasterTest, ASilentWorkerIsLost) {
  MasterOptions options = Options();
  options.silence_ms = 1'000;
  master_ = std::make_unique<TestMaster>(options);
  auto frozen = Worker("w1");
  TestClient client = Client();
  wire::ClientRequest workers;
  workers.mutable_list_workers();
  EXPECT_EQ(client.Call(workers).worker_list().workers_size(), 1);
  frozen->mute = true;
  EXPECT_TRUE(Eventually([&] { return client.Call(workers).worker_list().workers_size() == 0; }));
}

TEST_F(MasterTest, TwoProcessesCannotBeTheSameWorker) {
  Start();
  auto first = Worker("w1");
  FakeWorker second(master_->address(), TokenOf(folder_.path()), "w1", {});
  EXPECT_TRUE(Eventually([&] { return second.refused.load(); }));
  first->Kill();
  EXPECT_TRUE(Eventually([&] {
    FakeWorker third(master_->address(), TokenOf(folder_.path()), "w1", {});
    return Eventually([&] { return third.registered || third.refused; }) && third.registered;
  }));
}

// One that was started anew may come before the end of its former process is known, and asks again; beside one that lives it never joins,
// and is told so.
TEST_F(MasterTest, ANameThatIsTakenForGoodIsRefusedForGood) {
  MasterOptions options = Options();
  options.heartbeat_ms = 50;
  master_ = std::make_unique<TestMaster>(options);
  auto first = Worker("w1");
  const auto asks = [&](const std::string& instance) {
    FakeWorker worker(master_->address(), TokenOf(folder_.path()), "w1", {}, 2, instance);
    EXPECT_TRUE(Eventually([&] { return worker.registered || worker.refused; }));
    return worker.registered ? Code::kOk : static_cast<Code>(worker.refusal.load());
  };
  first->mute = true;                                           // whether it lives is not known
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // what it was about to say is said
  EXPECT_EQ(asks("new"), Code::kUnavailable);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(asks("new"), Code::kUnavailable) << "nothing has been heard of the first one since";
  first->mute = false;
  EXPECT_TRUE(Eventually([&] { return asks("new") == Code::kInvalid; })) << "it has said something since";
  EXPECT_EQ(asks("another"), Code::kUnavailable) << "who asks for the first time may be the first one, started anew";
  EXPECT_TRUE(Eventually([&] { return asks("another") == Code::kInvalid && asks("new") == Code::kInvalid; })) << "several may ask";
  first->Kill();
  EXPECT_TRUE(Eventually([&] { return asks("new") == Code::kOk; }));
}

TEST_F(MasterTest, CancelEndsAJob) {
  Start();
  auto worker = Worker("w1");
  worker->hold_tasks = true;
  TestClient client = Client();
  auto job = client.Submit(client.PutExecutable("e"), "k").job_accepted().job();
  ASSERT_TRUE(Eventually([&] { return worker->tasks_run > 0; }));
  wire::ClientRequest cancel;
  cancel.mutable_cancel_job()->set_job(job);
  EXPECT_TRUE(client.Call(cancel).has_ok());
  wire::JobState state = client.Wait(job);
  EXPECT_EQ(state.phase(), "cancelled");
  EXPECT_EQ(static_cast<Code>(state.failure().code()), Code::kCancelled);
  client.Log(job, "driver");  // has an end
}

// What a rank measures is kept, as its own and with the name of its worker, whatever it says it is; one that says too much is stopped.
TEST_F(MasterTest, WhatRanksMeasureIsKeptAndBounded) {
  Start();
  auto worker = Worker("w1");
  worker->hold_tasks = true;
  TestClient client = Client();
  auto job = client.Submit(client.PutExecutable("e"), "k").job_accepted().job();
  ASSERT_TRUE(Eventually([&] { return worker->tasks_run > 0; }));
  auto say = [&](const std::string& metrics) {
    wire::FromExecutor message;
    message.mutable_gang_metrics()->mutable_id()->set_stage(7);
    message.mutable_gang_metrics()->mutable_id()->set_task(2);
    message.mutable_gang_metrics()->set_metrics(metrics);
    worker->Say(worker->last_executor, message);
  };
  auto kept = [&] {
    wire::ClientRequest query;
    query.mutable_metrics_query()->set_job(job);
    auto metrics = storage::DecodeMetrics(client.Call(query).job_metrics().metrics());
    EXPECT_TRUE(metrics.ok()) << metrics.status().ToString();
    return metrics.ok() ? *metrics : storage::Metrics();
  };
  EXPECT_TRUE(kept().empty());
  storage::Metrics measured;
  for (std::size_t i = 0; i < storage::kMetricSeriesSaidMax; ++i)
    measured.series.push_back({99, "s" + std::to_string(i), 98, "elsewhere", {"loss"}, {{1, 4, 0, {{6, 4}}}}});
  say(Encode(measured));
  ASSERT_TRUE(Eventually([&] { return kept().series.size() == storage::kMetricSeriesSaidMax; }));
  const storage::MetricSeries series = kept().series[0];
  EXPECT_EQ(series.gang, 7u);
  EXPECT_EQ(series.rank, 2u);
  EXPECT_EQ(series.machine, "w1");
  EXPECT_EQ(series.points.at(0).means.at(0).value(), 1.5);
  EXPECT_EQ(worker->executors_stopped, 0);
  measured.series.push_back({99, "one more", 98, "", {"loss"}, {{1, 4, 0, {{6, 4}}}}});
  say(Encode(measured));
  ASSERT_TRUE(Eventually([&] { return worker->executors_stopped > 0; }));
  EXPECT_EQ(kept().series.size(), storage::kMetricSeriesSaidMax);
  worker->hold_tasks = false;
  client.Wait(job);
  EXPECT_EQ(kept().series.size(), storage::kMetricSeriesSaidMax) << "from the file, when it is over";
}

TEST_F(MasterTest, WrongRequestsGetReasons) {
  Start();
  TestClient client = Client();
  std::string sha256 = client.PutExecutable("e");
  EXPECT_EQ(client.Submit(std::string(32, 'z'), "k").failure().tag(), "ART04");
  EXPECT_EQ(client.Submit("short", "k").failure().tag(), "JOB10");
  wire::ClientRequest query;
  query.mutable_job_query()->set_job(4711);
  EXPECT_EQ(static_cast<Code>(client.Call(query).failure().code()), Code::kNotFound);
  wire::ClientRequest log;
  log.mutable_read_log()->set_job(4711);
  log.mutable_read_log()->set_stream("driver");
  EXPECT_EQ(client.Call(log).failure().tag(), "JOB07");
  log.mutable_read_log()->set_stream("../../token");
  EXPECT_EQ(client.Call(log).failure().tag(), "JOB08");
  EXPECT_EQ(client.Call(wire::ClientRequest()).failure().tag(), "WIRE03");
  wire::ClientRequest path;
  wire::JobSpec* spec = path.mutable_submit_job()->mutable_spec();
  spec->add_argv("x");
  spec->add_artifacts(sha256);
  spec->add_artifact_names("../../../etc/cron.d/x");
  EXPECT_EQ(client.Call(path).failure().tag(), "JOB10");
  // A job without workers waits, says why, and does not block the connection.
  auto job = client.Submit(sha256, "k").job_accepted().job();
  auto state = client.Query(job);
  EXPECT_GE(state.pending_reasons_size(), 1);
}

TEST_F(MasterTest, WorkersCannotBeAskedByStrangersNorClientsActAsWorkers) {
  Start();
  const std::string token = TokenOf(folder_.path());
  EXPECT_EQ(rpc::Channel::Connect(master_->address(), std::string(64, '0'), "worker", 5'000).status().tag(), "AUTH01");
  auto client = rpc::Channel::Connect(master_->address(), token, "client", 5'000);
  ASSERT_TRUE(client.ok());
  wire::FromWorker hello;
  hello.mutable_hello()->set_protocol(1);
  ASSERT_TRUE((*client)->Send(rpc::FrameKind::kMessage, hello.SerializeAsString()).ok());
  EXPECT_FALSE((*client)->Receive(10'000).ok());  // closed
}

TEST_F(MasterTest, RandomMessagesOfAuthenticatedPeersHarmNobody) {
  Start();
  const std::uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  const std::string token = TokenOf(folder_.path());
  for (int round = 0; round < 300; ++round) {
    const bool worker = random.OneIn(2);
    auto channel = rpc::Channel::Connect(master_->address(), token, worker ? "worker" : "client", 10'000);
    ASSERT_TRUE(channel.ok()) << channel.status().ToString();
    if (worker) {
      wire::FromWorker hello;
      hello.mutable_hello()->set_protocol(static_cast<std::uint32_t>(random.Below(3)));
      hello.mutable_hello()->set_name("w" + std::to_string(round));
      hello.mutable_hello()->set_slots(static_cast<std::uint32_t>(random.Below(3)));
      hello.mutable_hello()->set_data_address("x");
      wire::HeldSegment* held = hello.mutable_hello()->add_segments();
      held->set_job(random.Below(5));
      held->mutable_ref()->set_segment(random());
      if (!(*channel)->Send(rpc::FrameKind::kMessage, hello.SerializeAsString()).ok()) continue;
    }
    for (int i = 0; i < 5; ++i) {
      std::string bytes(random.Below(80), '\0');
      for (char& c : bytes) c = static_cast<char>(random.Below(random.OneIn(2) ? 256 : 32));
      if (!(*channel)->Send(worker ? rpc::FrameKind::kMessage : rpc::FrameKind::kRequest, bytes).ok()) break;
    }
  }
  auto worker = Worker("good");
  TestClient client = Client();
  auto job = client.Submit(client.PutExecutable("e"), "k").job_accepted().job();
  EXPECT_EQ(client.Wait(job).phase(), "succeeded");
}

TEST_F(MasterTest, OneMasterForAFolderAndLoopbackOnly) {
  Start();
  rpc::EventLoop loop;
  auto second = Master::Start(loop, Options(), [](const Status&) {});
  EXPECT_EQ(second.status().tag(), "MASTER01");
  EXPECT_NE(second.status().why().find("pid " + std::to_string(getpid())), std::string::npos);
  EXPECT_NE(second.status().why().find(master_->address()), std::string::npos);
  TempFolder other;
  auto open = Master::Start(loop, {.state_dir = other.path(), .listen_address = "0.0.0.0:0"}, [](const Status&) {});
  EXPECT_EQ(open.status().tag(), "NET05");
}

}  // namespace
}  // namespace ropewalk::master
