"""Traces of realizations: when tensors were computed and why, and what was fused."""

import os
import subprocess
import sys

import numpy as np
import pytest
from max.experimental import functional as F
from max.experimental.realization_context import trace
from max.experimental.tensor import Tensor


def twenty_ops(x, y):
    z = x * 1.5 + y
    z = F.relu(z) - x * 0.25
    z = F.tanh(z) * y + z
    z = z * z - x
    z = F.exp(z * -0.5) + y * 2.0
    z = F.relu(z - 1.0) * x
    return z * 0.125 + y - x


def test_a_region_of_twenty_elementwise_ops_is_one_kernel():
    x, y = Tensor.ones([1000]), Tensor.full([1000], 2)
    with trace() as seen:
        result = F.functional(twenty_ops)(x, y)
    (step,) = seen
    assert (step.reason, step.tensors, len(step.kernels)) == ("the end of a region", 1, 1)
    np.testing.assert_array_equal(result, twenty_ops(x, y))


def test_reasons_locations_and_compilation():
    x = Tensor([1.0, -1.0])
    with trace() as seen:
        y = F.relu(x * 7)
        with F.lazy():
            z = y - 12345.5
        z.to_numpy()
        y = F.relu(x * 7)
    assert [step.reason for step in seen] == ["a bare op", "a bare op", "a read", "a bare op", "a bare op"]
    assert all(step.location is not None and step.location[0] == __file__ for step in seen)
    first, *_, last = seen
    assert last.location[1] == first.location[1] + 4
    assert not last.compiled and last.run_s > 0


def test_what_happens_outside_is_not_recorded():
    x = Tensor([1.0])
    with trace() as seen:
        pass
    x + 1
    assert len(seen) == 0 and str(seen) == ""


def test_traces_nest():
    x = Tensor([1.0])
    with trace() as outer:
        x + 1
        with trace() as inner:
            x + 1
    assert (len(outer), len(inner)) == (2, 1)


def test_text_and_page(tmp_path):
    with trace() as seen:
        F.functional(lambda x: F.softmax(x @ x.T))(Tensor.ones([4, 4]))
    text = str(seen)
    assert "1 tensor realized by the end of a region at " in text and "matmul" in text and __file__ in text
    seen.save(tmp_path / "trace.html")
    page = (tmp_path / "trace.html").read_text(encoding="utf-8")
    assert page == seen.html() and page.count("<svg") == 1 and "matmul" in page
    with pytest.raises(RuntimeError, match="cannot write"):
        seen.save(tmp_path / "missing" / "trace.html")


def test_a_trace_that_has_not_been_entered():
    with pytest.raises(RuntimeError, match="has not been entered"):
        len(trace())


PROGRAM = "from max.experimental.tensor import Tensor; print((Tensor([1.0]) + 1).item())"


def run(wanted, program=PROGRAM):
    environment = {**os.environ, "MAX_TRACE_REALIZATION": wanted}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)


def test_the_environment_asks_for_text():
    done = run("text")
    assert done.stdout == "2.0\n" and "1 tensor realized by a bare op" in done.stderr and "add" in done.stderr


def test_the_environment_asks_for_a_page(tmp_path):
    path = tmp_path / "page.html"
    done = run(str(path))
    assert (done.stdout, done.stderr) == ("2.0\n", "")
    assert path.read_text(encoding="utf-8").count("<svg") == 1


def test_the_length_of_a_page_is_limited(tmp_path):
    path = tmp_path / "page.html"
    run(str(path), f"{PROGRAM}\nfor _ in range(300):\n    Tensor([1.0]) + 1")
    page = path.read_text(encoding="utf-8")
    assert page.count("<svg") == 200 and page.endswith("<p>and more</p>\n")


@pytest.mark.parametrize("wanted", ["pictures", "/no/such/folder/page.html"])
def test_unknown_values_in_the_environment(wanted):
    done = run(wanted)
    assert done.stdout == "2.0\n" and done.stderr.startswith("MAX_TRACE_REALIZATION: ")
