"""``python -m bi_inductor``."""

import sys

from bi_inductor.command_line import main

if __name__ == "__main__":
    sys.exit(main())
