#!/usr/bin/env python3
"""A user's program holds no RocksDB and no Beast: they belong to daemons.

usage: symbols.py USER_PROGRAM [PROGRAM_WITH_ROCKSDB]      the second, if given, proves that the search finds what is there
"""
import re
import subprocess
import sys

UNWANTED = re.compile(r"\brocksdb::|\bboost::beast::|\blibrocksdb")


def unwanted_in(program):
    symbols = subprocess.run(["nm", "-C", program], capture_output=True, text=True, check=True).stdout
    libraries = subprocess.run(["readelf", "-d", program], capture_output=True, text=True, check=True).stdout
    return sorted({line.strip()[:160] for line in (symbols + libraries).splitlines() if UNWANTED.search(line)})


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    found = unwanted_in(sys.argv[1])
    for line in found[:20]:
        print(f"error[STYLE07] {sys.argv[1]} holds {line}")
    if len(sys.argv) == 3 and not unwanted_in(sys.argv[2]):
        print(f"error[STYLE08] the search found nothing in {sys.argv[2]}, which links RocksDB: it proves nothing")
        return 1
    print(f"{sys.argv[1]}: {len(found)} unwanted symbols")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
