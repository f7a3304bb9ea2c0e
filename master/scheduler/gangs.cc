// Gangs: stages whose tasks start together or not at all.
//
//   waiting ──all slots at once──▶ running ──every rank ended well──▶ done
//      ▲                              │ a rank failed, crashed, or was lost with its machine
//      └── every rank has reported ── ending: the others are told (EndRank) and awaited, so that the reason is known and slots are free
//
// A gang that waits holds slots (they drain): a stream of small tasks cannot starve it. It holds all that it needs or nothing, and it holds
// nothing that another gang runs on, so no task waits for what may never come free. Where too much of its room is taken by gangs it claims
// what they give back: gangs that came later form elsewhere, so that a stream of small gangs cannot starve it either, and tasks go on
// there. Who asked first holds and claims first; a gang that is formed anew keeps its place.
//
// An elastic gang (GangStage::ranks_min) is formed with fewer ranks when it has waited for room for all of them long enough, and anew with
// more when there is room and it says that it got farther: then next to nothing is lost. That is no failure and no restart.
#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "base/job_name.h"
#include "dag/failure_tags.h"
#include "master/scheduler/state.h"

namespace ropewalk::scheduler {
namespace {

constexpr TimeMs kRestartDelayMaxMs = 5'000;
constexpr std::size_t kWorkersNamed = 8;  // in an error
// What a program says is wrong it will say again, and a gang may ask to be believed at once. A crash or a lack of memory may have been
// chance.
constexpr std::uint32_t kCrashAttemptsMin = 2;
// What was not available to a rank (a disk, a mount, the network between ranks that live) may be there again a little later.
constexpr std::uint32_t kUnavailableAttemptsMin = 5;

// "10.0.0.5:7078" -> "10.0.0.5"; "[::1]:7078" -> "::1"; this process -> the loopback.
std::string HostOf(const std::string& data_address) {
  if (data_address.empty()) return "127.0.0.1";
  std::string host = data_address.substr(0, data_address.rfind(':'));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return host;
}

std::string Words(const Status& status) {
  std::string words = status.what();
  if (!status.why().empty() && status.why() != status.what()) words += ": " + status.why();
  return words;
}

// The report tells of another rank only; one that tells of itself is the better reason.
bool IsOfAPeer(const Status& status) { return status.tag() == dag::kRankLostTag || status.tag() == dag::kPeerLostTag; }

std::string_view Name(GangEnd end) {
  switch (end) {
    case GangEnd::kPeer:
      return "peer";
    case GangEnd::kLost:
      return "lost";
    case GangEnd::kProgram:
      return "program";
    case GangEnd::kCrash:
      return "crash";
    case GangEnd::kMachine:
      return "machine";
  }
  return "unknown";
}

// With fewer ranks it is never formed.
std::uint32_t LeastRanks(const dag::Stage& stage) { return stage.gang->ranks_min > 0 ? stage.gang->ranks_min : stage.tasks; }

// Where ranks could run.
struct Place {
  ExecutorId executor;
  bool avoided;         // rather not there
  std::uint64_t bytes;  // of what the gang reads that lie there
  std::uint32_t room;
  std::uint32_t ranks;
};

bool RoomierFirst(const Place& a, const Place& b) { return std::tuple(a.avoided, ~a.room) < std::tuple(b.avoided, ~b.room); }
bool NearerFirst(const Place& a, const Place& b) {
  return std::tuple(a.avoided, ~a.bytes, ~a.room) < std::tuple(b.avoided, ~b.bytes, ~b.room);
}

// As few of the places as have room for the ranks, which talk to each other at every step and read their data once, and of sets that are as
// small the one that holds most of that data. The roomiest stand first: neighbours in rank share a machine.
std::vector<Place> FewAndNear(std::vector<Place> places, std::uint32_t ranks) {
  std::stable_sort(places.begin(), places.end(), RoomierFirst);
  std::size_t few = 0;
  for (std::uint64_t room = 0; few < places.size() && room < ranks; ++few) room += places[few].room;
  std::vector<std::size_t> nearest(places.size());
  std::iota(nearest.begin(), nearest.end(), std::size_t{0});
  std::stable_sort(nearest.begin(), nearest.end(), [&](std::size_t a, std::size_t b) { return NearerFirst(places[a], places[b]); });

  std::vector<bool> taken(places.size());
  std::size_t count = 0;
  auto enough = [&] {  // those that are taken, with the roomiest of the others
    std::uint64_t room = 0;
    std::size_t open = few - count - 1;
    for (std::size_t i = 0; i < places.size() && room < ranks; ++i)
      if (taken[i] || (open > 0 && open-- > 0)) room += places[i].room;
    return room >= ranks;
  };
  for (std::size_t i : nearest) {
    if (count == few) break;
    taken[i] = true;
    if (enough())
      ++count;
    else
      taken[i] = false;
  }
  std::vector<Place> chosen;
  for (std::size_t i = 0; i < places.size(); ++i)
    if (taken[i]) chosen.push_back(places[i]);
  return chosen;
}

std::string Seconds(std::uint64_t ms) {
  return ms % 1000 == 0 ? Number(ms / 1000) + " s" : Number(ms / 1000) + "." + Number(ms / 100 % 10) + " s";
}

}  // namespace

// How many ranks may run on the worker, with those that do.
std::uint32_t Scheduler::State::GangRoom(const Worker& worker) const { return std::max(worker.slots, options.gang_slots_min); }

// Those that can run its ranks.
std::vector<Executor*> Scheduler::State::GangExecutors(JobRun& job, const StageRun& run) {
  std::vector<Executor*> list;
  for (ExecutorId id : job.executors) {
    Executor& executor = executors.at(id);
    if (executor.phase == ExecutorPhase::kReady && executor.at.contains(run.key.sequence) && !workers.at(executor.worker).drained)
      list.push_back(&executor);
  }
  return list;
}

// Where the bytes lie that its ranks read. Every rank reads every part of an input, so one rank stands for all.
std::map<WorkerId, std::uint64_t> Scheduler::State::GangBytes(JobRun& job, StageRun& run) {
  std::map<WorkerId, std::uint64_t> bytes;
  for (const auto* on : InputBytes(job, run, 0))
    for (const auto& [worker, there] : *on) bytes[worker] += there;
  return bytes;
}

// Its inputs are there, or not any more: from Replan.
void Scheduler::State::GangReady(JobRun& job, const StageRun& run) {
  GangRun& gang = job.gangs.at(run.key);
  if (run.ready.size() < run.tasks.size()) {
    gang.waiting_since = 0;
    gang.held.clear();
    return;
  }
  if (gang.waiting_since != 0) return;
  if (gang.asked_at == 0) gang.asked_at = now;
  std::uint64_t room = 0;
  for (const auto& [id, worker] : workers) room += GangRoom(worker);
  if (options.outputs_durable) {  // in one process no other machine will come
    if (LeastRanks(run.stage) > room) return Doom(job, Unplaced(job, run));
    gang.enough = static_cast<std::uint32_t>(std::min<std::uint64_t>(run.stage.tasks, room));
  }
  gang.waiting_since = now;
  if (run.stage.gang->ranks_min > 0) Wake(now + static_cast<TimeMs>(run.stage.gang->shrink_ms));
  gang.spread_wait = false;
  Log(job, EventLine("gang_waits", now).Num("stage", run.key.stage.value).Num("ranks", run.stage.tasks));
  if (run.stage.gang->placement_ms > 0) Wake(now + static_cast<TimeMs>(run.stage.gang->placement_ms));
}

// With fewer ranks it is not formed now.
std::uint32_t Scheduler::State::FewestRanks(const StageRun& run, const GangRun& gang) const {
  if (now >= gang.waiting_since + static_cast<TimeMs>(run.stage.gang->shrink_ms)) return LeastRanks(run.stage);
  return gang.enough == 0 ? run.stage.tasks : gang.enough;
}

// Before other tasks get slots: gangs that fit start, those that wait hold or claim theirs.
void Scheduler::State::AssignGangs() {
  for (auto& [id, worker] : workers) {
    worker.held = 0;
    worker.claimed = false;
    worker.kept_for = {};
  }
  // Not in the order of jobs: one that runs gang after gang would pass by those that wait.
  std::vector<std::tuple<TimeMs, JobId, StageKey>> waiting;
  for (JobId id : live) {
    const JobRun& job = jobs.at(id);
    if (!job.admitted || job.doom) continue;
    for (const auto& [key, gang] : job.gangs)
      if (gang.phase == GangPhase::kWaiting && gang.waiting_since != 0) waiting.emplace_back(gang.asked_at, id, key);
  }
  std::sort(waiting.begin(), waiting.end());
  for (const auto& [asked_at, id, key] : waiting) {
    JobRun& job = jobs.at(id);
    GangRun& gang = job.gangs.at(key);
    StageRun& run = job.stages.at(key);
    if (gang.not_before <= now && PlaceGang(job, run, gang)) continue;
    if (!HoldFor(job, run, gang)) ClaimFor(job, run, gang);
  }
}

// Starts all ranks if there is a free slot for each, or for as many as it needs now.
bool Scheduler::State::PlaceGang(JobRun& job, StageRun& run, GangRun& gang) {
  const bool spread = run.stage.gang->spread;
  std::vector<Executor*> list = GangExecutors(job, run);
  if (spread && now < gang.waiting_since + options.gang_spread_wait_ms) {
    std::size_t there = 0;
    for (ExecutorId id : job.executors) there += workers.at(executors.at(id).worker).drained ? 0 : 1;
    if (list.size() < there) {
      if (!std::exchange(gang.spread_wait, true)) Wake(gang.waiting_since + options.gang_spread_wait_ms);
      return false;
    }
  }
  std::vector<Place> places;
  std::uint64_t room = 0;
  for (Executor* executor : list) {
    const Worker& worker = workers.at(executor->worker);
    const std::uint32_t taken = worker.busy + worker.held, limit = GangRoom(worker);
    if (taken >= limit || worker.claimed) continue;
    places.push_back({executor->id, worker.avoided_until > now, 0, limit - taken, 0});
    room += limit - taken;
  }
  if (room < FewestRanks(run, gang)) return false;
  const std::map<WorkerId, std::uint64_t> near = GangBytes(job, run);
  for (Place& place : places)
    if (auto there = near.find(executors.at(place.executor).worker); there != near.end()) place.bytes = there->second;
  auto left = static_cast<std::uint32_t>(std::min<std::uint64_t>(run.stage.tasks, room));
  if (spread)
    std::stable_sort(places.begin(), places.end(), NearerFirst);
  else
    places = FewAndNear(std::move(places), left);
  while (left > 0)
    for (Place& place : places) {
      const std::uint32_t take = std::min({left, place.room - place.ranks, spread ? 1 : place.room});
      place.ranks += take;
      left -= take;
    }
  std::vector<ExecutorId> by_rank;
  for (const Place& place : places) by_rank.insert(by_rank.end(), place.ranks, place.executor);
  FormGang(job, run, gang, by_rank);
  return true;
}

// Keeps slots free for it as tasks on them end. The same ones until it runs, or they would never all be free at once. False: gangs run on
// too many of them.
bool Scheduler::State::HoldFor(JobRun& job, const StageRun& run, GangRun& gang) {
  std::vector<std::pair<std::uint32_t, WorkerId>> could;  // hold so many: all but what gangs run on, and earlier ones hold or claim
  for (const Executor* executor : GangExecutors(job, run)) {
    const Worker& worker = workers.at(executor->worker);
    const std::uint32_t taken = worker.ranks + worker.held, limit = GangRoom(worker);
    if (taken < limit && !worker.claimed) could.emplace_back(limit - taken, executor->worker);
  }
  bool still = !gang.held.empty();
  for (const auto& [id, slots] : gang.held)
    still = still && std::any_of(could.begin(), could.end(), [&](const auto& c) { return c.second == id && c.first >= slots; });
  if (!still) {
    gang.held.clear();
    std::stable_sort(could.begin(), could.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::uint64_t room = 0;
    for (const auto& [slots, id] : could) room += slots;
    if (room < FewestRanks(run, gang)) return false;  // there are not as many: tasks use them meanwhile
    auto left = static_cast<std::uint32_t>(std::min<std::uint64_t>(run.stage.tasks, room));
    const std::uint32_t slots_held = left;
    for (const auto& [slots, id] : could) {
      if (left == 0) break;
      gang.held[id] = std::min(left, slots);
      left -= gang.held[id];
    }
    Log(job, EventLine("gang_holds", now).Num("stage", run.key.stage.value).Num("slots", slots_held).Num("workers", gang.held.size()));
  }
  for (const auto& [id, slots] : gang.held) {
    workers.at(id).held += slots;
    if (!workers.at(id).kept_for) workers.at(id).kept_for = job.id;
  }
  return true;
}

// It would fit, but for the gangs that run: what these give back is not for gangs that asked later. No more slots stay idle for that than
// it has ranks, since it holds them when there are as many; and a gang that would not fit in any case stops nobody.
void Scheduler::State::ClaimFor(JobRun& job, const StageRun& run, const GangRun& gang) {
  const std::vector<Executor*> list = GangExecutors(job, run);
  std::uint64_t room = 0;
  for (const Executor* executor : list) {
    const Worker& worker = workers.at(executor->worker);
    room += GangRoom(worker) - std::min(GangRoom(worker), worker.held);
  }
  if (room < FewestRanks(run, gang)) return;
  for (const Executor* executor : list) {
    Worker& worker = workers.at(executor->worker);
    worker.claimed = true;
    if (!worker.kept_for) worker.kept_for = job.id;
  }
}

void Scheduler::State::FormGang(JobRun& job, StageRun& run, GangRun& gang, const std::vector<ExecutorId>& places) {
  const auto ranks = static_cast<std::uint32_t>(places.size());
  gang.epoch = job.gang_epoch_next++;
  Journal(GangRecord{job.id, run.key.sequence, run.key.stage, job.gang_epoch_next, gang.failures, gang.restarts}, true);
  gang.phase = GangPhase::kRunning;
  gang.grow_to = 0;
  gang.enough = 0;
  gang.formed_at = now;
  gang.waiting_since = 0;
  gang.held.clear();
  gang.attempts.assign(ranks, 0);
  gang.won.assign(ranks, 0);
  gang.machines.assign(ranks, "");
  gang.reached = 0;
  gang.finished = 0;
  gang.value.clear();
  gang.round = 1;
  gang.said.clear();
  gang.end = GangEnd::kPeer;
  gang.reason = Status();
  gang.stopped = false;
  std::set<WorkerId> on;
  for (ExecutorId id : places) on.insert(executors.at(id).worker);
  Log(job, EventLine("gang_formed", now)
               .Num("stage", run.key.stage.value)
               .Num("epoch", gang.epoch)
               .Num("ranks", ranks)
               .Num("workers", on.size())
               .Num("failures", gang.failures)
               .Num("restarts", gang.restarts));
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    Executor& executor = executors.at(places[rank]);
    const Worker& worker = workers.at(executor.worker);
    gang.machines[rank] = worker.name;
    Launch(job, run, rank, run.key.sequence, executor, false,
           dag::GangPlace{rank, ranks, gang.epoch, worker.name, HostOf(worker.data_address)});
    gang.attempts[rank] = run.tasks[rank].attempt;
  }
}

// ---- while it runs ---------------------------------------------------------------------------------------------------------------

// Only one round is ever open: a rank that has the answer of one was among those that made it complete.
void Scheduler::State::On(const GangExchanged& event) {
  Executor* executor = FindExecutor(event.executor);
  JobRun* job = LiveJob(event.job);
  if (executor == nullptr || job == nullptr) return;
  const RunningTask* task = Registered(*job, event.executor, event.id);
  if (task == nullptr || !task->rank) return;
  StageRun& run = job->stages.at(task->key);
  GangRun& gang = job->gangs.at(task->key);
  const std::uint32_t rank = task->task;
  if (gang.phase != GangPhase::kRunning || event.epoch != gang.epoch || event.round != gang.round) return;
  if (!gang.said.try_emplace(rank, event.bytes).second) return;  // a duplicate
  if (gang.finished > 0)
    return RankOver(*job, run, rank, GangEnd::kProgram,
                    Status(Code::kUserError, "GANG05", "rank " + Number(rank) + " waits in an Exchange that another rank will never call",
                           "a rank has returned already", "let all ranks call Exchange equally often"));
  if (gang.said.size() < gang.ranks()) return;
  auto values = std::make_shared<std::vector<std::string>>();
  for (auto& [said_by, bytes] : gang.said) values->push_back(std::move(bytes));
  std::set<ExecutorId> to;
  for (std::uint32_t attempt : gang.attempts) to.insert(job->running.at(attempt).executor);
  for (ExecutorId id : to) Out(GangGathered{id, job->id, run.key.stage, gang.epoch, gang.round, values});
  gang.said.clear();
  ++gang.round;
}

void Scheduler::State::RankFinished(JobRun& job, StageRun& run, std::uint32_t rank, std::uint32_t attempt, std::string value) {
  GangRun& gang = job.gangs.at(run.key);
  if (gang.phase != GangPhase::kRunning) return RankOver(job, run, rank, GangEnd::kPeer, Status());
  gang.attempts[rank] = 0;
  gang.won[rank] = attempt;
  ++gang.finished;
  if (rank == 0) gang.value = std::move(value);
  if (!gang.said.empty()) {
    const std::uint32_t waiting = gang.said.begin()->first;
    return EndGang(
        job, run, GangEnd::kProgram,
        Status(Code::kUserError, "GANG05", "rank " + Number(rank) + " returned while rank " + Number(waiting) + " waits in an Exchange",
               "an Exchange needs every rank", "let all ranks call Exchange equally often"),
        rank);
  }
  if (gang.finished < gang.ranks()) return;
  gang.phase = GangPhase::kWaiting;  // for nothing, unless what it was made from changes before its action is published
  // Not task by task: what some ranks of a forming made is worth nothing without the others.
  for (std::uint32_t task = 0; task < run.tasks.size(); ++task) {
    run.tasks[task].done = true;
    run.tasks[task].wanted = false;
    run.tasks[task].winner = task < gang.ranks() ? gang.won[task] : 0;  // of one that this forming had no room for: none
  }
  run.done = run.stage.tasks;
  run.ready.clear();
  run.value_bytes = gang.value.size();
  run.values[0] = std::move(gang.value);
  job.dirty = true;
  Log(job, EventLine("gang_finished", now).Num("stage", run.key.stage.value).Num("epoch", gang.epoch).Num("ms", now - gang.formed_at));
  if (run.value_bytes > job.spec.settings.collect_bytes_max)
    Doom(job, Status(Code::kUserError, "ACT01",
                     "the result of " + StageText(run.stage) + " is larger than " + Number(job.spec.settings.collect_bytes_max) + " bytes",
                     "results are held in memory by main and the master", "let rank 0 write it to a file and return its name"));
}

// The rank is not running any more and has not ended well.
void Scheduler::State::RankOver(JobRun& job, StageRun& run, std::uint32_t rank, GangEnd end, Status reason) {
  GangRun& gang = job.gangs.at(run.key);
  // Several may be lost at once: all of them are over before the first is spoken of.
  for (std::uint32_t& attempt : gang.attempts)
    if (!job.running.contains(attempt)) attempt = 0;
  if (gang.phase == GangPhase::kWaiting) return;
  if (gang.phase == GangPhase::kRunning) return EndGang(job, run, end, std::move(reason), rank);
  const bool says_more = end == gang.end && end == GangEnd::kPeer && IsOfAPeer(gang.reason) && !reason.ok() && !IsOfAPeer(reason);
  if ((end > gang.end || says_more) && !gang.stopped) {
    gang.end = end;
    gang.reason = std::move(reason);
    gang.blamed = rank;
  }
  GangOver(job, run, gang);
}

// This forming is lost. The ranks that run are told why, and awaited: which of several reports is the cause is known when all are there,
// and a slot that a rank does not leave is not free.
void Scheduler::State::EndGang(JobRun& job, StageRun& run, GangEnd end, Status reason, std::uint32_t blamed) {
  GangRun& gang = job.gangs.at(run.key);
  if (gang.phase != GangPhase::kRunning) return;
  gang.phase = GangPhase::kEnding;
  gang.end = end;
  gang.reason = std::move(reason);
  gang.blamed = blamed;
  gang.end_by = now + options.gang_end_ms;
  Wake(gang.end_by);
  if (gang.grow_to > 0)
    Log(job, EventLine("gang_grows", now).Num("stage", run.key.stage.value).Num("epoch", gang.epoch).Num("ranks", gang.grow_to));
  else
    Log(job, EventLine("gang_lost", now)
                 .Num("stage", run.key.stage.value)
                 .Num("epoch", gang.epoch)
                 .Num("rank", blamed)
                 .Str("machine", gang.machines[blamed])
                 .Str("cause", Words(gang.reason)));
  const char* how = end == GangEnd::kProgram || end == GangEnd::kCrash ? " failed"
                    : end == GangEnd::kPeer                            ? " could not go on"
                                                                       : " was lost";
  const Status told = gang.grow_to > 0 ? gang.reason
                                       : Status(Code::kUnavailable, dag::kRankLostTag,
                                                "rank " + Number(blamed) + " on machine " + gang.machines[blamed] + how, Words(gang.reason),
                                                "none needed: the gang is formed anew");
  if (!options.planted.keep_ranks_of_lost_gangs)
    for (std::uint32_t rank = 0; rank < gang.attempts.size(); ++rank)
      if (gang.attempts[rank] != 0)
        Out(EndRank{job.running.at(gang.attempts[rank]).executor, job.id, {run.key.stage, rank, gang.attempts[rank]}, told});
  GangOver(job, run, gang);
}

// A rank has got so far, in a measure of the program.
void Scheduler::State::GangReached(JobRun& job, const RunningTask& rank, std::uint64_t reached) {
  GangRun& gang = job.gangs.at(rank.key);
  if (reached <= gang.reached) return;
  gang.reached = reached;
  if (gang.phase == GangPhase::kRunning && gang.ranks() < job.stages.at(rank.key).stage.tasks) GrowGang(job, job.stages.at(rank.key), gang);
}

// It runs with fewer ranks than it may have, and has kept what it got to just now: is there room for more? Not where it is needed by who
// waits for it.
void Scheduler::State::GrowGang(JobRun& job, StageRun& run, GangRun& gang) {
  if (gang.finished > 0) return;
  std::uint64_t room = gang.ranks();
  for (const Executor* executor : GangExecutors(job, run)) {
    const Worker& worker = workers.at(executor->worker);
    if (!worker.claimed) room += GangRoom(worker) - std::min(GangRoom(worker), worker.busy + worker.held);
  }
  const auto ranks = static_cast<std::uint32_t>(std::min<std::uint64_t>(run.stage.tasks, room));
  if (ranks <= gang.ranks()) return;
  gang.grow_to = ranks;
  EndGang(job, run, GangEnd::kPeer,
          Status(Code::kUnavailable, dag::kRankLostTag, "the gang is formed anew with " + Number(ranks) + " ranks",
                 "it ran with " + Number(gang.ranks()) + ", and there is room for more", "none needed: it goes on from what it has got to"),
          0);
}

// When the last of its ranks is over: another forming, or the end of the job. Both kinds of ends are bounded, unless the gang gets farther:
// how long a forming held says nothing, since a failure that is sure to come may take its time.
void Scheduler::State::GangOver(JobRun& job, StageRun& run, GangRun& gang) {
  if (std::any_of(gang.attempts.begin(), gang.attempts.end(), [](std::uint32_t attempt) { return attempt != 0; })) return;
  gang.phase = GangPhase::kWaiting;
  gang.waiting_since = 0;
  job.dirty = true;
  Changed(job);
  const std::string rank = "rank " + Number(gang.blamed) + " of " + StageText(run.stage) + " on " + gang.machines[gang.blamed];
  const Status& last = gang.reason;
  Log(job, EventLine("gang_over", now)
               .Num("stage", run.key.stage.value)
               .Num("epoch", gang.epoch)
               .Num("reached", gang.reached)
               .Str("end", Name(gang.end)));
  if (gang.reached > gang.farthest) {
    gang.farthest = gang.reached;
    gang.failures = gang.restarts = 0;
    run.trouble.clear();  // inputs that could not be read, too
  }
  // Nothing has gone wrong, unless something else did.
  if (gang.grow_to > 0 && gang.end == GangEnd::kPeer) {
    gang.enough = gang.grow_to;
    gang.not_before = now;
    return;
  }
  // All ranks have spoken for themselves and none was lost: what the one that spoke first could not get is its own failure.
  const bool is_own = gang.end == GangEnd::kPeer && !gang.stopped;
  std::uint32_t times = 0;
  if (is_own || gang.end == GangEnd::kProgram || gang.end == GangEnd::kCrash) {
    const std::uint32_t least = is_own ? kUnavailableAttemptsMin : gang.end == GangEnd::kCrash ? kCrashAttemptsMin : 1;
    times = ++gang.failures;
    if (times >= std::max(run.stage.gang->attempts_max, least)) {
      std::string why = last.why();
      if (times > 1) {
        if (!why.empty()) why += "; ";
        why += "the gang was formed " + Number(times) + " times and a rank failed each time";
      }
      const Code code = is_own ? Code::kUnavailable : last.code();  // nobody has cancelled the job
      return Doom(job, Status(code, last.tag().empty() ? "TASK03" : last.tag(), rank + " failed: " + last.what(), why, last.fix()));
    }
    if (!is_own) times = 1;  // it has no need to wait for anything
  } else {
    times = ++gang.restarts;
    if (times > run.stage.gang->restarts_max)
      return Doom(job, Status(Code::kUnavailable, "GANG04",
                              StageText(run.stage) + " was lost " + Number(times) + " times in a row and did not get farther meanwhile",
                              "the last time " + rank + " was lost: " + Words(last),
                              "look at that machine; GangOptions::restarts_max allows more; a program that keeps what it has got to "
                              "(a checkpoint) says so by GangContext::Reached"));
  }
  const TimeMs delay = std::min(options.task_retry_delay_ms << std::min<std::uint32_t>(times - 1, 10), kRestartDelayMaxMs);
  gang.not_before = now + delay;
  Wake(gang.not_before);
}

// ---- what time brings --------------------------------------------------------------------------------------------------------------

void Scheduler::State::TendGangs(JobRun& job) {
  std::set<ExecutorId> stuck;
  for (auto& [key, gang] : job.gangs) {
    if (job.doom) return;
    const StageRun& run = job.stages.at(key);
    if (gang.phase == GangPhase::kWaiting && gang.waiting_since != 0) {
      const auto limit = static_cast<TimeMs>(run.stage.gang->placement_ms);
      if (limit > 0 && now >= gang.waiting_since + limit) return Doom(job, Unplaced(job, run));
    }
    if (gang.phase != GangPhase::kEnding || gang.stopped || now < gang.end_by) continue;
    gang.stopped = true;
    for (std::uint32_t rank = 0; rank < gang.attempts.size(); ++rank) {
      if (gang.attempts[rank] == 0) continue;
      if (options.outputs_durable)
        return Doom(job, Status(Code::kUserError, "GANG06", "rank " + Number(rank) + " of " + StageText(run.stage) + " does not end",
                                "its gang was lost " + Seconds(static_cast<std::uint64_t>(options.gang_end_ms)) + " ago (" +
                                    Words(gang.reason) + ") and in one process it cannot be stopped from outside",
                                "let the function given to OnLost free whatever the rank waits for"));
      stuck.insert(job.running.at(gang.attempts[rank]).executor);
    }
  }
  for (ExecutorId id : stuck) {
    const std::string reason = "a rank in it did not end when its gang was lost";
    Out(StopExecutor{executors.at(id).worker, id, reason});
    ExecutorExited exited;
    exited.executor = id;
    exited.reason = Status(Code::kUnavailable, "GANG06", "an executor was stopped", reason,
                           "let the function given to OnLost free whatever the rank waits for");
    On(exited);
  }
}

// Why it could not be placed: what there is, and who has it.
Status Scheduler::State::Unplaced(const JobRun& job, const StageRun& run) const {
  const std::uint32_t ranks = LeastRanks(run.stage);
  std::map<WorkerId, std::map<JobId, std::uint32_t>> holders;
  for (JobId id : live)
    for (const auto& [attempt, task] : jobs.at(id).running) ++holders[executors.at(task.executor).worker][id];
  std::uint64_t slots = 0, free = 0;
  std::string list;
  std::size_t named = 0;
  for (const auto& [id, worker] : workers) {
    const Executor* ours = nullptr;
    for (ExecutorId executor : job.executors)
      if (executors.at(executor).worker == id) ours = &executors.at(executor);
    std::string how;
    if (!Fits(worker, job.spec)) {
      how = "cannot run this executable";
    } else if (worker.drained) {
      how = "is being drained";
    } else if (ours == nullptr) {
      how = "has no executor of this job";
    } else if (ours->phase != ExecutorPhase::kReady || !ours->at.contains(run.key.sequence)) {
      how = "its executor has not reached the gang yet";
    } else {
      slots += GangRoom(worker);
      free += GangRoom(worker) - std::min(GangRoom(worker), worker.busy);
      how = "has " + Number(GangRoom(worker));
      auto held = holders.find(id);
      if (held != holders.end())
        for (const auto& [holder, count] : held->second)
          how += ", " + Number(count) + " used by " + (holder == job.id ? "this job" : "job " + JobName(holder));
      if (worker.kept_for && worker.kept_for != job.id) how += ", the rest kept for job " + JobName(worker.kept_for) + " that asked before";
    }
    if (++named <= kWorkersNamed) list += (list.empty() ? "" : "; ") + worker.name + " " + how;
  }
  if (named > kWorkersNamed) list += "; " + Number(named - kWorkersNamed) + " more workers";
  if (workers.empty()) list = "no worker is registered";
  const bool never = slots < ranks;
  return Status(
      Code::kUnplaceable, "GANG01",
      "the gang " + StageText(run.stage) + " of " + Number(run.stage.tasks) + " ranks" +
          (ranks < run.stage.tasks ? ", " + Number(ranks) + " at least," : "") + " could not be placed" +
          (options.outputs_durable ? "" : " within " + Seconds(run.stage.gang->placement_ms)),
      "it needs " + Number(ranks) + " slots at once; there are " + Number(slots) + ", " + Number(free) + " of them free (" + list + ")",
      never ? "ask for fewer ranks, or add workers or slots"
            : "wait for the other jobs, add workers, or give it more time (GangOptions::placement_timeout_ms)");
}

}  // namespace ropewalk::scheduler
