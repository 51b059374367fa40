"""Tests with Flower's daemons: `make test-flower` runs them."""

import os

collect_ignore_glob = [] if os.environ.get("PRIFEDSYNC_FLOWER") else ["test_*.py"]
