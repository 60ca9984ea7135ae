"""The driver of ``demo --kill``: ``child DIRECTORY REDIS_URL VIEW [PAGE]``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast

from flowctl.cli.exiting import leave
from flowctl.cli.main import explain
from flowctl.errors import EXIT_FINISHED, EXIT_INTERRUPTED, ConfigError, FlowctlError
from flowctl.instrumentation.logging import configure
from flowctl.instrumentation.views import Page, ViewMode
from flowctl_lab.demo.plan import Places, Plan


def main(directory: str, redis_url: str, view: str, place: str = "") -> int:
    """Run the job of the plan in ``directory`` once; return the exit code."""
    from flowctl_lab.demo.demo_job import Show, run_once

    configure(flow_events=False)
    places = Places(Path(directory))
    try:
        plan = Plan.load(places.root)
        if plan is None:
            raise ConfigError("DIRECTORY", f"no plan in {directory}.", remedy="Run the demo.")
        resume = f"flowctl demo --dir {directory}"
        page = Page.at(place, name="--page") if place else None
        show = Show(mode=cast("ViewMode", view), page=page)
        run_once(plan, places, redis_url, show=show, resume=resume)
    except FlowctlError as error:
        return explain(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_FINISHED


if __name__ == "__main__":
    leave(main(*sys.argv[1:]))
