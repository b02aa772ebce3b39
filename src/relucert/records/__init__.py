"""Results on disk: records as lines of JSON, the store, the arrays beside it, atomic writing. No torch here.

Reading order: `record` (one example, one method), `store` (a file of records), `sidecar` (their arrays), `atomic`, `untrusted`
(what files say of themselves is checked before it is used).
"""
