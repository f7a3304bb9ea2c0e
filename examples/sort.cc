// The lines in byte order.   sort INPUT OUTPUT
#include <ropewalk/ropewalk.h>

int main(int argc, char** argv) {
  auto job = ropewalk::Init(argc, argv);
  if (argc != 3) return 2;
  job.ReadLines(argv[1]).Sort().WriteText(argv[2]);
}
