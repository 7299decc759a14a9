"""Ops on tensors, as functions.

They are the ops of `max.graph.ops`, and take the same arguments. Outside any context they have run when they return;
in a context, or while a graph is built, they are recorded there.

>>> from max.experimental import functional as F
>>> from max.experimental.tensor import Tensor
>>> x = Tensor([[1.0, 2.0], [3.0, 4.0]])
>>> F.softmax(x - x).to_numpy()
array([[0.5, 0.5],
       [0.5, 0.5]], dtype=float32)

`functional` makes a function's ops run together, as one program:

>>> @F.functional
... def gelu_bias(x, bias):
...     return F.gelu(x + bias)
>>> gelu_bias(x, 1).real
True
"""

from __future__ import annotations

from typing import Any

from max.experimental import _control
from max.experimental import random as _random
from max.experimental._regions import functional
from max.experimental._regions import single as _single
from max.experimental._regions import source as _source
from max.experimental.realization_context import lazy as lazy
from max.experimental.tensor import Tensor
from max.graph import ops

arange = Tensor.arange
full = Tensor.full
full_like = Tensor.full_like
ones = Tensor.ones
ones_like = Tensor.ones_like
zeros = Tensor.zeros
zeros_like = Tensor.zeros_like

cond = _control.cond
fence = _control.fence
while_loop = _control.while_loop

gaussian = _random.gaussian
normal = _random.normal
uniform = _random.uniform

abs = _single(ops.abs)
acos = _single(ops.acos)
add = _single(ops.add)
argmax = _single(ops.argmax)
argmin = _single(ops.argmin)
argsort = _single(ops.argsort)
as_interleaved_complex = _single(ops.as_interleaved_complex)
atanh = _single(ops.atanh)
avg_pool2d = _single(ops.avg_pool2d)
band_part = _single(ops.band_part)
bottom_k = _single(ops.bottom_k)
broadcast_to = _single(ops.broadcast_to)
cast = _single(ops.cast)
ceil = _single(ops.ceil)
chunk = _single(ops.chunk)
clamp = _single(ops.clamp)
complex_mul = _single(ops.complex_mul)
concat = _single(ops.concat)
constant = _source(ops.constant)
constant_external = _source(ops.constant_external)
conv2d = _single(ops.conv2d)
conv2d_transpose = _single(ops.conv2d_transpose)
conv3d = _single(ops.conv3d)
cos = _single(ops.cos)
cumsum = _single(ops.cumsum)
custom = _single(ops.custom)
dequantize = _single(ops.dequantize)
div = _single(ops.div)
equal = _single(ops.equal)
erf = _single(ops.erf)
exp = _single(ops.exp)
flatten = _single(ops.flatten)
floor = _single(ops.floor)
floor_div = _single(ops.floor_div)
fold = _single(ops.fold)
gather = _single(ops.gather)
gather_nd = _single(ops.gather_nd)
gelu = _single(ops.gelu)
greater = _single(ops.greater)
greater_equal = _single(ops.greater_equal)
group_norm = _single(ops.group_norm)
hann_window = _source(ops.hann_window)
irfft = _single(ops.irfft)
is_inf = _single(ops.is_inf)
is_nan = _single(ops.is_nan)
layer_norm = _single(ops.layer_norm)
log = _single(ops.log)
log1p = _single(ops.log1p)
logical_and = _single(ops.logical_and)
logical_not = _single(ops.logical_not)
logical_or = _single(ops.logical_or)
logical_xor = _single(ops.logical_xor)
logsoftmax = _single(ops.logsoftmax)
masked_scatter = _single(ops.masked_scatter)
matmul = _single(ops.matmul)
max = _single(ops.max)
max_pool2d = _single(ops.max_pool2d)
mean = _single(ops.mean)
min = _single(ops.min)
mod = _single(ops.mod)
mul = _single(ops.mul)
negate = _single(ops.negate)
nonzero = _single(ops.nonzero)
non_maximum_suppression = _single(ops.non_maximum_suppression)
not_equal = _single(ops.not_equal)
outer = _single(ops.outer)
pad = _single(ops.pad)
permute = _single(ops.permute)
pow = _single(ops.pow)
print = _single(ops.print)
prod = _single(ops.prod)
qmatmul = _single(ops.qmatmul)
range = _source(ops.range)
rebind = _single(ops.rebind)
relu = _single(ops.relu)
repeat_interleave = _single(ops.repeat_interleave)
reshape = _single(ops.reshape)
resize = _single(ops.resize)
resize_bicubic = _single(ops.resize_bicubic)
resize_linear = _single(ops.resize_linear)
resize_nearest = _single(ops.resize_nearest)
rms_norm = _single(ops.rms_norm)
roi_align = _single(ops.roi_align)
round = _single(ops.round)
rsqrt = _single(ops.rsqrt)
scatter = _single(ops.scatter)
scatter_add = _single(ops.scatter_add)
scatter_max = _single(ops.scatter_max)
scatter_min = _single(ops.scatter_min)
scatter_mul = _single(ops.scatter_mul)
scatter_nd = _single(ops.scatter_nd)
scatter_nd_add = _single(ops.scatter_nd_add)
scatter_nd_max = _single(ops.scatter_nd_max)
scatter_nd_min = _single(ops.scatter_nd_min)
scatter_nd_mul = _single(ops.scatter_nd_mul)
sigmoid = _single(ops.sigmoid)
silu = _single(ops.silu)
sin = _single(ops.sin)
slice_tensor = _single(ops.slice_tensor)
softmax = _single(ops.softmax)
split = _single(ops.split)
sqrt = _single(ops.sqrt)
squeeze = _single(ops.squeeze)
stack = _single(ops.stack)
sub = _single(ops.sub)
sum = _single(ops.sum)
tanh = _single(ops.tanh)
tile = _single(ops.tile)
top_k = _single(ops.top_k)
transfer_to = _single(ops.transfer_to)
transpose = _single(ops.transpose)
trunc = _single(ops.trunc)
unsqueeze = _single(ops.unsqueeze)
where = _single(ops.where)


def clip(x: Any, min: Any = None, max: Any = None) -> Tensor:
    """Clamps the elements to the range from `min` to `max`.

    >>> from max.experimental.tensor import Tensor
    >>> clip(Tensor([-3.0, 0.5, 3.0]), 0, 1).to_numpy()
    array([0. , 0.5, 1. ], dtype=float32)

    Args:
        x: The tensor.
        min: The lower bound, a number or a tensor; None for no bound.
        max: The upper bound, a number or a tensor; None for no bound.
    """
    return clamp(x, min, max)  # type: ignore[no-any-return]
