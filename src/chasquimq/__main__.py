"""The `chasqui` command, which is `python -m chasquimq`, too."""

import sys

from chasquimq.cli import interrupts


def main() -> int:
    """Run the command line of this process and answer its exit code."""
    # Before anything is imported that takes its time.
    interrupts.answer_from_here_on()
    from chasquimq.cli.app import main as run

    return interrupts.end_quietly(run())


if __name__ == "__main__":
    sys.exit(main())
