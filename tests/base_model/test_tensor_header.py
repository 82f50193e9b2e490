"""A header is, to the byte, the one that the safetensors library writes."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save

from holdfast.base_model.tensor_header import pack_header


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_a_header_is_that_of_the_library(metadata: dict[str, str] | None) -> None:
    tensors = {"wide": np.zeros((2, 3), np.float64), "größer": np.ones(5, np.float32), "none": np.zeros((0, 4), np.uint8)}
    kinds = {"wide": "F64", "größer": "F32", "none": "U8"}
    header, places = pack_header(((name, kinds[name], one.shape, one.nbytes) for name, one in tensors.items()), metadata)
    assert header + b"".join(one.tobytes() for one in tensors.values()) == save(tensors, metadata)
    assert places == {"wide": 0, "größer": 48, "none": 68} and len(header) % 8 == 0
