// The program of the README, as a user has it: outside the tree, with the package only.
#include <ropewalk/ropewalk.h>

int main(int argc, char** argv) {
  ropewalk::Job job = ropewalk::Init(argc, argv);
  if (argc != 3) return 2;
  job.ReadLines(argv[1]).FlatMap(ropewalk::Words).CountByKey().WriteText(argv[2]);
}
