"""`python -m ramerge`."""

from ramerge.cli.start import main

if __name__ == "__main__":
    main()
