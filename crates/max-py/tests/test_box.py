"""The scripts that trained the model in the box still work, in a form that a CPU can run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

BOX = Path(__file__).parents[3] / "models/box"


def test_a_small_model_learns():
    pytest.importorskip("torch")
    pytest.importorskip("tokenizers")
    said = subprocess.run([sys.executable, BOX / "train.py", "--quick"], capture_output=True, text=True, check=True).stdout
    losses = [float(loss) for loss in re.findall(r"held-out loss ([\d.]+)", said)]
    assert len(losses) == 3 and losses[0] > losses[1] > losses[2], said
