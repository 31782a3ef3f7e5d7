"""The documentation: pages, and the code that makes parts of them."""
