"""`python -m earnest.cli`: the `earnest` command."""

import sys

from earnest.cli import main

sys.exit(main())
