"""``python -m flowctl``: the command line where the script ``flowctl`` is not on PATH."""

from flowctl.cli.main import entry

if __name__ == "__main__":
    entry()
