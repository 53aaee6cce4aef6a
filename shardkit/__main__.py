"""Run `python -m shardkit <command>`, or `shardkit <command>`."""

from importlib import import_module

from .public import importing


def main() -> int:
    """Run the command of this process and return its exit code."""
    with importing():
        cli = import_module(".cli", "shardkit")
    return cli.main()


if __name__ == "__main__":
    raise SystemExit(main())
