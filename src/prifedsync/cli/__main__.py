"""`python -m prifedsync.cli`."""

from . import main

main()
