// A master in this process on a free port, clients, and workers that speak the protocol without running anything: their executors are a
// main of one action with a few tasks.
#pragma once

#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "dag/wire/wire.h"
#include "master/daemon/daemon.h"
#include "proto/client.pb.h"
#include "proto/executor.pb.h"
#include "proto/worker.pb.h"
#include "rpc/channel.h"
#include "rpc/event_loop.h"
#include "storage/artifacts.h"

namespace ropewalk::master {

inline bool Eventually(const std::function<bool()>& holds, int seconds = 20) {
  for (int i = 0; i < seconds * 1000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return holds();
}

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "ropewalk_master_test.XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A master with its loop in a thread. Stop() drops what is not durable yet, as a kill does.
class TestMaster {
 public:
  explicit TestMaster(MasterOptions options) {
    loop_ = std::make_unique<rpc::EventLoop>();
    auto started = Master::Start(*loop_, std::move(options), [this](const Status& status) {
      std::lock_guard lock(mutex_);
      failure_ = status;
      loop_->Stop();
    });
    EXPECT_TRUE(started.ok()) << started.status().ToString();
    if (!started.ok()) return;
    master_ = *std::move(started);
    address_ = master_->address();
    thread_ = std::thread([this] { loop_->Run(); });
  }
  ~TestMaster() { Stop(); }
  void Stop() {
    if (!thread_.joinable()) return;
    loop_->Stop();
    thread_.join();
    master_.reset();
    loop_.reset();
  }
  void OnLoop(const std::function<void(Master&)>& work) {
    std::atomic<bool> done{false};
    loop_->Post([&] {
      work(*master_);
      done = true;
      done.notify_one();
    });
    done.wait(false);
  }
  const std::string& address() const { return address_; }
  Status failure() {
    std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  std::unique_ptr<rpc::EventLoop> loop_;
  std::unique_ptr<Master> master_;
  std::string address_;
  std::thread thread_;
  std::mutex mutex_;
  Status failure_;
};

inline std::string TokenOf(const std::string& state_dir) {
  auto token = rpc::ReadTokenFile(state_dir + "/token");
  EXPECT_TRUE(token.ok()) << token.status().ToString();
  return token.ok() ? *token : "";
}

class TestClient {
 public:
  TestClient(const std::string& address, const std::string& token) {
    auto channel = rpc::Channel::Connect(address, token, "client", 10'000);
    EXPECT_TRUE(channel.ok()) << channel.status().ToString();
    if (channel.ok()) channel_ = *std::move(channel);
  }
  rpc::Channel& channel() { return *channel_; }
  wire::ClientResponse Call(wire::ClientRequest request, int timeout_ms = 30'000) {
    request.set_id(++id_);
    wire::ClientResponse response;
    EXPECT_TRUE(channel_->Send(rpc::FrameKind::kRequest, request.SerializeAsString()).ok());
    auto frame = channel_->Receive(timeout_ms);
    EXPECT_TRUE(frame.ok()) << frame.status().ToString();
    if (frame.ok()) {
      EXPECT_TRUE(response.ParseFromString(frame->payload));
      EXPECT_EQ(response.id(), id_);
    }
    return response;
  }
  std::string PutExecutable(const std::string& content) {
    std::string sha256 = storage::Sha256(content);
    wire::ClientRequest have;
    have.mutable_have_artifacts()->add_sha256(sha256);
    if (Call(have).missing_artifacts().sha256_size() == 0) return sha256;
    ++uploads;
    for (std::size_t at = 0; at < content.size(); at += 1 << 20) {
      wire::ClientRequest put;
      put.mutable_put_artifact()->set_sha256(sha256);
      put.mutable_put_artifact()->set_offset(at);
      put.mutable_put_artifact()->set_size(content.size());
      put.mutable_put_artifact()->set_chunk(content.substr(at, 1 << 20));
      auto answer = Call(put);
      EXPECT_TRUE(answer.has_ok()) << answer.failure().what();
    }
    return sha256;
  }
  wire::ClientResponse Submit(const std::string& sha256, const std::string& key, const std::string& argument = "job") {
    wire::ClientRequest request;
    wire::JobSpec* spec = request.mutable_submit_job()->mutable_spec();
    spec->mutable_settings()->set_name("test\n\x1b[31m");  // control bytes must not matter
    spec->mutable_settings()->set_work_dir("/tmp");
    spec->set_submit_key(key);
    spec->add_argv("/bin/job");
    spec->add_argv(argument);
    spec->add_artifacts(sha256);
    spec->add_artifact_names("job");
    spec->set_user("somebody");
    return Call(request);
  }
  wire::JobState Query(std::uint64_t job, std::uint64_t version = 0, std::uint32_t wait_ms = 0) {
    wire::ClientRequest request;
    request.mutable_job_query()->set_job(job);
    request.mutable_job_query()->set_version(version);
    request.mutable_job_query()->set_wait_ms(wait_ms);
    return Call(request).job_state();
  }
  // Long-polls until the job is over.
  wire::JobState Wait(std::uint64_t job) {
    wire::JobState state = Query(job);
    for (int i = 0; i < 1000 && state.phase() != "succeeded" && state.phase() != "failed" && state.phase() != "cancelled"; ++i)
      state = Query(job, state.version(), 20'000);
    return state;
  }
  std::string Log(std::uint64_t job, const std::string& stream) {  // until its end
    std::string out;
    for (int i = 0; i < 100'000; ++i) {
      wire::ClientRequest request;
      request.mutable_read_log()->set_job(job);
      request.mutable_read_log()->set_stream(stream);
      request.mutable_read_log()->set_offset(out.size());
      request.mutable_read_log()->set_wait_ms(20'000);
      auto answer = Call(request);
      EXPECT_FALSE(answer.has_failure()) << answer.failure().what();
      out += answer.log_chunk().data();
      EXPECT_EQ(answer.log_chunk().next_offset(), out.size());
      if (answer.log_chunk().end() || answer.has_failure()) break;
    }
    return out;
  }
  int uploads = 0;

 private:
  std::unique_ptr<rpc::Channel> channel_;
  std::uint64_t id_ = 0;
};

// What the executors of a fake worker do: main prints `before`, acts (one stage of `tasks` tasks whose values are `value`), prints `after`,
// returns.
struct FakeMain {
  std::uint32_t tasks = 3;
  std::string value = "v";
  std::string once;  // name of a Once value that main needs first; empty: none
  std::string before, after;
  std::map<std::string, std::string> before_by_argument;  // for jobs with that argument, instead of `before`
  bool empty = false;                                     // no action at all
};

class FakeWorker {
 public:
  // `instance`: which process it is; empty: this object.
  FakeWorker(const std::string& address, const std::string& token, const std::string& name, FakeMain main, std::uint32_t slots = 2,
             const std::string& instance = "")
      : main_(std::move(main)) {
    auto channel = rpc::Channel::Connect(address, token, "worker", 10'000);
    ended = !channel.ok();
    if (!channel.ok()) return;
    channel_ = *std::move(channel);
    wire::FromWorker message;
    wire::Register* hello = message.mutable_hello();
    hello->set_protocol(1);
    hello->set_name(name);
    hello->set_instance(instance.empty() ? name + std::to_string(getpid()) + std::to_string(reinterpret_cast<std::uintptr_t>(this))
                                         : instance);
    hello->set_slots(slots);
    hello->set_data_address("127.0.0.1:9");
    Send(message);
    thread_ = std::thread([this] { Run(); });
  }
  ~FakeWorker() { Kill(); }
  void Kill() {  // the process is gone: its connection ends
    if (channel_) channel_->Shutdown();
    if (thread_.joinable()) thread_.join();
    channel_.reset();
  }
  bool WaitRegistered() {
    return Eventually([&] { return registered.load(); });
  }

  std::atomic<bool> registered{false}, refused{false}, ended{false};
  std::atomic<std::uint32_t> refusal{0};  // its code
  std::atomic<bool> hold_tasks{false};    // keep tasks running for ever
  std::atomic<int> tasks_run{0}, executors_started{0}, executors_stopped{0}, published{0}, forgotten{0};
  std::atomic<std::uint64_t> last_executor{0};
  std::atomic<std::uint64_t> acknowledged{0};  // of the stdout of the last executor that was told
  std::atomic<bool> mute{false};               // stop answering (a frozen machine)
  std::string spec_argument() {
    std::lock_guard lock(mutex_);
    return spec_.argv_size() > 1 ? spec_.argv(1) : "";
  }
  wire::JobSpec spec() {
    std::lock_guard lock(mutex_);
    return spec_;
  }
  std::vector<std::string> published_values() {
    std::lock_guard lock(mutex_);
    return values_;
  }
  std::string once_value() {
    std::lock_guard lock(mutex_);
    return once_value_;
  }
  void Send(wire::FromWorker& message) {
    message.set_worker(worker_);
    message.set_epoch(epoch_);
    std::string bytes = message.SerializeAsString();
    if (channel_) (void)channel_->Send(rpc::FrameKind::kMessage, bytes);
  }
  void Say(std::uint64_t executor, const wire::FromExecutor& inner) {
    wire::FromWorker message;
    message.mutable_from_executor()->set_executor(executor);
    message.mutable_from_executor()->set_payload(inner.SerializeAsString());
    Send(message);
  }
  void Print(std::uint64_t executor, const std::string& text) {
    if (text.empty()) return;
    std::uint64_t& at = printed_[executor];
    wire::FromWorker message;
    message.mutable_output()->set_executor(executor);
    message.mutable_output()->set_stream(wire::Output::STDOUT);
    message.mutable_output()->set_offset(at);
    message.mutable_output()->set_data(text);
    at += text.size();
    Send(message);
  }

 private:
  void Run() {
    while (true) {
      auto frame = channel_->Receive(200);
      if (!frame.ok()) {
        if (frame.status().code() != Code::kDeadlineExceeded) {
          ended = true;
          return;
        }
        if (mute || !registered) continue;
        wire::FromWorker beat;
        beat.mutable_heartbeat()->set_sequence(++beat_);
        Send(beat);
        continue;
      }
      wire::ToWorker order;
      EXPECT_TRUE(order.ParseFromString(frame->payload));
      if (!mute) On(order);
    }
  }
  void On(const wire::ToWorker& order) {
    switch (order.body_case()) {
      case wire::ToWorker::kRegistered:
        worker_ = order.registered().worker();
        epoch_ = order.registered().epoch();
        registered = true;
        break;
      case wire::ToWorker::kRefused:
        refusal = order.refused().failure().code();
        refused = true;
        break;
      case wire::ToWorker::kAllowJob:
        allowed_.insert(order.allow_job().job());
        break;
      case wire::ToWorker::kForgetJob:
        ++forgotten;
        break;
      case wire::ToWorker::kOutputAck:
        acknowledged = order.output_ack().offset();
        break;
      case wire::ToWorker::kStartExecutor: {
        const std::uint64_t executor = order.start_executor().executor();
        EXPECT_TRUE(allowed_.contains(order.start_executor().spec().settings().job()));
        {
          std::lock_guard lock(mutex_);
          spec_ = order.start_executor().spec();
        }
        last_executor = executor;
        ++executors_started;
        wire::FromExecutor hello;
        hello.mutable_hello()->set_protocol(3);
        Say(executor, hello);
        const auto own = main_.before_by_argument.find(spec_argument());
        Print(executor, own == main_.before_by_argument.end() ? main_.before : own->second);
        if (main_.once.empty()) {
          AtAction(executor);
        } else {
          wire::FromExecutor at;
          at.mutable_at_once()->set_name(main_.once);
          Say(executor, at);
        }
        break;
      }
      case wire::ToWorker::kStopExecutor: {
        ++executors_stopped;
        wire::FromWorker exited;
        exited.mutable_executor_exited()->set_executor(order.stop_executor().executor());
        Send(exited);
        break;
      }
      case wire::ToWorker::kToExecutor: {
        wire::ToExecutor inner;
        EXPECT_TRUE(inner.ParseFromString(order.to_executor().payload()));
        OnExecutor(order.to_executor().executor(), inner);
        break;
      }
      default:
        break;
    }
  }
  void AtAction(std::uint64_t executor) {
    wire::FromExecutor message;
    if (main_.empty) {
      Print(executor, main_.after);
      message.mutable_main_returned();
      return Say(executor, message);
    }
    dag::ActionPlan plan{.sequence = 1, .name = "Collect (fake.cc:1)", .fingerprint = 42};
    plan.stages.push_back({.id = StageId{7}, .name = "fake", .tasks = main_.tasks, .output = dag::StageOutput::kResult, .fingerprint = 43});
    dag::ToWire(plan, message.mutable_at_action()->mutable_plan());
    Say(executor, message);
  }
  void OnExecutor(std::uint64_t executor, const wire::ToExecutor& inner) {
    wire::FromExecutor answer;
    if (inner.has_compute_once()) {
      answer.mutable_once_computed()->set_name(inner.compute_once().name());
      answer.mutable_once_computed()->set_value("computed by " + std::to_string(executor));
      Say(executor, answer);
    } else if (inner.has_publish_once()) {
      {
        std::lock_guard lock(mutex_);
        once_value_ = inner.publish_once().value();
      }
      AtAction(executor);
    } else if (inner.has_run_task()) {
      ++tasks_run;
      if (hold_tasks) return;
      wire::TaskFinished* done = answer.mutable_task_finished();
      *done->mutable_id() = inner.run_task().id();
      done->set_value(main_.value + std::to_string(inner.run_task().id().task()));
      done->set_content_hash(inner.run_task().id().task() + 1);
      Say(executor, answer);
    } else if (inner.has_publish_action()) {
      {
        std::lock_guard lock(mutex_);
        values_.assign(inner.publish_action().values().begin(), inner.publish_action().values().end());
      }
      ++published;
      Print(executor, main_.after);
      answer.mutable_main_returned();
      Say(executor, answer);
    }
  }

  FakeMain main_;
  std::unique_ptr<rpc::Channel> channel_;
  std::uint64_t worker_ = 0, epoch_ = 0, beat_ = 0;
  std::set<std::uint64_t> allowed_;
  std::map<std::uint64_t, std::uint64_t> printed_;
  std::mutex mutex_;
  wire::JobSpec spec_;
  std::vector<std::string> values_;
  std::string once_value_;
  std::thread thread_;
};

}  // namespace ropewalk::master
