// A cluster of real processes on this machine: one master, some workers, each with its own state folder; ports are free ones. Whatever is
// killed is killed by its pid.
//
//   Cluster cluster({.workers = 2});
//   auto job = cluster.Submit({"ropewalk-jobs", "wordcount", "in", "-o", "out"});
//   cluster.KillExecutor(0, "out");
//   EXPECT_EQ(job->Wait(), 0);
//
// Thread rule: one thread.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "base/job_name.h"
#include "job/client/master_link.h"
#include "proto/client.pb.h"
#include "rpc/channel.h"
#include "tests/cluster/process.h"

namespace ropewalk::cluster {

// One line of the event log, as far as tests look: flat JSON of strings, numbers and flags.
struct Event {
  std::string kind, line;
  std::string Get(const std::string& key) const {
    std::size_t at = line.find("\"" + key + "\":");
    if (at == std::string::npos) return {};
    at += key.size() + 3;
    if (line[at] == '"') return line.substr(at + 1, line.find('"', at + 1) - at - 1);
    return line.substr(at, line.find_first_of(",}", at) - at);
  }
};

class Cluster {
 public:
  struct Options {
    int workers = 2;
    int slots = 1;                              // of each worker
    std::vector<std::string> worker_arguments;  // more of them
    std::vector<std::string> master_arguments;
    std::vector<std::string> worker_environment;  // "NAME=value"
  };

  explicit Cluster(Options options) : options_(std::move(options)) {
    static int number = 0;
    dir_ = fs::path(testing::TempDir()) / ("ropewalk_cluster_" + std::to_string(getpid()) + "_" + std::to_string(number++));
    fs::remove_all(dir_);
    fs::create_directories(dir_ / "home");
    StartMaster();
    workers_.resize(static_cast<std::size_t>(options_.workers));
    for (int i = 0; i < options_.workers; ++i) StartWorker(i);
    EXPECT_TRUE(WaitForWorkers(options_.workers)) << Logs();
  }
  ~Cluster() {
    workers_.clear();
    master_.reset();
    if (testing::Test::HasFailure()) {
      std::cerr << Logs() << "state kept in " << dir_ << "\n";
    } else {
      RemoveTree(dir_);
    }
  }

  const fs::path& dir() const { return dir_; }
  const std::string& address() const { return address_; }
  fs::path token_file() const { return dir_ / "token"; }

  // ---- daemons ------------------------------------------------------------------------------------------------------------------

  // The first start finds a port; later ones use it again, as a restarted master would.
  void StartMaster() {
    std::vector<std::string> argv = {Binary("ropewalk"),
                                     "start",
                                     "master",
                                     "--dir",
                                     dir_ / "master",
                                     "--token-file",
                                     token_file(),
                                     "--listen",
                                     address_.empty() ? "127.0.0.1:0" : address_};
    argv.insert(argv.end(), options_.master_arguments.begin(), options_.master_arguments.end());
    std::string log = dir_ / ("master" + std::to_string(master_starts_++));
    master_ = std::make_unique<Process>(Process::Options{argv, Environment(), dir_, log});
    ASSERT_TRUE(Eventually([&] { return !FindAddress(master_->out()).empty() || !master_->running(); })) << Logs();
    address_ = FindAddress(master_->out());
    ASSERT_FALSE(address_.empty()) << master_->out() << master_->err();
  }
  void StartWorker(int i) {
    std::string name = "w" + std::to_string(i);
    std::vector<std::string> argv = {Binary("ropewalk"),
                                     "start",
                                     "worker",
                                     "--join",
                                     address_,
                                     "--token-file",
                                     token_file(),
                                     "--dir",
                                     dir_ / name,
                                     "--name",
                                     name,
                                     "--slots",
                                     std::to_string(options_.slots)};
    argv.insert(argv.end(), options_.worker_arguments.begin(), options_.worker_arguments.end());
    std::string log = dir_ / (name + "-" + std::to_string(worker_starts_++));
    std::vector<std::string> environment = Environment();
    environment.insert(environment.end(), options_.worker_environment.begin(), options_.worker_environment.end());
    workers_[static_cast<std::size_t>(i)] = std::make_unique<Process>(Process::Options{argv, environment, dir_, log});
  }
  Process& master() { return *master_; }
  Process& worker(int i) { return *workers_[static_cast<std::size_t>(i)]; }

  void KillMaster() {
    master_->Signal(SIGKILL);
    ASSERT_EQ(master_->Wait(), 128 + SIGKILL);
  }
  void KillWorker(int i) {
    worker(i).Signal(SIGKILL);
    ASSERT_EQ(worker(i).Wait(), 128 + SIGKILL);
  }
  // Executors below the worker whose arguments hold `argument`: that of an earlier job may still be ending.
  std::vector<pid_t> Executors(int i, const std::string& argument) {
    std::vector<pid_t> found;
    for (pid_t pid : Descendants(worker(i).pid())) {
      std::string folder = "/proc/" + std::to_string(pid);
      bool executor = ReadFile(folder + "/environ").find("ROPEWALK_EXECUTOR_FD=") != std::string::npos;
      if (executor && ReadFile(folder + "/cmdline").find('\0' + argument + '\0') != std::string::npos) found.push_back(pid);
    }
    return found;
  }
  // kill -9 of one such executor; false when there is none just now.
  bool KillExecutor(int i, const std::string& argument) {
    std::vector<pid_t> pids = Executors(i, argument);
    return !pids.empty() && kill(pids.front(), SIGKILL) == 0;
  }

  // ---- jobs ---------------------------------------------------------------------------------------------------------------------

  // Starts the submitting client; `argv[0]` without a slash is one of our binaries.
  std::unique_ptr<Process> Submit(std::vector<std::string> argv, std::vector<std::string> environment = {}) {
    if (argv[0].find('/') == std::string::npos) argv[0] = Binary(argv[0]);
    for (std::string& variable : Environment()) environment.push_back(variable);
    environment.push_back("ROPEWALK_MASTER=" + address_);
    environment.push_back("ROPEWALK_TOKEN_FILE=" + token_file().string());
    return std::make_unique<Process>(Process::Options{argv, environment, dir_, dir_ / ("client" + std::to_string(clients_++))});
  }

  // As Submit, and waits until the master has accepted the job.
  std::pair<std::unique_ptr<Process>, JobId> SubmitAccepted(std::vector<std::string> argv, std::vector<std::string> environment = {}) {
    JobId before = LastJob();
    std::unique_ptr<Process> client = Submit(std::move(argv), std::move(environment));
    JobId job;
    EXPECT_TRUE(Eventually([&] {
      job = LastJob();
      return job > before || !client->running();
    })) << "the job was not accepted";
    EXPECT_GT(job, before) << client->err();
    return {std::move(client), job};
  }

  // The newest job; 0: none.
  JobId LastJob() {
    wire::ClientRequest request;
    request.mutable_list_jobs()->set_limit(1000);
    auto response = link().Call(&request);
    std::uint64_t last = 0;
    if (response.ok())
      for (const auto& job : response->job_list().jobs()) last = std::max(last, job.job());
    return JobId{last};
  }

  std::vector<Event> Events(JobId job) {
    std::string text;
    for (std::uint64_t offset = 0;;) {
      wire::ClientRequest request;
      request.mutable_read_log()->set_job(job.value);
      request.mutable_read_log()->set_stream("events");
      request.mutable_read_log()->set_offset(offset);
      auto response = link().Call(&request);
      if (!response.ok() || response->log_chunk().data().empty()) break;
      text += response->log_chunk().data();
      offset = response->log_chunk().next_offset();
    }
    std::vector<Event> events;
    for (std::size_t at = 0; at < text.size();) {
      std::size_t end = std::min(text.find('\n', at), text.size());
      Event event{"", text.substr(at, end - at)};
      event.kind = event.Get("event");
      events.push_back(std::move(event));
      at = end + 1;
    }
    return events;
  }
  std::size_t CountEvents(JobId job, const std::string& kind) {
    std::vector<Event> events = Events(job);
    return static_cast<std::size_t>(std::count_if(events.begin(), events.end(), [&](const Event& event) { return event.kind == kind; }));
  }
  bool WaitForEvents(JobId job, const std::string& kind, std::size_t count, int timeout_ms = 30'000) {
    return Eventually([&] { return CountEvents(job, kind) >= count; }, timeout_ms);
  }
  bool WaitForWorkers(int count, int timeout_ms = 30'000) {
    return Eventually(
        [&] {
          wire::ClientRequest request;
          request.mutable_list_workers();
          auto response = link().Call(&request);
          return response.ok() && response->worker_list().workers_size() >= count;
        },
        timeout_ms);
  }

  // Index of a worker that runs a task just now; -1: none does.
  int BusyWorker() {
    wire::ClientRequest request;
    request.mutable_list_workers();
    auto response = link().Call(&request);
    if (!response.ok()) return -1;
    for (const auto& worker : response->worker_list().workers())
      if (worker.busy() > 0 && worker.name().starts_with("w")) return std::atoi(worker.name().c_str() + 1);
    return -1;
  }

  job::MasterLink& link() {
    if (link_ == nullptr || link_address_ != address_) {
      auto token = rpc::ReadTokenFile(token_file());
      EXPECT_TRUE(token.ok()) << token.status().ToString();
      link_ = std::make_unique<job::MasterLink>(job::MasterLinkOptions{address_, token.ok() ? *token : ""});
      link_address_ = address_;
    }
    return *link_;
  }

  // All that the daemons said, for the report of a failed test.
  std::string Logs() const {
    std::string text;
    for (const auto& entry : fs::directory_iterator(dir_)) {
      std::string name = entry.path().filename();
      if (!name.ends_with(".out") && !name.ends_with(".err")) continue;
      std::string content = ReadFile(entry.path());
      if (content.size() > 8000) content = "..." + content.substr(content.size() - 8000);
      text += "---- " + name + "\n" + content;
    }
    return text;
  }

 private:
  std::vector<std::string> Environment() const { return {"HOME=" + (dir_ / "home").string(), "ROPEWALK_HOME=" + (dir_ / "home").string()}; }

  // The first "127.0.0.1:PORT" of the text.
  static std::string FindAddress(const std::string& text) {
    std::size_t at = text.find("127.0.0.1:");
    if (at == std::string::npos) return {};
    std::size_t end = text.find_first_not_of("0123456789", at + 10);
    return end == std::string::npos ? std::string() : text.substr(at, end - at);  // the line may still be on its way
  }

  Options options_;
  fs::path dir_;
  std::string address_, link_address_;
  std::unique_ptr<Process> master_;
  std::vector<std::unique_ptr<Process>> workers_;
  std::unique_ptr<job::MasterLink> link_;
  int master_starts_ = 0, worker_starts_ = 0, clients_ = 0;
};

}  // namespace ropewalk::cluster
