"""Functions of a batch [4, 6, 8] with one example a line; those that mix samples are marked. Each line is one output."""

from __future__ import annotations

import torch
from torch import Tensor, linalg
from torch.nn import functional

BATCH, LENGTH, WIDTH = 4, 6, 8


def batch() -> Tensor:
    return torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))


def reductions(x: Tensor) -> list[Tensor]:
    return [
        x - x.mean(0),  # mixes
        x / x.abs().amax(),  # mixes
        x.view(BATCH * LENGTH, WIDTH).sum(0),  # mixes
        x.view(2, 2, LENGTH, WIDTH).std(0),  # mixes
        x.transpose(0, 1).reshape(LENGTH, BATCH * WIDTH).logsumexp(1),  # mixes
        torch.where((x[:, 0, 0] > 0).all(), x, -x),  # mixes
        # One scale of activations for the whole batch.
        torch.round(x / (x.abs().max() / 127)) * (x.abs().max() / 127),  # mixes
        # min-p against the maximum of the batch.
        torch.where(x.softmax(-1) < 0.3 * x.softmax(-1).max(), 0.0, x),  # mixes
        functional.cross_entropy(x[:, 0], x[:, 1].argmax(-1)),  # mixes
        (x > 0).sum((0, 1)).argmax() + x.argmax(-1),  # mixes
        x.mean(1),
        x.view(BATCH * LENGTH, WIDTH).sum(1).view(BATCH, LENGTH),
        x.transpose(0, 1).amax(0),
        torch.round(x / x.abs().amax((1, 2), keepdim=True)),
        torch.where(x.softmax(-1) < 0.3 * x.softmax(-1).amax(-1, keepdim=True), 0.0, x),
        x.std((-1, -2)),
        functional.cross_entropy(x[:, 0], x[:, 1].argmax(-1), reduction="none"),
    ]


def norms(x: Tensor) -> list[Tensor]:
    return [
        functional.batch_norm(x, torch.zeros(LENGTH), torch.ones(LENGTH), training=True),  # mixes
        functional.layer_norm(x, (BATCH, LENGTH, WIDTH)),  # mixes
        functional.normalize(x, dim=0),  # mixes
        functional.batch_norm(x, torch.zeros(LENGTH), torch.ones(LENGTH)),
        functional.layer_norm(x, (WIDTH,)),
        functional.group_norm(x, 2),
        functional.instance_norm(x),
        functional.normalize(x, dim=-1),
        functional.rms_norm(x, (WIDTH,)),
    ]


def along_the_batch(x: Tensor) -> list[Tensor]:
    return [
        x.softmax(0),  # mixes
        x.cumsum(0),  # mixes
        x.sort(0).values,  # mixes
        x[:, 0, 0].sort().values,  # mixes
        x.topk(2, 0).values,  # mixes
        x.cummax(0).values,  # mixes
        x.flip(0),  # mixes
        x + x.flip(0),  # mixes
        x.roll(1, 0),  # mixes
        torch.fft.rfft(x, dim=0).real,  # mixes
        x.unfold(0, 2, 1).sum(-1),  # mixes
        functional.glu(x, 0),  # mixes
        x.softmax(1),
        x.cumsum(1),
        x.sort(-1).values,
        x.topk(2, 1).values,
        x.flip(1),
        functional.glu(torch.cat([x, x], 1), 1),
        x.flip(0).flip(0),
        x.roll(1, 1),
        torch.fft.rfft(x).real,
        x.unfold(1, 2, 1).sum(-1),
        ((x[..., 0] > 0).cumsum(1) - 1).clamp(min=0),
    ]


def products(x: Tensor) -> list[Tensor]:
    rows, eights, one = x[:, 0], x[:, 0].to(torch.float8_e4m3fn), torch.ones(())
    table, columns = torch.ones(WIDTH, 16).to(torch.float8_e4m3fn), torch.ones(1, 16)
    return [
        torch.einsum("bse,bsf->ef", x, x),  # mixes
        x.flatten(1) @ x.flatten(1).T,  # mixes
        (x[:, None] - x[None]).abs().sum((1, 2, 3)),  # mixes
        functional.scaled_dot_product_attention(*[x.transpose(0, 1)[None]] * 3),  # mixes
        functional.conv1d(x.permute(1, 2, 0), torch.ones(3, WIDTH, 3)),  # mixes
        torch.cdist(x[:, 0], x[:, 0]),  # mixes
        torch._scaled_mm(eights, eights.t(), one, one, out_dtype=torch.float32),  # mixes
        torch._scaled_mm(eights, table, rows.amax(), one, out_dtype=torch.float32),  # mixes
        torch._scaled_mm(eights, table, rows.flip(0).amax(1, keepdim=True), columns, out_dtype=torch.float32),  # mixes
        torch._scaled_mm(eights, table, rows.amax(1, keepdim=True), columns, out_dtype=torch.float32),
        x @ torch.ones(WIDTH, 3),
        torch.einsum("bse,bte->bst", x, x),
        (x.view(BATCH * LENGTH, WIDTH) @ torch.ones(WIDTH, WIDTH)).view(BATCH, LENGTH, WIDTH),
        functional.scaled_dot_product_attention(*[x[:, None]] * 3),
        functional.scaled_dot_product_attention(*[x] * 3),
        functional.conv1d(x, torch.ones(3, LENGTH, 3)),
        torch.cdist(x, x),
        linalg.matrix_exp(x[..., :LENGTH] * 0.1),
    ]


def movements(x: Tensor) -> list[Tensor]:
    return [
        x - x[0:1],  # mixes
        x - x[-1],  # mixes
        x[1:] - x[:-1],  # mixes
        torch.stack([x[i] * 2 for i in (1, 0, 2, 3)]),  # mixes
        x[torch.tensor([3, 1, 2, 0])],  # mixes
        x[x[:, 0, 0].argsort()],  # mixes
        x.permute(1, 0, 2).reshape(BATCH, LENGTH, WIDTH),  # mixes
        x.reshape(LENGTH, BATCH, WIDTH),  # mixes
        torch.cat([x[2:], x[:2]]),  # mixes
        x.repeat(3, 1, 1).view(BATCH, 3, LENGTH, WIDTH),  # mixes
        torch.stack([x[i] * 2 for i in range(BATCH)]),
        torch.cat([part * 2 for part in x.split(3)]),
        torch.cat([x[:2], x[2:]]),
        torch.cat([x, x]).view(2, BATCH, LENGTH, WIDTH)[1],
        torch.cat([x, -x]).chunk(2)[0] + x,
        x.repeat_interleave(3, 0).view(BATCH, 3, LENGTH, WIDTH).sum(1),
        x.permute(1, 0, 2).reshape(BATCH * LENGTH, WIDTH).view(LENGTH, BATCH, WIDTH).transpose(0, 1),
        x.view(BATCH, LENGTH, 2, 4).transpose(1, 2).reshape(BATCH * 2, LENGTH, 4).softmax(-1).view(BATCH, 2, LENGTH, 4).flatten(1),
        x.unsqueeze(1).expand(-1, 3, -1, -1).reshape(BATCH * 3, LENGTH, WIDTH).view(BATCH, -1),
    ]


def indices(x: Tensor) -> list[Tensor]:
    return [
        x[:, 0].argmax(0)[None] + x.argmax(1),  # mixes
        x.gather(0, x.argmax(0, keepdim=True)),  # mixes
        torch.zeros(BATCH, WIDTH).index_add(0, x[:, 0, 0].argsort(), x[:, 0]),  # mixes
        x.masked_select(x > 0).sum(),  # mixes
        x.view(BATCH * LENGTH, WIDTH)[x[..., 0].argmax(1) + torch.arange(BATCH)],  # mixes
        # The last token of each sample.
        x[torch.arange(BATCH), (x[..., 0] > 0).sum(1) - 1],
        # The same, and several of them, by positions in the merged dim.
        x.view(BATCH * LENGTH, WIDTH)[torch.arange(BATCH) * LENGTH + (x[..., 0] > 0).sum(1).clamp(max=LENGTH - 1)],
        x.flatten(0, 1)[(x[..., 0].topk(3).indices + torch.arange(BATCH)[:, None] * LENGTH).view(-1)].view(BATCH, 3, WIDTH),
        x.gather(1, x.argmax(1, keepdim=True)),
        torch.ones(WIDTH, 3)[x.argmax(-1)],
        functional.one_hot(x.argmax(-1), WIDTH),
        torch.zeros(BATCH, LENGTH).index_put((torch.arange(BATCH), x[:, :, 0].argmax(1)), x[:, 0, 0]),
        torch.zeros(BATCH, LENGTH, WIDTH).scatter(1, x.argmax(1, keepdim=True), x[:, :1]),
        x.masked_fill(x.argmax(-1, keepdim=True) > 3, 0.0),
        x[:, torch.tensor([2, 0, 1])],
        x.index_select(1, torch.tensor([2, 0, 1])),
        x.view(BATCH * LENGTH, WIDTH)[torch.arange(BATCH * LENGTH)].view(BATCH, LENGTH, WIDTH),
    ]


GROUPS = (reductions, norms, along_the_batch, products, movements, indices)
