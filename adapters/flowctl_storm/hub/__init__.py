"""The hub of a topology: stages, trees and routes behind the driver contract.

Pure, as :mod:`flowctl.core` is: no clock, randomness, threads, logs or I/O. News are returned as
values; ``lint-imports`` enforces the purity.
"""
