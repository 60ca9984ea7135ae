"""Files that a command will write: tried before the work, and explained if the disk is full."""

from __future__ import annotations

import errno
from pathlib import Path

from flowctl.errors import ConfigError, InfrastructureError

_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_full(error: OSError) -> bool:
    """Whether there was no space left for what was to be written."""
    return error.errno in _FULL


def check_writable(option: str, path: Path | None) -> None:
    """Refuse a file that can't be written: now, not after hours of running."""
    if path is None:
        return
    directory = path.absolute().parent
    if not directory.is_dir():
        raise ConfigError(option, f"no directory {directory}.", remedy="Make it first.")
    if path.is_dir():
        raise ConfigError(option, f"{path} is a directory.", remedy="Name a file in it.")
    try:
        # Open it instead of checking its mode: this also finds read-only file systems and ACLs.
        _open_and_leave_as_it_was(path)
    except OSError as error:
        raise ConfigError(
            option,
            f"{path} can't be written: {error.strerror or error}.",
            remedy="Name another file.",
        ) from None


def write(option: str, path: Path, text: str) -> None:
    """Write what a command has made; say which option named the file if that fails."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InfrastructureError(
            f"{option}: {path} can't be written: {error.strerror or error}.",
            remedy="Free some space, or name another file.",
        ) from error


def _open_and_leave_as_it_was(path: Path) -> None:
    try:
        path.open("xb").close()
    except FileExistsError:
        path.open("ab").close()
    else:
        # Only whoever made it takes it away: two drivers, one in waiting, may name the same file.
        path.unlink(missing_ok=True)
