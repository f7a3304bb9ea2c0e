#include "mlrunner/measure/arguments.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/escape.h"
#include "base/nearest.h"
#include "dag/stage_graph.h"
#include "job/options.h"
#include "mlrunner/measure/contenders.h"
#include "mlrunner/measure/sizes.h"

namespace ropewalk::measure {
namespace {

using collective::Collective;
using collective::Dtype;
using collective::ReduceOp;
using collective::Wire;

// A flag, what stands where it is left out, and what it says.
struct Flag {
  const char* name;
  const char* fallback;
  const char* value;
  const char* help;
};
constexpr Flag kFlags[] = {
    {"--collective", "allreduce", "NAME", "what is measured (allreduce)"},
    {"--ranks", "2", "N", "how many take part (2)"},
    {"--sizes", "1K:64M:4", "LIST", "bytes: 4K,1M or 1K:64M (doubled) or 1K:64M:4 (times 4), or several (1K:64M:4)"},
    {"--algorithms", "all", "LIST", "names, chosen, or all that a plain call can run by (all)"},
    {"--dtype", "f32", "TYPE", "f32, f64, f16, bf16, i32, i64 or u8 (f32)"},
    {"--op", "sum", "OP", "sum, min, max, prod or avg (sum)"},
    {"--wire", "by-machine", "LIST", "shared, tcp, by-machine, or several (by-machine)"},
    {"--choose-by", "fixed-sizes", "WAY", "what is chosen: fixed-sizes; or by kept-costs or measured-costs (fixed-sizes)"},
    {"--warmup", "3", "N", "calls of each size and algorithm that are not counted (3)"},
    {"--iterations", "0", "N", "calls that are counted; else as many as fit into --seconds"},
    {"--seconds", "0.1", "S", "for each size and algorithm (0.1)"},
    {"--check", "on", "on|off", "compare results with what they must be (on)"},
    {"--json", "", "FILE", "write the report there, too"},
    {"--plot", "", "FILE.svg", "draw bandwidth by size, measured and predicted"},
};

Status Bad(const std::string& what, const std::string& why,
           const std::string& fix = "`ropewalk bench collective --help` shows how it is called") {
  return Status(Code::kInvalid, "BENCH21", what, why, fix);
}
Status BadValue(const std::string& flag, const std::string& value, const std::string& takes) {
  return Bad(flag + ": \"" + EscapeForLog(value, 100) + "\" is no value for it", "it takes " + takes, "mend the value");
}

// A flag of jobs that would be taken and change nothing.
bool MeansNothing(const std::string& flag) {
  return flag == "--threads" || flag == "--memory" || flag == "--partitions" || flag == "--verify";
}

Status BadFlag(const std::string& flag) {
  std::vector<std::string> flags = job::OptionFlags();
  std::erase_if(flags, MeansNothing);
  for (const Flag& own : kFlags) flags.emplace_back(own.name);
  flags.emplace_back("--help");
  const std::string near = NearestName(flag, flags), what = "unknown flag \"" + EscapeForLog(flag, 100) + "\"";
  const std::string why = fmt::format("it takes {}", fmt::join(flags, ", "));
  return near.empty() ? Bad(what, why) : Bad(what, why, "did you mean \"" + near + "\"?");
}

template <class T>
using Names = std::vector<std::pair<std::string, T>>;

template <class T>
Result<T> Named(const std::string& flag, const std::string& text, const Names<T>& names) {
  std::vector<std::string> known;
  for (const auto& [name, value] : names) {
    if (name == text) return value;
    known.push_back(name);
  }
  const std::string near = NearestName(text, known), takes = fmt::format("{}", fmt::join(known, ", "));
  if (near.empty()) return BadValue(flag, text, takes);
  return Bad(flag + ": \"" + EscapeForLog(text, 100) + "\" is no value for it", "it takes " + takes, "did you mean \"" + near + "\"?");
}

Result<std::int64_t> Whole(const std::string& flag, const std::string& text, std::int64_t low, std::int64_t high) {
  std::int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  if (parsed.ec != std::errc() || parsed.ptr != end || number < low || number > high)
    return BadValue(flag, text, fmt::format("a whole number from {} to {}", low, high));
  return number;
}

Result<double> Seconds(const std::string& text) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  if (parsed.ec != std::errc() || parsed.ptr != end || !(number > 0 && number <= 3600))
    return BadValue("--seconds", text, "a number above 0, up to 3600");
  return number;
}

Names<Collective> Collectives() {
  Names<Collective> names;
  for (const collective::Algorithm& algorithm : collective::Algorithms()) {
    const std::string name(Name(algorithm.collective));
    if (std::none_of(names.begin(), names.end(), [&](const auto& known) { return known.first == name; }))
      names.emplace_back(name, algorithm.collective);
  }
  return names;
}
Names<Dtype> Dtypes() {
  Names<Dtype> names;
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF64, Dtype::kF16, Dtype::kBF16, Dtype::kI32, Dtype::kI64, Dtype::kU8})
    names.emplace_back(Name(dtype), dtype);
  return names;
}
Names<ReduceOp> Ops() {
  Names<ReduceOp> names;
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProd, ReduceOp::kAvg})
    names.emplace_back(Name(op), op);
  return names;
}
Names<collective::ChooseBy> Ways() {
  using collective::ChooseBy;
  return {{"fixed-sizes", ChooseBy::kFixedSizes}, {"kept-costs", ChooseBy::kKeptCosts}, {"measured-costs", ChooseBy::kMeasuredCosts}};
}
Names<Wire> Wires() { return {{"shared", Wire::kShared}, {"tcp", Wire::kTcp}, {"by-machine", Wire::kByMachine}}; }

Result<std::vector<Wire>> ParseWires(const std::string& text) {
  std::vector<Wire> wires;
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t comma = std::min(text.find(',', from), text.size());
    ASSIGN_OR_RETURN(Wire wire, Named("--wire", text.substr(from, comma - from), Wires()));
    if (std::find(wires.begin(), wires.end(), wire) != wires.end()) return BadValue("--wire", text, "each wire once");
    wires.push_back(wire);
    from = comma + 1;
  }
  return wires;
}

Result<BenchJob> MakeJob(const std::map<std::string, std::string>& given) {
  auto value = [&](const std::string& flag) {
    const auto found = given.find(flag);
    if (found != given.end()) return found->second;
    return std::string(std::find_if(std::begin(kFlags), std::end(kFlags), [&](const Flag& own) { return flag == own.name; })->fallback);
  };
  BenchJob job;
  ASSIGN_OR_RETURN(job.collective, Named("--collective", value("--collective"), Collectives()));
  ASSIGN_OR_RETURN(const std::int64_t ranks, Whole("--ranks", value("--ranks"), 1, dag::kGangRanksMax));
  job.ranks = static_cast<std::int32_t>(ranks);
  ASSIGN_OR_RETURN(job.sizes, ParseSizes(value("--sizes")));
  ASSIGN_OR_RETURN(job.dtype, Named("--dtype", value("--dtype"), Dtypes()));
  ASSIGN_OR_RETURN(job.op, Named("--op", value("--op"), Ops()));
  ASSIGN_OR_RETURN(job.wires, ParseWires(value("--wire")));
  ASSIGN_OR_RETURN(job.choose_by, Named("--choose-by", value("--choose-by"), Ways()));
  ASSIGN_OR_RETURN(const std::int64_t warmup, Whole("--warmup", value("--warmup"), 1, kIterationsMax));
  job.warmup = static_cast<std::int32_t>(warmup);
  if (given.contains("--iterations") && given.contains("--seconds"))
    return Bad("both --iterations and --seconds", "each of them says how often a call is made", "leave one out");
  ASSIGN_OR_RETURN(job.iterations, Whole("--iterations", value("--iterations"), given.contains("--iterations") ? 1 : 0, kIterationsMax));
  ASSIGN_OR_RETURN(job.seconds, Seconds(value("--seconds")));
  ASSIGN_OR_RETURN(job.check, Named("--check", value("--check"), Names<bool>{{"on", true}, {"off", false}}));
  job.json = value("--json");
  job.plot = value("--plot");
  RETURN_IF_ERROR(ChooseContenders(collective::Algorithms(), value("--algorithms"), &job));
  return job;
}

}  // namespace

Result<BenchArguments> ParseBenchArguments(const std::vector<std::string>& args, const std::string& folder) {
  BenchArguments arguments;
  std::map<std::string, std::string> given;
  arguments.argv.push_back(args.empty() ? "ropewalk bench collective" : args[0]);
  for (std::size_t i = 1; i < args.size(); ++i) {
    const std::string& arg = args[i];
    const std::size_t equals = arg.find('=');
    const std::string flag = arg.starts_with("--") ? arg.substr(0, equals) : arg;
    const bool attached = arg.starts_with("--") && equals != std::string::npos;
    if (arg == "--help" || arg == "-h") return arguments.help = true, arguments;
    if (MeansNothing(flag))
      return Bad("it takes no " + flag, "it is for the tasks of batch jobs, and a bench is one gang of ranks", "leave it out");
    if (job::PassOption(args, &i, &arguments.argv)) continue;
    if (std::none_of(std::begin(kFlags), std::end(kFlags), [&](const Flag& own) { return flag == own.name; })) {
      if (arg.starts_with('-')) return BadFlag(flag);
      return Bad("\"" + EscapeForLog(arg, 200) + "\" is too much", "it takes flags only");
    }
    if (!attached && i + 1 >= args.size()) return Bad(flag + " needs a value", "it is the last argument");
    std::string value = attached ? arg.substr(equals + 1) : args[++i];
    if ((flag == "--json" || flag == "--plot")) {
      if (value.empty()) return BadValue(flag, value, "the name of a file");
      if (value[0] != '/') value = folder + "/" + value;
    }
    if (!given.emplace(flag, value).second) return Bad(flag + " is given twice", "it has one value", "leave one out");
    arguments.argv.push_back(flag + "=" + value);
  }
  ASSIGN_OR_RETURN(arguments.job, MakeJob(given));
  return arguments;
}

std::string BenchUsage() {
  std::string text =
      "usage: ropewalk bench collective [FLAGS] [--master HOST:PORT]\n"
      "Measures a collective by size, algorithm and wire: on this machine, or, with --master, on the workers of a cluster. Each time is "
      "the\n"
      "slowest rank's, from a barrier on; bandwidths are those of nccl-tests; beside them stands what the measured costs of messages\n"
      "predict.\n\n";
  for (const Flag& flag : kFlags) text += fmt::format("  {:<24} {}\n", std::string(flag.name) + " " + flag.value, flag.help);
  text +=
      "  --master, --token-file, --detach, --name, --output, --quiet   as with `ropewalk submit`\n\nCollectives and their algorithms:\n";
  const std::span<const collective::Algorithm> table = collective::Algorithms();
  for (const std::string& name : CollectiveNames(table)) {
    std::vector<std::string_view> algorithms;
    for (const collective::Algorithm& algorithm : table)
      if (Name(algorithm.collective) == name) algorithms.push_back(algorithm.name);
    text += fmt::format("  {:<24} {}\n", name, fmt::join(algorithms, ", "));
  }
  return text;
}

}  // namespace ropewalk::measure
