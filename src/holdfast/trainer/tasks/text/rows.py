"""The tokenised rows of a run as the loop asks for them: which of them each step sees, how long they are, where they stand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.config.config import Config
from holdfast.data.token_set.token_set import TokenSet, split, step_table
from holdfast.run.sampling.shuffle import Rows
from holdfast.run.sampling.step_table import StepTable


@dataclass(frozen=True)
class TextRows:
    """A token set, parted into what is trained on and what is held out."""

    tokens: TokenSet
    table: StepTable
    held_out: Rows

    @property
    def sizes(self) -> Rows:
        """Tokens of each row."""
        return np.diff(self.tokens.starts)

    def source(self, number: int) -> str:
        """Return the file and line of a row."""
        return str(self.tokens.source(number))


def parted(tokens: TokenSet, config: Config) -> TextRows:
    """Split the rows into training and held-out ones, and order them, as the config asks."""
    training, held_out = split(tokens, config.data, config.train.seed)
    return TextRows(tokens, step_table(tokens, training, config.data, config.train), held_out)
