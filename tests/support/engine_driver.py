"""A driver to be killed: runs an engine on slow units and prints the numbers of finished images.

python engine_driver.py local|ray DIARY [ADDRESS]
"""

import signal
import sys

from egcam.studies.engines import make_engine
from support import engine_factories as factories

TERMINATED = 3


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    name, diary = sys.argv[1:3]
    address = sys.argv[3] if len(sys.argv) > 3 else None
    engine = make_engine(name, workers=2, address=address)
    job = factories.job("sleeping", diary=diary, seconds=0.2)
    for outcomes in engine.outcomes(job, factories.shards(1000)):
        for outcome in outcomes:
            print(outcome.unit.image, flush=True)


if __name__ == "__main__":
    main()
