"""The end of the input: small shares, then taking back what was not begun, then copies."""
