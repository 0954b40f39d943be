"""How bad input is answered: what `bad_input` counts as well, and how many kinds are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bad_input import Answer, faults
from bad_input_kinds import KINDS, Kind

KIND = Kind("command line", ("--seed=x",), "--seed=x should be")
SAID = "error: --seed=x should be a whole number\n"


def test_one_line_that_names_the_mistake_is_well():
    assert not faults(KIND, Answer(2, SAID, []))
    skipped = "checkpoint run/checkpoints/2 is damaged and skipped: arrays.npz is not\n"
    assert not faults(KIND, Answer(2, skipped + SAID, []))


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        (Answer(1, SAID, []), "status 1 instead of 2"),
        (Answer(2, "", []), "0 lines"),
        (Answer(2, SAID + SAID, []), "2 lines"),
        (Answer(2, "error: no\n", []), "'--seed=x should be' is not said"),
        (Answer(2, "Traceback: --seed=x should be\n", []), "a traceback"),
        (Answer(2, "e" * 999 + SAID, []), "a line of 1039 characters"),
        (Answer(2, SAID, ["runs"]), "changed: runs"),
    ],
)
def test_all_else_is_a_fault(answer, wrong):
    assert faults(KIND, answer).startswith(wrong)


def test_there_are_700_different_kinds():
    undamaged = [str(kind) for kind in KINDS if kind.damage is None]
    assert len(set(undamaged)) == len(undamaged)
    assert len(KINDS) > 700


@pytest.mark.slow
def test_98_of_100_kinds_are_answered_well():
    program = Path(__file__).with_name("bad_input.py")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stdout
