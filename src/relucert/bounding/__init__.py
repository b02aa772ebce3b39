"""Bounds on what a network can do over a ball: intervals, linear relaxations, and what they say of every unit."""
