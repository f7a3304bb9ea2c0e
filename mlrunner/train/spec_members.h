// Keys of families that are members of ModelSpec and DataSpec: each by its name, in both directions.
//
// Thread rule: pure functions.
#pragma once

#include <map>
#include <string>

#include "mlrunner/train/job.h"

namespace ropewalk::mlrunner {

// The members as texts that a job file could have.
std::map<std::string, std::string> TextsOf(const ModelSpec& spec);
std::map<std::string, std::string> TextsOf(const DataSpec& spec);
// The texts, which are values of the keys' types, into members and, where there is none of that name, into `more`.
void SetTexts(const std::map<std::string, std::string>& texts, ModelSpec* spec);
void SetTexts(const std::map<std::string, std::string>& texts, DataSpec* spec);

}  // namespace ropewalk::mlrunner
