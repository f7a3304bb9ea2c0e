#include "job/jobs/arguments.h"

#include <charconv>
#include <string_view>
#include <utility>

#include "base/nearest.h"
#include "job/options.h"
#include "storage/input.h"

namespace ropewalk::jobs {
namespace {

Status Bad(const std::string& what, const std::string& why) {
  return Status(Code::kInvalid, "JOBS01", what, why, "`ropewalk run JOB --help` shows how wordcount, sort and grep are called");
}

Status Bad(const Arguments& a, const std::string& what, const std::string& why) {
  return Status(Code::kInvalid, "JOBS01", what, why, "`ropewalk run " + a.job + " --help` shows how it is called");
}

// Flags that the job takes, its own and those that Init takes out.
std::vector<std::string> FlagsOf(const std::string& job) {
  std::vector<std::string> flags = {"--into", "--input", "--overwrite", "--reducers", "--help"};
  if (job == "wordcount") flags.emplace_back("--top");
  if (job == "sort") flags.insert(flags.end(), {"--reverse", "--record", "--key"});
  for (std::string& flag : job::OptionFlags()) flags.push_back(std::move(flag));
  return flags;
}

bool ParseNumber(std::string_view text, std::uint32_t min, std::uint32_t max, std::uint32_t* out) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc() && end == text.data() + text.size() && *out >= min && *out <= max;
}

// Walks the arguments; a flag's value is the next one or follows "=".
class Walker {
 public:
  explicit Walker(const std::vector<std::string>& args) : args_(args) {}

  bool Next() {
    if (++at_ >= args_.size()) return false;
    arg_ = args_[at_];
    value_.clear();
    has_value_ = false;
    if (!only_words_ && arg_.starts_with("--") && arg_.find('=') != std::string::npos) {
      value_ = arg_.substr(arg_.find('=') + 1);
      arg_.resize(arg_.find('='));
      has_value_ = true;
    }
    return true;
  }
  const std::string& arg() const { return arg_; }
  bool is_flag() const { return !only_words_ && arg_.size() > 1 && arg_[0] == '-'; }
  void OnlyWordsFromNow() { only_words_ = true; }

  Result<std::string> Text() {
    if (has_value_) return value_;
    if (at_ + 1 >= args_.size()) return Bad(arg_ + " needs a value", "it is the last argument");
    return args_[++at_];
  }
  Status Number(std::uint32_t max, std::uint32_t* out) {
    ASSIGN_OR_RETURN(std::string text, Text());
    if (ParseNumber(text, 1, max, out)) return Status();
    return Bad(arg_ + " " + text, "it takes a number from 1 to " + std::to_string(max));
  }
  // [OFFSET:]LENGTH
  Status Range(std::uint32_t max, std::uint32_t* offset, std::uint32_t* length) {
    ASSIGN_OR_RETURN(std::string text, Text());
    std::size_t colon = text.find(':');
    *offset = 0;
    if (colon == std::string::npos
            ? ParseNumber(text, 1, max, length)
            : ParseNumber(text.substr(0, colon), 0, max, offset) && ParseNumber(text.substr(colon + 1), 1, max, length))
      return Status();
    return Bad(arg_ + " " + text, "it takes [OFFSET:]LENGTH in bytes, like 10 or 4:8; the length is at least 1");
  }

 private:
  const std::vector<std::string>& args_;
  std::size_t at_ = 1;  // after the job's name
  std::string arg_, value_;
  bool has_value_ = false, only_words_ = false;
};

Status ParseFlag(Walker* walker, Arguments* a) {
  const std::string flag = walker->arg();
  if (flag == "--") return walker->OnlyWordsFromNow(), Status();
  if (flag == "-o" || flag == "--into") {
    ASSIGN_OR_RETURN(a->output, walker->Text());
    return Status();
  }
  if (flag == "-i" && a->job == "grep") return a->ignore_case = true, Status();
  if (flag == "-i" || flag == "--input") {
    ASSIGN_OR_RETURN(std::string input, walker->Text());
    a->inputs.push_back(std::move(input));
    return Status();
  }
  if (flag == "--overwrite") return a->overwrite = true, Status();
  if (flag == "--reducers") return walker->Number(100'000, &a->reducers);
  if (flag == "--top" && a->job == "wordcount") return walker->Number(10'000, &a->top);
  if (flag == "--reverse" && a->job == "sort") return a->reverse = true, Status();
  if (flag == "--record" && a->job == "sort") return walker->Number(storage::kRecordBytesMax, &a->record_bytes);
  if (flag == "--key" && a->job == "sort") return walker->Range(storage::kRecordBytesMax, &a->key_offset, &a->key_bytes);
  if (flag == "-E" && a->job == "grep") return a->regex = true, Status();
  if (flag.starts_with("-o") || flag == "--output")
    return Status(Code::kInvalid, "JOBS01", a->job + ": unknown flag \"" + flag + "\"",
                  flag == "--output" ? "to `ropewalk run` and `submit` it is how results are printed, and to a job nothing"
                                     : "the folder to write is a word of its own",
                  "name the folder with -o OUT or --into=OUT");
  std::string near = NearestName(flag, FlagsOf(a->job));
  if (!near.empty() && near != flag)
    return Status(Code::kInvalid, "JOBS01", a->job + ": unknown flag \"" + flag + "\"", "a name that begins with '-' goes after \"--\"",
                  "did you mean \"" + near + "\"?");
  return Bad(*a, a->job + ": unknown flag \"" + flag + "\"", "a name that begins with '-' goes after \"--\"");
}

}  // namespace

Result<Arguments> ParseArguments(const std::vector<std::string>& args) {
  Arguments a;
  if (args.size() < 2) return Bad("which job?", "there are wordcount, sort and grep");
  a.job = args[1];
  if (a.job == "help" || a.job == "--help" || a.job == "-h") return a.job = "help", a;
  if (a.job != "wordcount" && a.job != "sort" && a.job != "grep")
    return Bad("there is no built-in job " + a.job, "there are wordcount, sort and grep");
  for (const std::string& arg : args) {
    if (arg == "--") break;
    if (arg == "--help" || arg == "-h") {
      a.help_of = std::exchange(a.job, "help");
      return a;
    }
  }
  Walker walker(args);
  bool has_pattern = a.job != "grep";
  while (walker.Next()) {
    if (walker.is_flag()) {
      RETURN_IF_ERROR(ParseFlag(&walker, &a));
    } else if (!has_pattern) {
      a.pattern = walker.arg();
      has_pattern = true;
    } else {
      a.inputs.push_back(walker.arg());
    }
  }
  if (!has_pattern) return Bad(a, "grep for what?", "the pattern is missing");
  if (a.inputs.empty()) return Bad(a, a.job + " of what?", "no input is named");
  if (a.output.empty()) return Bad(a, a.job + " into what?", "-o OUT is missing");
  if (a.key_bytes != 0 && a.record_bytes == 0)
    return Bad(a, "--key without --record", "lines are sorted whole; a key is a place in records of one size");
  if (a.key_bytes != 0 && std::uint64_t{a.key_offset} + a.key_bytes > a.record_bytes)
    return Bad(a, "--key " + std::to_string(a.key_offset) + ":" + std::to_string(a.key_bytes),
               "it reaches beyond the record: --record " + std::to_string(a.record_bytes));
  return a;
}

std::string Usage(const std::string& job, const std::string& program) {
  const std::string call = program.starts_with("ropewalk ") ? program : "ropewalk run";
  struct Job {
    const char *name, *arguments, *what, *flags;
  };
  static constexpr Job kJobs[] = {
      {"wordcount", " INPUT... -o OUT [--overwrite] [--reducers N] [--top N]", "Counts words: lines of WORD<TAB>COUNT.",
       "  --top N            also print the N commonest words\n"},
      {"sort", " INPUT... -o OUT [--overwrite] [--reducers N] [--reverse] [--record BYTES [--key [OFFSET:]LENGTH]]",
       "Sorts lines by their bytes (LC_ALL=C), or records of one size by a key.",
       "  --reverse          the largest first\n"
       "  --record BYTES     records of BYTES bytes each, any bytes, nothing between them\n"
       "  --key OFFSET:LENGTH  where a record's key lies (else: all of it; OFFSET: may be left out); equal ones keep their order\n"},
      {"grep", " PATTERN INPUT... -o OUT [--overwrite] [-i] [-E]", "Keeps the lines that hold the pattern.",
       "  -i                 ignore case\n  -E                 PATTERN is a regular expression (RE2), not a text\n"},
  };
  std::string text, flags;
  for (const Job& each : kJobs) {
    if (!job.empty() && job != each.name) continue;
    text += (text.empty() ? "usage: " : "       ") + call + " " + each.name + each.arguments + "\n";
    if (!job.empty()) text += std::string(each.what) + "\n";
    if (!job.empty()) flags = each.flags;
  }
  return text + "\n" +
         "INPUT is a file, a folder or a pattern; .gz and .zst are read decompressed. OUT is a folder that appears whole.\n"
         "  -o, --into OUT     the folder to write\n"
         "  --overwrite        replace a folder that exists\n"
         "  --reducers N       parts of the output\n" +
         flags +
         "Of every job: --name TEXT, --partitions N, --verify=on|off, -q; in this process --threads N and --memory BYTES; on a cluster\n"
         "(`ropewalk submit`) --master HOST:PORT, --token-file FILE and --detach.\n";
}

}  // namespace ropewalk::jobs
