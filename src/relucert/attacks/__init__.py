"""Attacks: points that change the decision, inside a given ball or as near as possible; one file a method."""
