"""``python -m maclaurin``."""

from maclaurin.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
