"""`python -m reverie`."""

from reverie.cli.app import main

main()
