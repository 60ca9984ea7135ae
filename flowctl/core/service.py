"""How long a bolt takes for a tuple, and how long the path to it: what acks tell, smoothed."""

from __future__ import annotations

# Exponential forgetting per ack: the last twenty tuples decide (1 / (1 - .95)).
_DECAY = 0.95
# A shortest path is forgotten after this long, as BBR forgets its smallest RTT.
_PATH_LIFE_S = 10.0
# A longest path is forgotten by 2 % of the excess per ack: after a jitter of 4 ms, within 1 ms of
# the shortest in some 70 acks.
_PEAK_DECAY = 0.02


class ServiceModel:
    """The mean service time of a tuple of late, and the path's shortest and longest time.

    The path is all of an RTT that is neither wait nor service: network, both ends' queues of
    frames.  Seconds throughout.  Not thread-safe.
    """

    __slots__ = ("_path_before_s", "_path_s", "_path_since_s", "_peak_s", "_service_s", "_weight")

    def __init__(self) -> None:
        self._weight = self._service_s = 0.0
        self._path_s = self._path_before_s = float("inf")
        self._path_since_s = float("-inf")
        self._peak_s = 0.0

    def on_sample(self, now_s: float, service_s: float, path_s: float) -> None:
        """Take one ack's times."""
        self._weight = _DECAY * self._weight + 1.0
        self._service_s = _DECAY * self._service_s + service_s
        self._take_path(now_s, max(0.0, path_s))

    def _take_path(self, now_s: float, path_s: float) -> None:
        if now_s - self._path_since_s > _PATH_LIFE_S:
            self._path_since_s = now_s
            self._path_before_s, self._path_s = self._path_s, path_s
        self._path_s = min(self._path_s, path_s)
        shortest_s = self.path_s
        faded_s = shortest_s + (self._peak_s - shortest_s) * (1 - _PEAK_DECAY)
        self._peak_s = max(path_s, faded_s)

    @property
    def path_s(self) -> float:
        """The shortest path of the last ten to twenty seconds."""
        return min(self._path_s, self._path_before_s)

    @property
    def path_peak_s(self) -> float:
        """The longest path of late: what has to be bridged so that the bolt never runs dry."""
        return self._peak_s

    @property
    def mean_service_s(self) -> float:
        """The service time of a tuple of mean size."""
        return self._service_s / self._weight if self._weight else 0.0
