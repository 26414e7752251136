"""Runs to a file and back, identical: NetCDF (`.nc`) or JSON (`.json`).

    save_runs(read_logs("runs/"), "runs.nc")
    tree = load_runs("runs.nc")

- NetCDF holds a group per run (extra `netcdf`). Its attributes are numbers and text only, so what is
  nested (`provenance`, `warnings`, `unused`) is stored as JSON text and named in `json_attributes`.
  Groups and variables are sorted in the file; their order and types are kept beside them.
- JSON is ``{"schema", "kind", "attributes", "runs": {name: {"attributes", "variables"}}}``, a variable
  ``{"dims", "shape", "type", "values", "coordinate"}``, with null for NaN.

Symbols and units are not stored in JSON: both ways back set them from `batchsim.variables`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from batchsim.errors import InputError
from batchsim.variables import VARIABLES, set_attrs

if TYPE_CHECKING:
    import xarray as xr

SCHEMA = 1
KIND = "batchsim runs"
_NESTED = "json_attributes"
_RUN = "run"
# Text that HDF5 cannot hold as it is: NULs, halves of surrogate pairs.
_ESCAPED = "text as JSON"
_ENDINGS = ".nc or .json"


def save_runs(tree: xr.DataTree, path: str | Path) -> None:
    """Write runs to a file.

    Parameters
    ----------
    tree : xarray.DataTree
        As `read_logs` returns it.
    path : str or pathlib.Path
        Ends in ``.nc`` or ``.json``.

    Raises
    ------
    InputError
        For another ending, a file that cannot be written, and NetCDF where h5netcdf is not installed.
    """
    write = {".nc": _save_netcdf, ".json": _save_json}.get(Path(path).suffix)
    if write is None:
        raise InputError(
            "runs are written as NetCDF or JSON", remedy=f"let the name end in {_ENDINGS}", where=str(path)
        )
    try:
        write(tree, Path(path))
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cannot be written ({reason})", remedy="check the folder", where=str(path)) from error


def load_runs(path: str | Path) -> xr.DataTree:
    """Read runs that `save_runs` wrote.

    Parameters
    ----------
    path : str or pathlib.Path
        Ends in ``.nc`` or ``.json``.

    Raises
    ------
    InputError
        For another ending, a file that cannot be read or that `save_runs` did not write, and NetCDF
        where h5netcdf is not installed.
    """
    read = {".nc": _load_netcdf, ".json": _load_json}.get(Path(path).suffix)
    if read is None:
        raise InputError("runs are read from NetCDF or JSON", remedy=f"let the name end in {_ENDINGS}", where=str(path))
    try:
        return read(Path(path))
    except FileNotFoundError as error:
        raise InputError("no such file", remedy="check the path", where=str(path)) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        reason = f"{type(error).__name__}: {error}"
        raise InputError(
            f"not runs that save_runs wrote ({reason})", remedy="save them again", where=str(path)
        ) from error


# -- JSON ---------------------------------------------------------------------------------------------


def _save_json(tree: xr.DataTree, path: Path) -> None:
    document = {
        "schema": SCHEMA,
        "kind": KIND,
        "attributes": dict(tree.attrs),
        "runs": {name: _run_to_json(node.to_dataset()) for name, node in tree.children.items()},
    }
    path.write_text(json.dumps(document, allow_nan=False, default=_plain) + "\n")


def _run_to_json(ds: xr.Dataset) -> dict[str, object]:
    variables = {
        str(name): {
            "dims": list(variable.dims),
            "shape": list(variable.shape),
            "type": _type(variable),
            "values": _listed(variable.values.tolist()),
            "coordinate": name in ds.coords,
        }
        for name, variable in ds.variables.items()
    }
    return {"attributes": dict(ds.attrs), "variables": variables}


def _listed(value: Any) -> Any:
    """Nested lists with null for NaN, and a word for infinity, which JSON lacks too."""
    if isinstance(value, list):
        return [_listed(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def _load_json(path: Path) -> xr.DataTree:
    document = json.loads(path.read_text())
    if document["kind"] != KIND or document["schema"] != SCHEMA:
        raise ValueError(f"kind {document['kind']!r}, schema {document['schema']!r}")
    runs = {name: _run_from_json(entry) for name, entry in document["runs"].items()}
    return _tree(runs, document["attributes"])


def _run_from_json(entry: Mapping[str, Any]) -> xr.Dataset:
    import xarray as xr

    variables: dict[str, Any] = {}
    coordinates: dict[str, Any] = {}
    for name, stored in entry["variables"].items():
        kind = _dtype(stored["type"])
        values = np.array(stored["values"], dtype=kind).reshape(stored["shape"])
        (coordinates if stored["coordinate"] else variables)[name] = (stored["dims"], values)
    ds = xr.Dataset(variables, coords=coordinates)
    ds.attrs = dict(entry["attributes"])
    return ds


# -- NetCDF -------------------------------------------------------------------------------------------


def _h5netcdf(path: Path) -> None:
    try:
        import h5netcdf  # noqa: F401
        import h5py  # noqa: F401
    except ImportError as error:
        raise InputError(
            "NetCDF needs h5netcdf and h5py",
            remedy="install them (in the clone: pip install '.[netcdf]'), or let the name end in .json",
            where=str(path),
        ) from error


def _save_netcdf(tree: xr.DataTree, path: Path) -> None:
    import xarray as xr

    _h5netcdf(path)
    runs = {}
    for place, (name, node) in enumerate(tree.children.items()):
        ds = node.to_dataset().copy()
        types = {str(variable): _type(values) for variable, values in ds.variables.items()}
        for variable in [variable for variable, kind in types.items() if kind == "text"]:
            if not all(map(str.isprintable, ds[variable].values.flat)):
                types[variable] = _ESCAPED
                ds[variable] = (ds[variable].dims, _mapped(json.dumps, ds[variable].values))
        ds.attrs = _flat({**ds.attrs, _RUN: {"name": name, "types": types}})
        # A run's name may hold what a group's may not.
        runs[f"run{place:06d}"] = ds
    stored = xr.DataTree.from_dict(runs)
    stored.attrs = _flat({**tree.attrs, "schema": SCHEMA, "kind": KIND})
    stored.to_netcdf(path, engine="h5netcdf")


def _load_netcdf(path: Path) -> xr.DataTree:
    import xarray as xr

    _h5netcdf(path)
    path.open("rb").close()
    with xr.open_datatree(path, engine="h5netcdf") as stored:
        attributes = _nested(stored.attrs)
        if attributes.pop("kind", None) != KIND or attributes.pop("schema", None) != SCHEMA:
            raise ValueError("its kind or schema is another")
        runs = {}
        for _, node in sorted(stored.children.items()):
            ds = node.to_dataset().load()
            ds.attrs = _nested(ds.attrs)
            run = ds.attrs.pop(_RUN)
            runs[run["name"]] = _as_before(ds, run["types"])
    return _tree(runs, attributes)


def _as_before(ds: xr.Dataset, types: Mapping[str, str]) -> xr.Dataset:
    """The Dataset as it was before NetCDF sorted its variables and made objects of its text."""
    import xarray as xr

    parts: dict[bool, dict[str, Any]] = {True: {}, False: {}}
    for name, kind in types.items():
        variable = ds.variables[name]
        values = _mapped(json.loads, variable.values) if kind == _ESCAPED else variable.values
        parts[name in ds.coords][name] = (variable.dims, values.astype(_dtype(kind)))
    ordered = xr.Dataset(parts[False], coords=parts[True])
    ordered.attrs = ds.attrs
    return ordered


def _flat(attributes: Mapping[Any, object]) -> dict[str, object]:
    """Attributes that NetCDF can hold."""
    flat: dict[str, object] = {}
    nested: list[str] = []
    for name, value in attributes.items():
        if _storable(value):
            flat[name] = value
        else:
            flat[name] = json.dumps(value, allow_nan=False, default=_plain)
            nested.append(name)
    return {**flat, _NESTED: json.dumps(nested)}


def _storable(value: object) -> bool:
    if isinstance(value, str):
        # HDF5 ends text at a NUL, stores it as UTF-8 and has no empty text.
        return value.isprintable() and bool(value)
    if isinstance(value, bool):
        return False
    return (isinstance(value, int) and abs(value) < 2**63) or (isinstance(value, float) and math.isfinite(value))


def _nested(attributes: Mapping[Any, Any]) -> dict[str, Any]:
    names = json.loads(attributes[_NESTED])
    plain = {str(name): _plain(value) for name, value in attributes.items() if name != _NESTED}
    return {name: json.loads(value) if name in names else value for name, value in plain.items()}


# -- both ---------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def _type(variable: xr.Variable) -> str:
    return "text" if variable.dtype.kind == "U" else str(variable.dtype)


def _dtype(kind: str) -> np.dtype[Any]:
    return np.dtype(np.str_ if kind in ("text", _ESCAPED) else kind)


def _mapped(function: Callable[[str], str], values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    mapped = np.array([function(text) for text in values.flat], dtype=np.str_)
    return mapped.reshape(values.shape)


def _tree(runs: Mapping[str, xr.Dataset], attributes: Mapping[str, Any]) -> xr.DataTree:
    import xarray as xr

    for ds in runs.values():
        unknown = [str(name) for name in ds.variables if name not in VARIABLES]
        if unknown:
            raise ValueError(f"'{unknown[0]}' is not a quantity of batchsim")
        set_attrs(ds)
    tree = xr.DataTree.from_dict(dict(runs))
    tree.attrs = dict(attributes)
    return tree
