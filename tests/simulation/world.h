// A model cluster around the real scheduler core: master with a journal that loses its unsynced suffix, workers that crash, flap and come
// back with some of their segments, executors that run the same main, clients that repeat their submit. One seed, one run.
//
// What is checked while it runs and at its end is in world.cc's Check...() functions and in the places where something reaches the outside:
// main, the output, the client.
//
// Owner: a test. Thread rule: single-threaded.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/sim/event_queue.h"
#include "base/sim/link.h"
#include "master/scheduler/scheduler.h"
#include "tests/simulation/model_job.h"

namespace ropewalk::simulation {

using scheduler::Event;
using scheduler::SchedulerAction;
using sim::TimeUs;

struct WorldOptions {
  std::uint64_t seed = 1;
  scheduler::PlantedBugs planted;
  bool faults = true;
  std::optional<bool> checkpoints;  // deep lineage is checkpointed: always or never; not given: drawn
  bool print = false;               // the trace, for people
};

struct Outcome {
  std::vector<std::string> violations;  // empty: all oracles agree
  std::uint64_t trace_hash = 0;
  std::map<std::string, std::uint64_t> marks;  // rare paths that were taken
  std::uint64_t steps = 0;
  TimeUs finished_at = 0;  // the last job
  std::map<std::string, std::map<std::uint64_t, std::vector<std::string>>>
      results;                        // of actions of jobs that ended well, by job and sequence
  std::set<std::string> random_jobs;  // whose results may differ
};

class World {
 public:
  explicit World(WorldOptions options);
  Outcome Run();

 private:
  struct Segment {
    JobId job;
    TaskAttempt producer;
    std::shared_ptr<const Content> content;
    bool spilled = false;  // survives the worker daemon's crash
    bool damaged = false;
  };
  struct Task {
    std::uint64_t sequence = 0;
    std::vector<dag::TaskInput> inputs;
    bool verify = false;
    bool copy = false;
    std::vector<std::shared_ptr<const Content>> read;
    // Of a rank.
    std::optional<dag::GangPlace> gang = {};
    std::uint64_t round = 0;  // of the exchange it waits in or did last
    bool told = false;        // that its gang is lost
  };
  struct Executor {
    ExecutorId id;
    JobId job;
    const ModelJob* model = nullptr;
    std::size_t at = 0;  // step of main
    bool asked = false;  // for the Once it stands at
    std::map<std::string, std::string> onces;
    std::set<std::uint64_t> announced, published;
    std::map<std::uint64_t, std::vector<StageId>> cuts;  // of published actions
    std::set<std::uint64_t> cut, live;                   // what main let go of, and what it holds
    std::map<std::uint32_t, Task> tasks;                 // by attempt
    bool returned = false;
  };
  struct Worker {
    std::size_t index = 0;
    std::uint32_t slots = 1;
    bool up = true;
    bool connected = false;
    bool draining = false;     // it wants to leave
    std::uint64_t drains = 0;  // numbers the wishes
    WorkerId id;               // of this registration
    std::uint64_t next_segment = 1;
    std::map<SegmentId, Segment> store;
    std::map<ExecutorId, Executor> executors;
    std::unique_ptr<sim::Link> to_master, from_master;
  };
  struct Client {
    ModelJob model;
    std::optional<JobId> accepted;
    std::set<JobId> ids;  // of all acceptances
    bool cancelled = false;
    std::optional<scheduler::FinishJob> finished;
    std::size_t submits = 0;
  };
  // What the outside has seen of a job.
  struct Seen {
    std::map<std::uint64_t, std::vector<std::string>> values;  // of published actions
    std::map<std::string, std::string> onces;
    std::map<std::uint64_t, std::vector<std::string>> output;          // of commit stages
    std::map<std::uint64_t, std::shared_ptr<const Content>> contents;  // by hash, of values
    Lineage lineage;                                                   // of everything published or committed
    std::set<std::uint32_t> attempts;
    std::uint64_t starts_over = 0;
    std::uint64_t launches = 0, unsuccessful = 0, lost_outputs = 0, restarts_cost = 0;
    std::map<std::uint32_t, std::vector<dag::SegmentRef>> reads;        // by attempt
    std::set<std::pair<std::uint32_t, std::uint32_t>> ranks;            // forming, rank
    std::set<StageId> gangs;                                            // that were formed
    std::map<StageId, TimeUs> waits;                                    // gangs, since when
    std::uint64_t complaints = 0;                                       // of ranks that met no lost peer
    std::map<std::uint32_t, TimeUs> ordered_ms;                         // by attempt: when the master decided to start it
    std::map<std::pair<std::string, SegmentId>, TimeUs> unanswered_ms;  // since when nobody who began later has read it
  };

  // Master and its shell.
  void StepMaster(const Event& event);
  void CountComplaints(const Event& event);
  void Enqueue(std::vector<SchedulerAction> actions);
  void Pump();
  void CarryOut(SchedulerAction& action);
  void CrashMaster();
  void LearnEnd(Client& client);
  void StartMaster();
  void Compact();

  // Workers and executors.
  void Register(Worker& worker);
  void Disconnect(Worker& worker);
  void CrashWorker(Worker& worker);
  void Drain(Worker& worker);
  void LeaveWhenEmpty(Worker& worker, std::uint64_t drain, TimeUs deadline);
  void KillExecutor(Worker& worker, ExecutorId id, int signal, const TaskAttempt* guilty);
  void Tell(Worker& worker, Event event);
  bool Order(WorkerId worker, std::function<void(Worker&)> act);  // false: nobody is there to get it
  void OrderExecutor(ExecutorId executor, std::function<void(Worker&, Executor&)> act, std::function<void()> missed = nullptr);
  Executor* Find(Worker& worker, ExecutorId id);
  void Advance(std::size_t worker, ExecutorId id);
  void AdvanceLater(Worker& worker, ExecutorId id);
  void StartTask(Worker& worker, Executor& executor, const scheduler::RunTask& run);
  void ReadInputs(std::size_t worker, ExecutorId id, TaskAttempt attempt);
  void FinishTask(std::size_t worker, ExecutorId id, TaskAttempt attempt);
  void Meet(std::size_t worker, ExecutorId id, TaskAttempt attempt);
  void Gathered(Worker& worker, Executor& executor, const scheduler::GangGathered& answer);
  void EndRank(Worker& worker, Executor& executor, const scheduler::EndRank& order);
  void CheckFormings(const std::vector<SchedulerAction>& actions);
  void CheckRanksAreTold(JobId job, std::uint32_t epoch);
  void NoteWaiting(JobId job, StageId stage, TimeUs since);
  bool IsPlacementOver(const ModelJob& model, const Seen& seen, const Status& status);
  void Published(Executor& executor, const scheduler::PublishAction& action);

  // Clients, faults, oracles.
  void Submit(std::size_t client);
  void Fault();
  void Violation(const std::string& what);
  void Mark(const std::string& mark) { ++outcome_.marks[mark]; }
  void Trace(const std::string& line);
  void CheckFinish(const scheduler::FinishJob& finish);
  void CheckEnd();
  void SeePublished(JobId job, const std::vector<std::string>& values);
  Client* ClientOf(JobId job);
  Random Stream(std::uint64_t purpose) { return Random::ForPurpose(options_.seed, purpose); }
  TimeUs Between(TimeUs low, TimeUs high) {
    return static_cast<TimeUs>(random_.Between(static_cast<std::uint64_t>(low), static_cast<std::uint64_t>(high)));
  }

  WorldOptions options_;
  Random random_;
  sim::EventQueue queue_;
  Outcome outcome_;
  TimeUs faults_end_ = 0;
  TimeUs whole_since_ = 0;  // all workers are connected and take tasks

  std::unique_ptr<scheduler::Scheduler> core_;  // null: the master is down
  scheduler::Options core_options_;
  std::uint64_t epoch_ = 0;
  std::deque<SchedulerAction> actions_;
  bool syncing_ = false;
  std::vector<scheduler::JournalRecord> journal_;
  std::size_t durable_ = 0;
  std::uint64_t next_worker_ = 1;
  std::map<ExecutorId, WorkerId> placed_;

  std::vector<Worker> workers_;
  std::vector<Client> clients_;
  std::map<JobId, std::size_t> jobs_;
  std::map<JobId, Seen> seen_;
};

}  // namespace ropewalk::simulation
