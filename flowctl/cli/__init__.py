"""The command line: ``flowctl run · demo · checkpoint · doctor``."""
