"""Importing the package must stay cheap: it must not import anything heavy."""

import subprocess
import sys

import pytest

HEAVY = ["torch", "scipy", "pandas", "matplotlib", "transformers", "tensorflow", "jax", "PIL", "requests", "sympy"]

MODULES = """
    max max.dtype max.driver max.engine max.graph max.graph.ops max.graph.weights max.experimental
    max.experimental.functional max.experimental.nn max.experimental.random max.experimental.realization_context
    max.experimental.tensor max.nn max.nn.float8_config max.nn.kernels max.nn.layer max.nn.transformer
""".split()


@pytest.mark.parametrize("module", MODULES)
def test_imports_no_heavy_module(module: str) -> None:
    code = f"import sys; import {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "setup, message",
    [
        ("sys.modules['torch'] = None", "PyTorch, which is not installed: pip install torch"),
        (
            "sys.modules['torch'] = types.SimpleNamespace(__version__='2.8.0', Tag=None)",
            "PyTorch 2.9 or newer, but 2.8.0 is installed: pip install -U torch",
        ),
    ],
    ids=["no PyTorch", "old PyTorch"],
)
def test_max_torch_says_what_to_install(setup: str, message: str) -> None:
    code = f"import sys, types; {setup}\ntry: import max.torch\nexcept ImportError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == f"max.torch needs {message}\n", done.stderr


def test_public_names_of_max_graph() -> None:
    import max.graph

    names = """
        AlgebraicDim BufferType BufferValue DeviceRef Dim Graph Shape StaticDim SymbolicDim TensorType TensorValue
        Type Value Weight dim ops quantization shape type
    """.split()
    assert [name for name in names if not hasattr(max.graph, name)] == []


def test_max_experimental_imports_its_modules() -> None:
    names = ["functional", "nn", "random", "realization_context", "tensor"]
    code = f"import max.experimental as e; print([n for n in {names!r} if not hasattr(e, n)])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr
