#include "tests/simulation/world.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace ropewalk::simulation {

using namespace scheduler;

namespace {

std::string Bytes(std::uint64_t hash) { return std::string(reinterpret_cast<const char*>(&hash), sizeof(hash)); }
std::uint64_t HashOf(const std::string& bytes) {
  std::uint64_t hash = 0;
  std::memcpy(&hash, bytes.data(), std::min(bytes.size(), sizeof(hash)));
  return hash;
}
std::string Text(const TaskAttempt& id) {
  return "s" + std::to_string(id.stage.value) + "." + std::to_string(id.task) + "#" + std::to_string(id.attempt);
}
Status Machine(const char* what) { return Status(Code::kUnavailable, "SIM01", what); }

constexpr TimeUs kSecond = 1'000'000;
// Formings of a gang that gets farther each time: more than it may fail without.
constexpr std::uint32_t kFallsMax = 8;
// A gang that fits is formed in this time at the latest when no worker is missing: whatever else runs here ends sooner.
constexpr TimeUs kFormedBy = 25 * kSecond;
constexpr TimeUs kPlacementSlack = kSecond;

std::uint64_t NumberIn(const std::string& json, const char* key) {
  const std::string name = std::string("\"") + key + "\":";
  return std::stoull(json.substr(json.find(name) + name.size()));
}
// As the scheduler names it to people.
std::string Words(StageId stage) { return "the gang stage s" + std::to_string(stage.value) + " ("; }

}  // namespace

World::World(WorldOptions options) : options_(options), random_(Random::ForPurpose(options.seed, 1)) {
  core_options_.planted = options.planted;
  core_options_.machine_attempts_max = 1000;  // budgets have their own tests; here everything must end well
  core_options_.fetch_retries_max = 1000;
  core_options_.executor_failures_max = 1000;
  core_options_.recovery_grace_ms = random_.OneIn(3) ? 0 : 3000;
  core_options_.orphan_grace_ms = 2000;
  bool deep = random_.OneIn(2);
  core_options_.checkpoint.depth_max = 1 + static_cast<std::uint32_t>(random_.Below(3));
  core_options_.checkpoint.enabled = options.checkpoints.value_or(deep);
  core_options_.jobs_running_max = 1 + static_cast<std::uint32_t>(random_.Below(3));
  faults_end_ = options_.faults ? Between(kSecond / 2, 4 * kSecond) : 0;
  sim::LinkOptions link{50, 200 + Between(0, random_.OneIn(4) ? 20'000 : 500)};
  std::size_t workers = 1 + random_.Below(4);
  for (std::size_t i = 0; i < workers; ++i) {
    Worker& worker = workers_.emplace_back();
    worker.index = i;
    worker.slots = 1 + static_cast<std::uint32_t>(random_.Below(3));
    worker.to_master = std::make_unique<sim::Link>(&queue_, Stream(100 + i), link);
    worker.from_master = std::make_unique<sim::Link>(&queue_, Stream(200 + i), link);
  }
  std::size_t jobs = 1 + random_.Below(4);
  for (std::size_t i = 0; i < jobs; ++i) clients_.emplace_back().model = ModelJob::Draw(random_, "key" + std::to_string(i));
  // Gangs come from a stream of their own. Each of them fits when all workers are here, but for the few that are too large on purpose.
  Random gangs = Stream(8);
  core_options_.gang_end_ms = gangs.OneIn(2) ? 1000 : 5000;
  std::uint32_t all = 0, least = ~0u;
  for (const Worker& worker : workers_) {
    all += worker.slots;
    least = std::min(least, worker.slots);
  }
  for (Client& client : clients_)
    if (gangs.OneIn(2)) client.model.AddGangs(gangs, client.model.executors_max == 0 ? all : least, all);
}

Outcome World::Run() {
  StartMaster();
  for (Worker& worker : workers_) queue_.At(Between(0, 50'000), [this, &worker] { Register(worker); });
  for (std::size_t i = 0; i < clients_.size(); ++i) {
    queue_.At(Between(0, kSecond), [this, i] { Submit(i); });
    if (options_.faults && random_.OneIn(12))
      queue_.At(Between(0, 2 * kSecond), [this, i] {
        if (!clients_[i].accepted || core_ == nullptr) return;
        clients_[i].cancelled = true;
        StepMaster(JobCancelled{*clients_[i].accepted, "the user asked for it"});
      });
  }
  if (options_.faults) {
    // Drains come from a stream of their own: seeds without one run as if there were none.
    Random drains = Stream(7);
    if (drains.OneIn(5))
      for (std::uint64_t i = 1 + drains.Below(3); i > 0; --i) {
        std::size_t index = drains.Below(workers_.size());
        auto at = static_cast<TimeUs>(drains.Between(50'000, static_cast<std::uint64_t>(faults_end_)));
        queue_.At(at, [this, index] { Drain(workers_[index]); });
      }
    std::uint64_t faults = random_.Below(random_.OneIn(4) ? 25 : 8);
    for (std::uint64_t i = 0; i < faults; ++i) queue_.At(Between(50'000, faults_end_), [this] { Fault(); });
  }
  TimeUs deadline = faults_end_ + 300 * kSecond;
  while (queue_.now() < deadline && outcome_.violations.empty()) {
    bool over = std::all_of(clients_.begin(), clients_.end(), [](const Client& c) { return c.finished.has_value(); });
    if (over && queue_.now() >= faults_end_) break;
    if (queue_.steps() > 2'000'000) break;
    if (!queue_.RunOne(deadline)) break;
  }
  outcome_.finished_at = queue_.now();
  if (outcome_.violations.empty()) {
    queue_.RunUntil(queue_.now() + 30 * kSecond, 200'000);  // what is still on its way arrives; replaced segments are freed
    CheckEnd();
  }
  outcome_.steps = queue_.steps();
  return outcome_;
}

// ---- master
// -----------------------------------------------------------------------------------------------------------------------------------

void World::StepMaster(const Event& event) {
  if (core_ == nullptr) return;
  CountComplaints(event);
  std::vector<SchedulerAction> actions = core_->Step(queue_.now() / 1000, event);
  std::set<WorkerId> drained;
  for (const WorkerView& worker : core_->Workers()) {
    if (worker.drained) drained.insert(worker.worker);
    if (worker.busy > worker.slots) return Violation("a worker runs more tasks than it has slots");
  }
  CheckFormings(actions);
  for (const SchedulerAction& action : actions) {
    if (drained.empty()) break;
    const auto* run = std::get_if<RunTask>(&action);
    const auto* start = std::get_if<StartExecutor>(&action);
    auto at = run == nullptr ? placed_.end() : placed_.find(run->executor);
    if ((at != placed_.end() && drained.contains(at->second)) || (start != nullptr && drained.contains(start->worker)))
      return Violation("a draining worker was given new work");
  }
  Enqueue(std::move(actions));
}

// The ranks of a forming are ordered together.
void World::CheckFormings(const std::vector<SchedulerAction>& actions) {
  std::map<std::tuple<JobId, StageId, std::uint32_t>, std::vector<dag::GangPlace>> formings;
  for (const SchedulerAction& action : actions)
    if (auto* run = std::get_if<RunTask>(&action); run != nullptr && run->gang)
      formings[{run->job, run->id.stage, run->gang->epoch}].push_back(*run->gang);
  for (const auto& [forming, places] : formings) {
    bool whole = places.size() == places.front().ranks;
    for (std::uint32_t rank = 0; whole && rank < places.size(); ++rank) whole = places[rank].rank == rank;
    if (!whole) return Violation("a gang was started in part");
    const Client* client = ClientOf(std::get<JobId>(forming));
    if (client == nullptr) continue;
    const dag::Stage& stage_of = client->model.stages.at(std::get<StageId>(forming).value);
    const std::uint32_t least = stage_of.gang->ranks_min > 0 ? stage_of.gang->ranks_min : stage_of.tasks;
    if (places.size() < least || places.size() > stage_of.tasks)
      return Violation("a gang was started with a number of ranks that it may not have");
    if (places.size() < stage_of.tasks) Mark("gang of fewer ranks");
    if (const auto& [job, stage, epoch] = forming; !seen_[job].gangs.insert(stage).second) Mark("gang formed anew");
  }
}

// An owner that did not answer twice in a row may be given up, although it lives: its output is made again then. A reader that finished in
// between has reached it.
void World::CountComplaints(const Event& event) {
  if (auto* finished = std::get_if<TaskFinished>(&event)) {
    Seen& seen = seen_[finished->job];
    for (const dag::SegmentRef& ref : seen.reads[finished->id.attempt]) {
      auto since = seen.unanswered_ms.find({ref.location, ref.segment});
      if (since != seen.unanswered_ms.end() && seen.ordered_ms[finished->id.attempt] > since->second) seen.unanswered_ms.erase(since);
    }
  } else if (auto* failed = std::get_if<FetchFailed>(&event); failed != nullptr && failed->status.code() == Code::kUnavailable) {
    Seen& seen = seen_[failed->job];
    auto [since, first] = seen.unanswered_ms.try_emplace({failed->lost.location, failed->lost.segment}, queue_.now() / 1000);
    if (seen.ordered_ms[failed->id.attempt] > since->second) ++seen.lost_outputs;
  }
}

void World::Enqueue(std::vector<SchedulerAction> actions) {
  for (const SchedulerAction& action : actions)
    if (auto* run = std::get_if<RunTask>(&action)) seen_[run->job].ordered_ms[run->id.attempt] = queue_.now() / 1000;
  for (SchedulerAction& action : actions) actions_.push_back(std::move(action));
  Pump();
}

// Actions are carried out in order; a synced record holds back what follows until it is durable.
void World::Pump() {
  while (!syncing_ && !actions_.empty() && core_ != nullptr) {
    SchedulerAction action = std::move(actions_.front());
    actions_.pop_front();
    if (auto* record = std::get_if<JournalRecord>(&action)) {
      journal_.push_back(std::move(*record));
      if (!journal_.back().sync) continue;
      syncing_ = true;
      queue_.After(Between(200, 4000), [this, epoch = epoch_, upto = journal_.size()] {
        if (epoch != epoch_ || core_ == nullptr) return;
        syncing_ = false;
        durable_ = upto;
        Pump();
      });
      return;
    }
    // Death between a decision that is durable and its being told.
    bool tells = std::holds_alternative<AcceptJob>(action) || std::holds_alternative<PublishAction>(action) ||
                 std::holds_alternative<FinishJob>(action);
    if (tells && queue_.now() < faults_end_ && random_.OneIn(150)) {
      Mark("master crash before it tells");
      return CrashMaster();
    }
    CarryOut(action);
  }
}

void World::CarryOut(SchedulerAction& action) {
  if (auto* accept = std::get_if<AcceptJob>(&action)) {
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      Client& client = clients_[i];
      if (client.model.key != accept->submit_key) continue;
      jobs_[accept->job] = i;
      client.ids.insert(accept->job);
      if (client.ids.size() > 1) return Violation("one submit key, two jobs");
      if (random_.OneIn(4) && client.submits < 4) {  // the answer is lost
        Mark("ack lost");
        continue;
      }
      client.accepted = accept->job;
      LearnEnd(client);
    }
  } else if (std::get_if<RefuseJob>(&action) != nullptr) {
    Violation("a job was refused: " + std::get<RefuseJob>(action).status.ToString());
  } else if (auto* start = std::get_if<StartExecutor>(&action)) {
    placed_[start->executor] = start->worker;
    if (jobs_.count(start->job) == 0) {  // accepted, and its answer is not even on its way yet: the model needs to know whose job it is
      auto view = core_->Job(start->job);
      for (std::size_t i = 0; i < clients_.size(); ++i)
        if (view && clients_[i].model.key == view->submit_key) jobs_[start->job] = i;
    }
    Order(start->worker, [this, order = *start](Worker& worker) {
      queue_.After(Between(1000, random_.OneIn(10) ? 900'000 : 30'000), [this, index = worker.index, order, registration = worker.id] {
        Worker& worker = workers_[index];
        if (worker.id != registration || !worker.connected || jobs_.count(order.job) == 0) return;
        if (worker.executors.contains(order.executor)) return Violation("an executor id was used twice");
        Executor& executor = worker.executors[order.executor];
        executor.id = order.executor;
        executor.job = order.job;
        executor.model = &clients_[jobs_.at(order.job)].model;
        Tell(worker, ExecutorReady{order.executor});
        AdvanceLater(worker, order.executor);
      });
    });
  } else if (auto* stop = std::get_if<StopExecutor>(&action)) {
    Order(stop->worker, [id = stop->executor](Worker& worker) { worker.executors.erase(id); });
  } else if (auto* run = std::get_if<RunTask>(&action)) {
    if (Client* client = ClientOf(run->job); client == nullptr || client->finished) Violation("a task was started for a finished job");
    Seen& seen = seen_[run->job];
    if (!seen.attempts.insert(run->id.attempt).second) Violation("attempt number used twice: " + Text(run->id));
    if (!run->verify && run->copy_parts == 0 && !run->gang) ++seen.launches;  // a lost rank makes work of all ranks
    if (run->gang && !seen.ranks.emplace(run->gang->epoch, run->gang->rank).second) Violation("the number of a forming was used twice");
    for (const dag::TaskInput& input : run->inputs)
      seen.reads[run->id.attempt].insert(seen.reads[run->id.attempt].end(), input.segments.begin(), input.segments.end());
    // Sent to a worker or executor that is gone, which the master does not know yet: an attempt that comes to nothing.
    auto missed = [this, job = run->job] { ++seen_[job].unsuccessful; };
    OrderExecutor(run->executor, [this, order = *run](Worker& worker, Executor& executor) { StartTask(worker, executor, order); }, missed);
  } else if (auto* cancel = std::get_if<CancelTask>(&action)) {
    ++seen_[cancel->job].unsuccessful;
    OrderExecutor(cancel->executor, [this, id = cancel->id](Worker&, Executor& executor) {
      if (random_.OneIn(3)) executor.tasks.erase(id.attempt);  // else it ends before it looks at the flag
    });
  } else if (auto* end = std::get_if<scheduler::EndRank>(&action)) {
    OrderExecutor(end->executor, [this, order = *end](Worker& worker, Executor& executor) { EndRank(worker, executor, order); });
  } else if (auto* answer = std::get_if<GangGathered>(&action)) {
    OrderExecutor(answer->executor, [this, order = *answer](Worker& worker, Executor& executor) { Gathered(worker, executor, order); });
  } else if (auto* publish = std::get_if<PublishAction>(&action)) {
    OrderExecutor(publish->executor, [this, order = *publish](Worker& worker, Executor& executor) {
      Published(executor, order);
      AdvanceLater(worker, executor.id);
    });
  } else if (auto* compute = std::get_if<ComputeOnce>(&action)) {
    OrderExecutor(compute->executor, [this, order = *compute](Worker& worker, Executor& executor) {
      queue_.After(Between(100, 30'000), [this, index = worker.index, id = executor.id, name = order.name] {
        Executor* executor = Find(workers_[index], id);
        if (executor == nullptr) return;
        // Another value in each executor: replicas must all get one of them.
        Tell(workers_[index], OnceComputed{id, name, name + " by " + std::to_string(id.value), Status()});
      });
    });
  } else if (auto* once = std::get_if<PublishOnce>(&action)) {
    OrderExecutor(once->executor, [this, order = *once](Worker& worker, Executor& executor) {
      if (!order.status.ok()) return;
      auto [it, fresh] = seen_[executor.job].onces.emplace(order.name, order.value);
      if (it->second != order.value) Violation("Once(" + order.name + ") had two values");
      executor.onces[order.name] = order.value;
      AdvanceLater(worker, executor.id);
    });
  } else if (auto* free = std::get_if<FreeSegments>(&action)) {
    Order(free->worker, [order = *free](Worker& worker) {
      for (SegmentId id : order.segments) worker.store.erase(id);
      if (order.whole_job) std::erase_if(worker.store, [&](const auto& entry) { return entry.second.job == order.job; });
    });
  } else if (auto* finish = std::get_if<FinishJob>(&action)) {
    CheckFinish(*finish);
  } else if (auto* timer = std::get_if<SetTimer>(&action)) {
    queue_.At(timer->at * 1000, [this, epoch = epoch_, id = timer->timer] {
      if (epoch == epoch_) StepMaster(TimerFired{id});
    });
  } else if (auto* line = std::get_if<LogEvent>(&action)) {
    Mark("event " + line->kind);
    if (line->kind == "started_over") ++seen_[line->job].starts_over;
    if (line->kind == "gang_waits")
      NoteWaiting(line->job, StageId{NumberIn(line->json, "stage")}, static_cast<TimeUs>(NumberIn(line->json, "t_ms")) * 1000);
    if (line->kind == "gang_lost") {
      const auto epoch = static_cast<std::uint32_t>(NumberIn(line->json, "epoch"));
      queue_.After(kSecond, [this, job = line->job, epoch, life = epoch_] {
        if (life == epoch_) CheckRanksAreTold(job, epoch);
      });
    }
    Trace(line->json);
  }
}

// A gang whose time for its placement is over does not wait any longer.
void World::NoteWaiting(JobId job, StageId stage, TimeUs since) {
  seen_[job].waits[stage] = since;
  const Client* client = ClientOf(job);
  const std::uint64_t placement_ms = client == nullptr ? 0 : client->model.stages.at(stage.value).gang->placement_ms;
  if (placement_ms == 0) return;
  queue_.At(since + static_cast<TimeUs>(placement_ms) * 1000 + kPlacementSlack, [this, job, stage, since, life = epoch_] {
    if (life != epoch_ || core_ == nullptr || seen_[job].waits.at(stage) != since) return;
    const auto view = core_->Job(job);
    if (!view) return;
    for (const std::string& reason : view->pending_reasons)
      if (reason.starts_with(Words(stage)) && reason.find("waits for") != std::string::npos)
        return Violation("a gang waits for longer than it may: " + reason);
  });
}

// Whether the gang that could not be placed had its time, and was not placeable: it is too large, or workers were missing.
bool World::IsPlacementOver(const ModelJob& model, const Seen& seen, const Status& status) {
  for (const auto& [stage, since] : seen.waits) {
    if (status.what().find(Words(stage)) == std::string::npos) continue;
    const auto placement = static_cast<TimeUs>(model.stages.at(stage.value).gang->placement_ms) * 1000;
    if (placement == 0 || queue_.now() < since + placement) return false;
    if (model.too_many.contains(stage.value)) return true;
    Mark("gang not placed for want of workers");
    for (const Worker& worker : workers_)
      if (!worker.connected || worker.draining) return true;
    return queue_.now() < whole_since_ + kFormedBy;
  }
  return false;
}

void World::CrashMaster() {
  if (core_ == nullptr) return;
  Trace("master crashes");
  Mark("master crash");
  core_.reset();
  ++epoch_;
  // A prefix of what was written and not synced survives.
  std::size_t kept = durable_ + random_.Below(journal_.size() - durable_ + 1);
  if (kept < journal_.size()) Mark("journal suffix lost");
  for (auto& [job, seen] : seen_) seen.restarts_cost += journal_.size() - kept + actions_.size();
  journal_.resize(kept);
  durable_ = kept;
  actions_.clear();
  syncing_ = false;
  placed_.clear();
  for (Worker& worker : workers_) {
    for (const auto& [id, executor] : worker.executors) seen_[executor.job].restarts_cost += executor.tasks.size();
    for (auto& [job, seen] : seen_) seen.restarts_cost += worker.to_master->in_flight() + worker.from_master->in_flight();
    worker.to_master->Cut();
    worker.from_master->Cut();
  }
  queue_.After(Between(10'000, 2 * kSecond), [this] { StartMaster(); });
}

void World::StartMaster() {
  Trace("master starts");
  core_ = std::make_unique<Scheduler>(core_options_);
  for (const JournalRecord& record : journal_)
    if (Status status = core_->Replay(record); !status.ok()) return Violation("replay failed: " + status.ToString());
  Enqueue(core_->Recovered(queue_.now() / 1000));
  for (Worker& worker : workers_)
    if (worker.up) {
      Disconnect(worker);
      // Slow ones come after the grace time and find their outputs made again.
      queue_.After(random_.OneIn(6) ? Between(kSecond, 6 * kSecond) : Between(1000, 300'000), [this, &worker] { Register(worker); });
    }
  for (Client& client : clients_) {
    if (core_ != nullptr) LearnEnd(client);
  }
}

// The job ended, and the master died before it could say so: the client, which asks after its job, learns it now. So does one whose
// acknowledgement was lost and whose repeated submit names a job that is over.
void World::LearnEnd(Client& client) {
  if (!client.accepted || client.finished) return;
  std::optional<JobView> view = core_->Job(*client.accepted);
  if (!view) return Violation("an accepted job is gone after a restart of the master");
  if (view->phase < JobPhase::kSucceeded) return;
  Mark("finish seen after restart");
  CheckFinish({view->job, view->status, view->main_exit});
}

// Between two Steps, with everything written, the journal may be replaced by a snapshot.
void World::Compact() {
  if (core_ == nullptr || syncing_ || !actions_.empty()) return;
  std::vector<JournalRecord> snapshot = core_->Snapshot();
  Scheduler copy(core_options_);
  for (const JournalRecord& record : snapshot)
    if (!copy.Replay(record).ok()) return Violation("a snapshot cannot be replayed");
  std::vector<JournalRecord> again = copy.Snapshot();
  for (std::size_t i = 0; i < std::max(again.size(), snapshot.size()); ++i) {
    if (i < again.size() && i < snapshot.size() && again[i].bytes == snapshot[i].bytes) continue;
    std::string kind = i < snapshot.size() ? std::to_string(int{snapshot[i].bytes[1]}) : "none";
    return Violation("a replayed snapshot is another state, from record " + std::to_string(i) + " of kind " + kind);
  }
  journal_ = std::move(snapshot);
  durable_ = journal_.size();
  Mark("journal compacted");
}

// ---- workers and executors
// -------------------------------------------------------------------------------------------------------------------------

void World::Register(Worker& worker) {
  if (!worker.up || worker.connected || core_ == nullptr) return;
  worker.connected = true;
  whole_since_ = queue_.now();
  worker.id = WorkerId{next_worker_++};
  WorkerRegistered event;
  event.worker = worker.id;
  event.name = "w" + std::to_string(worker.index);
  event.data_address = event.name;
  event.slots = worker.slots;
  for (const auto& [id, segment] : worker.store)
    event.segments.push_back({segment.job, {segment.producer, id, event.data_address, 100}, segment.content->hash, 1});
  std::string held;
  for (const SegmentAt& at : event.segments) held += " " + Text(at.ref.producer);
  Trace("worker " + std::to_string(worker.index) + " registers as " + std::to_string(worker.id.value) + " holding" + held);
  worker.to_master->Send([this, event] { StepMaster(event); });
  if (worker.draining) Tell(worker, WorkerDrained{worker.id});  // the wish ends with a registration
}

// The connection ends on the worker's side: its executors end with it; the master may notice later, or never before the next registration.
void World::Disconnect(Worker& worker) {
  for (const auto& [id, executor] : worker.executors) {
    seen_[executor.job].unsuccessful += executor.tasks.size();
    Trace("executor " + std::to_string(id.value) + " ends with its worker's connection");
  }
  for (const auto& [id, segment] : worker.store) ++seen_[segment.job].lost_outputs;  // for a while, as far as the master knows
  for (const auto& [job, index] : jobs_)
    seen_[job].unsuccessful += worker.to_master->in_flight() + worker.from_master->in_flight();  // reports and orders that nobody will hear
  worker.executors.clear();
  worker.to_master->Cut();
  worker.from_master->Cut();
  if (worker.connected)
    queue_.After(Between(100, 600'000), [this, id = worker.id, epoch = epoch_] {
      if (epoch == epoch_) StepMaster(WorkerLost{id, "connection ended"});
    });
  worker.connected = false;
}

void World::CrashWorker(Worker& worker) {
  Trace("worker " + std::to_string(worker.index) + " crashes");
  Disconnect(worker);
  worker.up = false;
  std::erase_if(worker.store, [](const auto& entry) { return !entry.second.spilled; });
  if (!worker.store.empty()) Mark("spilled segments survive");
  queue_.After(Between(50'000, 3 * kSecond), [this, &worker] {
    worker.up = true;
    Register(worker);
  });
}

void World::Drain(Worker& worker) {
  if (!worker.up || worker.draining) return;
  Trace("worker " + std::to_string(worker.index) + " drains");
  Mark("worker drains");
  worker.draining = true;
  if (worker.connected) Tell(worker, WorkerDrained{worker.id});
  LeaveWhenEmpty(worker, ++worker.drains, queue_.now() + Between(50'000, 5 * kSecond));
}

// It serves what it holds until nobody needs it, or until its patience ends; a new one takes its place some time later.
void World::LeaveWhenEmpty(Worker& worker, std::uint64_t drain, TimeUs deadline) {
  if (!worker.draining || worker.drains != drain) return;
  bool empty = worker.connected && worker.executors.empty() && worker.store.empty();
  if (worker.up && !empty && queue_.now() < deadline) {
    queue_.After(20'000, [this, &worker, drain, deadline] { LeaveWhenEmpty(worker, drain, deadline); });
    return;
  }
  worker.draining = false;
  if (!worker.up) return;
  Mark(empty ? "drained worker leaves empty" : "drained worker is out of patience");
  for (auto& [id, segment] : worker.store) segment.spilled = false;  // it goes with all that it holds
  CrashWorker(worker);
}

void World::KillExecutor(Worker& worker, ExecutorId id, int signal, const TaskAttempt* guilty) {
  Executor* executor = Find(worker, id);
  if (executor == nullptr) return;
  ExecutorExited event{id, Status(signal == 9 ? Code::kUnavailable : Code::kUserError, "EXIT", "killed by a signal"), 0, signal, {}};
  for (const auto& [attempt, task] : executor->tasks)
    if (guilty != nullptr && attempt == guilty->attempt) event.cursors.push_back({*guilty, guilty->task, 77, 11, "file"});
  seen_[executor->job].unsuccessful += executor->tasks.size();
  worker.executors.erase(id);
  Tell(worker, event);
}

void World::Tell(Worker& worker, Event event) {
  if (!worker.connected) return;
  worker.to_master->Send([this, event, registration = worker.id, index = worker.index] {
    if (workers_[index].id == registration) StepMaster(event);
  });
  if (options_.faults && random_.OneIn(60)) {  // a late duplicate, perhaps of another epoch
    Mark("stale duplicate");
    queue_.After(Between(100, 3 * kSecond), [this, event] { StepMaster(event); });
  }
}

bool World::Order(WorkerId id, std::function<void(Worker&)> act) {
  for (Worker& worker : workers_)
    if (worker.id == id && worker.connected) {
      worker.from_master->Send([&worker, id, act] {
        if (worker.id == id && worker.connected) act(worker);
      });
      return true;
    }
  return false;
}

void World::OrderExecutor(ExecutorId id, std::function<void(Worker&, Executor&)> act, std::function<void()> missed) {
  auto it = placed_.find(id);
  bool sent = it != placed_.end() && Order(it->second, [this, id, act, missed](Worker& worker) {
                Executor* executor = Find(worker, id);
                if (executor != nullptr)
                  act(worker, *executor);
                else if (missed)
                  missed();
              });
  if (!sent && missed) missed();
}

World::Executor* World::Find(Worker& worker, ExecutorId id) {
  auto it = worker.executors.find(id);
  return it == worker.executors.end() ? nullptr : &it->second;
}

void World::AdvanceLater(Worker& worker, ExecutorId id) {
  queue_.After(Between(10, random_.OneIn(10) ? 50'000 : 2'000), [this, index = worker.index, id] { Advance(index, id); });
}

// One step of the executor's main.
void World::Advance(std::size_t index, ExecutorId id) {
  Worker& worker = workers_[index];
  Executor* executor = Find(worker, id);
  if (executor == nullptr || executor->returned) return;
  if (executor->at == executor->model->main.size()) {
    executor->returned = true;
    Tell(worker, MainReturned{id, 0});
    return;
  }
  const MainStep& step = executor->model->main[executor->at];
  if (step.kind == MainStep::kOnce) {
    if (executor->onces.contains(step.name)) {
      executor->asked = false;
    } else {
      if (!executor->asked) Tell(worker, ExecutorAtOnce{id, step.name});
      executor->asked = true;
      return;
    }
  } else if (step.kind == MainStep::kSubmit) {
    executor->announced.insert(step.sequence);
    Tell(worker, ExecutorAtAction{id, executor->model->Plan(step.sequence, executor->cut, &executor->live)});
  } else if (!executor->published.contains(step.sequence)) {
    return;  // Published() wakes it
  } else {
    for (StageId stage : executor->cuts[step.sequence]) executor->cut.insert(stage.value);
  }
  ++executor->at;
  AdvanceLater(worker, id);
}

void World::StartTask(Worker& worker, Executor& executor, const RunTask& run) {
  const dag::Stage& stage = executor.model->stages.at(run.id.stage.value);
  if (!executor.announced.contains(run.sequence) || executor.published.contains(run.sequence))
    return Violation("task " + Text(run.id) + " of action " + std::to_string(run.sequence) +
                     " went to an executor that does not stand at it");
  std::vector<TaskName> reads = executor.model->Reads(stage, run.id.task), given;
  if (run.copy_parts != 0) reads = {{run.id.stage.value, run.id.task}};
  for (const dag::TaskInput& input : run.inputs) {
    for (const dag::SegmentRef& segment : input.segments) given.emplace_back(segment.producer.stage.value, segment.producer.task);
    for (const TaskAttempt& winner : input.winners) given.emplace_back(winner.stage.value, winner.task);
  }
  if (reads != given) return Violation("task " + Text(run.id) + " was given wrong inputs");
  std::size_t busy = 0;
  for (const auto& [id, other] : worker.executors) busy += other.tasks.size();
  if (busy > 4 * worker.slots + 4) Violation("a worker is flooded with tasks");
  if (run.gang)
    for (const Worker& other : workers_)
      for (const auto& [id, e] : other.executors)
        for (const auto& [attempt, task] : e.tasks)
          if (e.job == run.job && task.gang && task.sequence == run.sequence && task.gang->epoch != run.gang->epoch && !task.told)
            return Violation("two formings of a gang run at once");
  executor.tasks[run.id.attempt] = {run.sequence, run.inputs, run.verify, run.copy_parts != 0, {}, run.gang};
  queue_.After(Between(100, 20'000), [this, index = worker.index, id = executor.id, attempt = run.id] { ReadInputs(index, id, attempt); });
}

void World::ReadInputs(std::size_t index, ExecutorId id, TaskAttempt attempt) {
  Worker& worker = workers_[index];
  Executor* executor = Find(worker, id);
  if (executor == nullptr || !executor->tasks.contains(attempt.attempt)) return;
  Task& task = executor->tasks.at(attempt.attempt);
  const ModelJob& model = *executor->model;
  bool bad = !task.copy && model.bad_task == TaskName(attempt.stage.value, attempt.task);
  JobId job = executor->job;
  auto fail = [&](Event event) {
    if (!task.copy) ++seen_[job].unsuccessful;
    executor->tasks.erase(attempt.attempt);
    Tell(worker, std::move(event));
  };
  if (bad && (model.temper == Temper::kThrows || (model.temper == Temper::kThrowsOnce && attempt.attempt % 2 == 1)))
    return fail(TaskFailed{id, job, attempt, Status(Code::kUserError, "USER", "the lambda threw"), attempt.task, 42, "file"});
  if (bad && model.temper == Temper::kCrashes) return KillExecutor(worker, id, 11, random_.OneIn(2) ? &attempt : nullptr);
  const bool falls = task.gang && model.climbs() && task.gang->rank == 0 && task.gang->epoch < kFallsMax;
  if (task.gang && options_.faults && queue_.now() < faults_end_ && (falls || random_.OneIn(50))) {
    ++seen_[job].complaints;
    if (model.climbs()) Tell(worker, TasksProgressed{id, {{attempt, {}, "", task.gang->epoch + std::uint64_t{1}}}});
    if (falls) Mark("gang fails farther on");
    return fail(TaskFailed{id, job, attempt, Machine("a peer does not answer"), 0, 0, ""});
  }
  if (!task.gang && options_.faults && queue_.now() < faults_end_ && random_.OneIn(50))
    return fail(TaskFailed{id, job, attempt, Status(Code::kResourceExhausted, "MEM", "no memory"), 0, 0, ""});
  for (const dag::TaskInput& input : task.inputs) {
    for (const dag::SegmentRef& ref : input.segments) {
      Worker* owner = nullptr;
      for (Worker& w : workers_)
        if ("w" + std::to_string(w.index) == ref.location) owner = &w;
      if (owner == nullptr || !owner->up || (options_.faults && queue_.now() < faults_end_ && owner != &worker && random_.OneIn(100)))
        return fail(FetchFailed{id, job, attempt, ref, Machine("the owner does not answer")});
      auto segment = owner->store.find(ref.segment);
      if (segment == owner->store.end() || segment->second.damaged) {
        if (segment != owner->store.end()) Mark("damaged segment read");
        ++seen_[job].lost_outputs;
        return fail(FetchFailed{id, job, attempt, ref, Status(Code::kDataLoss, "BLK01", "the segment is gone")});
      }
      if (segment->second.producer != ref.producer) return Violation("a segment id names another producer's segment");
      task.read.push_back(segment->second.content);
    }
    for (const std::string& value : input.values) {
      auto content = seen_[job].contents.find(HashOf(value));
      if (content == seen_[job].contents.end()) return Violation("a gathered value was made by nobody");
      task.read.push_back(content->second);
    }
  }
  if (task.gang) return Meet(index, id, attempt);
  queue_.After(Between(500, random_.OneIn(8) ? 400'000 : 60'000), [this, index, id, attempt] { FinishTask(index, id, attempt); });
}

namespace {
std::string Said(std::uint32_t epoch, std::uint64_t rank, std::uint64_t round) {
  return std::to_string(epoch) + "." + std::to_string(rank) + "." + std::to_string(round);
}
}  // namespace

// A rank meets the others some times, as often as each of them does, and ends.
void World::Meet(std::size_t index, ExecutorId id, TaskAttempt attempt) {
  Worker& worker = workers_[index];
  Executor* executor = Find(worker, id);
  if (executor == nullptr || !executor->tasks.contains(attempt.attempt)) return;
  Task& task = executor->tasks.at(attempt.attempt);
  if (task.told) return;
  if (task.round < executor->model->seed % 4) {
    ++task.round;
    // What a gang has got to does not grow with its formings: one that always fails must not go on for ever.
    if (executor->model->seed % 3 == 0) Tell(worker, TasksProgressed{id, {{attempt, {}, "", task.round}}});
    Tell(worker,
         GangExchanged{id, executor->job, attempt, task.gang->epoch, task.round, Said(task.gang->epoch, task.gang->rank, task.round)});
    return;
  }
  queue_.After(Between(500, random_.OneIn(8) ? 400'000 : 60'000), [this, index, id, attempt] { FinishTask(index, id, attempt); });
}

void World::Gathered(Worker& worker, Executor& executor, const GangGathered& answer) {
  for (auto& [attempt, task] : executor.tasks) {
    if (!task.gang || task.gang->epoch != answer.epoch || task.told) continue;
    if (answer.round != task.round) return Violation("a rank was answered for a round that it is not in");
    if (answer.values->size() != task.gang->ranks) return Violation("an exchange lacks a rank");
    for (std::uint64_t rank = 0; rank < answer.values->size(); ++rank)
      if ((*answer.values)[rank] != Said(answer.epoch, rank, answer.round)) return Violation("an exchange mixed two formings or rounds");
    TaskAttempt id{answer.stage, task.gang->rank, attempt};
    queue_.After(Between(50, 30'000), [this, index = worker.index, executor = executor.id, id] { Meet(index, executor, id); });
  }
}

// A rank that is told that its gang is lost: it reports so, or ends well all the same, or never looks.
void World::EndRank(Worker& worker, Executor& executor, const scheduler::EndRank& order) {
  auto task = executor.tasks.find(order.id.attempt);
  if (task == executor.tasks.end()) return;
  task->second.told = true;
  if (options_.faults && random_.OneIn(12)) return Mark("rank does not end");
  queue_.After(Between(100, 300'000), [this, index = worker.index, id = executor.id, attempt = order.id] {
    Executor* executor = Find(workers_[index], id);
    if (executor == nullptr || executor->tasks.erase(attempt.attempt) == 0) return;
    Tell(workers_[index], TaskFailed{id, executor->job, attempt, Machine("the gang is lost"), 0, 0, ""});
  });
}

void World::CheckRanksAreTold(JobId job, std::uint32_t epoch) {
  for (const Worker& worker : workers_)
    for (const auto& [id, executor] : worker.executors)
      for (const auto& [attempt, task] : executor.tasks)
        if (executor.job == job && task.gang && task.gang->epoch == epoch && !task.told)
          return Violation("a rank was not told that its gang is lost");
}

void World::FinishTask(std::size_t index, ExecutorId id, TaskAttempt attempt) {
  Worker& worker = workers_[index];
  Executor* executor = Find(worker, id);
  if (executor == nullptr || !executor->tasks.contains(attempt.attempt)) return;
  Task task = std::move(executor->tasks.at(attempt.attempt));
  executor->tasks.erase(attempt.attempt);
  const ModelJob& model = *executor->model;
  const dag::Stage& stage = model.stages.at(attempt.stage.value);
  std::vector<const Content*> inputs;
  for (const auto& content : task.read) inputs.push_back(content.get());
  std::shared_ptr<const Content> content =
      task.copy ? task.read.at(0) : model.Make(attempt.stage.value, attempt.task, attempt.attempt, inputs);
  Seen& seen = seen_[executor->job];
  if (content == nullptr) return Violation("task " + Text(attempt) + " was given a mix of two attempts' contents");
  TaskFinished event{id, executor->job, attempt, {}, {}};
  event.result.content_hash = content->hash;
  if (!task.verify) {
    if (stage.output == dag::StageOutput::kSegment) {
      SegmentId segment{worker.next_segment++};
      worker.store[segment] = {executor->job, attempt, content, task.copy || random_.OneIn(4),
                               options_.faults && queue_.now() < faults_end_ && random_.OneIn(150)};
      event.result.segment = dag::SegmentInfo{segment, 100, 1, content->hash};
    } else {
      seen.contents[content->hash] = content;
      event.result.value = Bytes(content->hash);
      if (task.gang && task.gang->rank == 0 && model.large_values.contains(attempt.stage.value)) {
        Mark("large gang value");
        event.result.value.append(65 << 10, '.');
      }
    }
    if (stage.output == dag::StageOutput::kCommit) {
      std::vector<std::string> winners;
      for (const dag::TaskInput& input : task.inputs) winners.insert(winners.end(), input.values.begin(), input.values.end());
      auto [it, fresh] = seen.output.emplace(attempt.stage.value, winners);
      if (!fresh) Mark("commit repeated");
      if (it->second != winners) Violation("the output was published twice with different contents");
      SeePublished(executor->job, winners);
    }
  }
  Tell(worker, event);
}

void World::SeePublished(JobId job, const std::vector<std::string>& values) {
  Seen& seen = seen_[job];
  for (const std::string& value : values) {
    auto content = seen.contents.find(HashOf(value));
    if (content == seen.contents.end()) return Violation("a published value was made by nobody");
    if (!Merge(&seen.lineage, *content->second->lineage)) Violation("results mix two attempts' contents");
  }
}

void World::Published(Executor& executor, const PublishAction& action) {
  executor.published.insert(action.sequence);
  executor.cuts[action.sequence] = action.cut;
  if (!action.status.ok()) return;
  Seen& seen = seen_[executor.job];
  const ModelJob& model = *executor.model;
  if (!executor.announced.contains(action.sequence)) Violation("a result went to an executor that did not ask");
  const dag::Stage& last = model.plans[action.sequence - 1].stages.back();
  if (action.values->size() != last.tasks) return Violation("a result has a wrong number of values");
  auto [it, fresh] = seen.values.emplace(action.sequence, *action.values);
  if (it->second != *action.values) return Violation("an action was published with two results");
  if (!fresh) return;
  std::vector<std::string> values = *action.values;
  if (last.gang) {
    for (std::uint32_t t = 1; t < last.tasks; ++t)
      if (!values[t].empty()) return Violation("a gang gave more than rank 0's value");
    values.resize(1);
  }
  SeePublished(executor.job, values);
  if (model.random_stages.empty())
    for (std::uint32_t t = 0; t < values.size(); ++t)
      if (HashOf((*action.values)[t]) != model.Expected({last.id.value, t})) Violation("a wrong result was published");
}

// ---- clients, faults, oracles
// ------------------------------------------------------------------------------------------------------------------------

void World::Submit(std::size_t index) {
  Client& client = clients_[index];
  if (client.accepted || client.finished) return;
  if (core_ != nullptr) {
    JobSpec spec;
    spec.submit_key = client.model.key;
    spec.settings.name = client.model.key;
    spec.settings.seed = client.model.seed;
    spec.settings.verify = client.model.verify;
    spec.executors_max = client.model.executors_max;
    if (client.submits++ > 0) Mark("submit repeated");
    StepMaster(JobSubmitted{spec});
  }
  queue_.After(Between(100'000, 400'000), [this, index] { Submit(index); });
}

World::Client* World::ClientOf(JobId job) {
  auto it = jobs_.find(job);
  return it == jobs_.end() ? nullptr : &clients_[it->second];
}

void World::Fault() {
  Worker& worker = workers_[random_.Below(workers_.size())];
  switch (random_.Below(7)) {
    case 0:
      if (random_.OneIn(2)) Compact();
      CrashMaster();
      break;
    case 1:
    case 2:
      if (worker.up) CrashWorker(worker);
      break;
    case 3:
      if (!worker.up || !worker.connected) break;
      Trace("worker " + std::to_string(worker.index) + " loses its connection");
      Mark("worker flap");
      Disconnect(worker);
      queue_.After(Between(1000, kSecond), [this, &worker] { Register(worker); });
      break;
    case 4:
      if (worker.executors.empty()) break;
      Mark("executor killed");
      KillExecutor(worker, worker.executors.begin()->first, 9, nullptr);
      break;
    case 5: {
      if (worker.store.empty() || !worker.connected) break;
      auto segment = worker.store.begin();
      std::advance(segment, random_.Below(worker.store.size()));
      Mark("segment dropped");
      ++seen_[segment->second.job].lost_outputs;
      SegmentsLost lost{worker.id, segment->second.job, {segment->first}};
      worker.store.erase(segment);
      Tell(worker, lost);
      break;
    }
    default:
      Compact();
  }
}

void World::Violation(const std::string& what) {
  Trace("VIOLATION " + what);
  outcome_.violations.push_back(what);
}

void World::Trace(const std::string& line) {
  outcome_.trace_hash = HashCombine(outcome_.trace_hash, HashCombine(static_cast<std::uint64_t>(queue_.now()), KeyHash64(line)));
  if (options_.print) std::printf("%10.3f ms  %s\n", static_cast<double>(queue_.now()) / 1000, line.c_str());
}

void World::CheckFinish(const FinishJob& finish) {
  Client* client = ClientOf(finish.job);
  if (client == nullptr) return Violation("a job that nobody submitted was finished");
  if (client->finished) {
    return Violation("a job was finished twice");
  }
  client->finished = finish;
  const ModelJob& model = client->model;
  const Status& status = finish.status;
  Mark("finish " + (status.ok() ? std::string("ok") : status.tag()));
  const Seen& seen = seen_[finish.job];
  if (status.ok()) {
    if (model.temper == Temper::kThrows || model.temper == Temper::kCrashes) {
      if (model.tasks > 0) Violation("a job whose task always fails succeeded");
    }
    if (!model.too_many.empty()) Violation("a job succeeded of which a gang has more ranks than there are slots");
    for (const dag::ActionPlan& plan : model.plans) {
      if (!seen.values.contains(plan.sequence)) Violation("a job succeeded without the result of action " + std::to_string(plan.sequence));
      const dag::Stage& last = plan.stages.back();
      if (last.output == dag::StageOutput::kCommit && !seen.output.contains(last.id.value)) Violation("a job succeeded without its output");
    }
    outcome_.results[model.key] = seen.values;
    if (!model.random_stages.empty()) outcome_.random_jobs.insert(model.key);
    return;
  }
  bool legal = (client->cancelled && status.code() == Code::kCancelled) ||
               (!model.random_stages.empty() && (status.tag() == "DET01" || status.tag() == "DET02")) ||
               (model.temper == Temper::kThrows && status.tag() == "USER") ||
               (model.temper == Temper::kCrashes && (status.tag() == "TASK04" || (model.has_gangs && status.tag() == "GANG03"))) ||
               (model.temper == Temper::kThrowsOnce && status.tag() == "USER") ||
               (status.tag() == "GANG01" && IsPlacementOver(model, seen, status)) ||
               // As often as what is not available is tried again, without getting farther.
               (status.tag() == "SIM01" && seen.complaints >= 5 && !model.climbs());
  if (!legal) Violation("a job failed without a legal reason: " + status.ToString());
}

void World::CheckEnd() {
  for (const Client& client : clients_)
    if (!client.finished) {
      std::string reasons;
      if (core_ != nullptr && client.accepted)
        if (auto view = core_->Job(*client.accepted))
          for (const std::string& reason : view->pending_reasons) reasons += "; " + reason;
      Violation("a job never ended" + reasons);
    }
  for (const Worker& worker : workers_)
    if (!worker.store.empty() && worker.connected && core_ != nullptr)
      Violation("segment " + Text(worker.store.begin()->second.producer) + " of a finished job was never freed on w" +
                std::to_string(worker.index));
  if (core_ != nullptr)
    for (const WorkerView& view : core_->Workers())
      if (view.busy != 0) Violation("slots of " + view.name + " are held by nobody");
  // Work is done again only for what was lost, failed or was forgotten by a restart.
  for (const auto& [job, seen] : seen_) {
    const Client* client = ClientOf(job);
    if (client == nullptr || !client->model.random_stages.empty()) continue;
    std::uint64_t bound = (1 + seen.starts_over) * client->model.tasks + seen.unsuccessful + seen.lost_outputs + seen.restarts_cost;
    if (seen.launches > bound)
      Violation("too much work: " + std::to_string(seen.launches) + " tasks were started, at most " + std::to_string(bound) +
                " were needed");
  }
}

}  // namespace ropewalk::simulation
