// A value that main computed and tasks read: the driver's bytes, the same in every executor.
//
//   auto centres = job.Broadcast(initial_centres);
//   points.Map([centres](const Point& p) { return Nearest(*centres, p); })
//
// Copies share one value, so capturing it by value is cheap. Thread rule: const after construction; may be read from all tasks.
#pragma once

#include <memory>
#include <utility>

namespace ropewalk {

template <class T>
class Broadcast {
 public:
  explicit Broadcast(std::shared_ptr<const T> value) : value_(std::move(value)) {}
  const T& operator*() const { return *value_; }
  const T* operator->() const { return value_.get(); }
  const T& value() const { return *value_; }

 private:
  std::shared_ptr<const T> value_;
};

}  // namespace ropewalk
