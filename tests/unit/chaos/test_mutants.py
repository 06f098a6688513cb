"""The changes that `make mutants` makes fit the code as it is."""

from __future__ import annotations

import pytest

from penstock.settings import PROJECT
from tests.chaos.mutants import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.file], ids=lambda mutant: mutant.name)
def test_the_text_that_a_mutant_replaces_is_there_once(mutant: Mutant) -> None:
    assert (PROJECT / mutant.file).read_text().count(mutant.old) == 1
