#include "cli/command.h"

int main(int argc, char** argv) { return ropewalk::cli::RunCommand({argv + 1, argv + argc}); }
