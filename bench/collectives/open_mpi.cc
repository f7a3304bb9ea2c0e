// Open MPI, over the transport that mpirun is told to use.
//
// usage: mpirun -np RANKS ... open_mpi SECONDS_OF_SIZE
#include <fcntl.h>
#include <mpi.h>
#include <unistd.h>

#include "bench/collectives/sweep.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  // mpirun starts the ranks, so the memory in which times are gathered has a name for a moment.
  char name[64] = "/tmp/ropewalk-bench-XXXXXX";
  if (rank == 0) {
    const int fd = mkstemp(name);
    if (fd < 0 || ftruncate(fd, sizeof(sweep::Shared)) != 0) MPI_Abort(MPI_COMM_WORLD, 1);
    close(fd);
  }
  MPI_Bcast(name, sizeof(name), MPI_CHAR, 0, MPI_COMM_WORLD);
  const int fd = open(name, O_RDWR);
  void* memory = mmap(nullptr, sizeof(sweep::Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd < 0 || memory == MAP_FAILED) MPI_Abort(MPI_COMM_WORLD, 1);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) unlink(name);

  sweep::Contestant contestant{.rank = rank,
                               .ranks = ranks,
                               .in = static_cast<float*>(std::malloc(sweep::kBytesMax)),
                               .out = static_cast<float*>(std::malloc(sweep::kBytesMax))};
  contestant.meet = [] { MPI_Barrier(MPI_COMM_WORLD); };
  contestant.reduce = [&](std::size_t count) {
    MPI_Allreduce(contestant.in, contestant.out, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  };
  sweep::Run(contestant, static_cast<sweep::Shared*>(memory), argc > 1 ? std::atof(argv[1]) : 0.2);
  MPI_Finalize();
  return 0;
}
