"""Print the targets of a Makefile that say what they are for (``target: … ## what``)."""

from __future__ import annotations

import re
import sys

_TARGET = re.compile(r"^([a-z-]+):.*?## (.+)$", re.MULTILINE)

for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        for target, what in _TARGET.findall(file.read()):
            print(f"make {target:<15}{what}")
