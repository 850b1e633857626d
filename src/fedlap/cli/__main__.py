"""`python -m fedlap.cli`."""

from fedlap.cli import main

main()
