"""`python -m chasquimq` is the `chasqui` command."""

import sys

from chasquimq.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
