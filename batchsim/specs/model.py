"""The model of a plan, as far as the memory of its rollout needs it."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from batchsim.specs.quantity import Bytes, BytesPerToken


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Model:
    """A model as it is served.

    Parameters
    ----------
    name : str
        Of the catalogue, or the path of a config.json.
    precision : {'bf16', 'fp8', 'nvfp4', 'mxfp4'} or None
        Weights as they are served; the checkpoint's if not given.
    weight_bytes : float or None [B]
        One copy of the weights, as served.
    kv_bytes_per_token : float or None [B/token]
    """

    name: str = ""
    precision: Literal["bf16", "fp8", "nvfp4", "mxfp4"] | None = None
    weight_bytes: Bytes | None = None
    kv_bytes_per_token: BytesPerToken | None = None
