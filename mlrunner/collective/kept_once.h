// Values of a vector, each kept once and found again by its hash: a program of thousands of ranges is written in as many steps.
//
// Owner: a writer. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <vector>

namespace ropewalk::collective {

template <typename T>
class KeptOnce {
 public:
  // Where `value`, whose hash is given, stands in `values`, which only this adds to; it is added if it is not there.
  std::int32_t Find(std::vector<T>* values, const T& value, std::uint64_t hash) {
    if (2 * (values->size() + 1) > places_.size()) Grow();
    std::size_t at = hash & (places_.size() - 1);
    for (; places_[at].index >= 0; at = (at + 1) & (places_.size() - 1))
      if (places_[at].hash == hash && (*values)[places_[at].index] == value) return places_[at].index;
    places_[at] = {hash, static_cast<std::int32_t>(values->size())};
    values->push_back(value);
    return places_[at].index;
  }

 private:
  struct Place {
    std::uint64_t hash = 0;
    std::int32_t index = -1;
  };
  void Grow() {
    std::vector<Place> old(places_.empty() ? 32 : 2 * places_.size());
    old.swap(places_);
    for (const Place& place : old) {
      if (place.index < 0) continue;
      std::size_t at = place.hash & (places_.size() - 1);
      while (places_[at].index >= 0) at = (at + 1) & (places_.size() - 1);
      places_[at] = place;
    }
  }

  std::vector<Place> places_;  // a power of two, at most half of it taken
};

}  // namespace ropewalk::collective
