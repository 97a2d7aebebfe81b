"""Tries to make llsvm hang, crash, lie or leak, for so many seconds, and counts.

    python scripts/torture --seconds 600 --seed 1
    python scripts/torture --seconds 60 --only text --only signals
    python scripts/torture --seed 1 --only text --case 4711       the command that a finding prints: that case alone

Exit code 1 if there was any finding. What each part tries, and what is promised, is in docs/reliability.md.
"""

import os
import sys

# Not this folder, whose `numbers` and `signals` are not those of the standard library.
sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import argparse  # noqa: E402
import random  # noqa: E402

from torture import worker  # noqa: E402
from torture.campaign import Campaign  # noqa: E402
from torture.parts import PARTS  # noqa: E402


def parse(arguments):
    parser = argparse.ArgumentParser(prog="python scripts/torture", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="how long (600), the sanitized build not counted")
    parser.add_argument("--seed", type=int, help="of all that is random (another one each time)")
    parser.add_argument("--only", action="append", metavar="PART", choices=list(PARTS),
                        help=f"this part alone; may be repeated: {', '.join(PARTS)}")
    parser.add_argument("--case", type=int, help="this case of the part alone")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="cases at a time (all cores)")
    parser.add_argument("--json", metavar="FILE", help="the counts and the findings for programs")
    parser.add_argument("--keep", action="store_true", help="leave the temporary folder, and say where it is")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.case is not None and len(options.only or ()) != 1:
        parser.error("--case needs one --only")
    if options.seed is None:
        options.seed = random.randrange(1_000_000)
    return options


def main(arguments) -> int:
    options = parse(arguments)
    if options.worker:
        worker.serve(options.worker, options.seed)
        return 0
    campaign = Campaign(options.only or list(PARTS), options.seed, options.seconds, options.keep)
    return campaign.run(options.jobs, options.case, options.json)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
