"""Unpack Debian's MariaDB server into a directory, for tests: nothing is installed, no root needed.

Does nothing where a server is installed or there is no apt; then the tests that need one are
skipped or use that one.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_SERVER = "mariadb-server-core"
# What a minimal Debian lacks.  Never libc and its kin: they belong to the running system.
_LIBRARIES = re.compile(r"Depends: (lib(?:aio|uring|numa|pcre2-8|fmt|snappy)\S*)")


def main() -> int:
    if shutil.which("mariadbd", path="/usr/sbin:/usr/bin") or not shutil.which("apt-get"):
        return 0
    target = Path(sys.argv[1]).resolve()  # dpkg runs elsewhere
    if (target / "usr/sbin/mariadbd").exists():
        return 0
    with tempfile.TemporaryDirectory() as place:
        try:
            _unpack(Path(place), target)
        except subprocess.CalledProcessError as error:
            said = (error.stderr or b"").decode(errors="replace").strip().splitlines()[-1:]
            print(f"no MariaDB for the tests: {' '.join(said) or error}", file=sys.stderr)
    return 0


def _unpack(place: Path, target: Path) -> None:
    (place / "lists/partial").mkdir(parents=True)
    (place / "cache/archives/partial").mkdir(parents=True)
    own = ["-o", f"Dir::State::Lists={place / 'lists'}", "-o", f"Dir::Cache={place / 'cache'}"]
    own += ["-o", "APT::Sandbox::User="]
    _run(["apt-get", *own, "-q", "update"], place)
    depends = _run(["apt-cache", *own, "depends", _SERVER], place).decode()
    _run(["apt-get", *own, "-q", "download", _SERVER, *_LIBRARIES.findall(depends)], place)
    for package in sorted(place.glob("*.deb")):
        _run(["dpkg", "-x", str(package), str(target)], place)


def _run(command: list[str], place: Path) -> bytes:
    return subprocess.run(command, cwd=place, check=True, capture_output=True, timeout=300).stdout


if __name__ == "__main__":
    raise SystemExit(main())
