"""The parts of a config that are about tables: what its columns are, how rows are parted, and the network. Reads no file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from holdfast.config.section import Section

Loss = Literal["auto", "mse", "huber", "quantile", "cross-entropy"]


def _one_is_a_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _widths(value: Any) -> Any:
    """Parse whole numbers of a list, or of a text as 32,16. Raises ValueError for a text that holds something else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return [value]
    if not isinstance(value, str):
        return value
    parts = [part.strip() for part in value.strip().strip("[]").split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise ValueError("widths of layers are whole numbers: [32, 16], or 32,16")
    return [int(part) for part in parts]


Names = Annotated[list[str], BeforeValidator(_one_is_a_list)]
Width = Annotated[int, Field(ge=1, le=65_536)]


class Table(Section):
    """What the columns of a table are, and how its rows are parted."""

    target: str = Field(description="the column that is learned")
    kind: Literal["auto", "regression", "classification"] = Field(
        "auto", description="auto: classes where the target holds texts, or where a horizon is not given and the loss is cross-entropy"
    )
    horizon: int | None = Field(
        None,
        ge=1,
        le=1_000_000_000,
        description="learn what the column does within so many rows: ln(value then / value now), or whether it rises",
    )
    features: Names = Field(default_factory=list, description="columns to learn from; all others when not given")
    ignore: Names = Field(default_factory=list, description="columns that are left out")
    categories: Names = Field(default_factory=list, description="columns whose values are names, though they may be numbers")
    time: str | None = Field(None, description="column with the time of a row; no feature")
    group: str | None = Field(None, description="column whose rows of one value stay on one side; no feature")
    split: Literal["auto", "row", "group", "time"] = Field(
        "auto",
        description="by row, by group, or the newest rows; auto: by time or group where such a column is named",
    )
    purge: int | None = Field(
        None,
        ge=0,
        le=1_000_000_000,
        description="with split time: rows left out between training and held-out part; the horizon when not given",
    )
    embargo: int = Field(0, ge=0, le=1_000_000_000, description="with split time: first rows of the held-out part that are left out, too")
    missing: Literal["indicator", "mean", "reject"] = Field(
        "indicator",
        description="a missing number becomes the mean, with a column that says so or without; or the row is rejected",
    )
    scaling: Literal["standard", "none"] = Field("standard", description="standard: to mean 0 and deviation 1 of the training part")
    loss: Loss = Field("auto", description="auto: mse for numbers, cross-entropy for classes")
    huber_delta: float = Field(
        1.0, gt=0, le=1_000_000_000, description="where huber turns from square to straight, in deviations of the target"
    )
    quantiles: Annotated[list[Annotated[float, Field(gt=0, lt=1)]], Field(min_length=1)] = Field(
        default_factory=lambda: [0.1, 0.5, 0.9], description="with loss quantile"
    )
    class_weights: Literal["none", "balanced"] | dict[str, Annotated[float, Field(gt=0, le=1_000_000_000)]] = Field(
        "none", description="balanced: each class counts alike; or a weight by class, 1 for those not named"
    )
    data_fraction: float = Field(1.0, gt=0, le=1, description="share of the training rows that is used, drawn by seed")
    max_categories: int = Field(1000, ge=2, le=1_000_000, description="most values a column of names may have in the training part")
    folds: int | None = Field(None, ge=2, le=100, description="with split time: number of held-out stretches of a walk-forward")
    fold: int | None = Field(None, ge=1, le=100, description="which of the folds this run holds out; rows after it are not used")
    cost: float = Field(0.0, ge=0, le=1, description="with a horizon: cost of a trade there and back, as a share of the price")

    @model_validator(mode="after")
    def _fits_together(self) -> Table:
        if self.split == "time" and self.time is None:
            raise ValueError("split: time needs the name of the column with the time (time)")
        if self.split == "group" and self.group is None:
            raise ValueError("split: group needs the name of the column with the group (group)")
        if self.horizon is not None and self.time is None:
            raise ValueError("a horizon needs the name of the column with the time (time)")
        if (self.folds is None) != (self.fold is None) or (self.folds and self.fold and self.fold > self.folds):
            raise ValueError("folds and fold belong together: the number of held-out stretches, and which of them this run holds out")
        if self.folds and self.parted_by != "time":
            raise ValueError("folds are stretches of time: they need split: time and the name of the column with the time (time)")
        if self.kind == "regression" and self.loss == "cross-entropy":
            raise ValueError("loss cross-entropy is for classes, kind is regression")
        if self.kind == "classification" and self.loss not in ("auto", "cross-entropy"):
            raise ValueError(f"loss {self.loss} is for numbers, kind is classification")
        if len(set(self.quantiles)) != len(self.quantiles):
            raise ValueError("quantiles: each once")
        used = [name for name in (self.target, self.time, self.group) if name]
        if both := sorted({*used} & {*self.features, *self.ignore, *self.categories} - ({self.target} if self.horizon else set())):
            raise ValueError(f"{', '.join(both)}: named as target, time or group, and again as a feature")
        return self

    @property
    def parted_by(self) -> Literal["row", "group", "time"]:
        """How the rows are parted, auto resolved."""
        if self.split != "auto":
            return self.split
        return "time" if self.time else "group" if self.group else "row"


class Network(Section):
    """The network of a task on tables."""

    kind: Literal["feedforward", "residual", "tabm"] = Field(
        "tabm", description="layers after each other; with skip connections and norms; or an ensemble that shares its layers (TabM)"
    )
    hidden: Annotated[list[Width], Field(min_length=1, max_length=64), BeforeValidator(_widths)] = Field(
        default_factory=lambda: [128, 128], description="width of each hidden layer: [32, 16], or the text 32,16"
    )
    dropout: float = Field(0.1, ge=0.0, lt=1.0, description="share of each hidden layer's outputs that is dropped in training")
    activation: Literal["relu", "gelu", "silu"] = Field("relu", description="between layers")
    embedding: int | None = Field(None, ge=1, le=4096, description="numbers a category becomes; by its number of values when not given")
    members: int = Field(16, ge=1, le=256, description="members of a tabm ensemble")
    exports: tuple[Literal["program", "onnx"], ...] = Field(
        ("program", "onnx"), description="made of the finished network and compared: a torch.export program, ONNX"
    )


SECTIONS: dict[str, Any] = {
    "table": (Table | None, Field(None, description="with task tabular: what the columns are")),
    "network": (Network, Network()),
}
EPOCHS = 10  # of a run that neither names its length nor has hours or tokens to fill
_DEFAULTS = {"lr": 1e-3, "effective_batch": 256}  # of `train`, where a config says nothing


def rules(tree: dict[str, Any]) -> dict[str, Any]:
    """Check what a config says of tables, and add the defaults of its kind. Raises ValueError."""
    if isinstance(data := tree.get("data"), dict) and data.get("row_weight"):
        raise ValueError("data.row_weight: for language models; rows of a table all count alike")
    if tree.get("table") is None:
        raise ValueError("table: missing; task: tabular needs to know the column to learn, as in table: {target: price}")
    train = tree.get("train") or {}
    if not isinstance(train, dict):
        return tree
    until = train.get("until")
    as_long_as = isinstance(until, dict) and (until.get("hours") or until.get("tokens"))
    length = {} if train.get("steps") or train.get("epochs") or as_long_as else {"epochs": EPOCHS}
    return tree | {"model": "", "train": _DEFAULTS | train | length}


def columns_of(config: Section) -> Table:
    """Return what the columns of a config's table are; its task is tabular."""
    found = getattr(config, "table", None)
    assert isinstance(found, Table)
    return found


def network_of(config: Section) -> Network:
    """Return the network of a config whose task is tabular."""
    found = getattr(config, "network", None)
    assert isinstance(found, Network)
    return found


def embedding_width(values: int, asked: int | None) -> int:
    """Return the embedding width of so many values: the one asked for, or half as many as values, 50 at most (fast.ai's first rule)."""
    return asked or min(50, (values + 2) // 2)
