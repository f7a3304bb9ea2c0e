// Locks of a process whose code forks. A child has only the thread that forked it: a lock that another one held just then is held for ever.
// Code of the job may fork, and its child may come back out of that code into ours (it must not, and is ended where a task ends). What is
// locked on the way there looks here first: what is asked for is refused, what is given back is left alone. Nothing of a process that is
// about to end is missed.
//
// Thread rule: any thread.
#pragma once

#include <atomic>

namespace ropewalk {

namespace internal {
extern std::atomic<bool> forked_child;
}

// From now on children of this process know that they are. For the process of a job; again and again does nothing.
void NoteForks();

// In a child that was forked since NoteForks(), until it is another program.
inline bool IsForkedChild() { return internal::forked_child.load(std::memory_order_relaxed); }

}  // namespace ropewalk
