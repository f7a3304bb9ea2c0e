#include "mlrunner/train/meeting.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "base/bytes.h"

namespace ropewalk::mlrunner {
namespace {

std::string Encode(const Hello& hello, const std::string& machine) {
  std::string bytes;
  ByteWriter writer(&bytes);
  writer.Fixed(hello.model);
  writer.Fixed(hello.data);
  writer.Fixed(hello.resume_from);
  writer.Sized(machine);
  return bytes;
}

Result<Hello> Decode(const std::string& bytes, std::string* machine) {
  ByteReader reader(bytes);
  Hello hello;
  hello.model = reader.Fixed<std::uint64_t>();
  hello.data = reader.Fixed<std::uint64_t>();
  hello.resume_from = reader.Fixed<std::int64_t>();
  *machine = reader.Sized();
  if (!reader.ok() || !reader.empty()) return Status(Code::kInternal, "TRAIN02", "a rank's greeting cannot be read");
  return hello;
}

}  // namespace

Result<Meeting> Meet(dag::GangContext& gang, const Hello& mine) {
  ASSIGN_OR_RETURN(const std::vector<std::string> all, gang.Exchange(Encode(mine, gang.machine())));
  Meeting meeting;
  std::vector<Hello> hellos;
  for (const std::string& bytes : all) {
    ASSIGN_OR_RETURN(const Hello hello, Decode(bytes, &meeting.machines.emplace_back()));
    hellos.push_back(hello);
  }
  const std::vector<std::string>& machines = meeting.machines;
  for (std::size_t rank = 1; rank < hellos.size(); ++rank) {
    const char* what = hellos[rank].model != hellos[0].model ? "model" : hellos[rank].data != hellos[0].data ? "data" : nullptr;
    if (what != nullptr)
      return Status(Code::kUserError, "TRAIN02",
                    fmt::format("rank {} on {} has another {} than rank 0 on {}", rank, machines[rank], what, machines[0]),
                    "all ranks train the same model on the same data", "let data.path mean the same files on every machine");
  }
  meeting.resume_from = hellos[0].resume_from;
  meeting.neighbours = static_cast<int>(std::count(machines.begin(), machines.end(), gang.machine()));
  meeting.place = static_cast<std::int32_t>(std::count(machines.begin(), machines.begin() + gang.rank(), gang.machine()));
  return meeting;
}

}  // namespace ropewalk::mlrunner
