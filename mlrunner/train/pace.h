// How long a training will still take, by how fast its last steps were: machines become busy and idle again.
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <string>

namespace ropewalk::mlrunner {

class StepPace {
 public:
  // `steps` more took `seconds`, saving and loading included.
  void Made(std::int64_t steps, double seconds);
  // What `steps` will take; negative while too little has been seen to say it.
  double SecondsFor(std::int64_t steps) const;

 private:
  double steps_ = 0, seconds_ = 0;  // what is longer ago counts less
};

// "12 s left", "3 min left", "2.5 h left"; empty where `seconds` is negative.
std::string LeftText(double seconds);

}  // namespace ropewalk::mlrunner
