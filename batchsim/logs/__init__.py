"""Training logs in, one Dataset per run out.

    read_logs(paths) -> xarray.DataTree
    save_runs(tree, "runs.nc"), load_runs("runs.nc")

One module per framework (`mlperf`, `verl`, `trl`, `tables`) finds what the log states; `record`
derives from it, the same way for all; `recipe` settles the batch; `timeline` decides what is steady
and how time adds up; `source` opens files. Nothing here models anything.
"""

from batchsim.logs.read import read_logs
from batchsim.logs.store import load_runs, save_runs

__all__ = ["load_runs", "read_logs", "save_runs"]
