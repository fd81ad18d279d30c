"""``tl.reduce`` and ``tl.associative_scan`` with any combining function, in a stated order, over whole slices at once.

A reduction folds by halves of the index: element i with element i + n/2, and so on. That is what a GPU does within a warp that holds one
element a thread (butterfly shuffles by 16, 8, 4, 2, 1). A GPU folds across warps after that, and first what a thread holds, so a kernel
whose order matters must not reduce more than one warp's lanes by ``tl.sum``, or only along an axis of registers or warps; for such a kernel
both orders are the same. A scan goes from the first element to the last; a GPU's order is another one.
"""

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import ReduceScanOpInterface, TensorHandle


def _block(data: np.ndarray, dtype: tl.dtype) -> tl.tensor:
    data = np.ascontiguousarray(data)
    return tl.tensor(TensorHandle(data, dtype), tl.block_type(dtype, list(data.shape)))


class _Fold(ReduceScanOpInterface):
    """Combines slices of all operands with the combining function of the kernel."""

    def combined(self, left, right, dtypes):
        result = self.combine_fn(
            *(_block(data, dtype) for data, dtype in zip(left, dtypes, strict=True)),
            *(_block(data, dtype) for data, dtype in zip(right, dtypes, strict=True)),
        )
        tensors = result if isinstance(result, (tuple, tl.tuple)) else (result,)
        for tensor, dtype in zip(tensors, dtypes, strict=True):
            if tensor.dtype.scalar != dtype:
                raise TypeError(f"the combining function returned {tensor.dtype.scalar} for {dtype}")
        return [tensor.handle.data for tensor in tensors]


class FoldByHalves(_Fold):
    """In the place of ``ReduceOps``."""

    def __init__(self, axis, combine_fn, keep_dims):
        super().__init__(axis, combine_fn)
        self.keep_dims = keep_dims

    def apply_impl(self, input):
        dtypes = [tensor.dtype.scalar for tensor in input]
        ndim = len(input[0].shape)
        whole = self.axis is None
        slices = [tensor.handle.data.reshape(-1) if whole else np.moveaxis(tensor.handle.data, self.axis, 0) for tensor in input]
        while len(slices[0]) > 1:
            half = len(slices[0]) // 2
            slices = self.combined([data[:half] for data in slices], [data[half:] for data in slices], dtypes)
        out = [data[0] for data in slices]
        if self.keep_dims:
            out = [data.reshape([1] * ndim) if whole else np.expand_dims(data, self.axis) for data in out]
        return [self.to_tensor(data, dtype) for data, dtype in zip(out, dtypes, strict=True)]


class ScanInOrder(_Fold):
    """In the place of ``ScanOps``."""

    def __init__(self, axis, combine_fn, reverse):
        super().__init__(axis, combine_fn)
        self.reverse = reverse

    def apply_impl(self, input):
        dtypes = [tensor.dtype.scalar for tensor in input]
        slices = [np.moveaxis(tensor.handle.data, self.axis, 0) for tensor in input]
        slices = [data[::-1] if self.reverse else data for data in slices]
        steps = [[data[:1] for data in slices]]
        for i in range(1, len(slices[0])):
            steps.append(self.combined(steps[-1], [data[i : i + 1] for data in slices], dtypes))
        out = []
        for data, dtype in zip(map(np.concatenate, zip(*steps, strict=True)), dtypes, strict=True):
            out.append(self.to_tensor(np.moveaxis(data[::-1] if self.reverse else data, 0, self.axis), dtype))
        return out
