"""Networks on tables: layers after each other, residual blocks, an ensemble that shares its layers. No norm looks at other rows."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.base.files import Json
from holdfast.base.versions import __version__
from holdfast.config.config import Config
from holdfast.config.table import Network, columns_of, embedding_width, network_of
from holdfast.tables.table.form import Form
from holdfast.trainer.model.layers.dropout import StatelessDropout, StepContext

_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}


class Embeddings(nn.Module):
    """Codes [rows, categories] become numbers, beside the numbers of a row: [rows, numbers and embeddings].

    Code 0, a name that no training row has, begins as the mean of what the others are drawn from: a draw of its own, which no step ever
    changes where training rows lack no name, would say something of it.
    """

    def __init__(self, names: tuple[int, ...], asked: int | None) -> None:
        super().__init__()
        tables = [nn.Embedding(count + 1, embedding_width(count, asked)) for count in names]
        with torch.no_grad():
            for table in tables:
                table.weight[0] = 0.0
        self.tables, self.width = nn.ModuleList(tables), sum(table.embedding_dim for table in tables)

    def forward(self, inputs: Tensor, codes: Tensor) -> Tensor:
        return torch.cat([inputs, *(table(codes[:, at]) for at, table in enumerate(self.tables))], dim=1)


class Residual(nn.Module):
    """x + dropout(W' activation(W norm(x))): a block of Gorishniy et al., Revisiting deep learning models for tabular data, 2021."""

    def __init__(self, width: int, activation: str, dropout: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.activation, self.dropout = _ACTIVATIONS[activation](), dropout

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.second(self.dropout(self.activation(self.first(self.norm(x)))))
        return out


class SharedLinear(nn.Module):
    """A linear layer that members share but for factors of inputs and outputs, and a bias (Gorishniy et al., TabM, 2024).

    [rows, members, before] to [rows, members, after].
    """

    def __init__(self, members: int, before: int, after: int, first: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(after, before))
        bound = 1 / math.sqrt(before)
        nn.init.uniform_(self.weight, -bound, bound)
        signs = torch.randint(0, 2, (members, before)).float() * 2 - 1 if first else torch.ones(members, before)
        self.of_inputs, self.of_outputs = nn.Parameter(signs), nn.Parameter(torch.ones(members, after))
        self.bias = nn.Parameter(torch.empty(members, after).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return ((x * self.of_inputs) @ self.weight.T) * self.of_outputs + self.bias


class Heads(nn.Module):
    """A linear layer for each member: [rows, members, before] to [rows, members, after]."""

    def __init__(self, members: int, before: int, after: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(before)
        self.weight = nn.Parameter(torch.empty(members, before, after).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(members, after))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("rmb,mba->rma", x, self.weight) + self.bias


class TableNetwork(nn.Module):
    """Inputs [rows, numbers] and codes [rows, categories] to outputs [rows, outputs], or [rows, members, outputs] of an ensemble."""

    kind: Literal["feedforward", "residual", "tabm"]

    def __init__(self, network: Network, inputs: int, names: tuple[int, ...], outputs: int, context: StepContext) -> None:
        super().__init__()
        self.kind = network.kind
        self.members = network.members if network.kind == "tabm" else 1
        self.embeddings = Embeddings(names, network.embedding)
        width, layers = inputs + self.embeddings.width, list[nn.Module]()

        def dropout() -> nn.Module:
            return StatelessDropout(network.dropout, f"dropout.{len(context.names)}", context)

        if network.kind == "residual":
            for number, size in enumerate(network.hidden):
                if number == 0 or size != width:
                    layers.append(nn.Linear(width, size))
                layers.append(Residual(size, network.activation, dropout()))
                width = size
            layers += [nn.LayerNorm(network.hidden[-1]), _ACTIVATIONS[network.activation]()]
        else:
            for number, size in enumerate(network.hidden):
                layer = SharedLinear(self.members, width, size, number == 0) if network.kind == "tabm" else nn.Linear(width, size)
                layers += [layer, _ACTIVATIONS[network.activation](), dropout()]
                width = size
        self.body = nn.Sequential(*layers)
        last = network.hidden[-1]
        self.head = Heads(self.members, last, outputs) if network.kind == "tabm" else nn.Linear(last, outputs)

    def forward(self, inputs: Tensor, codes: Tensor) -> Tensor:
        x = self.embeddings(inputs, codes)
        if self.kind == "tabm":
            x = x.unsqueeze(1).expand(-1, self.members, -1)
        out: Tensor = self.head(self.body(x))
        return out


def new_network(config: Config, form: Form, outputs: int, context: StepContext) -> TableNetwork:
    """Build the network as before its first step; its weights follow from the seed, on any device."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.train.seed)
        return TableNetwork(network_of(config), form.width, tuple(len(one.values) for one in form.categories), outputs, context)


def about(config: Config, form: Form) -> Json:
    """Return the metadata with which the weights can be used without the run: columns, scaling, network, versions."""
    return {
        "task": "tabular",
        "form": form.model_dump(mode="json"),
        "network": network_of(config).model_dump(mode="json"),
        "table": columns_of(config).model_dump(mode="json"),
        "versions": {"holdfast": __version__, "torch": torch.__version__, "numpy": np.__version__},
    }
