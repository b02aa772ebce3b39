"""A data set and methods in, records out.

Reading order: `config` (what is evaluated), `executors` (where it runs), `stream` (the loop: answers become records as they are
made), `certify`, `radius`, `attack` and `evaluate` (one task each, whose `records` are an iterator), `union` (several balls).
"""
