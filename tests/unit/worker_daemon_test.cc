// A real worker process against a master that this test plays, with a small executor (this binary again) that can also misbehave.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/job_name.h"
#include "dag/failure_tags.h"
#include "dag/wire/wire.h"
#include "proto/executor.pb.h"
#include "proto/worker.pb.h"
#include "rpc/channel.h"
#include "rpc/server.h"
#include "storage/artifacts.h"
#include "worker/blocks/block_service.h"
#include "worker/daemon/cgroup.h"
#include "worker/daemon/worker.h"

extern char** environ;

namespace ropewalk::worker {
namespace {

const std::string kToken(64, 'a');
constexpr JobId kJob{5};
constexpr std::uint64_t kWindowBytes = 256u << 10;
constexpr std::uint64_t kNoMemory = 2;  // bytes: everything spills

// What a task of the test's executor does, by the id of its stage.
enum StageOf : std::uint64_t {
  kWrites = 1,
  kReads = 2,
  kCrashes = 3,
  kLies = 4,
  kFailsAfterSealing = 5,
  kPrints = 6,
  kExits = 7,
  kSaysTwice = 8,
  kVanishes = 9,
  kTells = 10,
  kMeets = 11,
  kMeetsWithTooMuch = 12,
  kMeasures = 13,
  kMeasuresTooMuch = 14,
};
constexpr std::uint32_t kMeasurements = 40;

// ---- the executor
// ------------------------------------------------------------------------------------------------------------------------

int ExecutorMain(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "exit3") return 3;
  rpc::Channel channel(3);
  auto send = [&](const wire::FromExecutor& message) { (void)channel.Send(rpc::FrameKind::kMessage, message.SerializeAsString()); };
  if (mode == "garbage") {
    (void)!::write(3, "hello hello hello hello hello", 29);
    ::pause();
  }
  wire::FromExecutor hello;
  hello.mutable_hello()->set_protocol(mode == "old" ? 1 : 3);
  hello.mutable_hello()->set_pid(static_cast<std::uint32_t>(::getpid()));
  send(hello);
  auto frame = channel.Receive(-1);
  wire::ToExecutor first;
  if (!frame.ok() || !first.ParseFromString(frame->payload) || !first.has_welcome()) return 9;
  const wire::ExecutorWelcome welcome = first.welcome();
  auto blocks = blocks::RemoteBlocks::Connect(
      {.unix_path = welcome.block_socket(), .data_address = welcome.data_address(), .job = kJob, .token = welcome.job_token()});
  if (!blocks.ok()) return 8;
  int cursor_file = ::open(welcome.cursor_path().c_str(), O_RDWR);
  auto* cursors = static_cast<dag::RecordCursor*>(
      ::mmap(nullptr, welcome.slots() * sizeof(dag::RecordCursor), PROT_READ | PROT_WRITE, MAP_SHARED, cursor_file, 0));
  char folder[4096];
  std::printf("executor %llu of %s in %s with %s\n", static_cast<unsigned long long>(welcome.executor()), mode.c_str(),
              ::getcwd(folder, sizeof folder), std::getenv("DECLARED"));
  std::fflush(stdout);
  auto write_segment = [&](const TaskAttempt& id) {
    auto writer = (*blocks)->NewSegment(id, 1);
    (void)(*writer)->Append(0, AsBytes("data of task " + std::to_string(id.task) + ";"), 1);
    return *(*writer)->Seal();
  };
  while (true) {
    frame = channel.Receive(-1);
    wire::ToExecutor order;
    if (!frame.ok() || !order.ParseFromString(frame->payload)) return 5;
    if (order.has_stop()) {
      if (mode == "stubborn") continue;
      return 0;
    }
    if (!order.has_run_task()) continue;
    TaskAttempt id = dag::FromWire(order.run_task().id());
    wire::FromExecutor report;
    wire::TaskFinished* finished = report.mutable_task_finished();
    dag::ToWire(id, finished->mutable_id());
    switch (id.stage.value) {
      case kWrites:
        dag::ToWire(write_segment(id), finished->mutable_segment());
        break;
      case kReads: {
        std::string value;
        Status status;
        for (const wire::SegmentRef& ref : order.run_task().inputs(0).segments()) {
          auto stream = (*blocks)->Open(dag::FromWire(ref), 0, 1);
          if (!stream.ok()) {
            status = stream.status();
            break;
          }
          auto extent = (*stream)->Next();
          if (!extent.ok()) {
            status = extent.status();
            break;
          }
          value += AsView((*extent)->bytes);
        }
        if (status.ok()) {
          finished->set_value(value);
        } else {
          wire::FetchFailed* fetch = report.mutable_fetch_failed();
          dag::ToWire(id, fetch->mutable_id());
          *fetch->mutable_lost() = order.run_task().inputs(0).segments(0);
          dag::ToWire(status, fetch->mutable_failure());
        }
        break;
      }
      case kCrashes:
        cursors[1].stage = id.stage.value;
        cursors[1].task = id.task;
        cursors[1].attempt = id.attempt;
        cursors[1].split = 7;
        cursors[1].offset = 12345;
        cursors[1].SetSource("/data/in.txt");
        cursors[1].signal = SIGSEGV;
        cursors[0].stage = 999;  // nonsense that nobody ordered
        ::raise(SIGSEGV);
        break;
      case kLies:
        finished->mutable_segment()->set_segment(4711);
        break;
      case kFailsAfterSealing: {
        write_segment(id);
        wire::TaskFailed* failed = report.mutable_task_failed();
        dag::ToWire(id, failed->mutable_id());
        dag::ToWire(Status(Code::kUserError, "T", "failed as asked"), failed->mutable_failure());
        break;
      }
      case kPrints: {
        std::string line(1u << 20, 'x');
        for (int i = 0; i < 2; ++i) (void)!::write(1, line.data(), line.size());
        break;
      }
      case kExits:
        return 42;
      case kTells:  // and goes on
        dag::ToWire(id, report.mutable_progress()->mutable_id());
        report.mutable_progress()->mutable_counters()->set_records_in(7);
        report.mutable_progress()->mutable_counters()->set_bytes_in(1000 + id.attempt);
        report.mutable_progress()->set_line(std::string(1000, 'l'));
        report.mutable_progress()->set_reached(12);
        break;
      case kMeets:  // for itself, and for an attempt that nobody has ordered
      case kMeetsWithTooMuch:
        for (std::uint32_t attempt : {id.attempt + 1000, id.attempt}) {
          wire::FromExecutor meets;
          wire::GangExchange* exchange = meets.mutable_gang_exchange();
          dag::ToWire(TaskAttempt{id.stage, id.task, attempt}, exchange->mutable_id());
          exchange->set_round(attempt);
          exchange->set_value(std::string((64u << 10) + (id.stage.value == kMeets ? 0 : 1), 'x'));
          send(meets);
        }
        break;
      case kMeasures:  // for an attempt that nobody has ordered, and without end for itself
      case kMeasuresTooMuch:
        for (std::uint32_t i = 0; i <= kMeasurements; ++i) {
          wire::FromExecutor measures;
          dag::ToWire(TaskAttempt{id.stage, id.task, i == 0 ? id.attempt + 1000 : id.attempt},
                      measures.mutable_gang_metrics()->mutable_id());
          measures.mutable_gang_metrics()->set_metrics(std::string((96u << 10) + (id.stage.value == kMeasures ? 0 : 1), 'x'));
          send(measures);
        }
        break;
      case kSaysTwice:
        send(report);
        break;
      case kVanishes:
        write_segment(id);
        ::raise(SIGKILL);
        break;
      default:
        break;
    }
    send(report);
  }
}

// ---- the master
// ---------------------------------------------------------------------------------------------------------------------------

class FakeMaster final : public rpc::ServerHandler {
 public:
  explicit FakeMaster(const std::string& listen = "127.0.0.1:0", std::uint64_t epoch = 1) : epoch_(epoch) {
    rpc::RoleLimits limits;
    limits.message_bytes_max = rpc::kMessageBytesMax;
    auto server = rpc::Server::Start(loop_, {.listen_address = listen, .token = kToken, .roles = {{"worker", limits}}}, this);
    EXPECT_TRUE(server.ok()) << server.status().ToString();
    server_ = *std::move(server);
    address_ = server_->address();
    thread_ = std::thread([this] { loop_.Run(); });
  }
  ~FakeMaster() override {
    loop_.Stop();
    thread_.join();
    server_.reset();
  }
  const std::string& address() const { return address_; }

  void OnConnected(rpc::ConnectionId id, const rpc::Peer&) override { connection_ = id; }
  void OnDisconnected(rpc::ConnectionId, const Status&) override {
    std::lock_guard lock(mutex_);
    ++disconnected;
    changed_.notify_all();
  }
  void OnFrame(rpc::ConnectionId id, rpc::Frame frame) override {
    wire::FromWorker message;
    ASSERT_TRUE(message.ParseFromString(frame.payload));
    if (message.has_hello() && (refusals_to_pass > 0 || refuses_for_good)) {
      wire::ToWorker answer;
      const Code code = refusals_to_pass > 0 ? Code::kUnavailable : Code::kInvalid;
      if (refusals_to_pass > 0) --refusals_to_pass;
      dag::ToWire(Status(code, "WORKER01", "the name is taken", "by another", "take another"), answer.mutable_refused()->mutable_failure());
      server_->Send(id, rpc::FrameKind::kMessage, answer.SerializeAsString());
    } else if (message.has_hello()) {
      ++worker_;
      wire::ToWorker answer;
      answer.mutable_registered()->set_worker(worker_);
      answer.mutable_registered()->set_epoch(epoch_);
      answer.mutable_registered()->set_heartbeat_ms(50);
      answer.mutable_registered()->set_silence_ms(silence_ms);
      answer.mutable_registered()->set_output_window_bytes(kWindowBytes);
      Post(id, answer);
    }
    if (message.has_heartbeat() && acknowledge_beats) {
      wire::ToWorker answer;
      answer.mutable_heartbeat_ack()->set_sequence(message.heartbeat().sequence());
      Post(id, answer);
    }
    if (message.has_output() && acknowledge_output) Acknowledge(message.output());
    if (message.has_artifact_request()) Serve(id, message.artifact_request());
    std::lock_guard lock(mutex_);
    if (message.has_heartbeat()) {
      last_beat_ = message.heartbeat();
    } else {
      messages_.push_back(std::move(message));
    }
    changed_.notify_all();
  }

  void Order(wire::ToWorker order) {
    loop_.Post([this, order = std::make_shared<wire::ToWorker>(std::move(order))] { Post(connection_, *order); });
  }
  void Acknowledge(const wire::Output& output) {
    wire::ToWorker answer;
    answer.mutable_output_ack()->set_executor(output.executor());
    answer.mutable_output_ack()->set_stream(output.stream());
    answer.mutable_output_ack()->set_offset(output.offset() + output.data().size());
    Order(answer);
  }
  void StartExecutor(std::uint64_t executor, const std::string& mode, const std::string& artifact, JobId job = kJob) {
    wire::ToWorker allow;
    allow.mutable_allow_job()->set_job(job.value);
    allow.mutable_allow_job()->set_token("token of the job");
    Order(allow);
    wire::ToWorker order;
    wire::StartExecutorOrder* start = order.mutable_start_executor();
    start->set_executor(executor);
    start->set_job_token("token of the job");
    start->set_slots(2);
    wire::JobSpec* spec = start->mutable_spec();
    spec->mutable_settings()->set_job(job.value);
    spec->mutable_settings()->set_work_dir("/");
    spec->add_argv("the-job");
    spec->add_argv(mode);
    spec->add_environment("DECLARED=yes");
    spec->add_environment("LD_LIBRARY_PATH=/evil");
    spec->add_environment("ASAN_OPTIONS=detect_leaks=0:handle_segv=0");
    spec->add_environment("TSAN_OPTIONS=handle_segv=0");
    spec->add_artifacts(artifact);
    spec->add_artifact_names("../../the-job");
    Order(order);
  }
  void RunTask(std::uint64_t executor, TaskAttempt id, std::vector<dag::SegmentRef> inputs = {}, bool verify = false,
               bool is_rank = false) {
    wire::ToExecutor order;
    wire::RunTask* run = order.mutable_run_task();
    dag::ToWire(id, run->mutable_id());
    run->set_verify(verify);
    if (is_rank) run->mutable_gang()->set_ranks(1);
    wire::TaskInput* input = run->add_inputs();
    for (const dag::SegmentRef& ref : inputs) dag::ToWire(ref, input->add_segments());
    wire::ToWorker message;
    message.mutable_to_executor()->set_executor(executor);
    message.mutable_to_executor()->set_payload(order.SerializeAsString());
    Order(message);
  }

  // The next message that `matches`, which is taken out; nullopt after a while.
  std::optional<wire::FromWorker> Take(const std::function<bool(const wire::FromWorker&)>& matches, int timeout_ms = 20'000) {
    std::unique_lock lock(mutex_);
    std::optional<wire::FromWorker> found;
    changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] {
      for (auto at = messages_.begin(); at != messages_.end(); ++at) {
        if (!matches(*at)) continue;
        found = std::move(*at);
        messages_.erase(at);
        return true;
      }
      return false;
    });
    return found;
  }
  wire::Register TakeHello() {
    auto message = Take([](const wire::FromWorker& m) { return m.has_hello(); });
    EXPECT_TRUE(message.has_value()) << "no registration";
    return message ? message->hello() : wire::Register();
  }
  wire::FromExecutor TakeFromExecutor(std::uint64_t executor, wire::FromExecutor::BodyCase body) {
    wire::FromExecutor inner;
    auto message = Take([&](const wire::FromWorker& m) {
      return m.has_from_executor() && m.from_executor().executor() == executor && inner.ParseFromString(m.from_executor().payload()) &&
             inner.body_case() == body;
    });
    EXPECT_TRUE(message.has_value()) << "nothing of kind " << body << " from executor " << executor;
    return inner;
  }
  wire::ExecutorExited TakeExit(std::uint64_t executor) {
    auto message = Take([&](const wire::FromWorker& m) { return m.has_executor_exited() && m.executor_exited().executor() == executor; });
    EXPECT_TRUE(message.has_value()) << "no exit of executor " << executor;
    return message ? message->executor_exited() : wire::ExecutorExited();
  }
  // Starts one and takes its hello.
  std::uint32_t StartAndGreet(std::uint64_t executor, const std::string& mode, const std::string& artifact) {
    StartExecutor(executor, mode, artifact);
    return TakeFromExecutor(executor, wire::FromExecutor::kHello).hello().pid();
  }
  dag::SegmentRef Write(std::uint64_t executor, TaskAttempt id, const std::string& location, bool verify = false) {
    RunTask(executor, id, {}, verify);
    wire::FromExecutor report = TakeFromExecutor(executor, wire::FromExecutor::kTaskFinished);
    dag::SegmentInfo info = dag::FromWire(report.task_finished().segment());
    return {.producer = id, .segment = info.segment, .location = location, .bytes = info.bytes};
  }
  bool WaitForBeat(const std::function<bool(const wire::Heartbeat&)>& matches) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return matches(last_beat_); });
  }

  std::atomic<bool> acknowledge_beats{true}, acknowledge_output{true}, refuses_for_good{false};
  std::atomic<int> refusals_to_pass{0};
  std::atomic<std::uint32_t> silence_ms{20'000};
  std::map<std::string, std::string> artifacts;  // name -> path; set before the first order
  std::map<std::string, std::string> damaged;    // name -> bytes instead
  std::atomic<int> artifact_requests{0};
  std::atomic<int> disconnected{0};

 private:
  void Post(rpc::ConnectionId id, wire::ToWorker answer) {
    answer.set_worker(worker_);
    answer.set_epoch(epoch_);
    server_->Send(id, rpc::FrameKind::kMessage, answer.SerializeAsString());
  }
  void Serve(rpc::ConnectionId id, const wire::ArtifactRequest& request) {
    ++artifact_requests;
    wire::ToWorker answer;
    wire::ArtifactChunk* chunk = answer.mutable_artifact_chunk();
    chunk->set_sha256(request.sha256());
    chunk->set_offset(request.offset());
    if (auto bad = damaged.find(request.sha256()); bad != damaged.end()) {
      chunk->set_size(bad->second.size());
      chunk->set_chunk(bad->second);
    } else if (auto at = artifacts.find(request.sha256()); at != artifacts.end()) {
      chunk->set_size(std::filesystem::file_size(at->second));
      std::ifstream file(at->second, std::ios::binary);
      file.seekg(static_cast<std::streamoff>(request.offset()));
      std::string bytes(1u << 20, '\0');
      file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
      bytes.resize(static_cast<std::size_t>(file.gcount()));
      chunk->set_chunk(bytes);
    } else {
      dag::ToWire(Status(Code::kNotFound, "ART04", "no such artifact"), chunk->mutable_failure());
    }
    Post(id, answer);
  }

  const std::uint64_t epoch_;
  rpc::EventLoop loop_;
  std::unique_ptr<rpc::Server> server_;
  std::string address_;
  rpc::ConnectionId connection_ = 0;
  std::uint64_t worker_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<wire::FromWorker> messages_;
  wire::Heartbeat last_beat_;
  std::thread thread_;
};

struct WorkerProcess {
  pid_t pid = -1;
  WorkerProcess(const std::string& master, const std::string& folder, const std::string& token_file, std::uint64_t memory_bytes = 64u << 20,
                std::int64_t drain_ms = 60'000) {
    std::vector<std::string> args{
        "worker", "--run-worker", master, folder, token_file, std::to_string(memory_bytes), std::to_string(drain_ms)};
    std::vector<char*> pointers;
    for (std::string& arg : args) pointers.push_back(arg.data());
    pointers.push_back(nullptr);
    EXPECT_EQ(::posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, pointers.data(), environ), 0);
  }
  int Wait() {
    int status = -1;
    if (pid > 0) {
      EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    }
    pid = -1;
    return status;
  }
  int Stop(int signal = SIGTERM) {
    if (pid > 0) ::kill(pid, signal);
    return Wait();
  }
  ~WorkerProcess() {
    if (pid > 0) Stop(SIGKILL);
  }
};

int WorkerMain(char** argv) {
  Status status = RunWorker({.master_address = argv[2],
                             .token_file = argv[4],
                             .name = "tested",
                             .slots = 2,
                             .memory_bytes = std::strtoull(argv[5], nullptr, 10),
                             .state_dir = argv[3],
                             .drain_ms_max = std::strtoll(argv[6], nullptr, 10),
                             .use_cgroups = std::getenv("ROPEWALK_TEST_NO_CGROUPS") == nullptr});
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return ExitCode(status.code());
}

// Enters the groups that its arguments name and takes memory until it is ended for it.
int BombMain(int argc, char** argv) {
  for (int i = 2; i < argc; ++i) std::ofstream(argv[i]) << "0" << std::flush;
  constexpr std::size_t kBytes = 256u << 20;
  void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  std::memset(memory, 1, kBytes);
  return 0;
}

// Somewhere on this machine a process that is none of the worker's is ended for lack of memory.
void EndAProcessForItsMemory(ExecutorGroups& groups) {
  auto entry = groups.Make(1, {.memory_bytes = 32u << 20, .processes_max = 100});
  ASSERT_TRUE(entry.ok()) << entry.status().ToString();
  std::vector<std::string> args{"bomb", "--bomb"};
  args.insert(args.end(), entry->procs.begin(), entry->procs.end());
  std::vector<char*> pointers;
  for (std::string& arg : args) pointers.push_back(arg.data());
  pointers.push_back(nullptr);
  pid_t pid = -1;
  ASSERT_EQ(::posix_spawn(&pid, "/proc/self/exe", nullptr, nullptr, pointers.data(), environ), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  groups.Remove(1);
}

bool Alive(std::uint32_t pid) { return std::filesystem::exists("/proc/" + std::to_string(pid)); }

template <class Condition>
bool Eventually(Condition condition) {
  for (int i = 0; i < 1000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

class WorkerDaemonTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = "/tmp/rw-XXXXXX";
    ASSERT_NE(::mkdtemp(path_.data()), nullptr);
    std::ofstream(path_ + "/token") << kToken << "\n";
    ASSERT_EQ(::chmod((path_ + "/token").c_str(), 0600), 0);
    static const std::string self = [] {
      auto sha = storage::Sha256OfFile("/proc/self/exe");
      EXPECT_TRUE(sha.ok());
      return *sha;
    }();
    self_ = self;
    master_ = NewMaster();
  }
  void TearDown() override {
    worker_.reset();
    master_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::unique_ptr<FakeMaster> NewMaster(const std::string& listen = "127.0.0.1:0", std::uint64_t epoch = 1) {
    auto master = std::make_unique<FakeMaster>(listen, epoch);
    master->artifacts[self_] = "/proc/self/exe";
    return master;
  }
  wire::Register StartWorker(std::uint64_t memory_bytes = 64u << 20, std::int64_t drain_ms = 60'000) {
    worker_ = std::make_unique<WorkerProcess>(master_->address(), folder(), path_ + "/token", memory_bytes, drain_ms);
    return master_->TakeHello();
  }
  std::string folder() const { return path_ + "/state"; }

  std::string path_, self_;
  std::unique_ptr<FakeMaster> master_;
  std::unique_ptr<WorkerProcess> worker_;
};

TEST_F(WorkerDaemonTest, RegistersRelaysAndStops) {
  wire::Register hello = StartWorker();
  EXPECT_EQ(hello.protocol(), 1u);
  EXPECT_EQ(hello.name(), "tested");
  EXPECT_EQ(hello.instance().size(), 16u);
  EXPECT_EQ(hello.slots(), 2u);
  EXPECT_EQ(hello.glibc().rfind("2.", 0), 0u);
  EXPECT_EQ(hello.segments_size(), 0);
  std::uint32_t pid = master_->StartAndGreet(1, "serve", self_);
  EXPECT_TRUE(Alive(pid));
  std::vector<dag::SegmentRef> refs{master_->Write(1, {StageId{kWrites}, 0, 1}, hello.data_address()),
                                    master_->Write(1, {StageId{kWrites}, 1, 2}, hello.data_address())};
  master_->RunTask(1, {StageId{kReads}, 0, 3}, refs);
  EXPECT_EQ(master_->TakeFromExecutor(1, wire::FromExecutor::kTaskFinished).task_finished().value(), "data of task 0;data of task 1;");
  EXPECT_TRUE(master_->WaitForBeat(
      [](const wire::Heartbeat& b) { return b.blocks_bytes() > 0 && b.executors() == 1 && b.executor_pss_bytes_max() > 0; }));
  auto output = master_->Take([](const wire::FromWorker& m) { return m.has_output(); });
  ASSERT_TRUE(output.has_value());
  EXPECT_EQ(output->output().data(), "executor 1 of serve in / with yes\n");
  EXPECT_EQ(output->output().offset(), 0u);
  EXPECT_EQ(output->output().stream(), wire::Output::STDOUT);

  // A second one of the same job fetches nothing.
  int requests = master_->artifact_requests;
  EXPECT_GT(requests, 0);
  master_->StartAndGreet(2, "stubborn", self_);
  EXPECT_EQ(master_->artifact_requests, requests);
  for (std::uint64_t executor : {1, 2}) {
    wire::ToWorker stop;
    stop.mutable_stop_executor()->set_executor(executor);
    stop.mutable_stop_executor()->set_grace_ms(300);
    master_->Order(stop);
    wire::ExecutorExited exited = master_->TakeExit(executor);
    EXPECT_EQ(exited.reason().code(), 0u) << exited.reason().what();
    EXPECT_EQ(exited.signal(), executor == 1 ? 0 : SIGKILL);
    EXPECT_NE(exited.main_exit().find(executor == 1 ? "ended as it was told (exit 0)" : "did not end in time"), std::string::npos)
        << exited.main_exit();
  }
  EXPECT_FALSE(Alive(pid));
  // Segments outlive their executor, until they are freed.
  EXPECT_TRUE(master_->WaitForBeat([](const wire::Heartbeat& b) { return b.blocks_bytes() > 0 && b.executors() == 0; }));
  wire::ToWorker free;
  free.mutable_free_segments()->set_job(kJob.value);
  for (const dag::SegmentRef& ref : refs) free.mutable_free_segments()->add_segments(ref.segment.value);
  master_->Order(free);
  EXPECT_TRUE(master_->WaitForBeat([](const wire::Heartbeat& b) { return b.blocks_bytes() == 0; }));
  EXPECT_EQ(worker_->Stop(), 0);
}

TEST_F(WorkerDaemonTest, ACrashNamesTheRecord) {
  StartWorker();
  master_->StartAndGreet(1, "serve", self_);
  master_->RunTask(1, {StageId{kCrashes}, 4, 9});
  wire::ExecutorExited exited = master_->TakeExit(1);
  EXPECT_EQ(exited.signal(), SIGSEGV);
  EXPECT_EQ(exited.reason().code(), static_cast<std::uint32_t>(Code::kUserError)) << exited.reason().what();
  EXPECT_NE(exited.main_exit().find("signal 11"), std::string::npos) << exited.main_exit();
  ASSERT_EQ(exited.tasks_size(), 1) << "only what was ordered is believed";
  EXPECT_EQ(dag::FromWire(exited.tasks(0).id()), (TaskAttempt{StageId{kCrashes}, 4, 9}));
  EXPECT_EQ(exited.tasks(0).split(), 7u);
  EXPECT_EQ(exited.tasks(0).offset(), 12345u);
  EXPECT_EQ(exited.tasks(0).signal(), static_cast<std::uint32_t>(SIGSEGV));
  EXPECT_EQ(exited.tasks(0).source(), "/data/in.txt");
}

TEST_F(WorkerDaemonTest, WaysToEndHaveTheirReasons) {
  StartWorker();
  auto reason = [&](std::uint64_t executor) { return static_cast<Code>(master_->TakeExit(executor).reason().code()); };
  master_->StartExecutor(1, "exit3", self_);
  wire::ExecutorExited exited = master_->TakeExit(1);
  EXPECT_EQ(exited.exit_code(), 3);
  EXPECT_EQ(exited.reason().code(), static_cast<std::uint32_t>(Code::kUserError));
  EXPECT_EQ(exited.main_exit(), "exit 3");
  master_->StartExecutor(2, "garbage", self_);
  EXPECT_NE(reason(2), Code::kOk);
  master_->StartExecutor(3, "old", self_);
  EXPECT_EQ(reason(3), Code::kVersionSkew);
  ::kill(static_cast<pid_t>(master_->StartAndGreet(4, "serve", self_)), SIGKILL);
  EXPECT_EQ(reason(4), Code::kUnavailable);
  master_->StartAndGreet(5, "serve", self_);
  master_->RunTask(5, {StageId{kExits}, 0, 1});
  exited = master_->TakeExit(5);
  EXPECT_EQ(exited.exit_code(), 42);
  // Files that cannot be run, cannot be had, or are not what their name says.
  std::ofstream(path_ + "/text") << "no executable";
  std::string text = *storage::Sha256OfFile(path_ + "/text");
  master_->artifacts[text] = path_ + "/text";
  master_->StartExecutor(6, "serve", text, JobId{6});
  EXPECT_EQ(reason(6), Code::kInvalid);
  master_->StartExecutor(7, "serve", std::string(32, 'n'), JobId{7});
  EXPECT_EQ(reason(7), Code::kNotFound);
  master_->damaged[std::string(32, 'd')] = "not what it is called";
  master_->StartExecutor(8, "serve", std::string(32, 'd'), JobId{8});
  EXPECT_EQ(reason(8), Code::kDataLoss);
}

// The machine counts all that it ends for lack of memory together; whom it ended, only a control group tells.
TEST_F(WorkerDaemonTest, AKillIsBlamedOnMemoryOnlyAsFarAsThatIsKnown) {
  auto groups = ExecutorGroups::Open();
  if (!groups->limits_memory()) GTEST_SKIP() << groups->description();
  struct Case {
    const char* variable;
    Status reason;
    const char* why;
  };
  for (const Case& c :
       {Case{"", Status(Code::kUnavailable, "WORKER30", ""), "somebody killed it"},
        Case{"ROPEWALK_TEST_NO_CGROUPS", Status(Code::kResourceExhausted, dag::kPerhapsOutOfMemoryTag, ""), "; or somebody killed it"}}) {
    SCOPED_TRACE(c.variable);
    if (*c.variable != '\0') {
      ASSERT_EQ(::setenv(c.variable, "1", 1), 0);
    }
    StartWorker();
    const auto pid = static_cast<pid_t>(master_->StartAndGreet(1, "serve", self_));
    EndAProcessForItsMemory(*groups);
    ASSERT_EQ(::kill(pid, SIGKILL), 0);
    const Status reason = dag::FromWire(master_->TakeExit(1).reason());
    EXPECT_EQ(reason.code(), c.reason.code()) << reason.ToString();
    EXPECT_EQ(reason.tag(), c.reason.tag()) << reason.ToString();
    EXPECT_TRUE(reason.why().ends_with(c.why)) << reason.ToString();
    worker_.reset();
    ::unsetenv(c.variable);
    master_ = NewMaster();
  }
}

TEST_F(WorkerDaemonTest, WhatExecutorsSayIsChecked) {
  wire::Register hello = StartWorker();
  master_->StartAndGreet(1, "serve", self_);
  master_->RunTask(1, {StageId{kLies}, 0, 1});
  wire::ExecutorExited exited = master_->TakeExit(1);
  EXPECT_EQ(exited.reason().code(), static_cast<std::uint32_t>(Code::kInvalid));
  EXPECT_EQ(exited.reason().tag(), "WORKER20");
  EXPECT_FALSE(master_->Take(
      [](const wire::FromWorker& m) {
        wire::FromExecutor inner;
        return m.has_from_executor() && inner.ParseFromString(m.from_executor().payload()) && inner.has_task_finished();
      },
      50));

  master_->StartAndGreet(2, "serve", self_);
  // A segment of an attempt that failed is nobody's.
  master_->RunTask(2, {StageId{kFailsAfterSealing}, 0, 2});
  EXPECT_EQ(master_->TakeFromExecutor(2, wire::FromExecutor::kTaskFailed).task_failed().failure().what(), "failed as asked");
  EXPECT_TRUE(master_->WaitForBeat([](const wire::Heartbeat& b) { return b.blocks_bytes() == 0; }));
  // Nor is one of a verifying run.
  master_->Write(2, {StageId{kWrites}, 0, 3}, hello.data_address(), true);
  EXPECT_TRUE(master_->WaitForBeat([](const wire::Heartbeat& b) { return b.blocks_bytes() == 0; }));
  // A repeated report is dropped.
  master_->RunTask(2, {StageId{kSaysTwice}, 0, 4});
  master_->TakeFromExecutor(2, wire::FromExecutor::kTaskFinished);
  EXPECT_FALSE(master_->Take([](const wire::FromWorker& m) { return m.has_from_executor(); }, 100));
  // Ranks speak for themselves, and briefly.
  master_->RunTask(2, {StageId{kMeets}, 0, 6});
  EXPECT_EQ(master_->TakeFromExecutor(2, wire::FromExecutor::kGangExchange).gang_exchange().round(), 6u);
  master_->TakeFromExecutor(2, wire::FromExecutor::kTaskFinished);
  master_->StartAndGreet(3, "serve", self_);
  master_->RunTask(3, {StageId{kMeetsWithTooMuch}, 0, 7});
  EXPECT_EQ(master_->TakeExit(3).reason().tag(), "WORKER20");
  // What they measure is passed on for ranks only, a few times between two heartbeats.
  master_->RunTask(2, {StageId{kMeasures}, 0, 8});
  master_->TakeFromExecutor(2, wire::FromExecutor::kTaskFinished);
  master_->RunTask(2, {StageId{kMeasures}, 0, 9}, {}, false, true);
  std::uint32_t passed_on = 0;
  while (master_->Take(
      [](const wire::FromWorker& m) {
        wire::FromExecutor inner;
        const bool is = m.has_from_executor() && inner.ParseFromString(m.from_executor().payload()) && inner.has_gang_metrics();
        if (is) {
          EXPECT_EQ(inner.gang_metrics().id().attempt(), 9u);
        }
        return is;
      },
      100))
    ++passed_on;
  EXPECT_GE(passed_on, 4u);
  EXPECT_LT(passed_on, kMeasurements / 2);
  master_->TakeFromExecutor(2, wire::FromExecutor::kTaskFinished);
  master_->StartAndGreet(4, "serve", self_);
  master_->RunTask(4, {StageId{kMeasuresTooMuch}, 0, 10}, {}, false, true);
  EXPECT_EQ(master_->TakeExit(4).reason().tag(), "WORKER20");
  // An attempt that dies after it sealed leaves nothing.
  master_->RunTask(2, {StageId{kVanishes}, 0, 5});
  master_->TakeExit(2);
  EXPECT_TRUE(master_->WaitForBeat([](const wire::Heartbeat& b) { return b.executors() == 0 && b.blocks_bytes() == 0; }));
}

TEST_F(WorkerDaemonTest, OutputIsWholeAndHeldByItsWindow) {
  master_->acknowledge_output = false;
  StartWorker();
  master_->StartAndGreet(1, "serve", self_);
  master_->RunTask(1, {StageId{kPrints}, 0, 1});
  std::string all;
  wire::Output last;
  auto take = [&](int timeout_ms) {
    auto message = master_->Take([](const wire::FromWorker& m) { return m.has_output(); }, timeout_ms);
    if (!message) return false;
    last = message->output();
    EXPECT_EQ(last.offset(), all.size());
    EXPECT_LE(last.data().size(), 64u << 10);
    all += last.data();
    return true;
  };
  while (take(500)) {
  }
  EXPECT_GE(all.size(), kWindowBytes);
  EXPECT_LE(all.size(), kWindowBytes + (64u << 10));
  master_->acknowledge_output = true;
  master_->Acknowledge(last);
  master_->TakeFromExecutor(1, wire::FromExecutor::kTaskFinished);
  while (take(500)) {
  }
  EXPECT_EQ(all.substr(all.find('\n') + 1), std::string(2u << 20, 'x'));
}

TEST_F(WorkerDaemonTest, ANewMasterGetsTheSegmentsAndNoOldExecutors) {
  wire::Register hello = StartWorker();
  std::uint32_t pid = master_->StartAndGreet(1, "serve", self_);
  dag::SegmentRef ref = master_->Write(1, {StageId{kWrites}, 3, 1}, hello.data_address());
  std::string address = master_->address();
  master_.reset();
  EXPECT_TRUE(Eventually([&] { return !Alive(pid); }));
  master_ = NewMaster(address, 2);
  wire::Register again = master_->TakeHello();
  EXPECT_EQ(again.instance(), hello.instance());
  EXPECT_EQ(again.executors_size(), 0);
  ASSERT_EQ(again.segments_size(), 1);
  EXPECT_EQ(again.segments(0).job(), kJob.value);
  EXPECT_EQ(dag::FromWire(again.segments(0).ref()), ref);
  master_->StartAndGreet(2, "serve", self_);
  EXPECT_EQ(master_->artifact_requests, 0) << "files were kept too";
  master_->RunTask(2, {StageId{kReads}, 0, 2}, {ref});
  EXPECT_EQ(master_->TakeFromExecutor(2, wire::FromExecutor::kTaskFinished).task_finished().value(), "data of task 3;");
  // The job is over: nothing of it stays.
  wire::ToWorker forget;
  forget.mutable_forget_job()->set_job(kJob.value);
  EXPECT_TRUE(std::filesystem::exists(folder() + "/jobs/" + JobName(kJob)));
  master_->Order(forget);
  wire::ExecutorExited ended = master_->TakeExit(2);
  EXPECT_EQ(ended.reason().code(), 0u);
  EXPECT_EQ(ended.main_exit(), "ended as it was told (exit 0)") << "the end of a job kills nobody who ends by himself";
  EXPECT_TRUE(Eventually([&] { return !std::filesystem::exists(folder() + "/jobs/" + JobName(kJob)); }));
  EXPECT_TRUE(master_->WaitForBeat([](const wire::Heartbeat& b) { return b.executors() == 0 && b.blocks_bytes() == 0; }));
}

// Of a job that failed: not before the last executor is gone, which may write until then; also when an earlier life of the worker ran it.
TEST_F(WorkerDaemonTest, AnEndedJobsUnpublishedOutputIsRemovedBehindItsExecutors) {
  StartWorker();
  const std::string hidden = folder() + "/.out.ropewalk-5ca1e-1", other = folder() + "/.out.ropewalk-5ca1e-2";
  for (const std::string& path : {hidden, other}) {
    std::filesystem::create_directories(path + "/a");
    std::ofstream(path + "/a/0.1") << "half";
  }
  wire::ToWorker forget;
  forget.mutable_forget_job()->set_job(kJob.value);
  forget.mutable_forget_job()->add_discard()->set_folder(folder() + "/out");
  forget.mutable_forget_job()->mutable_discard(0)->set_key("5ca1e-1");
  std::uint32_t pid = master_->StartAndGreet(1, "serve", self_);
  ::kill(static_cast<pid_t>(pid), SIGSTOP);  // it cannot end by itself
  master_->Order(forget);
  EXPECT_TRUE(master_->WaitForBeat([](const wire::Heartbeat& b) { return b.executors() == 1; }));
  EXPECT_TRUE(std::filesystem::exists(hidden));
  ::kill(static_cast<pid_t>(pid), SIGCONT);
  EXPECT_TRUE(Eventually([&] { return !std::filesystem::exists(hidden); }));
  EXPECT_TRUE(std::filesystem::exists(other)) << "another action's";
  forget.mutable_forget_job()->mutable_discard(0)->set_key("5ca1e-2");
  master_->Order(forget);  // no executor of it is known
  EXPECT_TRUE(Eventually([&] { return !std::filesystem::exists(other); }));
}

TEST_F(WorkerDaemonTest, ProgressOfRunningTasksRidesOnHeartbeats) {
  StartWorker();
  master_->StartAndGreet(1, "serve", self_);
  master_->RunTask(1, {StageId{kTells}, 2, 1});
  wire::TaskProgress seen;
  EXPECT_TRUE(master_->WaitForBeat([&](const wire::Heartbeat& b) {
    if (b.progress_size() == 0) return false;
    seen = b.progress(0);
    return true;
  }));
  EXPECT_EQ(seen.executor(), 1u);
  EXPECT_EQ(dag::FromWire(seen.id()), (TaskAttempt{StageId{kTells}, 2, 1}));
  EXPECT_EQ(seen.counters().records_in(), 7u);
  EXPECT_EQ(seen.counters().bytes_in(), 1001u);
  EXPECT_EQ(seen.line(), std::string(200, 'l')) << "a line is bounded";
  EXPECT_EQ(seen.reached(), 12u);
  EXPECT_TRUE(master_->WaitForBeat([](const wire::Heartbeat& b) { return b.progress_size() == 0; })) << "told once";
}

// A rank may end, or its machine be lost, before the next heartbeat.
TEST_F(WorkerDaemonTest, WhatARankHasReachedIsPassedOnAtOnce) {
  StartWorker();
  master_->StartAndGreet(1, "serve", self_);
  master_->RunTask(1, {StageId{kTells}, 1, 1});  // no rank: that has time
  master_->RunTask(1, {StageId{kTells}, 2, 2}, {}, false, true);
  const wire::TaskProgressReport told = master_->TakeFromExecutor(1, wire::FromExecutor::kProgress).progress();
  EXPECT_EQ(dag::FromWire(told.id()), (TaskAttempt{StageId{kTells}, 2, 2}));
  EXPECT_EQ(told.reached(), 12u);
}

// SIGTERM: told to the master; what runs and what jobs need stays, and with the last of it the worker goes, with exit 0.
TEST_F(WorkerDaemonTest, SigtermDrains) {
  wire::Register hello = StartWorker();
  std::uint32_t pid = master_->StartAndGreet(1, "serve", self_);
  dag::SegmentRef ref = master_->Write(1, {StageId{kWrites}, 0, 1}, hello.data_address());
  ::kill(worker_->pid, SIGTERM);
  ASSERT_TRUE(master_->Take([](const wire::FromWorker& m) { return m.has_draining(); }).has_value());
  EXPECT_TRUE(Alive(pid));
  master_->RunTask(1, {StageId{kReads}, 0, 2}, {ref});
  EXPECT_EQ(master_->TakeFromExecutor(1, wire::FromExecutor::kTaskFinished).task_finished().value(), "data of task 0;");
  // A master that comes anew is told anew.
  std::string address = master_->address();
  master_.reset();
  master_ = NewMaster(address, 2);
  EXPECT_EQ(master_->TakeHello().segments_size(), 1) << "it serves what it holds";
  ASSERT_TRUE(master_->Take([](const wire::FromWorker& m) { return m.has_draining(); }).has_value());
  wire::ToWorker forget;
  forget.mutable_forget_job()->set_job(kJob.value);
  master_->Order(forget);
  EXPECT_EQ(worker_->Wait(), 0);
}

TEST_F(WorkerDaemonTest, ADrainEndsAtOnceWhenIdleAtTheTimeoutAndByASecondSignal) {
  StartWorker();
  EXPECT_EQ(worker_->Stop(SIGTERM), 0) << "nothing to wait for";
  std::uint64_t registrations = 1;
  for (bool second_signal : {false, true}) {
    ++registrations;
    wire::Register hello = StartWorker(64u << 20, second_signal ? 600'000 : 300);
    std::uint32_t pid = master_->StartAndGreet(1, "serve", self_);
    master_->Write(1, {StageId{kWrites}, 0, 1}, hello.data_address());
    ::kill(worker_->pid, SIGTERM);
    // This worker's: it has handled the first signal, so that the second one is not taken for the same.
    ASSERT_TRUE(master_->Take([&](const wire::FromWorker& m) { return m.has_draining() && m.worker() == registrations; }).has_value());
    if (second_signal) ::kill(worker_->pid, SIGTERM);
    EXPECT_EQ(worker_->Wait(), 0) << second_signal;
    EXPECT_TRUE(Eventually([&] { return !Alive(pid); })) << second_signal;
  }
}

TEST_F(WorkerDaemonTest, ASilentMasterIsLeft) {
  master_->silence_ms = 300;
  master_->acknowledge_beats = false;
  StartWorker();
  master_->TakeHello();  // again, on a new connection
  EXPECT_GE(master_->disconnected, 1);
}

TEST_F(WorkerDaemonTest, ALostRunFileIsReported) {
  wire::Register hello = StartWorker(kNoMemory);
  master_->StartAndGreet(1, "serve", self_);
  dag::SegmentRef ref = master_->Write(1, {StageId{kWrites}, 3, 1}, hello.data_address());
  EXPECT_TRUE(master_->WaitForBeat([](const wire::Heartbeat& b) { return b.spilled_bytes() > 0 && b.blocks_bytes() == 0; }));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder() + "/blocks"))
    if (entry.path().extension() == ".run") std::filesystem::remove(entry.path());
  master_->RunTask(1, {StageId{kReads}, 0, 2}, {ref});
  wire::FromExecutor report = master_->TakeFromExecutor(1, wire::FromExecutor::kFetchFailed);
  EXPECT_EQ(report.fetch_failed().failure().code(), static_cast<std::uint32_t>(Code::kDataLoss));
  auto lost = master_->Take([](const wire::FromWorker& m) { return m.has_segments_lost(); });
  ASSERT_TRUE(lost.has_value());
  EXPECT_EQ(lost->segments_lost().job(), kJob.value);
  EXPECT_EQ(lost->segments_lost().segments(0), ref.segment.value);
}

TEST_F(WorkerDaemonTest, KilledWorkersLeaveNoProcessesAndTheNextOneHasWhatLayOnDisk) {
  wire::Register hello = StartWorker(kNoMemory);
  std::uint32_t pid = master_->StartAndGreet(1, "serve", self_);
  dag::SegmentRef ref = master_->Write(1, {StageId{kWrites}, 3, 1}, hello.data_address());  // spilled at once
  worker_->Stop(SIGKILL);
  EXPECT_TRUE(Eventually([&] { return !Alive(pid); }));
  wire::Register next = StartWorker(kNoMemory);
  EXPECT_NE(next.instance(), hello.instance());
  ASSERT_EQ(next.segments_size(), 1);
  EXPECT_EQ(next.segments(0).job(), kJob.value);
  EXPECT_EQ(dag::FromWire(next.segments(0).ref()).producer, ref.producer);
  std::size_t run_files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder())) run_files += entry.path().extension() == ".run";
  EXPECT_EQ(run_files, 1u);
  EXPECT_TRUE(std::filesystem::is_empty(folder() + "/jobs"));
  // A second worker in the same folder is refused.
  WorkerProcess second(master_->address(), folder(), path_ + "/token");
  EXPECT_EQ(WEXITSTATUS(second.Wait()), ExitCode(Code::kUnavailable));
}

TEST_F(WorkerDaemonTest, ARefusalThatPassesIsTriedAgainAndOneForGoodEndsTheWorker) {
  master_->refusals_to_pass = 2;
  StartWorker();
  for (int again = 0; again < 2; ++again) master_->TakeHello();
  EXPECT_TRUE(master_->WaitForBeat([](const wire::Heartbeat& beat) { return beat.sequence() > 0; })) << "it has joined";
  EXPECT_EQ(worker_->Stop(SIGTERM), 0);
  master_->refusals_to_pass = 1;
  master_->refuses_for_good = true;
  WorkerProcess refused(master_->address(), folder(), path_ + "/token");
  EXPECT_EQ(WEXITSTATUS(refused.Wait()), ExitCode(Code::kInvalid));
}

TEST_F(WorkerDaemonTest, AWrongTokenEndsTheWorker) {
  std::ofstream(path_ + "/wrong") << std::string(64, 'b') << "\n";
  ASSERT_EQ(::chmod((path_ + "/wrong").c_str(), 0600), 0);
  WorkerProcess worker(master_->address(), folder(), path_ + "/wrong");
  EXPECT_EQ(WEXITSTATUS(worker.Wait()), ExitCode(Code::kUnauthenticated));
}

}  // namespace
}  // namespace ropewalk::worker

int main(int argc, char** argv) {
  if (std::getenv("ROPEWALK_EXECUTOR_FD") != nullptr) return ropewalk::worker::ExecutorMain(argc, argv);
  if (argc > 1 && std::string(argv[1]) == "--bomb") return ropewalk::worker::BombMain(argc, argv);
  if (argc == 7 && std::string(argv[1]) == "--run-worker") return ropewalk::worker::WorkerMain(argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
