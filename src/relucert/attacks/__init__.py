"""Attacks: adversarial points inside a given ball (`attack`) or as near as possible (`minimal_attack`); one file a method.

Reading order: `problem` (the two functions), `base` (the interface), `ascent` (losses and projection), `pgd`, `apgd`;
then the minimal attacks `cw`, `ddn`, `fab`, `region` (with `local_program`) and `best`, which combines them.
"""
