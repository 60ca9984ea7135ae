"""How many records ride in one tuple: enough that its fixed cost is small, and no more.

From a bolt's service time S(n) = a + b n::

    n = min( a' (1 - e) / (e b),  max( T - a, 24 a ) / b )

``a'`` is a plus the driver's time for a tuple, for which the other bolts wait.  e is the share of
the time that the fixed cost may take, T the longest that a tuple should take.  If a call takes so
long that T leaves little room for records, the tuple takes 25 times as long as the call; if a is
only guessed from round trips, ten times as long as is sure.  At the end of the input tuples are
smaller (:mod:`flowctl.core.end_of_input.shares`).
"""

from __future__ import annotations

from flowctl.core.consumer import AdaptiveFlowConsumer
from flowctl.core.cost import ServicePool
from flowctl.core.settings import TupleSettings

# The fixed cost may take 3 % of the time, if T allows it (ADR 9).  Less would need longer tuples:
# more to run again after a kill, and coarser pieces at the end of the input.
FIXED_SHARE = 0.03
_RECORDS_PER_FIXED = (1 - FIXED_SHARE) / FIXED_SHARE
# The driver's time for one tuple, with the wire: some 60 us (make bench).  With N bolts, each waits
# for N of them.
DRIVER_S = 60e-6
# If a call takes so long that T leaves little room, records get so many times the call's time: then
# 4 % is overhead, near FIXED_SHARE.  More would gain little, and a kill repeats a whole tuple.
RECORDS_PER_DEAR_CALL = 24
# The same if a call's cost is guessed from round trips, which include the path.
_RECORDS_PER_GUESSED_CALL = 9
# A call that takes more than this share of T is expensive.
_DEAR_SHARE = 1 / 10
# Sizes of a bolt's first two tuples, sent before anything is known: different, so that they tell a
# from b; small, as a record may take a second.
FIRST = (25, 100)
# If the last run tells what is worth a call, first tuples are at most so many times as large.  What
# a record costs may have changed a thousandfold since, and a begun call can't be taken back.
_LEARNED_MOST = 16
# A tuple has at most so many times the records of the bolt's largest so far (a sure cost of calls
# counts as records): one wrong guess must not cost a minute.
_GROWTH = 4
# But always as many as take this share of T, if records were all that costs: even a guess that is
# wrong by a factor of eight then takes no longer than T.
_SHORT = 1 / 8
# A bolt that has not answered is assumed to have this share of the mean speed.
_UNKNOWN_SPEED = 0.5
# A tuple that is sent to learn a call's cost takes at most so many times T.
TRIED_TIMES = 32
# Sizes vary by this share around the best one, evenly spread (steps of the golden ratio): with one
# size the two costs could not be told apart.
_DITHER = 0.15
_GOLDEN = 0.6180339887498949
# Single records can't vary like that, so every eighth tuple has two.  Otherwise a bolt whose fixed
# cost was first taken for that of its records would get single ones for ever.
_TRY_TWO_EVERY = 8


def records_for(
    consumer: AdaptiveFlowConsumer, settings: TupleSettings, bolts: int, pool: ServicePool
) -> int:
    """Return how many records the next tuple for ``consumer`` should have, at most.

    ``bolts``: how many there are; ``pool``: what they have in common.  At least 1, at most
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
    if service.is_told and pool.is_split:  # otherwise a and b can't be told apart
        sure = pool.fixed_least
        # While a is uncertain it may be larger than it seems: avoid many small tuples.
        may_cost_s = record_s * pool.fixed_most + DRIVER_S * bolts
        work_s = _worth_s(service.tuple_s, may_cost_s, settings)
    elif pool.is_split:
        work_s = max(work_s, _RECORDS_PER_GUESSED_CALL * pool.fixed_least * record_s)
    most_records = _GROWTH * (sure + service.records_most) - sure
    short = _SHORT * settings.service_max_s * service.mean_records / service.mean_s
    records = min(work_s / record_s, max(most_records, short))
    dither = 1 + _DITHER * (2 * (consumer.sent * _GOLDEN % 1) - 1)
    size = max(1, min(most, int(records * dither)))
    if size == service.records_most and not pool.is_split:
        return min(most, 2 * size)  # only different sizes tell what a call costs
    if size == 1 and most > 1 and consumer.sent % _TRY_TWO_EVERY == 0:
        return 2 if service.of(2) <= TRIED_TIMES * settings.service_max_s else 1
    return size


def first_size(number: int, settings: TupleSettings, pool: ServicePool) -> int:
    """Return the size for a bolt that has acked nothing and was sent ``number`` tuples.

    Small, and no longer than a tuple should take at the other bolts.  If the job's last run learned
    what calls cost: what is worth a call, the first tuple as much less as those sizes differ.
    """
    first = FIRST[min(number, len(FIRST) - 1)]
    if pool.learned is not None:
        worth_s = _worth_s(pool.call_s, pool.call_s + DRIVER_S, settings)
        worth = worth_s / pool.record_s * first / FIRST[-1]
        return max(1, int(min(worth, _LEARNED_MOST * first, settings.records_max)))
    first = min(first, settings.records_max)
    if not pool.mean_s:
        return first
    work_s = max(settings.service_max_s, pool.mean_s) - pool.record_s * pool.fixed_records
    return max(1, min(first, int(_UNKNOWN_SPEED * work_s / pool.record_s)))


def _worth_s(call_s: float, may_cost_s: float, settings: TupleSettings) -> float:
    """Return how much work of records is worth a call [s], which perhaps costs ``may_cost_s``."""
    work_s = max(settings.service_max_s - call_s, RECORDS_PER_DEAR_CALL * call_s)
    return min(work_s, _RECORDS_PER_FIXED * may_cost_s)


def is_dear(call_s: float, settings: TupleSettings) -> bool:
    """Whether a call costs so much that it dominates the time of a tuple."""
    return call_s > _DEAR_SHARE * settings.service_max_s
