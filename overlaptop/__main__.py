"""``python -m overlaptop``."""

import sys

from overlaptop.cli import main

if __name__ == "__main__":
    sys.exit(main())
