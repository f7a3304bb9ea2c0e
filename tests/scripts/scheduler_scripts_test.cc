// Runs tests/scripts/scheduler/*.txt: each line is an event for the scheduler, the indented lines below it are the actions it must answer
// with. They read as documentation of the scheduler's rules. ROPEWALK_SCRIPTS_REWRITE=1 writes the answers anew (then read the diff).
//
//   worker 1 slots=2 [holds=s1.0#3:5:7,...]   a worker registers (segment 5 with content hash 7)        lost 1 | drain 1
//   submit key [verify] [executors=n] [limit=ms]                                                           cancel j1
//   ready e1 | exited e1 user|memory|unavailable|invalid [exit=n] [signal=n] [at=s1.0#2:offset]            returned e1 code
//   plan p 1 segment s1 3 ; result s2 2 < all s1 ; ... [retire s9]     defines a plan: sequence, stages; inputs: all, one+k, gather
//   at e1 p | once e1 name | computed e1 name value
//   progress e1 s1.0#1 bytes                 how far a running task is
//   finished e1 s1.0#1 [hash=n] [value=v]    (segments are numbered by the script runner)
//   failed e1 s1.0#1 user|unavailable|memory|internal text            fetch e1 s2.0#3 s1.0#1 [unavailable]
//   gone 1 5                                  worker 1 lost segment 5
//   advance ms | restart [keep=n]             timers fire | the master dies; the first n journal records survive
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "master/scheduler/records.h"
#include "master/scheduler/scheduler.h"

namespace ropewalk::scheduler {
namespace {

std::string Text(const TaskAttempt& id) {
  return "s" + std::to_string(id.stage.value) + "." + std::to_string(id.task) + "#" + std::to_string(id.attempt);
}
TaskAttempt ParseAttempt(const std::string& text) {
  TaskAttempt id;
  unsigned long stage = 0, task = 0, attempt = 0;
  if (std::sscanf(text.c_str(), "s%lu.%lu#%lu", &stage, &task, &attempt) != 3) ADD_FAILURE() << "not an attempt: " << text;
  return {StageId{stage}, static_cast<std::uint32_t>(task), static_cast<std::uint32_t>(attempt)};
}
std::uint64_t Number(const std::string& text) { return std::strtoull(text.c_str() + (std::isdigit(text[0]) ? 0 : 1), nullptr, 10); }
std::vector<std::string> Split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::stringstream in(text);
  for (std::string part; std::getline(in, part, at);)
    if (!part.empty()) parts.push_back(part);
  return parts;
}

class Script {
 public:
  // The answer to one line, one action a line.
  std::vector<std::string> Run(const std::string& line) {
    said_.clear();
    std::vector<std::string> words = Split(line, ' ');
    const std::string verb = words[0];
    std::map<std::string, std::string> options;
    std::set<std::string> flags;
    for (std::size_t i = 1; i < words.size(); ++i) {
      auto equals = words[i].find('=');
      if (equals != std::string::npos)
        options[words[i].substr(0, equals)] = words[i].substr(equals + 1);
      else
        flags.insert(words[i]);
    }
    auto number = [&](const std::string& name, std::uint64_t otherwise) {
      return options.contains(name) ? Number(options[name]) : otherwise;
    };
    auto executor = [&] { return ExecutorId{Number(words.at(1))}; };
    ++now_;
    if (verb == "worker") {
      WorkerRegistered event;
      event.worker = WorkerId{Number(words.at(1))};
      event.name = options.contains("name") ? options["name"] : "w" + words[1];
      event.data_address = "w" + words[1];
      event.slots = static_cast<std::uint32_t>(number("slots", 2));
      for (const std::string& held : Split(options["holds"], ',')) {
        std::vector<std::string> parts = Split(held, ':');
        TaskAttempt id = ParseAttempt(parts.at(0));
        event.segments.push_back({JobId{1}, {id, SegmentId{Number(parts.at(1))}, event.data_address, 100}, Number(parts.at(2)), 1});
        segments_[id] = SegmentId{Number(parts.at(1))};
      }
      Step(event);
    } else if (verb == "lost") {
      Step(WorkerLost{WorkerId{Number(words.at(1))}, "gone"});
    } else if (verb == "drain") {
      Step(WorkerDrained{WorkerId{Number(words.at(1))}});
    } else if (verb == "submit") {
      JobSpec spec;
      spec.submit_key = words.at(1);
      spec.settings.name = words.at(1);
      spec.settings.verify = flags.contains("verify");
      spec.executors_max = static_cast<std::uint32_t>(number("executors", 0));
      spec.time_limit_ms = static_cast<TimeMs>(number("limit", 0));
      Step(JobSubmitted{spec});
    } else if (verb == "cancel") {
      Step(JobCancelled{JobId{Number(words.at(1))}, "asked for"});
    } else if (verb == "ready") {
      Step(ExecutorReady{executor()});
    } else if (verb == "exited") {
      ExecutorExited event{executor(),
                           Failure(words.at(2), "it ended"),
                           static_cast<std::int32_t>(number("exit", 0)),
                           static_cast<std::int32_t>(number("signal", 0)),
                           {}};
      if (options.contains("at")) {
        std::vector<std::string> parts = Split(options["at"], ':');
        TaskAttempt id = ParseAttempt(parts.at(0));
        event.cursors.push_back({id, id.task, Number(parts.at(1)), 11, "/data/in.txt"});
      }
      Step(event);
    } else if (verb == "returned") {
      Step(MainReturned{executor(), static_cast<std::int32_t>(Number(words.at(2)))});
    } else if (verb == "plan") {
      DefinePlan(words);
    } else if (verb == "at") {
      Step(ExecutorAtAction{executor(), plans_.at(words.at(2))});
    } else if (verb == "once") {
      Step(ExecutorAtOnce{executor(), words.at(2)});
    } else if (verb == "computed") {
      Step(OnceComputed{executor(), words.at(2), words.at(3), Status()});
    } else if (verb == "progress") {
      Step(TasksProgressed{executor(), {{ParseAttempt(words.at(2)), {1, Number(words.at(3)), 0, 0, 0}}}});
    } else if (verb == "finished") {
      TaskFinished event{executor(), JobId{1}, ParseAttempt(words.at(2)), {}, {}};
      event.result.content_hash = number("hash", event.id.stage.value * 100 + event.id.task);
      if (segment_stages_.contains(event.id.stage) && !flags.contains("none")) {
        event.result.segment = dag::SegmentInfo{SegmentId{next_segment_}, 100, 1, event.result.content_hash};
        segments_[event.id] = SegmentId{next_segment_++};
      }
      event.result.value = options.contains("value") ? options["value"] : "v" + std::to_string(event.id.task);
      Step(event);
    } else if (verb == "failed") {
      std::string text = words.at(4);
      for (std::size_t i = 5; i < words.size(); ++i) text += " " + words[i];
      Step(TaskFailed{executor(), JobId{1}, ParseAttempt(words.at(2)), Failure(words.at(3), text), 0, 42, "/data/in.txt"});
    } else if (verb == "fetch") {
      TaskAttempt producer = ParseAttempt(words.at(3));
      Step(FetchFailed{executor(),
                       JobId{1},
                       ParseAttempt(words.at(2)),
                       {producer, segments_[producer], "", 0},
                       Status(flags.contains("unavailable") ? Code::kUnavailable : Code::kDataLoss, "BLK", "cannot read")});
    } else if (verb == "gone") {
      Step(SegmentsLost{WorkerId{Number(words.at(1))}, JobId{1}, {SegmentId{Number(words.at(2))}}});
    } else if (verb == "advance") {
      Advance(static_cast<TimeMs>(Number(words.at(1))));
    } else if (verb == "restart") {
      journal_.resize(std::min<std::size_t>(journal_.size(), number("keep", journal_.size())));
      core_ = std::make_unique<Scheduler>(Options{});
      timers_.clear();
      for (const JournalRecord& record : journal_) EXPECT_TRUE(core_->Replay(record).ok());
      Say(core_->Recovered(now_));
    } else {
      ADD_FAILURE() << "no such event: " << line;
    }
    return said_;
  }

 private:
  static Status Failure(const std::string& kind, const std::string& text) {
    if (kind == "user") return Status(Code::kUserError, "USER", text);
    if (kind == "memory") return Status(Code::kResourceExhausted, "MEM", text);
    if (kind == "unavailable") return Status(Code::kUnavailable, "GONE", text);
    if (kind == "invalid") return Status(Code::kInvalid, "BAD", text);
    return Status(Code::kInternal, "BUG", text);
  }
  void DefinePlan(const std::vector<std::string>& words) {
    dag::ActionPlan plan;
    plan.sequence = Number(words.at(2));
    plan.name = words[1];
    std::size_t i = 3;
    while (i < words.size()) {
      if (words[i] == ";") {
        ++i;
      } else if (words[i] == "retire") {
        plan.retired.push_back(StageId{Number(words.at(i + 1))});
        i += 2;
      } else if (words[i] == "output") {  // output j1 /out: the place of an output of job 1
        plan.output = dag::OutputPlace{words.at(i + 2), dag::OutputKeyOf(JobId{Number(words.at(i + 1))}, 0) + "-1"};
        i += 3;
      } else {
        dag::Stage stage;
        stage.output = words[i] == "segment"  ? dag::StageOutput::kSegment
                       : words[i] == "result" ? dag::StageOutput::kResult
                       : words[i] == "files"  ? dag::StageOutput::kFiles
                                              : dag::StageOutput::kCommit;
        stage.id = StageId{Number(words.at(i + 1))};
        stage.name = "S" + std::to_string(stage.id.value);
        stage.tasks = static_cast<std::uint32_t>(Number(words.at(i + 2)));
        stage.fingerprint = stage.id.value;
        if (stage.output == dag::StageOutput::kSegment) segment_stages_.insert(stage.id);
        i += 3;
        if (i < words.size() && words[i] == "<")
          for (++i; i < words.size() && words[i] != ";" && words[i] != "retire" && words[i] != "output"; i += 2) {
            dag::StageInput input;
            input.stage = StageId{Number(words.at(i + 1))};
            input.pattern = words[i].starts_with("all") ? dag::InputPattern::kAllToAll
                            : words[i] == "gather"      ? dag::InputPattern::kGather
                                                        : dag::InputPattern::kOneToOne;
            // all+2*3: the three tasks from the third on
            if (words[i].starts_with("all+")) {
              std::size_t star = words[i].find('*');
              input.first_task = static_cast<std::uint32_t>(std::stoul(words[i].substr(4, star - 4)));
              input.tasks = static_cast<std::uint32_t>(std::stoul(words[i].substr(star + 1)));
            }
            if (words[i].starts_with("one+")) input.first_task = static_cast<std::uint32_t>(std::stoul(words[i].substr(4)));
            stage.inputs.push_back(input);
          }
        plan.fingerprint = plan.fingerprint * 31 + stage.id.value * 7 + stage.tasks;
        plan.stages.push_back(stage);
      }
    }
    plans_[words[1]] = plan;
  }
  void Step(const Event& event) { Say(core_->Step(now_, event)); }
  void Advance(TimeMs ms) {
    TimeMs end = now_ + ms;
    while (true) {
      auto next = std::min_element(timers_.begin(), timers_.end(), [](const SetTimer& a, const SetTimer& b) { return a.at < b.at; });
      if (next == timers_.end() || next->at > end) break;
      SetTimer timer = *next;
      timers_.erase(next);
      now_ = std::max(now_, timer.at);
      Step(TimerFired{timer.timer});
    }
    now_ = end;
  }
  void Say(std::vector<SchedulerAction> actions) {
    for (const SchedulerAction& action : actions) {
      if (auto* timer = std::get_if<SetTimer>(&action)) timers_.push_back(*timer);
      if (auto* record = std::get_if<JournalRecord>(&action)) journal_.push_back(*record);
      std::string text = Render(action);
      if (!text.empty()) said_.push_back(text);
    }
  }
  static std::string Outcome(const Status& status) {
    if (status.ok()) return "ok";
    std::string text = std::string(CodeName(status.code())) + " [" + status.tag() + "] " + status.what();
    return status.why().empty() ? text : text + " | " + status.why();
  }
  std::string Render(const SchedulerAction& action) {
    static const char* const kRecords[] = {"counters",         "job accepted",    "attempts",    "once",
                                           "task done",        "tasks forgotten", "verified",    "winners",
                                           "action published", "stages retired",  "job finished"};
    auto e = [](ExecutorId id) { return "e" + std::to_string(id.value); };
    if (auto* a = std::get_if<JournalRecord>(&action)) {
      Result<Record> record = Decode(a->bytes);
      if (!record.ok()) return "an unreadable record";
      return std::string(a->sync ? "journal and sync: " : "journal: ") + kRecords[record->index()];
    }
    if (auto* a = std::get_if<AcceptJob>(&action)) return "accept " + a->submit_key + " as j" + std::to_string(a->job.value);
    if (auto* a = std::get_if<RefuseJob>(&action)) return "refuse " + a->submit_key + ": " + Outcome(a->status);
    if (auto* a = std::get_if<StartExecutor>(&action)) return "start " + e(a->executor) + " on w" + std::to_string(a->worker.value);
    if (auto* a = std::get_if<StopExecutor>(&action)) return "stop " + e(a->executor);
    if (auto* a = std::get_if<NameDriver>(&action)) return "driver is " + e(a->executor);
    if (auto* a = std::get_if<CancelTask>(&action)) return "cancel " + Text(a->id) + " on " + e(a->executor);
    if (auto* a = std::get_if<ComputeOnce>(&action)) return "compute " + a->name + " on " + e(a->executor);
    if (auto* a = std::get_if<PublishOnce>(&action))
      return "once " + a->name + " to " + e(a->executor) + ": " + (a->status.ok() ? a->value : Outcome(a->status));
    if (auto* a = std::get_if<FinishJob>(&action))
      return "finish j" + std::to_string(a->job.value) + ": " + Outcome(a->status) +
             (a->main_exit ? " exit " + std::to_string(a->main_exit) : "");
    if (auto* a = std::get_if<RunTask>(&action)) {
      std::string text = std::string(a->verify ? "verify " : "run ") + Text(a->id) + " on " + e(a->executor) + (a->retry ? " (retry)" : "");
      for (const dag::TaskInput& input : a->inputs) {
        text += " <-";
        for (const dag::SegmentRef& segment : input.segments) text += " " + Text(segment.producer) + "@" + segment.location;
        for (const std::string& value : input.values) text += " " + value;
      }
      return text;
    }
    if (auto* a = std::get_if<PublishAction>(&action)) {
      std::string text = "publish " + std::to_string(a->sequence) + " to " + e(a->executor) + ":";
      if (!a->status.ok()) return text + " " + Outcome(a->status);
      for (const std::string& value : *a->values) text += " " + value;
      return text;
    }
    if (auto* a = std::get_if<FreeSegments>(&action)) {
      std::string text = "free on w" + std::to_string(a->worker.value) + ":";
      if (a->whole_job) text += " all of the job's";
      for (const dag::OutputPlace& output : a->discard) text += ", discard " + output.folder;
      for (SegmentId id : a->segments) text += " " + std::to_string(id.value);
      return text;
    }
    if (auto* a = std::get_if<LogEvent>(&action)) {
      static const std::set<std::string> kShown = {"rerun",     "segments_lost", "segment_adopted", "content_changed",
                                                   "verify_ok", "verify_failed", "verify_skipped",  "executor_stopped"};
      if (!kShown.contains(a->kind)) return "";
      auto field = [&](const std::string& name) {
        auto at = a->json.find("\"" + name + "\":");
        if (at == std::string::npos) return std::string();
        at += name.size() + 3;
        auto end = a->json.find_first_of(",}", at);
        return " " + name + "=" + a->json.substr(at, end - at);
      };
      return "log " + a->kind + field("stage") + field("task") + field("count") + field("cause");
    }
    return "";
  }

  std::unique_ptr<Scheduler> core_ = std::make_unique<Scheduler>(Options{});
  TimeMs now_ = 0;
  std::vector<std::string> said_;
  std::vector<JournalRecord> journal_;
  std::vector<SetTimer> timers_;
  std::map<std::string, dag::ActionPlan> plans_;
  std::set<StageId> segment_stages_;
  std::map<TaskAttempt, SegmentId> segments_;
  std::uint64_t next_segment_ = 1;
};

TEST(SchedulerScripts, EachEventIsAnsweredAsWritten) {
  bool rewrite = std::getenv("ROPEWALK_SCRIPTS_REWRITE") != nullptr;
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(ROPEWALK_SCHEDULER_SCRIPTS)) {
    if (entry.path().extension() != ".txt") continue;
    ++files;
    std::ifstream in(entry.path());
    std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>()), ran;
    Script script;
    for (const std::string& line : [&] {
           std::vector<std::string> lines;
           std::stringstream stream(text);
           for (std::string l; std::getline(stream, l);) lines.push_back(l);
           return lines;
         }()) {
      if (line.starts_with("    ")) continue;  // an answer of the last time
      ran += line + "\n";
      if (line.empty() || line[0] == '#') continue;
      for (const std::string& said : script.Run(line)) ran += "    " + said + "\n";
    }
    if (rewrite) {
      std::ofstream(entry.path()) << ran;
      continue;
    }
    EXPECT_EQ(text, ran) << entry.path();
  }
  EXPECT_GE(files, 12u);
  EXPECT_FALSE(rewrite) << "the scripts were written anew: read the diff";
}

}  // namespace
}  // namespace ropewalk::scheduler
