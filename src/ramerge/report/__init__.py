"""HTML pages that need no network. Analyses, searches and runs have a page each: a template that extends `frame.html`.

page         a template, its data and the libraries that show them, in one file; tables
figures      the form of charts, on pages and on paper
styles       CSS for all pages
extra        which libraries they need

Names of agents and tensors come from strangers: they reach a page as JSON data or through Jinja2's escaping, never as
markup or code.
"""
