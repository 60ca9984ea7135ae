"""The hub of a topology: stages, trees and routes behind the driver contract.

Pure as :mod:`flowctl.core` is: no clock, chance, threads, logs or I/O.  News for others are
returned as values; ``lint-imports`` checks that nothing here can do otherwise.
"""
