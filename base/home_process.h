// Tells a process from the children that a job's code forks in it. Until a child has become another program it holds all that its parent
// has: objects, exit handlers, signal handlers, sockets, mappings. Where exec() fails it mostly ends by exit(), and then nothing that is
// its parent's may be removed, said or marked.
//
// Thread rule: a value; here() may be called in any thread and in a signal handler.
#pragma once

#include <unistd.h>

namespace ropewalk {

class HomeProcess {
 public:
  HomeProcess() : pid_(::getpid()) {}
  // False in a process that was forked since.
  bool here() const { return ::getpid() == pid_; }

 private:
  pid_t pid_;
};

}  // namespace ropewalk
