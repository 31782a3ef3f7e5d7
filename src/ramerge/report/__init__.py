"""HTML pages that need no network. Analyses, searches and runs each have a page: a template that extends `frame.html`.

page         makes a page as one file, from a template, data and scripts, for analyses, searches and soups; a table
figures      a chart as Vega-Lite, SVG or PNG, in the colors and sizes of pages and papers
extra        checks that the libraries of the extra `report` are installed, for all that write pages

Names of agents and tensors are untrusted: they reach a page as JSON data or through Jinja2's escaping, never as markup
or code.
"""
