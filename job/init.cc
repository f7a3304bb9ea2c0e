#include "job/init.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <iostream>
#include <optional>
#include <thread>
#include <utility>

#include "base/forked_child.h"
#include "base/home_process.h"
#include "base/known_names.h"
#include "base/random.h"
#include "base/standard_descriptors.h"
#include "dag/operator_memory.h"
#include "dag/plan_failure.h"
#include "job/client/submit.h"
#include "job/embedded/embedded_backend.h"
#include "job/executor/executor_backend.h"
#include "job/interrupt.h"
#include "job/machine.h"
#include "job/options.h"
#include "job/report.h"
#include "worker/task/crash.h"
#include "worker/task/current_task.h"
#include "worker/task/exception.h"

// Says in the file itself that this executable is a job, for `ropewalk run` and `submit` (client/job_marker.h). A note outlives strip.
__asm__(
    ".pushsection .note.ropewalk.job, \"a\", @note\n"
    ".balign 4\n"
    ".long 9, 4, 1\n"  // bytes of the name and of what follows it, kind
    ".asciz \"Ropewalk\"\n"
    ".balign 4\n"
    ".long 1\n"
    ".popsection\n");

namespace ropewalk::job {
namespace {

extern "C" char** environ;

std::vector<std::string> ArgsOf(int argc, char** argv) {
  std::vector<std::string> args;
  for (int i = 0; i < argc; ++i) args.emplace_back(argv[i]);
  if (args.empty()) args.emplace_back("job");
  return args;
}

// Lets main see `kept`, a subsequence of its arguments.
void Rewrite(const std::vector<std::string>& kept, int& argc, char** argv) {
  int out = 0;
  for (int in = 0; in < argc && out < static_cast<int>(kept.size()); ++in)
    if (kept[static_cast<std::size_t>(out)] == argv[in]) argv[out++] = argv[in];
  if (out < argc) argv[out] = nullptr;
  argc = out;
}

// In a folder where everybody may write: what has our name there must be ours.
Result<std::string> SpillFolder() {
  const char* tmp = std::getenv("TMPDIR");
  std::string folder = std::string(tmp != nullptr && tmp[0] == '/' ? tmp : "/tmp") + "/ropewalk-" + std::to_string(getuid());
  auto refuse = [&](const std::string& why) {
    return Status(Code::kInvalid, "JOB08", "cannot use the spill folder " + folder, why, "let TMPDIR name a folder where you may write");
  };
  struct stat info = {};
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return refuse(std::strerror(errno));
  if (lstat(folder.c_str(), &info) != 0) return refuse(std::strerror(errno));
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid()) return refuse("what has that name is no folder of yours");
  return folder;
}

dag::Settings MakeSettings(const JobOptions& options, const std::vector<std::string>& args) {
  dag::Settings settings;
  settings.name = !options.name.empty() ? options.name : std::filesystem::path(args[0]).filename().string();
  settings.partitions = options.partitions;
  settings.operator_bytes = options.operator_bytes;  // 0: for the embedded backend or the master to choose
  settings.verify = options.verify;
  std::error_code error;
  settings.work_dir = std::filesystem::current_path(error).string();
  return settings;
}

// ---- what a process does when main is over, fails, or lets an exception out ------------------------------------------------------------

// The process that Init() ran in; set once by it.
std::optional<HomeProcess> home;

// A child that the job's code forked ends as it likes, and says, removes and serves nothing of its parent's.
bool InForkedChild() { return home.has_value() && !home->here(); }

constexpr int kElsewhereMs = 10'000;  // for main to fail too

// What the terminate handler does for main's thread; set once by Init. The handler is a plain function, so this cannot be an argument.
struct MainBorder {
  std::thread::id thread;
  std::function<void(const Status&)> fail;
  std::terminate_handler next = nullptr;
};
MainBorder* main_border = nullptr;

void OnTerminate() {
  MainBorder* border = main_border;
  if (border != nullptr && !InForkedChild() && std::this_thread::get_id() == border->thread && std::current_exception() != nullptr) {
    main_border = nullptr;
    std::string thrown;
    try {
      throw;
    } catch (...) {
      thrown = task::DescribeCurrentException();
    }
    border->fail(Status(Code::kUserError, "USER03", "main threw " + thrown,
                        "an exception left main, or a function that promised to throw none", "catch it in main, or mend what threw it"));
  }
  if (border != nullptr && border->next != nullptr) border->next();
  std::abort();
}

// exit() on a task's thread, or on one that user code started: the handlers of exit wait for that very thread.
bool OnAnotherThread() { return main_border != nullptr && std::this_thread::get_id() != main_border->thread; }

// A full disk shows when the last of what main printed is written.
Status FlushStdout() {
  std::cout.flush();
  if (std::fflush(stdout) != 0) return errno == EPIPE ? Status() : CannotPrint(errno);
  return std::cout.bad() || std::ferror(stdout) != 0 ? CannotPrint(EIO) : Status();
}

Status ExitCalled(int code) {
  const std::string call = "called exit(" + std::to_string(code) + ")", why = "that would end the job's process while its other tasks run";
  const task::CurrentTask* task = task::ThisCurrentTask();
  if (task == nullptr)
    return {Code::kUserError, "TASK05", "the job's code " + call + " on another thread than main's", why,
            "let that thread return, and main or a task decide; in a task throw an exception: the error then names the record"};
  return {Code::kUserError, "TASK05", task->name + " " + call, why + "; it stood at " + task::PlaceText(*task->cursor, task->precise),
          "throw an exception instead: the error then names the task and its record"};
}

// For what fails where the program cannot be ended in good order: in a forked child, and on a task's thread. Returns on others.
void FailOfNoMain(const Status& status, OutputForm form) {
  if (InForkedChild()) {
    PrintError(status, form);
    _exit(ExitCode(status.code()));
  }
  if (task::OnTaskThread()) throw dag::PlanFailure{status};
}

void GuardMain(std::function<void(const Status&)> fail) {
  main_border = new MainBorder{std::this_thread::get_id(), std::move(fail), std::get_terminate()};  // lives as long as the process
  std::set_terminate(OnTerminate);
}

// ---- embedded --------------------------------------------------------------------------------------------------------------------------

// Lives until the process exits, so that a Job that main keeps in a static object still finds its backend.
struct EmbeddedProcess {
  std::unique_ptr<EmbeddedBackend> backend;
  std::unique_ptr<InterruptWatch> watch;
  std::atomic<int> signal{0};
  OutputForm output = OutputForm::kTable;

  // On another thread than main's the handlers of exit would wait for that very thread.
  [[noreturn]] void EndAtOnce(const Status& status) {
    PrintError(status, output);
    std::fflush(nullptr);
    if (backend != nullptr) backend->AbandonOutputs();
    _exit(ExitCode(status.code()));
  }
  [[noreturn]] void Fail(const Status& status) {
    FailOfNoMain(status, output);
    if (OnAnotherThread()) EndAtOnce(status);
    int caught = signal.load();
    if (caught != 0) {
      std::fprintf(stderr, "\ninterrupted: the job was cancelled; no partial output was left\n");
      std::exit(caught == SIGINT ? 130 : ExitCode(Code::kCancelled));
    }
    PrintError(status, output);
    std::exit(ExitCode(status.code()));
  }
};

Job InitEmbedded(const JobOptions& options, std::vector<std::string> args) {
  EmbeddedOptions embedded;
  embedded.settings = MakeSettings(options, args);
  embedded.settings.slots = options.threads != 0 ? options.threads : Cores();
  std::string seed = SecureRandomBytes(sizeof embedded.settings.seed);
  std::memcpy(&embedded.settings.seed, seed.data(), sizeof embedded.settings.seed);
  embedded.settings.now_us =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  embedded.memory_bytes_max = options.memory_bytes != 0 ? options.memory_bytes : HalfOfMemory();
  if (embedded.settings.operator_bytes == 0)
    embedded.settings.operator_bytes = dag::OperatorBytesFor(embedded.memory_bytes_max, embedded.settings.slots);
  embedded.event_log_path = options.event_log;
  embedded.metrics_path = options.metrics;
  embedded.show_progress = options.output == OutputForm::kTable && !options.quiet;

  auto* process = new EmbeddedProcess;  // deleted by the exit handler
  process->output = options.output;
  Result<std::string> spill_folder = SpillFolder();
  if (!spill_folder.ok()) process->Fail(spill_folder.status());
  embedded.spill_dir = *std::move(spill_folder);
  Result<std::unique_ptr<EmbeddedBackend>> backend = EmbeddedBackend::Start(std::move(embedded));
  if (!backend.ok()) process->Fail(backend.status());
  process->backend = *std::move(backend);
  task::InstallCrashReport(options.output != OutputForm::kTable);
  process->watch = std::make_unique<InterruptWatch>(
      [process](int signal, int nth) {
        const int code = signal == SIGINT ? 130 : ExitCode(Code::kCancelled);
        process->signal.store(signal);
        std::size_t running = 0;
        // Main is told where it waits. One that computes by itself would not look: nothing of ours is in progress then.
        if (nth == 1 && process->backend->Interrupt(&running)) {
          if (running > 0)
            std::fprintf(stderr, "\ninterrupted: waiting for %zu running task%s to notice; once more (Ctrl-C) stops at once\n", running,
                         running == 1 ? "" : "s");
          return;
        }
        process->backend->AbandonOutputs();
        _exit(code);
      },
      2);
  on_exit(
      [](int code, void* arg) {
        auto* p = static_cast<EmbeddedProcess*>(arg);
        if (InForkedChild()) return;
        if (OnAnotherThread()) p->EndAtOnce(ExitCalled(code));
        p->watch.reset();
        p->backend->MainReturned(code);
        OutputForm output = p->output;
        delete p;
        Status flushed = FlushStdout();
        if (code != 0 || flushed.ok()) return;
        PrintError(flushed, output);
        _exit(ExitCode(flushed.code()));
      },
      process);
  auto fail = [process](const Status& status) { process->Fail(status); };
  GuardMain(fail);
  return Job(dag::SessionOptions{process->backend.get(), nullptr, fail, std::move(args)});
}

// ---- executor --------------------------------------------------------------------------------------------------------------------------

Job InitExecutor(int fd, std::vector<std::string> args) {
  Result<std::unique_ptr<ExecutorBackend>> started = ExecutorBackend::Start(fd);
  if (!started.ok()) {
    PrintError(started.status(), OutputForm::kTable);
    _exit(ExitCode(started.status().code()));
  }
  ExecutorBackend* backend = started->release();  // lives as long as the process: tasks are served until it ends
  auto fail = [backend](const Status& status) {
    FailOfNoMain(status, OutputForm::kTable);
    // The client prints the reason; here it would come a second time. Only the driver is asked for it, and where the call is no main's, the
    // driver's main may never make it: then this process ends by itself, and its tasks run elsewhere.
    if (!backend->job_failed()) backend->ReportFailure(status, OnAnotherThread() ? kElsewhereMs : -1);
    std::fflush(nullptr);
    _exit(ExitCode(status.code()));
  };
  on_exit(
      [](int code, void* arg) {
        if (InForkedChild()) return;
        if (OnAnotherThread()) {
          task::MarkExit();
          PrintError(ExitCalled(code), OutputForm::kTable);
          std::fflush(nullptr);
          _exit(code);
        }
        static_cast<ExecutorBackend*>(arg)->ServeUntilStopped(code);
      },
      backend);
  GuardMain(fail);
  return Job(dag::SessionOptions{backend, nullptr, fail, std::move(args)});
}

// ---- client ----------------------------------------------------------------------------------------------------------------------------

// As far as it can be told before the options are read.
// What executors get of the submitter's environment: how text and times are read, and what was declared.
std::vector<std::string> DeclaredEnvironment(const JobOptions& options) {
  std::vector<std::string> declared;
  for (char** at = environ; *at != nullptr; ++at) {
    std::string_view variable = *at;
    std::string_view name = variable.substr(0, variable.find('='));
    bool allowed = name == "LANG" || name == "LANGUAGE" || name == "TZ" || name.starts_with("LC_") || name == "ROPEWALK_OUTPUT" ||
                   name == "ROPEWALK_COMMAND__OUTPUT" || name == "ROPEWALK_QUIET" || name == "ROPEWALK_JOB__QUIET" ||
                   std::find(options.environment_names.begin(), options.environment_names.end(), name) != options.environment_names.end();
    if (allowed) declared.emplace_back(variable);
  }
  std::sort(declared.begin(), declared.end());
  return declared;
}

[[noreturn]] void RunClient(const JobOptions& options, std::vector<std::string> args, std::uint32_t cpu_level) {
  SubmitRequest request;
  request.options = options;
  request.settings = MakeSettings(options, args);
  request.settings.slots = 0;  // the master knows its workers
  request.argv = std::move(args);
  request.environment = DeclaredEnvironment(options);
  request.cpu_level = cpu_level;
  std::exit(SubmitAndFollow(request));
}

}  // namespace

Job InitProcess(int& argc, char** argv, std::uint32_t cpu_level) {
  home.emplace();
  NoteForks();
  OpenStandardDescriptors();
  ::signal(SIGXFSZ, SIG_IGN);  // a file that grows beyond its limit is an error that can be told
  std::vector<std::string> args = ArgsOf(argc, argv);
  // An executor's variables were chosen by its worker and its submitter.
  if (!IsExecutor()) {
    if (Status known = CheckVariables(); !known.ok()) {
      PrintError(known, FormOfErrors());
      std::exit(ExitCode(known.code()));
    }
  }
  Result<JobOptions> options = TakeOptions(&args, [](const char* name) { return std::getenv(name); });
  if (!options.ok()) {
    PrintError(options.status(), FormOfErrors());
    std::exit(ExitCode(options.status().code()));
  }
  if (options->executor_fd) return InitExecutor(*options->executor_fd, std::move(args));
  if (!options->master.empty()) RunClient(*options, std::move(args), cpu_level);
  if (argc > 0) Rewrite(args, argc, argv);
  return InitEmbedded(*options, std::move(args));
}

}  // namespace ropewalk::job
