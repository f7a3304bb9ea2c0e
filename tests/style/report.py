"""What the checks of tests/style share: the root from the command line, and how offences are printed and become an exit code."""

import os
import sys


def report(check, usage, empty):
    """check(root) gives (offences, files). Exit code 1 when there are offences; a message when `root` holds nothing to look at."""
    if len(sys.argv) > 2 or "--help" in sys.argv:
        sys.exit(usage)
    root = sys.argv[1] if len(sys.argv) == 2 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
    offences, files = check(root)
    if files == 0:
        sys.exit(empty.format(root=root))
    print(*offences, sep="\n", end="\n" if offences else "")
    print(f"{files} files, {len(offences)} offences")
    return 1 if offences else 0
