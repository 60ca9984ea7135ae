"""Parts of ``python -m tests.benchmarks pacing``: jobs that share a target, and headroom."""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from urllib.error import HTTPError

from flowctl import paced
from tests.benchmarks.pacing import Client, Crowd, Work
from tests.benchmarks.pacing_service import Answered, Service

# Of ten permits 7.5 are 7 and 8 in turn, eight seconds each: four turns are measured.
_PHASE_S = 40.0
# A job's part may be eight permits, and a worker waits between two calls: eight workers could not
# use them all, and the others would get what they leave.
_OF_JOB = 12
_SETTLED_S = 8.0  # after a job came or left, permits move one by one


def of_job(target: str, redis: str, job: str, weight: float, from_s: float, until_s: float) -> Work:
    """Calls from ``from_s`` to ``until_s``; both count from the beginning of the crowd."""

    def work(client: Client, end_s: float) -> None:
        began_s = end_s - 3 * _PHASE_S
        time.sleep(max(0.0, began_s + from_s - time.time()))
        while time.time() < began_s + until_s:
            with paced(target, redis=redis, name=job, weight=weight) as call:
                call.run(client.get, f"/{job}")

    return work


def weights(service: Service, redis: str) -> bool:
    """Two jobs 3:1 with twelve workers each; a third comes, with weight 1; the first leaves."""
    end_s = 3 * _PHASE_S
    jobs = [("big", 3.0, 0.0, 2 * _PHASE_S), ("small", 1.0, 0.0, end_s)]
    jobs += [("late", 1.0, _PHASE_S, end_s)]
    works = [of_job("weights", redis, *job) for job in jobs for _ in range(_OF_JOB)]
    log = Crowd(service, works, end_s).end()
    ok = True
    wanted = ({"big": 3, "small": 1}, {"big": 3, "small": 1, "late": 1}, {"small": 1, "late": 1})
    for number, shares in enumerate(wanted):
        found = _calls(log, number * _PHASE_S + _SETTLED_S, (number + 1) * _PHASE_S)
        total, parts = sum(found.values()) or 1, sum(shares.values())
        got = {job: found[f"/{job}"] / total for job in shares}
        print("jobs " + ":".join(f"{part}" for part in shares.values()), end=": ")
        print(", ".join(f"{job} {share:.1%}" for job, share in got.items()), end="")
        print(f"; {total / (_PHASE_S - _SETTLED_S):.1f} calls/s")
        ok = ok and all(
            abs(got[job] - part / parts) <= 0.1 * part / parts for job, part in shares.items()
        )
    return ok


def _calls(log: Sequence[Answered], from_s: float, until_s: float) -> Counter[str]:
    return Counter(e.path for e in log if e.status == 200 and from_s <= e.at_s < until_s)


# Of what a live client waited: half of the calls, nine in ten, 99 in a hundred took no longer.
_PARTS = (0.5, 0.9, 0.99)


def live(place: Path) -> Work:
    """Somebody whom flowctl does not know: asks now and then, until the service takes it."""

    def work(client: Client, until_s: float) -> None:
        took: list[float] = []
        while time.time() < until_s:
            time.sleep(random.expovariate(4.0))
            began_s = time.time()
            while not _is_taken(client):
                time.sleep(0.05)
            took.append(time.time() - began_s)
        settled = sorted(took[len(took) // 4 :])
        place.write_text(" ".join(str(settled[int(part * len(settled))]) for part in _PARTS))

    return work


def _is_taken(client: Client) -> bool:
    try:
        client.get("/live")
    except HTTPError:
        return False
    return True


def headroom(service: Service, redis: str) -> bool:
    """A fifth is left to a live client: what is used, and how long the client waits.

    By the middle half of the seconds: now and then the limit is learned at full load.
    """
    used, filled = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for leave in (0.0, 0.2):
            place = Path(folder, f"{leave}")
            work = _leaving(f"headroom-{leave}", redis, leave)
            log = Crowd(service, [live(place), *[work] * 16], 60).end()
            ours = [each for each in log if each.path != "/live"]
            used[leave], filled[leave] = _middle(ours), _middle(log)
            waits = [f"{float(wait_s) * 1e3:.0f} ms" for wait_s in place.read_text().split()]
            print(f"leave={leave:g}: {used[leave]:.1f} calls/s, a live client waits", end=" ")
            print(f"{waits[0]}, one call in ten {waits[1]}, one in a hundred {waits[2]}")
    kept = used[0.2] / filled[0.0]
    print(f"with headroom {kept:.1%} of all calls without")
    return 0.75 <= kept <= 0.85


def _middle(log: Sequence[Answered]) -> float:
    """Mean of the middle half of the seconds: two whole numbers of permits take turns."""
    seconds = Counter(int(each.at_s) for each in log if each.status == 200)
    found = sorted(seconds[second] for second in range(15, 55))
    return mean(found[10:30])


def _leaving(target: str, redis: str, leave: float) -> Work:
    def work(client: Client, until_s: float) -> None:
        while time.time() < until_s:
            with paced(target, redis=redis, leave=leave) as call:
                call.run(client.get)

    return work
