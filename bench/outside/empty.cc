// The smallest job: one action over one number.   empty
#include <ropewalk/ropewalk.h>

int main(int argc, char** argv) {
  auto job = ropewalk::Init(argc, argv);
  return job.FromVector({1}).Count() == 1 ? 0 : 1;
}
