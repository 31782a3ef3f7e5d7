"""HTML pages that need no network. Analyses, searches and runs have a page each: a template that extends `frame.html`.

page         a page as one file: a template, its data and its scripts, for analyses, searches and soups; a table
figures      a chart as Vega-Lite, SVG or PNG, in the colors and sizes of pages and papers
extra        whether the libraries of the extra `report` are there, for all that write pages

Names of agents and tensors come from strangers: they reach a page as JSON data or through Jinja2's escaping, never as
markup or code.
"""
