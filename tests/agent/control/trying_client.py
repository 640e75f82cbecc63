"""A dashboard without a screen that tries one random value after the other, until it is killed.

``trying_client.py SEED``: prints a line for each trial that it has sent. SIGUSR1: drop the connection,
whatever goes on, and rest.
"""

from __future__ import annotations

import random
import signal
import sys
import time

from overlaptop.fleet.job_session import JobSession
from overlaptop.launch.supervisor import end_with_parent
from overlaptop.wire import commands
from overlaptop.wire.knobs import Knob

MOST_STEPS = 40
KNOBS = (
    (Knob("accumulation", 3, "3", "3", 1, 8), (1, 2, 8)),
    (Knob("bucket_cap_mb", 25, "25", "25", 1, 10_000), (1, 2, 50)),
)


def main() -> None:
    end_with_parent()
    dice = random.Random(sys.argv[1])
    session, resting, sent = JobSession(), [], ""
    signal.signal(signal.SIGUSR1, lambda *_: resting.append(True))
    while True:
        time.sleep(0.02)
        if resting:
            session.close()
            continue
        snapshot = session.tick()
        if any(each.id == sent and not each.done for each in snapshot.commands):
            continue
        if len(snapshot.ranks) == 2 and all(view.last is not None for view in snapshot.ranks):
            knob, values = dice.choice(KNOBS)
            trial = commands.make_trial(knob, dice.choice(values), dice.randint(1, MOST_STEPS))
            if not session.send(trial):
                sent = trial.id
                print(commands.in_words(trial), flush=True)


if __name__ == "__main__":
    main()
