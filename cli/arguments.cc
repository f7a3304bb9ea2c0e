// The only file that includes CLI11.
#include <CLI/CLI.hpp>

#include <cstdlib>
#include <set>

#include "base/nearest.h"
#include "cli/invocation.h"
#include "cli/version.h"

namespace ropewalk::cli {
namespace {

constexpr char kOutput[] = "table, json or jsonl";

// One verb of the command: its CLI11 application and the name by which main() knows it.
class Parser {
 public:
  explicit Parser(Invocation* out)
      : out_(out), app_("Ropewalk runs batch jobs and trains models: in this process, or on a master's workers.", "ropewalk") {
    app_.require_subcommand(1);
    app_.set_version_flag("--version", std::string("ropewalk ") + kVersion);
    // They mean the same before the verb and after it.
    AddGlobals(&app_);
    for (const auto& [flag, key] : {std::pair("--master", "client.master"), std::pair("--token-file", "client.token_file")})
      app_.add_option_function<std::string>(
              flag,
              [this, flag = std::string(flag), key = std::string(key)](const std::string& value) {
                before_verb_.push_back({key, value, "flag " + flag});
              },
              "for verbs that ask a master")
          ->type_name(key == std::string("client.master") ? "HOST:PORT" : "FILE");
    AddLaunch();
    AddStart();
    AddJobs();
    AddOthers();
    app_.footer(
        "Exit codes: 0 ok, 1 job failed, 2 usage, 3 not found, 4 not allowed in, 5 unreachable, 6 no worker fits, 7 cancelled, 8 versions "
        "differ,\n"
        "70 internal, 124 timeout, 130 interrupted. Every value may also come from ROPEWALK_SECTION__KEY or --config FILE (TOML).");
  }

  Status Parse(std::vector<std::string> args) {
    if (!args.empty() && args.front() == "help") {  // `ropewalk help start dev` is `ropewalk start dev --help`
      args.erase(args.begin());
      args.emplace_back("--help");
    }
    DropBorder(&args);
    std::reverse(args.begin(), args.end());  // CLI11 takes them from the back
    try {
      app_.parse(args);
    } catch (const CLI::CallForHelp&) {
      out_->text = app_.help();  // of the deepest verb, with its whole path
      const std::string options = "[OPTIONS]\n";
      if (std::size_t at = out_->text.find(options); at != std::string::npos && TakesJob(Deepest()))
        out_->text.replace(at, options.size(), "[FLAGS] JOB [ARGUMENTS OF THE JOB]\n");
      return {};
    } catch (const CLI::CallForVersion& version) {
      out_->text = std::string(version.what()) + "\n";
      return {};
    } catch (const CLI::ExtrasError&) {
      return Unknown(Deepest());
    } catch (const CLI::ParseError& error) {
      return Wrong(error.what());
    }
    if (before_verb_.empty()) return {};
    // Of the verb's own flags, which come later, the last one wins.
    if (client_verbs_.contains(out_->verb)) {
      out_->flags.insert(out_->flags.begin(), before_verb_.begin(), before_verb_.end());
      return {};
    }
    return Status(Code::kInvalid, "CLI01", "ropewalk " + out_->verb + ": it takes no " + before_verb_.front().origin.substr(5),
                  "that is for verbs that ask a master", "leave it out");
  }

 private:
  CLI::App* Verb(CLI::App* parent, const std::string& name, const std::string& help) {
    CLI::App* app = parent->add_subcommand(name, help);
    std::string verb = parent == &app_ ? name : parent->get_name() + " " + name;
    app->final_callback([this, app, verb] {
      out_->verb = verb;
      out_->launch = app->remaining();  // empty but for run and submit
    });
    AddGlobals(app);
    return app;
  }
  void AddGlobals(CLI::App* app) {
    app->add_option_function<std::string>(
           "--output",
           [this](const std::string& text) {
             if (!ParseOutputForm(text, &out_->output))
               throw CLI::ValidationError("--output", "takes " + std::string(kOutput) + ", not \"" + text + "\"");
             out_->output_given = true;
           },
           "how results and errors are printed: " + std::string(kOutput))
        ->type_name("FORM");
    app->add_option("--config", out_->config_file, "TOML file with [client], [master], [worker], [dev] and [job]")->type_name("FILE");
  }
  CLI::App* Group(const std::string& name, const std::string& help) {
    CLI::App* app = app_.add_subcommand(name, help);
    app->require_subcommand(1);
    return app;
  }
  // A flag that sets a configuration key.
  void Key(CLI::App* app, const std::string& flag, const std::string& key, const std::string& type, const std::string& help) {
    app->add_option_function<std::string>(
           flag, [this, flag, key](const std::string& value) { out_->flags.push_back({key, value, "flag " + flag}); }, help)
        ->type_name(type);
  }
  void ForJob(CLI::App* app, const std::string& flag, const std::string& variable, const std::string& type, const std::string& help) {
    app->add_option_function<std::string>(
           flag, [this, variable](const std::string& value) { out_->launch_environment.emplace_back(variable, value); }, help)
        ->type_name(type);
  }
  void Client(CLI::App* app) {
    client_verbs_.insert(app->get_parent() == &app_ ? app->get_name() : app->get_parent()->get_name() + " " + app->get_name());
    Key(app, "--master", "client.master", "HOST:PORT", "the master (ROPEWALK_MASTER; else 127.0.0.1:7077)");
    Key(app, "--token-file", "client.token_file", "FILE", "the cluster's token (ROPEWALK_TOKEN_FILE; else ~/.ropewalk/token)");
  }

  void Rank(CLI::App* app, const std::string& help) {
    app->add_option_function<std::uint32_t>("--rank", [this](std::uint32_t rank) { out_->rank = rank; }, help)->type_name("N");
  }

  void Quiet(CLI::App* app) {
    app->add_flag_callback(
        "-q,--quiet", [this] { out_->launch_environment.emplace_back("ROPEWALK_QUIET", "1"); },
        "say nothing of the job's progress and end; errors are told all the same");
  }

  void AddLaunch() {
    CLI::App* run = Verb(&app_, "run", "run a job in this process: no daemon, no port");
    CLI::App* submit = Verb(&app_, "submit", "send a job to a master and follow it");
    for (CLI::App* app : {run, submit}) {
      app->prefix_command();
      ForJob(app, "--name", "ROPEWALK_NAME", "TEXT", "what the job is called in lists");
      ForJob(app, "--partitions", "ROPEWALK_PARTITIONS", "N", "parts of every shuffle that names no number itself (from the slots)");
      ForJob(app, "--verify", "ROPEWALK_VERIFY", "on|off", "run one task of each stage twice and compare (on)");
      Quiet(app);
      app->footer(
          "JOB is a built-in job or the path of your own executable:\n"
          "  wordcount INPUT... -o OUT       words and their counts\n"
          "  sort INPUT... -o OUT            lines in byte order\n"
          "  grep PATTERN INPUT... -o OUT    lines that hold the pattern\n"
          "  ./my_job [-- ITS ARGUMENTS]\n"
          "`ropewalk " +
          app->get_name() + " wordcount --help` tells more. The flags above may also follow JOB.");
    }
    // Their own programs know their flags and tell their help.
    CLI::App* train = Verb(&app_, "train", "train a model: in this process, or with --master on a cluster");
    CLI::App* bench = Group("bench", "measure what the machines can do");
    for (CLI::App* app :
         {train, Verb(bench, "collective", "collectives by size, algorithm and wire: here, or with --master on a cluster")}) {
      app->prefix_command();
      app->set_help_flag();
      Quiet(app);
      Client(app);
    }
    ForJob(run, "--threads", "ROPEWALK_THREADS", "N", "cores to use (all)");
    ForJob(run, "--memory", "ROPEWALK_MEMORY", "BYTES", "memory for shuffled data, like 2G; more goes to disk");
    Client(submit);
    submit->add_flag_callback(
        "--detach", [this] { out_->launch_environment.emplace_back("ROPEWALK_DETACH", "1"); }, "print the job's id and leave");
  }

  void AddStart() {
    CLI::App* start = Group("start", "start a master, a worker, or both");
    CLI::App* dev = Verb(start, "dev", "a master and workers on 127.0.0.1, until Ctrl-C");
    Key(dev, "--dir", "dev.dir", "FOLDER", "state and token (~/.ropewalk/dev, and the token in ~/.ropewalk/token)");
    Key(dev, "--port", "dev.port", "PORT", "of the master (7077); 0: any free one, and it is printed");
    Key(dev, "--workers", "dev.workers", "N", "worker daemons (2)");
    Key(dev, "--slots", "dev.slots", "N", "tasks at a time on each worker (the cores, divided among the workers)");
    Key(dev, "--memory", "dev.memory", "BYTES", "of each worker for shuffled data (half of the machine's, divided among the workers)");
    CLI::App* master = Verb(start, "master", "the daemon that accepts and schedules jobs");
    Key(master, "--listen", "master.listen", "HOST:PORT", "loopback only, as long as there is no TLS (127.0.0.1:7077)");
    Key(master, "--dir", "master.dir", "FOLDER", "journal, artifacts and logs (~/.ropewalk/master)");
    Key(master, "--token-file", "master.token_file", "FILE", "written with mode 0600 when missing (~/.ropewalk/token)");
    master->add_option("--ready-fd", out_->ready_fd)->group("");  // for `start dev`
    CLI::App* worker = Verb(start, "worker", "the daemon that runs tasks");
    Key(worker, "--join", "worker.join", "HOST:PORT", "the master (127.0.0.1:7077)");
    Key(worker, "--token-file", "worker.token_file", "FILE", "the cluster's token (~/.ropewalk/token)");
    Key(worker, "--listen", "worker.listen", "HOST:PORT", "where other workers read blocks (127.0.0.1:0)");
    Key(worker, "--dir", "worker.dir", "FOLDER", "spilled blocks, artifacts, logs (~/.ropewalk/worker)");
    Key(worker, "--slots", "worker.slots", "N", "tasks at a time (all cores)");
    Key(worker, "--memory", "worker.memory", "BYTES", "for shuffled data; more goes to disk (half of the machine's)");
    Key(worker, "--name", "worker.name", "TEXT", "in lists and logs (the host's name and the process id)");
    Key(worker, "--drain-timeout", "worker.drain_timeout", "SECONDS", "how long SIGTERM waits for running tasks and their jobs (60)");
  }

  void AddJobs() {
    CLI::App* jobs = Group("job", "list, show, cancel and wait for jobs");
    CLI::App* list = Verb(jobs, "list", "the newest jobs first");
    Client(list);
    list->add_option("--limit", out_->limit, "at most so many (100)")->check(CLI::Range(1, 100'000))->type_name("N");
    for (const auto& [name, help] : {std::pair<const char*, const char*>{"show", "one job: stages, progress, why it waits or failed"},
                                     {"cancel", "stop a job"},
                                     {"wait", "until the job is over; exits as the job did"}}) {
      CLI::App* app = Verb(jobs, name, help);
      Client(app);
      app->add_option("JOB", out_->job_name, "j-713")->required();
      if (std::string(name) == "wait") {
        app->add_option_function<double>(
               "--timeout", [this](double s) { out_->timeout_ms = static_cast<std::int64_t>(s * 1000); }, "give up then (exit 124)")
            ->check(CLI::Range(0.0, 1e9))
            ->type_name("SECONDS");
      }
    }
    CLI::App* metrics = Verb(jobs, "metrics", "what the ranks of a job's trainings have measured, step by step");
    Client(metrics);
    metrics->add_option("JOB", out_->job_name, "j-713, or the file of a job that ran here (ROPEWALK_METRICS)")->required();
    metrics->add_option("--points", out_->points, "of each series at most (20; as JSON all that are kept)")
        ->check(CLI::Range(1, 1'000'000))
        ->type_name("N");
    Rank(metrics, "of that rank only");
    CLI::App* logs = Verb(&app_, "logs", "what a job's main wrote");
    Client(logs);
    logs->add_option("JOB", out_->job_name, "j-713")->required();
    logs->add_flag("-f,--follow", out_->follow, "wait for more until the job is over");
    logs->add_option("--stream", out_->stream,
                     "driver (stdout of main), stderr (its stderr), executor (of all others), events; else the first two")
        ->check(CLI::IsMember({"driver", "stderr", "executor", "events"}))
        ->type_name("NAME");
    Rank(logs, "of the executors that this rank of a gang ran in, and which these are");
    CLI::App* explain = Verb(&app_, "explain", "the plan of a job's current action and of its last ones, with counts; why it waits");
    Client(explain);
    explain->add_option("JOB", out_->job_name, "j-713")->required();
  }

  void AddOthers() {
    CLI::App* workers = Group("worker", "look at workers");
    Client(Verb(workers, "list", "workers, their slots and memory"));
    CLI::App* config = Group("config", "look at the configuration");
    Verb(config, "show", "every key, its value and where it comes from");
    Verb(&app_, "version", "of this program");
  }

  // The subcommand that was being parsed.
  CLI::App* Deepest() {
    CLI::App* app = &app_;
    while (!app->get_subcommands().empty()) app = app->get_subcommands().back();
    return app;
  }

  Status Wrong(const std::string& what) {
    CLI::App* app = Deepest();
    std::string path = Path(app);
    // An unknown verb of a group leaves "a subcommand is required", which tells nothing about the word that was typed.
    if (!app->get_subcommands([](const CLI::App*) { return true; }).empty() && app->remaining_size() > 0) return Unknown(app);
    return Status(Code::kInvalid, "CLI01", path + ": " + what, "the command line cannot be understood",
                  "`" + path + " --help` shows what it takes");
  }

  Status Unknown(CLI::App* app) {
    while (app->remaining().empty() && app->get_parent() != nullptr) app = app->get_parent();
    std::string word = app->remaining().empty() ? "" : app->remaining().front();
    std::vector<std::string> names;
    for (const CLI::App* sub : app->get_subcommands([](const CLI::App*) { return true; })) names.push_back(sub->get_name());
    bool flag = !word.empty() && word[0] == '-';
    if (flag) {
      names.clear();
      for (const CLI::Option* option : app->get_options()) {
        for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
        for (const std::string& name : option->get_snames()) names.push_back("-" + name);
      }
      word = word.substr(0, word.find('='));
    }
    std::string near = NearestName(word, names), path = Path(app);
    return Status(Code::kInvalid, "CLI01",
                  path + ": unknown " +
                      (flag            ? "flag "
                       : names.empty() ? "argument "
                                       : "command ") +
                      "\"" + word + "\"",
                  names.empty() ? "it takes no more" : "there is none of that name",
                  near.empty() ? "`" + path + " --help` shows what it takes" : "did you mean \"" + near + "\"?");
  }

  // `run -- wordcount` is `run wordcount`. CLI11 would take what follows the border for a verb of ours.
  static void DropBorder(std::vector<std::string>* args) {
    bool verb = false;
    for (std::size_t i = 0; i < args->size(); ++i) {
      const std::string& arg = (*args)[i];
      if (arg == "--" && verb) {
        args->erase(args->begin() + static_cast<std::ptrdiff_t>(i));
        return;
      }
      if (arg.size() > 1 && arg[0] == '-') {
        const bool alone = arg == "--detach" || arg == "-q" || arg == "--quiet" || arg == "--help" || arg == "-h" || arg == "--version" ||
                           arg.find('=') != std::string::npos;
        if (!alone) ++i;  // its value
        continue;
      }
      if (verb || (arg != "run" && arg != "submit")) return;
      verb = true;
    }
  }

  static bool TakesJob(const CLI::App* app) { return app->get_name() == "run" || app->get_name() == "submit"; }

  static std::string Path(const CLI::App* app) {
    return app->get_parent() == nullptr ? app->get_name() : Path(app->get_parent()) + " " + app->get_name();
  }

  Invocation* out_;
  CLI::App app_;
  std::vector<ConfigEntry> before_verb_;
  std::set<std::string> client_verbs_;
};

}  // namespace

bool ParseOutputForm(const std::string& text, job::OutputForm* form) {
  if (text == "table") return *form = job::OutputForm::kTable, true;
  if (text == "json") return *form = job::OutputForm::kJson, true;
  if (text == "jsonl") return *form = job::OutputForm::kJsonLines, true;
  return false;
}

job::OutputForm GuessOutputForm(const std::vector<std::string>& args) {
  job::OutputForm form = job::OutputForm::kTable;
  if (const char* variable = std::getenv("ROPEWALK_OUTPUT"); variable != nullptr) ParseOutputForm(variable, &form);
  for (std::size_t i = 0; i < args.size() && args[i] != "--"; ++i) {
    if (args[i].starts_with("--output=")) ParseOutputForm(args[i].substr(9), &form);
    if (args[i] == "--output" && i + 1 < args.size()) ParseOutputForm(args[i + 1], &form);
  }
  return form;
}

Result<Invocation> ParseArguments(const std::vector<std::string>& args) {
  Invocation invocation;
  if (const char* variable = std::getenv("ROPEWALK_OUTPUT");
      variable != nullptr && *variable != '\0' && !ParseOutputForm(variable, &invocation.output))
    return Status(Code::kInvalid, "CLI01", std::string("ROPEWALK_OUTPUT: \"") + variable + "\" is no form of output",
                  std::string("it takes ") + kOutput, "mend the variable, or unset it");
  if (const char* variable = std::getenv("ROPEWALK_OUTPUT"); variable != nullptr && *variable != '\0') invocation.output_given = true;
  Parser parser(&invocation);
  RETURN_IF_ERROR(parser.Parse(args));
  return invocation;
}

}  // namespace ropewalk::cli
