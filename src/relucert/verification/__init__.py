"""One file a verifier, and the questions they answer: radius."""
