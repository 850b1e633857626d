"""Declarations of commands: their arguments, options and help.

These modules import nothing that takes long to load, so that `--help` and completion answer immediately.
A command imports its implementation when it is called.
"""
