"""The audit of a step whose optimiser comes from outside the package: it passes, and sees one that is fed without noise."""

import pytest

from prifedsync.audit.release import check_optimiser

from ..local.test_own_updates import OWN, own
from .test_step import UnnoisedAdam, failures


@pytest.mark.parametrize("name", OWN)
def test_an_optimiser_of_ones_own_is_audited(name):
    assert not failures(check_optimiser, optimiser=own(name))
    assert failures(check_optimiser, optimiser=own(name), engine=UnnoisedAdam)
