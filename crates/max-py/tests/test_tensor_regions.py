"""What users can rely on when ops on tensors are recorded, run together, run immediately, or never run."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from max.driver import CPU, Buffer
from max.dtype import DType
from max.engine import InferenceSession
from max.experimental import functional as F
from max.experimental.nn import Linear
from max.experimental.nn._tracing import stand_ins
from max.experimental.realization_context import (
    EagerRealizationContext,
    clear_compile_cache,
    compile_cache_stats,
    lazy,
)
from max.experimental.tensor import Tensor, default_device, default_dtype, defaults
from max.graph import Graph, TensorType, Weight, ops
from max.graph._building import stack

from helpers import REFUSED, address

X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)


@pytest.fixture(autouse=True)
def on_the_cpu():
    with default_device(CPU()):
        yield


def out_of_range() -> Tensor:
    """A gather that fails, but only when it runs."""
    return F.gather(Tensor(ROWS), Tensor(np.array([0, 99])), axis=0)


class TestPages:
    def test_the_eager_example_of_the_overview(self) -> None:
        code = """
        from max.experimental import functional as F
        from max.experimental.tensor import Tensor
        x = Tensor.ones([5])
        y = F.relu(x)
        print(y) # Result is available immediately
        """
        command = [sys.executable, "-c", textwrap.dedent(code)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert "1" in done.stdout and "Tensor" in done.stdout

    def test_a_bare_op_has_run_when_it_returns(self) -> None:
        y = F.relu(Tensor.ones([5]))
        assert y.real

    def test_the_layer_of_the_page_on_realization(self) -> None:
        nn = pytest.importorskip("max.experimental.nn")

        @nn.module_dataclass
        class MyLayer(nn.Module):
            weight: Tensor
            bias: Tensor

            @F.functional
            def forward(self, x: Tensor) -> Tensor:
                return x @ self.weight.T + self.bias

        weight, bias = np.array([[1, 2, 3], [4, 5, 6]], np.float32), np.array([1, -1], np.float32)
        y = MyLayer(weight=Tensor(weight), bias=Tensor(bias))(Tensor(X))
        assert y.real
        np.testing.assert_allclose(y.to_numpy(), X @ weight.T + bias)

    def test_the_example_of_the_tensor_module(self) -> None:
        from max.experimental import tensor

        x = tensor.Tensor.ones((2, 3), dtype=DType.float32, device=CPU())
        y = tensor.Tensor.zeros((2, 3), dtype=DType.float32, device=CPU())
        result = x + y  # Eager execution with automatic compilation
        np.testing.assert_array_equal(result.to_numpy(), np.ones((2, 3), np.float32))


class TestDeadTensors:
    """Tensors that nobody holds are never computed."""

    def test_in_a_context(self) -> None:
        with EagerRealizationContext():
            out_of_range()
            broken = out_of_range()
            y = broken + 1
            del broken, y
            kept = Tensor([1.0]) + 1
        assert kept.item() == 2

    def test_in_a_function(self) -> None:
        @F.functional
        def wasteful(x: Tensor) -> Tensor:
            unused = out_of_range() * 2  # noqa: F841
            return x + 1

        assert wasteful(Tensor([1.0])).item() == 2

    def test_in_a_lazy_block(self) -> None:
        with lazy():
            broken = out_of_range()
            fine = Tensor([1.0]) + 1
        assert fine.item() == 2 and not broken.real

    def test_one_result_of_several(self) -> None:
        with EagerRealizationContext():
            first, second = Tensor(X).split([1, 2], axis=1)
            del second
        np.testing.assert_array_equal(first.to_numpy(), X[:, :1])

    def test_sources_are_released(self) -> None:
        x = Tensor(X)
        alive = weakref.ref(x)
        with EagerRealizationContext():
            y = x + 1
            del x
        gc.collect()
        assert alive() is None
        np.testing.assert_array_equal(y.to_numpy(), X + 1)


class TestErrors:
    def test_at_run_time_in_a_bare_op(self) -> None:
        with pytest.raises(REFUSED, match="99"):
            out_of_range()
        assert (Tensor([1.0]) + 1).item() == 2

    def test_at_the_end_of_a_context(self) -> None:
        with pytest.raises(REFUSED, match="99"):
            with EagerRealizationContext():
                broken = out_of_range()
                fine = Tensor([1.0]) + 1
        assert not broken.real
        assert fine.item() == 2
        with pytest.raises(REFUSED, match="99"):
            broken.to_numpy()
        assert (Tensor([1.0]) + 1).real

    def test_when_a_lazy_tensor_is_read(self) -> None:
        with lazy():
            broken = out_of_range()
        for read in (lambda: broken.realize, broken.to_numpy, lambda: repr(broken), lambda: broken + 1):
            with pytest.raises(REFUSED, match="99"):
                read()

    def test_mistakes_are_reported_where_they_are_made(self) -> None:
        with lazy():
            with pytest.raises(ValueError, match="broadcast"):
                Tensor.ones([2]) + Tensor.ones([3])
            with pytest.raises(ValueError, match="Unsafe cast"):
                Tensor.ones([2], dtype=DType.int32) + Tensor.ones([2])
            fine = Tensor([1.0]) + 1
        assert fine.item() == 2

    def test_an_exception_in_a_nested_context_leaves_the_outer_one(self) -> None:
        with EagerRealizationContext():
            x = Tensor([1.0]) + 1
            with pytest.raises(KeyError), EagerRealizationContext():
                y = x * 10
                raise KeyError
            z = x + y
            assert not x.real and not y.real
        assert (x.item(), y.item(), z.item()) == (2, 20, 22)

    def test_weights_of_graphs_have_no_data(self) -> None:
        weight = Weight("scale", DType.float32, [1])
        for use in (
            lambda: Tensor([1.0]) * weight,
            lambda: F.constant_external("scale", weight.type),
            lambda: F.functional(lambda: F.relu(weight))(),
        ):
            with pytest.raises(ValueError, match="'scale' has no parent graph"):
                use()
        assert (Tensor([1.0]) + 1).item() == 2

    def test_values_of_a_graph_cannot_be_used_outside_it(self) -> None:
        with Graph("g", input_types=[TensorType(DType.float32, [2])]) as graph:
            value = Tensor.from_graph_value(graph.inputs[0]) + 1
        for use in (lambda: value + 1, lambda: F.relu(value), lambda: F.functional(lambda: value * 2)()):
            with pytest.raises(REFUSED, match="'g'"):
                use()


class TestReadingInside:
    """Reading a tensor in a block computes it there, and the block continues."""

    @pytest.mark.parametrize("context", [EagerRealizationContext, lazy])
    def test_control_flow_on_values(self, context: Any) -> None:
        with context():
            x, steps = Tensor([100.0]), 0
            while x > 1:
                x, steps = x / 2, steps + 1
        assert steps == 7 and x.item() == 0.78125

    def test_every_way_to_read(self) -> None:
        with lazy():
            for read in (
                lambda t: t.item(),
                float,
                int,
                bool,
                complex,
                lambda t: t.to_numpy().item(),
                lambda t: np.from_dlpack(t).item(),
                lambda t: np.asarray(t).item(),
                lambda t: Buffer.from_dlpack(t).item(),
            ):
                t = Tensor([2.0]) + 3
                assert not t.real
                assert read(t) in (5, True) and t.real
            t = Tensor([2.0]) + 3
            assert "5" in repr(t) and t.real
            indices = Tensor(1, dtype=DType.int64) + 1
            assert [10, 20, 30][indices] == 30

    def test_what_is_read_is_not_computed_again(self) -> None:
        with lazy():
            x = Tensor(X) * 2
            y = x + 1
        first = address(x.to_numpy())
        y.realize
        assert address(x.to_numpy()) == first

    def test_await(self) -> None:
        async def main() -> float:
            with lazy():
                x = Tensor([1.0]) + 1
            assert not x.real
            assert await x.realize is x
            return x.item()

        assert asyncio.run(main()) == 2


class TestMutation:
    """Arrays that change after an op do not change its result."""

    @pytest.mark.parametrize("context", [None, EagerRealizationContext, lazy])
    def test_of_an_operand(self, context: Any) -> None:
        array = np.ones((2, 3), np.float32)
        number = np.array(2.0, np.float32)
        if context is None:
            y, z = Tensor(X) + array, Tensor(X) * number
            array[:], number[...] = 100, 100
        else:
            with context():
                y, z = Tensor(X) + array, Tensor(X) * number
                array[:], number[...] = 100, 100
        np.testing.assert_array_equal(y.to_numpy(), X + 1)
        np.testing.assert_array_equal(z.to_numpy(), X * 2)

    def test_of_arrays_that_are_only_moved(self) -> None:
        array = np.ones((2, 2), np.float32)
        moved = [
            F.reshape(array, [4]),
            F.reshape(Buffer.from_numpy(array), [4]),
            F.transpose(array, 0, 1),
            F.broadcast_to(array, [3, 2, 2]),
            F.rebind(array, [2, 2]),
            F.concat([array]),
            F.split(array, [1, 1])[0],
            F.slice_tensor(array, [0]),
            F.cast(array, DType.float32),
        ]
        array[:] = 5
        assert [result.to_numpy().max() for result in moved] == [1] * len(moved)

    def test_results_are_not_shared_with_operands(self) -> None:
        array = np.ones(4, np.float32)
        y = F.reshape(Tensor.from_dlpack(array) * 1, [2, 2])
        array[:] = 5
        np.testing.assert_array_equal(y.to_numpy(), np.ones((2, 2)))

    def test_the_same_number_twice(self) -> None:
        """Numbers that vary become inputs of a compiled op: each call must see its own."""
        x = Tensor([1.0])
        assert [(x * k).item() for k in (2, 3, 2, 5)] == [2, 3, 2, 5]
        assert [F.softmax(Tensor(X) * s).to_numpy()[0, 0] == 0 for s in (1e3, 0)] == [True, False]


class TestOrder:
    """Programs that differ only in the order of their operands are distinguished."""

    @pytest.mark.parametrize("context", [EagerRealizationContext, lazy])
    def test_of_numbers_and_tensors(self, context: Any) -> None:
        x, flags = np.array([5, -7], np.float32), np.array([True, False])
        for _ in range(2):
            with context():
                results = [
                    Tensor(x) - 1,
                    1 - Tensor(x),
                    Tensor(x) / 2,
                    2 / Tensor(x),
                    Tensor(x) > 0,
                    0 > Tensor(x),
                    F.where(Tensor(flags), Tensor(x), 0),
                    F.where(Tensor(flags), 0, Tensor(x)),
                ]
            expected = [x - 1, 1 - x, x / 2, 2 / x, x > 0, 0 > x, np.where(flags, x, 0), np.where(flags, 0, x)]
            for result, want in zip(results, expected, strict=True):
                np.testing.assert_array_equal(result.to_numpy(), want)

    def test_one_after_the_other(self) -> None:
        x = np.array([5, -7], np.float32)
        for number in (1, 2, 3):
            for function in (lambda t, k: t - k, lambda t, k: k - t, lambda t, k: t - t * k, lambda t, k: t * k - t):
                with EagerRealizationContext():
                    y = function(Tensor(x), number)
                np.testing.assert_array_equal(y.to_numpy(), function(x, number))

    def test_of_tensors(self) -> None:
        a, b = np.array([1, 2], np.float32), np.array([10, 20], np.float32)
        for first, second in ((a, b), (b, a)):
            with EagerRealizationContext():
                x, y = Tensor(first), Tensor(second)
                results = [x - y, y - x, x - x, F.concat([y, x]), F.concat([x, y]), F.concat([x, x])]
            joined = [np.concatenate(pair) for pair in ((second, first), (first, second), (first, first))]
            for result, want in zip(results, [first - second, second - first, first - first, *joined], strict=True):
                np.testing.assert_array_equal(result.to_numpy(), want)


class Program:
    """A random program: a list of steps, each on results of steps before it. It runs on tensors and on NumPy arrays."""

    PAIRS = {
        "add": (F.add, np.add),
        "sub": (F.sub, np.subtract),
        "mul": (F.mul, np.multiply),
        "max": (F.max, np.maximum),
        "min": (F.min, np.minimum),
    }
    SINGLE = {
        "negate": (F.negate, np.negative),
        "tanh": (F.tanh, np.tanh),
        "sum": (lambda x: F.sum(x, 0), lambda x: np.sum(x, 0, keepdims=True)),
        "transpose": (lambda x: x.T, lambda x: x.T),
        "part": (lambda x: x[:, ::-1], lambda x: x[:, ::-1]),
        "twice": (lambda x: F.concat([x, x], axis=0)[: len(x)], lambda x: x),
        "fold": (lambda x: F.reshape(x, [-1]).reshape(x.shape), lambda x: x),
    }

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        size = int(rng.integers(1, 6))
        self.inputs = [rng.uniform(-1, 1, (size, size)).astype(np.float32) for _ in range(rng.integers(1, 4))]
        self.steps = []
        for step in range(rng.integers(1, 9)):
            known = len(self.inputs) + step
            if rng.random() < 0.6:
                operands = [int(rng.integers(known)), int(rng.integers(known))]
                number = float(rng.integers(-3, 4)) if rng.random() < 0.5 else None
                self.steps.append((str(rng.choice(list(self.PAIRS))), operands, number, int(rng.integers(2))))
            else:
                self.steps.append((str(rng.choice(list(self.SINGLE))), [int(rng.integers(known))], None, 0))
        self.kept = sorted({known, int(rng.integers(known + 1))})

    def run(self, values: list, side: int) -> list:
        for name, operands, number, place in self.steps:
            given = [values[operand] for operand in operands]
            if number is not None:
                given[place] = number
            values = [*values, {**self.PAIRS, **self.SINGLE}[name][side](*given)]
        return [values[index] for index in self.kept]


@pytest.mark.parametrize("part", range(10))
def test_random_programs_agree_with_numpy(part: int) -> None:
    for seed in range(part * 60, part * 60 + 60):
        program = Program(seed)
        expected = program.run(program.inputs, 1)
        tensors = [Tensor(array) for array in program.inputs]
        bare = program.run(tensors, 0)
        together = F.functional(program.run)(tensors, 0)
        with lazy():
            waiting = program.run(tensors, 0)
        for results in (bare, together, waiting):
            for result, want in zip(results, expected, strict=True):
                message = f"seed {seed}: {program.steps}"
                np.testing.assert_allclose(result.to_numpy(), want, rtol=1e-4, atol=1e-4, err_msg=message)


class TestManyOps:
    def test_a_long_chain_in_one_block(self) -> None:
        with EagerRealizationContext():
            x = Tensor.zeros([4])
            for _ in range(5000):
                x = x + 1
        np.testing.assert_array_equal(x.to_numpy(), [5000] * 4)

    def test_a_long_lazy_chain_can_be_dropped(self) -> None:
        with lazy():
            x = Tensor.zeros([4])
            for _ in range(5000):
                x = x + 1
        del x

    def test_a_loop_keeps_the_cache_bounded(self) -> None:
        clear_compile_cache()
        before = compile_cache_stats()
        x = Tensor.zeros([8])
        for step in range(20_000):
            x = x + step % 7
        np.testing.assert_array_equal(x.to_numpy(), [sum(step % 7 for step in range(20_000))] * 8)
        after = compile_cache_stats()
        assert after.size < 50
        assert after.misses - before.misses < 50

    def test_growing_sizes_keep_the_cache_bounded(self) -> None:
        clear_compile_cache()
        for size in range(1, 2000):
            assert (Tensor.ones([size]) * 2).shape == [size]
        assert compile_cache_stats().size < 1000

    def test_many_kinds_of_ops_keep_the_cache_bounded(self) -> None:
        clear_compile_cache()
        for width in range(1, 4000):
            Tensor.zeros([width, 1, 1])[..., None].permute([3, 1, 0, 2]).sum(axis=width % 4)
        assert compile_cache_stats().size < 5000

    def test_results_agree_with_numpy_whatever_was_cached(self) -> None:
        rng = np.random.default_rng(0)
        for _ in range(200):
            rows, columns, k = rng.integers(1, 6, 3)
            a = rng.standard_normal((rows, k)).astype(np.float32)
            b = rng.standard_normal((k, columns)).astype(np.float32)
            shift = float(rng.integers(-3, 3))
            np.testing.assert_allclose(
                (Tensor(a) @ Tensor(b) + shift).to_numpy(), a @ b + np.float32(shift), rtol=1e-4, atol=1e-5
            )


class TestThreadsAndTasks:
    def test_two_threads_compute_concurrently(self) -> None:
        def work(seed: int) -> float:
            with default_device(CPU()):
                x = Tensor.full([16], float(seed))
                for _ in range(300):
                    x = F.tanh(x) + seed
                    with EagerRealizationContext():
                        y = x * 2 - x
                    assert y.real
                return y.to_numpy().sum().item()

        with ThreadPoolExecutor(2) as pool:
            together = list(pool.map(work, [1, 2, 3, 4]))
        assert together == [work(seed) for seed in (1, 2, 3, 4)]

    def test_two_threads_read_one_pending_tensor(self) -> None:
        for _ in range(20):
            with lazy():
                x = Tensor(X) @ Tensor(X.T) + 1
            barrier = threading.Barrier(2)

            def read(x: Tensor = x, barrier: threading.Barrier = barrier) -> np.ndarray:
                barrier.wait()
                return x.to_numpy()

            with ThreadPoolExecutor(2) as pool:
                first, second = pool.submit(read), pool.submit(read)
            np.testing.assert_array_equal(first.result(), X @ X.T + 1)
            np.testing.assert_array_equal(second.result(), X @ X.T + 1)

    def test_a_context_belongs_to_its_thread(self) -> None:
        seen = []
        with lazy():
            thread = threading.Thread(target=lambda: seen.append((Tensor(1.0, device=CPU()) + 1).real))
            thread.start()
            thread.join()
            assert not (Tensor(1.0) + 1).real
        assert seen == [True]

    def test_tasks_keep_their_own_contexts(self) -> None:
        async def lazily(turn: asyncio.Event, other: asyncio.Event) -> bool:
            with lazy():
                other.set()
                await turn.wait()
                return (Tensor([1.0]) + 1).real

        async def eagerly(turn: asyncio.Event, other: asyncio.Event) -> bool:
            await turn.wait()
            real = (Tensor([1.0]) + 1).real
            other.set()
            return real

        async def main() -> list:
            a, b = asyncio.Event(), asyncio.Event()
            return await asyncio.gather(lazily(a, b), eagerly(b, a))

        assert asyncio.run(main()) == [False, True]

    def test_defaults_of_tasks(self) -> None:
        async def kind(dtype: DType) -> DType:
            with default_dtype(dtype):
                await asyncio.sleep(0)
                return defaults()[0]

        async def main() -> list:
            return await asyncio.gather(kind(DType.int8), kind(DType.float64))

        assert asyncio.run(main()) == [DType.int8, DType.float64]

    def test_a_coroutine_is_one_region(self) -> None:
        @F.functional
        async def forward(x: Tensor) -> tuple[Tensor, bool]:
            y = x + 1
            await asyncio.sleep(0)
            return y * 2, y.real

        y, was_real = asyncio.run(forward(Tensor([1.0])))
        assert y.real and y.item() == 4 and not was_real

    def test_a_copied_context_may_outlive_its_block(self) -> None:
        with lazy():
            inside = contextvars.copy_context()
        y = inside.run(lambda: Tensor([1.0]) + 1)
        assert not y.real and y.item() == 2

    def test_generators_may_leave_in_any_order(self) -> None:
        def steps(context: Any) -> Any:
            with context:
                yield Tensor([1.0]) + 1
                yield Tensor([2.0]) + 1

        one, two = steps(lazy()), steps(EagerRealizationContext())
        first, second = next(one), next(two)
        one.close()
        assert not (Tensor([1.0]) + 1).real
        two.close()
        assert (Tensor([1.0]) + 1).real
        assert (first.item(), second.item()) == (2, 2)


class TestInterop:
    def test_pending_tensors_meet_real_ones_of_other_blocks(self) -> None:
        with lazy():
            x = Tensor([1.0]) + 1
        with lazy():
            y = x * 3
        z = y + x
        assert z.real and z.item() == 8

    def test_tensors_are_inputs_of_models(self) -> None:
        with Graph("double", input_types=[TensorType(DType.float32, ["n"])]) as graph:
            graph.output(graph.inputs[0] * 2)
        model = InferenceSession(devices=[CPU()]).load(graph)
        with lazy():
            x = Tensor([1.0, 2.0]) + 1
        for given in (x, Tensor([2.0, 3.0])):
            np.testing.assert_array_equal(model.execute(given)[0].to_numpy(), [4, 6])
            np.testing.assert_array_equal(model(given)[0].to_numpy(), [4, 6])

    def test_outputs_of_models_are_tensors_without_a_copy(self) -> None:
        with Graph("double", input_types=[TensorType(DType.float32, ["n"])]) as graph:
            graph.output(graph.inputs[0] * 2)
        (out,) = InferenceSession(devices=[CPU()]).load(graph).execute(np.ones(3, np.float32))
        x = Tensor.from_dlpack(out)
        assert address(x.driver_tensor) == address(out)
        assert (x + 1).to_numpy().tolist() == [3, 3, 3]

    def test_tensors_are_weights_of_models(self) -> None:
        with Graph("scaled", input_types=[TensorType(DType.float32, [2])]) as graph:
            graph.output(graph.inputs[0] * Weight("w", DType.float32, [2]))
        weights = {"w": Tensor([2.0, 3.0])}
        model = InferenceSession(devices=[CPU()]).load(graph, weights_registry=weights)
        assert model.execute(np.ones(2, np.float32))[0].to_numpy().tolist() == [2, 3]


class TestInterrupts:
    @pytest.mark.skipif(sys.platform == "win32", reason="signals")
    def test_ctrl_c_ends_a_loop_of_ops(self) -> None:
        x = Tensor.ones([256, 256])
        timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            while True:
                x = F.tanh(x @ x)
        timer.join()
        assert (Tensor([1.0]) + 1).item() == 2

    @pytest.mark.skipif(sys.platform == "win32", reason="signals")
    def test_ctrl_c_ends_a_running_region(self) -> None:
        timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            with EagerRealizationContext():
                x = Tensor.ones([1024, 1024])
                for _ in range(400):
                    x = F.tanh(x @ x)
                timer.start()
        timer.join()
        assert not x.real
        with EagerRealizationContext():
            y = Tensor([1.0]) + 1
        assert y.item() == 2


class Stop(BaseException):
    """Raised by an alarm, wherever the program is."""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this platform has no alarms")
@pytest.mark.parametrize(
    "step",
    [F.relu, F.functional(lambda x: x + 1), lambda x: Linear(2, 2).compile(x.type)(x)],
    ids=["op", "functional", "compile"],
)
def test_an_interrupt_leaves_no_scope_behind(step: Any) -> None:
    def stop(*_: Any) -> None:
        raise Stop

    x = Tensor([1.0, 2.0])
    before = signal.signal(signal.SIGALRM, stop)
    try:
        for microseconds in range(20, 1020):
            with pytest.raises(Stop):
                signal.setitimer(signal.ITIMER_REAL, microseconds * 1e-6)
                while True:
                    step(x)
            assert (x + 1).real and stack.get() == () and stand_ins.get() is None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_operands_of_bare_ops_may_be_made_by_ops() -> None:
    class Twice:
        def __init__(self, x: float) -> None:
            self.x = x

        def __tensorvalue__(self) -> Any:
            if self.x < 0:
                raise ValueError("no square root")
            value = ops.constant(self.x, DType.float32, CPU())
            return value + value

    assert F.sqrt(Twice(8.0)).to_numpy() == 4.0
    with F.lazy():
        later = F.sqrt(Twice(2.0))
    assert later.to_numpy() == 2.0
    with pytest.raises(ValueError, match="no square root"):
        F.sqrt(Twice(-1.0))
    with pytest.raises(LookupError, match="No graph found"):
        ops.constant(1.0, DType.float32, CPU())
