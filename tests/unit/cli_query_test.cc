// The verbs that ask a master, against a small one that is played here: what is printed, and the exit codes.
#include <glog/logging.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <thread>

#include "cli/command.h"
#include "cli/print.h"
#include "cli/start.h"
#include "proto/client.pb.h"
#include "tests/unit/played_master.h"

namespace ropewalk::cli {
namespace {

class QueryTest : public testing::Test {
 protected:
  QueryTest() {
    // The master that is played here lives in this process: what its server logs must not get between what the command prints.
    FLAGS_minloglevel = google::NUM_SEVERITIES;
    char name[] = "/tmp/ropewalk-query-XXXXXX";
    root_ = mkdtemp(name);
    setenv("ROPEWALK_HOME", root_.c_str(), 1);
    std::ofstream(root_ + "/token") << rpc::kTestToken;
    std::filesystem::permissions(root_ + "/token", std::filesystem::perms(0600));
  }
  ~QueryTest() override { std::filesystem::remove_all(root_); }

  struct Outcome {
    int code;
    std::string out, err;
  };
  Outcome Run(std::vector<std::string> args, bool with_master = true) {
    if (with_master) args.insert(args.end(), {"--master", master_.address()});
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    Outcome outcome;
    outcome.code = RunCommand(args);
    outcome.out = testing::internal::GetCapturedStdout();
    outcome.err = testing::internal::GetCapturedStderr();
    return outcome;
  }
  static wire::JobState Job(const std::string& phase) {
    wire::JobState job;
    job.set_job(713);
    job.set_name("evil\nname\x1b[31m");
    job.set_user("me");
    job.set_phase(phase);
    job.set_version(3);
    job.set_submitted_us(1'700'000'000'000'000);
    if (phase == "succeeded" || phase == "failed" || phase == "cancelled") job.set_finished_us(1'700'000'001'500'000);
    wire::StageState* stage = job.add_stages();
    stage->set_name("ReadLines > FlatMap");
    stage->set_tasks(10);
    stage->set_done(4);
    stage->set_running(2);
    stage->set_running_permille(1500);
    job.add_pending_reasons("no worker has joined");
    job.set_plan_text("the plan\n");
    return job;
  }
  void AnswerJob(const wire::JobState& job) {
    master_.answer = [job](const wire::ClientRequest& request, wire::ClientResponse* response) {
      if (request.has_list_jobs()) *response->mutable_job_list()->add_jobs() = job;
      if (request.has_job_query()) {
        EXPECT_EQ(request.job_query().job(), 713u);
        *response->mutable_job_state() = job;
      }
      if (request.has_cancel_job()) response->mutable_ok();
    };
  }
  rpc::PlayedMaster master_;
  std::string root_;
};

TEST_F(QueryTest, ListsAreTablesOrJson) {
  AnswerJob(Job("running"));
  Outcome table = Run({"job", "list"});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_NE(table.out.find("j-713  running  4/10"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("evil\\nname\\x1b[31m"), std::string::npos) << "a name cannot forge a line: " << table.out;
  Outcome lines = Run({"job", "list", "--output", "jsonl"});
  EXPECT_EQ(std::count(lines.out.begin(), lines.out.end(), '\n'), 1) << lines.out;
  EXPECT_EQ(lines.out.substr(0, 37), "{\"job\":\"j-713\",\"name\":\"evil\\nname\\u00") << lines.out;
  Outcome json = Run({"job", "list", "--output", "json"});
  EXPECT_EQ(json.out.substr(0, 9), "{\"jobs\":[") << json.out;

  master_.answer = [](const wire::ClientRequest&, wire::ClientResponse* response) {
    wire::WorkerState* worker = response->mutable_worker_list()->add_workers();
    worker->set_worker(12);
    worker->set_name("rack1");
    worker->set_address("127.0.0.1:9");
    worker->set_state("ready");
    worker->set_slots(4);
    worker->set_busy(1);
  };
  EXPECT_NE(Run({"worker", "list"}).out.find("rack1   ready  1/4"), std::string::npos) << Run({"worker", "list"}).out;
  EXPECT_EQ(Run({"worker", "list", "--output", "jsonl"}).out.substr(0, 40), "{\"worker\":\"w12\",\"name\":\"rack1\",\"address\"");
}

TEST_F(QueryTest, JobsThatAnOlderVersionJournalledHaveNoTimeAndNoPlan) {
  wire::JobState job = Job("succeeded");
  job.set_submitted_us(1'000'000);
  job.clear_finished_us();
  job.clear_plan_text();
  AnswerJob(job);
  EXPECT_NE(Run({"job", "show", "j-713"}).out.find("time       -\n"), std::string::npos) << Run({"job", "show", "j-713"}).out;
  EXPECT_EQ(Run({"job", "show", "j-713", "--output", "json"}).out.find("duration_ms"), std::string::npos);
  EXPECT_NE(Run({"explain", "j-713"}).out.find("no plan is kept"), std::string::npos) << Run({"explain", "j-713"}).out;
}

TEST_F(QueryTest, ShowAndExplain) {
  AnswerJob(Job("running"));
  Outcome show = Run({"job", "show", "j-713"});
  EXPECT_EQ(show.code, 0);
  EXPECT_NE(show.out.find("waits for  no worker has joined"), std::string::npos) << show.out;
  EXPECT_NE(show.out.find("4/10"), std::string::npos) << show.out;
  EXPECT_NE(Run({"explain", "j-713"}).out.find("the plan\n"), std::string::npos);
  EXPECT_NE(Run({"explain", "j-713"}).out.find("4/10  55%"), std::string::npos) << "a stage's counts: " << Run({"explain", "j-713"}).out;
  Outcome unknown = Run({"job", "show", "nonsense"});
  EXPECT_EQ(unknown.code, 3);
  EXPECT_NE(unknown.err.find("error[CLI07]"), std::string::npos) << unknown.err;
}

TEST_F(QueryTest, AFinishedJobHasItsTimesAndItsPlans) {
  wire::JobState job = Job("succeeded");
  job.set_started_us(job.submitted_us() + 500'000);
  job.clear_plan_text();
  job.clear_stages();
  job.set_past_forgotten(3);
  wire::ActionState* action = job.add_past();
  action->set_sequence(4);
  action->set_plan_text("action 4: WriteText\n");
  action->set_published(true);
  wire::StageState* stage = action->add_stages();
  stage->set_name("ReadLines");
  stage->set_tasks(10);
  stage->set_done(10);
  stage->set_ms(1234);
  stage->mutable_counters()->set_records_in(77);
  stage->mutable_counters()->set_bytes_in(1'500'000);
  AnswerJob(job);
  std::string text = Run({"explain", "j-713"}).out;
  for (const char* part : {"3 earlier actions are not kept", "action 4: WriteText\n", "10/10", "100%", "77", "1.43 MiB", "1.23 s"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in\n" << text;
  std::string json = Run({"explain", "j-713", "--output", "json"}).out;
  EXPECT_NE(json.find("\"past\":[{\"action\":4,"), std::string::npos) << json;
  EXPECT_NE(json.find("\"records_in\":77"), std::string::npos) << json;
  job.add_argv("./word_count");
  job.add_argv("books/*.txt");
  job.add_argv("out\n");
  job.add_outputs("/data/out");
  job.set_workers_lost(2);
  wire::LostWorker* lost = job.add_lost_workers();
  lost->set_name("worker-2");
  lost->set_tasks(2);
  AnswerJob(job);
  EXPECT_NE(Run({"explain", "j-713"}).out.find("worker-2 was lost, and with it the work of 2 tasks"), std::string::npos);
  wire::JobState built_in = job;
  built_in.set_argv(0, "ropewalk submit");
  AnswerJob(built_in);
  EXPECT_NE(Run({"job", "show", "j-713"}).out.find("arguments  ropewalk submit 'books/*.txt' "), std::string::npos);
  AnswerJob(job);
  std::string shown_json = Run({"job", "show", "j-713", "--output", "json"}).out;
  EXPECT_NE(shown_json.find("\"outputs\":[\"/data/out\"]"), std::string::npos) << shown_json;
  EXPECT_NE(shown_json.find("\"lost_workers\":[{\"name\":\"worker-2\",\"tasks\":2}]"), std::string::npos) << shown_json;
  std::string show = Run({"job", "show", "j-713"}).out;
  for (const char* line :
       {"arguments  ./word_count 'books/*.txt' out\\n\n", "output     /data/out\n", "exit code  0\n", "lost       1 workers before these\n",
        "lost       worker-2 was lost, and with it", "more: `ropewalk explain j-713`"})
    EXPECT_NE(show.find(line), std::string::npos) << line << " is missing in\n" << show;
  EXPECT_NE(show.find("time       1.50 s\n"), std::string::npos) << show;
  EXPECT_EQ(show.find("started    -\n"), std::string::npos) << show;
  EXPECT_EQ(show.find("finished   -\n"), std::string::npos) << show;
}

TEST_F(QueryTest, WaitEndsAsTheJobDid) {
  struct Case {
    const char* phase;
    Code code;
    int main_exit, exit;
  };
  for (const Case& c : {Case{"succeeded", Code::kOk, 0, 0},
                        {"failed", Code::kUserError, 0, 1},
                        {"failed", Code::kOk, 7, 1},
                        {"cancelled", Code::kOk, 0, 7},
                        {"failed", Code::kUnplaceable, 0, 6},
                        {"failed", Code::kInternal, 0, 70}}) {
    wire::JobState job = Job(c.phase);
    job.set_main_exit(c.main_exit);
    if (c.code != Code::kOk) {
      job.mutable_failure()->set_code(static_cast<std::uint32_t>(c.code));
      job.mutable_failure()->set_tag("T01");
      job.mutable_failure()->set_what("what happened");
    }
    AnswerJob(job);
    Outcome outcome = Run({"job", "wait", "j-713"});
    EXPECT_EQ(outcome.code, c.exit) << outcome.err;
    EXPECT_EQ(outcome.err.empty(), c.exit == 0) << outcome.err;
    if (c.code != Code::kOk) {
      EXPECT_NE(outcome.err.find("error[T01] what happened"), std::string::npos) << outcome.err;
    }
  }
  AnswerJob(Job("running"));
  Outcome late = Run({"job", "wait", "j-713", "--timeout", "0.05"});
  EXPECT_EQ(late.code, 124) << late.err;
}

TEST_F(QueryTest, CancelSaysWhatIsTrue) {
  AnswerJob(Job("running"));
  EXPECT_EQ(Run({"job", "cancel", "j-713"}).out, "job j-713 is being cancelled\n");
  AnswerJob(Job("succeeded"));
  EXPECT_EQ(Run({"job", "cancel", "j-713"}).out, "job j-713 is over: succeeded\n");
}

TEST_F(QueryTest, LogsCopyBothStreamsAndFollowToTheEnd) {
  const std::map<std::string, std::string> logs = {{"driver", "out 1\nout 2\n"}, {"stderr", "err\n"}, {"events", "{}\n"}};
  int polls = 0;
  master_.answer = [&](const wire::ClientRequest& request, wire::ClientResponse* response) {
    const wire::ReadLog& read = request.read_log();
    wire::LogChunk* chunk = response->mutable_log_chunk();
    const std::string& log = logs.at(read.stream());
    // Five bytes at a time, and now and then nothing yet.
    std::string data = ++polls % 3 == 0 ? "" : log.substr(read.offset(), 5);
    chunk->set_data(data);
    chunk->set_next_offset(read.offset() + data.size());
    chunk->set_end(read.offset() + data.size() == log.size());
  };
  Outcome followed = Run({"logs", "-f", "j-713"});
  EXPECT_EQ(followed.code, 0);
  EXPECT_EQ(followed.out, logs.at("driver"));
  EXPECT_EQ(followed.err, logs.at("stderr"));
  EXPECT_EQ(Run({"logs", "-f", "--stream", "events", "j-713"}).out, logs.at("events"));
}

TEST_F(QueryTest, LogsThatAreEmptySayWhy) {
  const auto answer = [&](wire::JobState job) {
    master_.answer = [job](const wire::ClientRequest& request, wire::ClientResponse* response) {
      if (request.has_job_query()) *response->mutable_job_state() = job;
      if (!request.has_read_log()) return;
      if (request.read_log().stream() == "events") response->mutable_log_chunk()->set_data(request.read_log().offset() == 0 ? "{}\n" : "");
      response->mutable_log_chunk()->set_next_offset(request.read_log().stream() == "events" ? 3 : 0);
      response->mutable_log_chunk()->set_end(job.phase() != "pending");
    };
  };
  wire::JobState failed = Job("failed");
  failed.mutable_failure()->set_code(static_cast<std::uint32_t>(Code::kNotFound));
  failed.mutable_failure()->set_tag("T01");
  failed.mutable_failure()->set_what("a library is missing");
  failed.mutable_failure()->set_why("no worker has it");
  failed.mutable_failure()->set_fix("install it");
  answer(failed);
  for (const std::vector<std::string>& how : {std::vector<std::string>{}, {"-f"}, {"--stream", "stderr"}}) {
    std::vector<std::string> args = {"logs", "j-713"};
    args.insert(args.end(), how.begin(), how.end());
    Outcome outcome = Run(args);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, "") << "what is no log goes to stderr";
    EXPECT_NE(outcome.err.find("job j-713 wrote nothing"), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("; it failed\nerror[T01] a library is missing\n  why: no worker has it   fix: install it\n"),
              std::string::npos)
        << outcome.err;
  }
  EXPECT_NE(Run({"logs", "j-713", "--stream", "stderr"}).err.find("to its log \"stderr\""), std::string::npos);
  EXPECT_EQ(Run({"logs", "j-713", "--stream", "events"}).err, "") << "one that holds something speaks for itself";
  EXPECT_EQ(Run({"logs", "j-713", "--output", "json"}).err, "");
  answer(Job("succeeded"));
  EXPECT_EQ(Run({"logs", "j-713"}).err, "job j-713 wrote nothing; it succeeded\n");
  answer(Job("pending"));
  EXPECT_EQ(Run({"logs", "j-713"}).err, "job j-713 has written nothing so far; it is pending\nwaits for  no worker has joined\n");
}

TEST_F(QueryTest, FailuresHaveThreePartsAndTheirExitCode) {
  Outcome unreachable = Run({"job", "wait", "j-1", "--timeout", "0.1", "--master", "127.0.0.1:1"}, false);
  EXPECT_EQ(unreachable.code, 5) << unreachable.err;
  EXPECT_NE(unreachable.err.find("127.0.0.1:1"), std::string::npos) << unreachable.err;
  EXPECT_NE(unreachable.err.find("fix: "), std::string::npos) << unreachable.err;
  std::ofstream(root_ + "/other") << std::string(64, 'a');
  std::filesystem::permissions(root_ + "/other", std::filesystem::perms(0600));
  AnswerJob(Job("running"));
  EXPECT_EQ(Run({"job", "list", "--token-file", root_ + "/other"}).code, 4);
  std::filesystem::permissions(root_ + "/other", std::filesystem::perms(0644));
  EXPECT_EQ(Run({"job", "list", "--token-file", root_ + "/other"}).code, 4);
  for (const std::string& token : {root_ + "/token", root_ + "/no_token"}) {
    Outcome address = Run({"job", "list", "--master", "localhost:99999", "--token-file", token}, false);
    EXPECT_EQ(address.code, 2) << address.err;
    EXPECT_NE(address.err.find("error[NET02]"), std::string::npos) << "and not the token: " << address.err;
    EXPECT_NE(address.err.find("65535"), std::string::npos) << address.err;
  }
  Outcome json = Run({"job", "lst", "--output", "json"}, false);
  EXPECT_EQ(json.code, 2);
  EXPECT_EQ(json.err.substr(0, 41), "{\"error\":{\"code\":\"invalid\",\"tag\":\"CLI01\",") << json.err;
  master_.answer = [](const wire::ClientRequest&, wire::ClientResponse* response) {
    response->mutable_failure()->set_code(static_cast<std::uint32_t>(Code::kNotFound));
    response->mutable_failure()->set_what("no such job");
  };
  EXPECT_EQ(Run({"job", "show", "j-5"}).code, 3);
}

TEST_F(QueryTest, LocalVerbs) {
  EXPECT_EQ(Run({"version"}, false).out.substr(0, 9), "ropewalk ");
  EXPECT_EQ(Run({"version", "--output", "json"}, false).out.substr(0, 12), "{\"version\":\"");
  EXPECT_NE(Run({"config", "show"}, false).out.find("client.master"), std::string::npos);
  EXPECT_EQ(Run({}, false).code, 2);
}

TEST(Start, AnOpenAddressIsRefused) {
  for (const char* address : {"0.0.0.0:0", "[::]:0"}) {
    Status status = RefuseOpenAddress(address);
    EXPECT_EQ(status.tag(), "SEC01") << address << " " << status.ToString();
    EXPECT_EQ(ExitCode(status.code()), 2);
    EXPECT_NE(status.fix().find("one machine"), std::string::npos) << status.ToString();
  }
  EXPECT_TRUE(RefuseOpenAddress("127.0.0.1:0").ok());
  EXPECT_TRUE(RefuseOpenAddress("localhost:0").ok());
}

TEST(Print, TablesAlignByCharacters) {
  EXPECT_EQ(Table({"A", "NAME"}, {{"ü", "x"}, {"long", "y"}}), "A     NAME\nü     x\nlong  y\n");
  setenv("TZ", "CET-1", 1);
  tzset();
  EXPECT_EQ(HumanTime(1'700'000'000'000'000), "2023-11-14 23:13:20 +0100");
  unsetenv("TZ");
  tzset();
  EXPECT_EQ(HumanDuration(420), "0.42 s");
  EXPECT_EQ(HumanDuration(200'000), "3 min 20 s");
  EXPECT_EQ(HumanDuration(7'500'000), "2 h 5 min");
}

}  // namespace
}  // namespace ropewalk::cli
