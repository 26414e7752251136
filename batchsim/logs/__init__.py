"""Training logs in, one Dataset per run out.

    read_logs(paths) -> xarray.DataTree

One module per framework (`mlperf`, `verl`, `trl`, `tables`) finds what the log states; `record`
derives from it, the same way for all; `recipe` settles the batch; `timeline` decides what is steady
and how time adds up; `source` opens files. Nothing here models anything.
"""

from batchsim.logs.read import read_logs

__all__ = ["read_logs"]
