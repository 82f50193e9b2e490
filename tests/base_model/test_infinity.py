"""Infinity in a config.json, bare as transformers 4 wrote it and as the object that 5 writes: read, planned, and written again alike."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers

from holdfast.base.errors import Stop
from holdfast.base_model.folder import read_model
from holdfast.base_model.forms import with_floats, write_config
from holdfast.trainer.jobs.account import _shapes
from holdfast.trainer.traced.stand_in import _UnfilledModel

INFINITY = float("inf")


@pytest.fixture(params=["bare", "tagged"])
def mamba2(assets: SimpleNamespace, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A small Mamba 2, whose steps have no upper limit: bare in the files of Codestral Mamba and Nemotron 3 Nano."""
    folder = tmp_path / "mamba2"
    shutil.copytree(assets.model, folder)
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    sizes = {"hidden_size": 32, "num_heads": 4, "head_dim": 16, "state_size": 16, "num_hidden_layers": 2, "n_groups": 1, "chunk_size": 16}
    ends = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
    transformers.AutoModelForCausalLM.from_config(transformers.Mamba2Config(vocab_size=size, **sizes, **ends)).save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text())
    limit = INFINITY if request.param == "bare" else {"__float__": "Infinity"}
    (folder / "config.json").write_text(json.dumps(written | {"time_step_limit": [0.0, limit]}))
    return folder


def test_a_model_with_infinity_in_its_config_is_built(mamba2: Path) -> None:
    """Of shapes alone, as a plan does it: first its weights' shapes, then the model whose step is traced."""
    facts = read_model(str(mamba2))
    assert with_floats(facts.config)["time_step_limit"] == [0.0, INFINITY]
    assert _shapes(facts)["shapes"]["backbone.layers.0.mixer.A_log"] == [4]
    made, _ = _UnfilledModel(facts.config, transformers.AutoModelForCausalLM, None)(mamba2, torch.float32, "eager")
    assert list(made.config.time_step_limit) == [0.0, INFINITY]


def test_what_is_written_has_it_as_the_model_had(mamba2: Path) -> None:
    """Transformers 4 reads it bare alone, programs that are not Python as an object alone."""
    written = mamba2.with_name("written.json")
    write_config(written, read_model(str(mamba2)).config, mamba2 / "config.json")
    assert json.loads(written.read_text()) == json.loads((mamba2 / "config.json").read_text())


def test_a_number_of_too_many_digits_is_no_config(assets: SimpleNamespace, tmp_path: Path) -> None:
    shutil.copytree(assets.model, tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"vocab_size": ' + "9" * 5000 + ', "limit": Infinity}')
    with pytest.raises(Stop, match="not a JSON object"):
        read_model(str(tmp_path / "model"))
