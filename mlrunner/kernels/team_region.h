// Says to ThreadSanitizer what it cannot see: that a parallel region of OpenMP begins after what was before it, and that what is after it
// waits for the whole team. Both waits lie in libgomp, which is not instrumented. Empty in every other build.
#pragma once

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace ropewalk::mlrunner {

// Made before the region by the thread that enters it; each thread of the team holds a Member while it works; Join() comes after.
class TeamRegion {
 public:
#if defined(__SANITIZE_THREAD__)
  TeamRegion() { __tsan_release(&begin_); }
  void Join() { __tsan_acquire(&end_); }
  class Member {
   public:
    explicit Member(TeamRegion& region) : region_(region) { __tsan_acquire(&region_.begin_); }
    ~Member() { __tsan_release(&region_.end_); }

   private:
    TeamRegion& region_;
  };

 private:
  char begin_ = 0, end_ = 0;
#else
  void Join() {}
  class Member {
   public:
    explicit Member(TeamRegion& /*region*/) {}
    ~Member() {}  // of its own, or it would be called unused
  };
#endif
};

}  // namespace ropewalk::mlrunner
