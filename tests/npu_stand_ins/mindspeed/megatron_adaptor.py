"""Notes its import with the command line that the real one would parse, and each call of ``repatch``."""

import sys

from events import EVENTS

EVENTS.append(["mindspeed.megatron_adaptor", sys.argv[1:]])


def repatch(args):
    EVENTS.append(["repatch", args])
