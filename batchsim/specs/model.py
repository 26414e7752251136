"""The model of a plan, as far as the memory of its rollout needs it."""

from __future__ import annotations

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from batchsim.specs.quantity import Bytes, BytesPerToken


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Model:
    """A model as it is served.

    Parameters
    ----------
    name : str
    weight_bytes : float or None [B]
        One copy of the weights, as served.
    kv_bytes_per_token : float or None [B/token]
    """

    name: str = ""
    weight_bytes: Bytes | None = None
    kv_bytes_per_token: BytesPerToken | None = None
