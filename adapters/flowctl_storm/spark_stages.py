"""``SparkStages``: the bolts of a topology's stages, each a supervised single-task Spark job."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowctl import __version__
from flowctl.arguments import check_arguments
from flowctl.errors import ConfigError
from flowctl.ports import Bolts, Endpoint
from pyspark_flowctl.bolts import SparkBolts
from pyspark_flowctl.shipping import ship
from pyspark_flowctl.task import BoltTask

if TYPE_CHECKING:
    from flowctl_storm.plan import StagePlan


class SparkStages:
    """Runs all stages of a topology on one Spark session.

    ``spark`` and ``master`` are as for :class:`SparkBolts`; a session that flowctl starts has a
    slot for every task of every stage.  With fewer slots only the tasks that find one run; a
    topology needs a bolt in every stage to begin.
    """

    @check_arguments("master")
    def __init__(self, *, spark: Any | None = None, master: str | None = None) -> None:
        if spark is not None and master is not None:
            raise ConfigError(
                "master", "a session already has its master.", remedy="Give spark or master."
            )
        self._spark = spark
        self._master = master

    def bolts(self, plans: Sequence[StagePlan]) -> Bolts:
        """See :class:`flowctl_storm.Stages`."""
        return SparkStageBolts(plans, spark=self._spark, master=self._master)


class SparkStageBolts(SparkBolts):
    """The bolts of all stages: one Spark job each, with its stage's code."""

    def __init__(
        self, plans: Sequence[StagePlan], *, spark: Any | None, master: str | None
    ) -> None:
        count = sum(plan.count for plan in plans)
        super().__init__(plans[0].code, count, spark=spark, master=master)
        self._plans = plans
        #: See :class:`flowctl.ports.NamedBolts`.
        self.names: list[str] = [bolt for plan in plans for bolt in plan.bolts]

    def tasks(self, endpoint: Endpoint) -> list[BoltTask]:
        pickled = pickle.dumps(endpoint)
        tasks: list[BoltTask] = []
        for plan in self._plans:
            shipped = ship(plan.code)
            tasks += [
                BoltTask(
                    bolt, plan.slots, pickled, shipped, (), version=__version__, job=endpoint.job
                )
                for bolt in plan.bolts
            ]
        return tasks
