"""`python -m anncestry` is `anncestry`."""

import sys

from anncestry.cli import main

sys.exit(main())
