"""Files that hold what was found: atomic writing, one record a line, the store, arrays beside it. No torch here.

Reading order: `record` (one example, one method), `store` (a file of records), `sidecar` (their arrays), `atomic`.
"""
