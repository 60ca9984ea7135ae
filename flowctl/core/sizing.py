"""How many records ride in one tuple: enough that its fixed cost is small, and no more.

From a bolt's service time S(n) = a + b n::

    n = min( a' (1 - e) / (e b),  max( T - a, 24 a ) / b )

``a'`` is a and what the driver does for each tuple while the other bolts wait for it, e the share
of the time that the fixed cost may take, T the longest that a tuple should take.  Where a call
costs so much that T leaves little room for records, the tuple takes 25 times as long as the call,
or ten times as long as is sure where that is guessed from round trips.
At the end of the input tuples are made smaller than that
(:mod:`flowctl.core.end_of_input.shares`).
"""

from __future__ import annotations

from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.cost import ServicePool
from flowctl.core.settings import TupleSettings

# The fixed cost may take 3 % of the time, where a tuple may take long enough (control.md, ADR 9).
# Less would need longer tuples: more to run again, and coarser pieces at the end of the input.
FIXED_SHARE = 0.03
_RECORDS_PER_FIXED = (1 - FIXED_SHARE) / FIXED_SHARE
# What the driver needs for one tuple, wire included: some 60 us, measured (make bench).  With N
# bolts each waits for N of them.
DRIVER_S = 60e-6
# Where a call takes so long that a tuple of T would be little else, it gets so many times its own
# time for records: all but 4 % of the time is work then, which is near FIXED_SHARE.  More would win
# little, and a kill repeats a whole tuple.
RECORDS_PER_DEAR_CALL = 24
# The same where a call's cost is guessed from round trips, which contain the path.
_RECORDS_PER_GUESSED_CALL = 9
# A call that takes more than this share of T is expensive.
_DEAR_SHARE = 1 / 10
# Sizes of the first two tuples, which a bolt gets before anything is known of it: different, so
# that they tell a from b, and small, for a record may take a second.
FIRST = (25, 100)
# A tuple should take at most so many times as long as the bolt's largest so far, with as much of a
# call's cost as is sure: one wrong guess must not cost a minute.
_GROWTH = 4
# At most this share of the longest time for a tuple, if all of its cost is that of its records:
# then even a guess that is wrong by a factor of eight takes no longer than a tuple may.
_SHORT = 1 / 8
# A bolt that has not answered may be this much slower than the others.
_UNKNOWN_SPEED = 0.5
# What is sent to learn a call's cost takes so many times as long as a tuple should, at most.
TRIED_TIMES = 32
# Sizes vary by so much about the best one, evenly (steps of the golden ratio): without that the
# two costs could not be told apart.
_DITHER = 0.15
_GOLDEN = 0.6180339887498949
# Single records can't vary so: every so many tuples hold two, or a bolt whose first tuples made
# its fixed cost look like its records' would get single ones for ever.
_TRY_TWO_EVERY = 8


def records_for(
    consumer: AdaptiveFlowConsumer, settings: TupleSettings, bolts: int, pool: ServicePool
) -> int:
    """Return how many records the next tuple for ``consumer`` should have at most.

    ``bolts``: how many there are, ``pool`` what they have in common.  At least 1; never over
    ``settings.records_max``.
    """
    service, most = consumer.service, settings.records_max
    if most == 1:
        return 1
    if not service.samples:
        return first_size(consumer.sent, settings, pool)
    record_s = service.record_s
    if record_s <= 0:
        return most
    work_s = settings.service_max_s - service.tuple_s
    sure = 0.0
    if service.is_told and pool.is_split:  # else the two costs are not known apart
        sure = pool.fixed_least
        work_s = max(work_s, RECORDS_PER_DEAR_CALL * service.tuple_s)
        # As long as that is not sure, a call may cost more than it seems: not many small tuples.
        may_cost_s = record_s * pool.fixed_most + DRIVER_S * bolts
        work_s = min(work_s, _RECORDS_PER_FIXED * may_cost_s)
    elif pool.is_split:
        work_s = max(work_s, _RECORDS_PER_GUESSED_CALL * pool.fixed_least * record_s)
    most_records = _GROWTH * (sure + service.records_most) - sure
    short = _SHORT * settings.service_max_s * service.mean_records / service.mean_s
    records = min(work_s / record_s, max(most_records, short))
    dither = 1 + _DITHER * (2 * (consumer.sent * _GOLDEN % 1) - 1)
    size = max(1, min(most, int(records * dither)))
    if size == service.records_most and not pool.is_split:
        return min(most, 2 * size)  # tuples of one size never tell what a call costs
    if size == 1 and most > 1 and consumer.sent % _TRY_TWO_EVERY == 0:
        return 2 if service.of(2) <= TRIED_TIMES * settings.service_max_s else 1
    return size


def first_size(number: int, settings: TupleSettings, pool: ServicePool) -> int:
    """For a bolt that has not acked and got ``number`` tuples: small, and not longer than a tuple
    should take elsewhere."""
    first = min(FIRST[min(number, len(FIRST) - 1)], settings.records_max)
    if not pool.mean_s:
        return first
    work_s = max(settings.service_max_s, pool.mean_s) - pool.record_s * pool.fixed_records
    return max(1, min(first, int(_UNKNOWN_SPEED * work_s / pool.record_s)))


def is_dear(call_s: float, settings: TupleSettings) -> bool:
    """Whether a call costs so much that it decides how long a tuple takes."""
    return call_s > _DEAR_SHARE * settings.service_max_s
