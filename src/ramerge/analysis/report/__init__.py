"""The page of an analysis: one self-contained HTML file.

write        the page as text and the figures as files; called by `command_output`
page         fills the page's template, for `write`; its findings alone, for `ui/look`
charts       each figure as an Altair chart, for `page`, for the figure files of `write`, and for `ui/look`
rows         rows of numbers from `Analysis.to_dict()` for `charts` and for tables of `page`; labels of thresholds
"""
