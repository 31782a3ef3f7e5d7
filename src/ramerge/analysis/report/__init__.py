"""The page of an analysis: one HTML file that asks for nothing from anywhere.

write        the page as text and the figures as files; called by `command_output`
page         the page's template and what fills it; the findings as a part of the page of `ramerge ui`
charts       each figure as an Altair chart: on the page, on paper, and in the tab Look of `ramerge ui`
rows         rows of numbers from `Analysis.to_dict()` for `charts` and for tables of `page`; labels of thresholds
"""
