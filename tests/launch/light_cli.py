"""`argosy`, but for what its fork server imports: that is said by a variable. A program, not a test."""

import os
import sys
from unittest import mock

from argosy import cli

with mock.patch.object(cli, "PRELOAD", tuple(os.environ["TEST_PRELOAD"].split())):
    sys.exit(cli.main())
