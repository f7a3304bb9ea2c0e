// Names of the files in a checkpoint folder.
//
//   step-000000000120.safetensors                           a checkpoint; it is there when all of it is
//   part-000000000120-RUN-FORMING-RANK-TRY.safetensors      what one rank has written of it; nothing before a checkpoint names it
//   .step-000000000120-RUN-FORMING.safetensors              a checkpoint that is being written
//   aside-RUN-step-000000000120.safetensors                 one that the training RUN does not stand on
//
// Thread rule: values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "mlrunner/train/checkpoint.h"

namespace ropewalk::mlrunner {

std::string CheckpointName(std::int64_t step);
// The step of a checkpoint; -1: it is the name of none.
std::int64_t StepIn(std::string_view name);

std::string AsideName(std::uint64_t run, std::string_view checkpoint_name);
// The step of a checkpoint or of one that was set aside; -1.
std::int64_t StepHereOrAside(std::string_view name);
// Whether it may be a checkpoint to which somebody gave another name.
bool MayBeRenamed(std::string_view name);

// Of a file that is being made: two writers in one folder have two, and the later forming knows which are the earlier one's.
std::string HiddenName(std::string_view of, const CheckpointWriter& writer);
bool IsHidden(std::string_view name);
// Whether the writer's training made this hidden file, in the writer's forming or an earlier one.
bool IsOfAnEarlierSave(std::string_view name, const CheckpointWriter& writer);

struct PartName {
  std::int64_t step = 0;
  CheckpointWriter writer;
  std::int32_t tries = 0;  // files of that name that were there
};
std::string ToString(const PartName& part);
std::optional<PartName> PartIn(std::string_view name);

}  // namespace ropewalk::mlrunner
