"""Shows what changed of the public surface, or freezes it as it is now.

python -m tests.surface            shows the changes; exit code 1: there are some
python -m tests.surface --write    writes the files in tests/surface/frozen
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from surface.catalogue import (
    LISTS,
    RENEW,
    difference,
    path_of,
    text_of,
)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.surface",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--write", action="store_true", help="freeze what is there now")
    changed = {name: found for name in LISTS if (found := difference(name))}
    if parser.parse_args().write:
        return write(list(changed))
    for name, found in changed.items():
        print(f"── {name}", found, sep="\n")
    if changed:
        print(f"the public surface changed; if that is meant, run {RENEW}", file=sys.stderr)
    return 1 if changed else 0


def write(names: list[str]) -> int:
    """Renew the files of these lists."""
    for name in names:
        path_of(name).parent.mkdir(exist_ok=True)
        path_of(name).write_text(text_of(name))
        print(f"wrote tests/surface/frozen/{name}.txt")
    return 0


if __name__ == "__main__":
    sys.exit(main())
