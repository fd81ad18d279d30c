"""LSTM as its steps: linear layers and pointwise functions, as torch decomposes GRU and RNN.

torch hands the layers of an LSTM on CPU to oneDNN, which picks a kernel by the number of rows. Numerics: the gates of all steps' inputs are
one linear, each step one more; both round as themselves (docs/numerics.md section 3).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._decomp.decompositions import _rnn_helper, gather_params, one_layer_lstm


def lstm(
    x: torch.Tensor,
    states: Sequence[torch.Tensor],
    parameters: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """aten.lstm.input of ``x`` [length, batch, in] (batch first if so told); the length is a number of the graph.

    ``states`` are hidden [layers * directions, batch, out] and cell [layers * directions, batch, hidden].
    """
    hidden, cell = states
    has_projections = hidden.shape[2] != cell.shape[2]
    layers = gather_params(parameters, has_biases, has_projections)
    pairs = list(zip(hidden.unbind(0), cell.unbind(0), strict=True))
    out, last = _rnn_helper(x, pairs, layers, has_biases, num_layers, dropout, train, bidirectional, batch_first, one_layer_lstm)
    hiddens, cells = zip(*last, strict=True)
    return out, torch.stack(hiddens, 0), torch.stack(cells, 0)
