"""One file a bounding method, from the cheapest to the dearest: ibp, kw, crown, alpha, lipschitz, sdp, moments."""
