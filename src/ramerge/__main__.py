"""`python -m ramerge`."""

from ramerge.start import main

if __name__ == "__main__":
    main()
